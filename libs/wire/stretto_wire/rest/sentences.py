"""Each decision in one sentence, in the words that the console, the command and the client all show.

A sentence has figures of three digits, prices in the currency of the job's prices, and no term of the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from stretto_messages.base import GIB, counted, three_digits
from stretto_messages.values import ON_CORES, DeviceSpeed, Plan

from .views import Decision

_ORDINALS = ("", "", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
_BEFORE: dict[str, str] = {
    "fit-capacity": "the cluster has too little room: ",
    "rebalance": "other jobs need the room: ",
    "requested": "asked for by hand: ",
}


def sentence(decision: Decision) -> str:
    """Return why a job has this size: what the change should bring, for how much, and what it brought."""
    told = _first(decision) if decision.previous is None else _change(decision, decision.previous)
    return f"{told[0].upper()}{told[1:]}."


def _first(decision: Decision) -> str:
    reason = "the job file asks for this size"
    if decision.kind == "fit-capacity":
        reason = "the cluster has no room for more"
    elif decision.kind == "warm-start":
        like = decision.warm_start is not None and decision.warm_start.matches
        small = "no similar job was completed here, so it starts small"
        reason = "similar jobs ran well at about this size" if like else small
    brought = decision.outcome.throughput
    trains = "" if brought is None else f"; it trained {three_digits(brought)} samples a second"
    known = "".join(map(_known, decision.warm_start.speeds)) if decision.warm_start else ""
    return f"{reason}: {_count(decision.plan)} for {three_digits(decision.cost_per_hour)} an hour{trains}{known}"


def _known(speed: DeviceSpeed) -> str:
    """Return who measured the speed of a type of devices beforehand, and when."""
    ended = datetime.fromtimestamp(speed.measured_at_s, UTC)
    when = f" until {ended:%Y-%m-%d %H:%M} UTC" if speed.measured_at_s else ""
    cores = counted(1, "core") if speed.cores == 1 else f"{three_digits(speed.cores)} cores"
    return f"; a unit of {speed.device} counts as {cores}, which the job {speed.job} measured{when}"


def _change(decision: Decision, previous: Plan) -> str:
    changes, brought = _changes(previous, decision.plan), decision.outcome.gain
    before = decision.throughput_before
    hope = None if not before or decision.throughput is None else decision.throughput / before - 1
    price = _price(decision)
    if decision.reads_per_step is not None:
        hoped = "" if hope is None else f" and {_percent(hope)} of speed"
        read = decision.outcome.reads_per_step
        result = "" if read is None else f"; there were {three_digits(read)}"
        reads = f"{three_digits(decision.reads_per_step)} reads a step"
        return f"rows go to the disks of parameter servers, not to more memory: {reads}{hoped} are expected{result}"
    # a program without a prediction: nobody knows its samples, and the first reason says what its worker used
    watched = not decision.plan.servers and hope is None and decision.kind in ("memory", "improve")
    if decision.kind == "memory" and not watched:
        grows = decision.plan.ps_memory_bytes * decision.plan.ps >= previous.ps_memory_bytes * previous.ps
        why = "so that parameter servers do not run full" if grows else "which the job will not need"
        promise = f"{changes}, {why}, {price}"
    elif watched:
        promise = f"{decision.reasons[0]}: {changes}, {price}"
    elif decision.kind == "measure":
        hoped = "" if hope is None else f"{_percent(hope)} expected, "
        promise = f"tried, to learn what it brings: {changes}, {hoped}{price}"
    elif hope is None:
        promise = f"{changes}, {price}"
    else:
        promise = f"{changes} should bring {_percent(hope)} {price}"
    # memory is for no speed, and a watched program tells of its speed only what its log shows
    result = "" if brought is None or watched or decision.kind == "memory" else f"; it brought {_percent(brought - 1)}"
    return f"{_BEFORE.get(decision.kind, '')}{promise}{result}"


def _price(decision: Decision) -> str:
    before = decision.cost_per_hour if decision.cost_before is None else decision.cost_before
    more = decision.cost_per_hour - before
    if abs(more) < 5e-4 * before or not more:
        return "at the same price"
    return f"for {three_digits(abs(more))} an hour {'more' if more > 0 else 'less'}"


def _changes(old: Plan, new: Plan) -> str:
    """Return what is more or less, as a noun: `a third worker and 0.5 cores more for each server`."""
    found = [*_workers(old, new), _pods("parameter server", old.ps, new.ps)]
    found.append(_size("core{s}", "worker", old.worker_cpu_cores, new.worker_cpu_cores))
    found.append(_size("core{s}", "parameter server", old.ps_cpu_cores, new.ps_cpu_cores))
    found.append(_size("GiB", "worker", old.worker_memory_bytes / GIB, new.worker_memory_bytes / GIB))
    found.append(_size("GiB", "parameter server", old.ps_memory_bytes / GIB, new.ps_memory_bytes / GIB))
    told = [each for each in found if each]
    return " and ".join(filter(None, (", ".join(told[:-1]), told[-1]))) if told else "the same size"


def _workers(old: Plan, new: Plan) -> Iterator[str]:
    """Return what is more or less of the workers on cores, then of those of each stage and type of devices."""
    before, after = old.worker_places, new.worker_places
    for place in sorted({*before, *after}):
        was, more = before.get(place, 0), after.get(place, 0) - before.get(place, 0)
        where = f"{f'of stage {place.stage} ' * (place.stage > 0)}on {place.device}"
        if place == ON_CORES:
            yield _pods("worker", was, was + more)
        elif more:
            few = f"{counted(abs(more), 'worker')} {where} {'more' if more > 0 else 'less'}"
            yield f"a worker {where}" if more == 1 else few


def _pods(role: str, old: int, new: int) -> str:
    more = new - old
    if more == 1 and new < len(_ORDINALS):
        return f"a {_ORDINALS[new]} {role}"
    if more:
        return f"{counted(abs(more), role)} {'more' if more > 0 else 'less'}"
    return ""


def _size(unit: str, role: str, old: float, new: float) -> str:
    more = abs(new - old)
    if more < 5e-4 * old:
        return ""
    return f"{three_digits(more)} {unit.format(s='s' * (more != 1))} {'more' if new > old else 'less'} for each {role}"


def _count(plan: Plan) -> str:
    on_devices = "".join(
        f", {group.workers} of them{f' of stage {group.stage}' * (group.stage > 0)} on {group.device}"
        for group in plan.groups
    )
    on_devices += "," * bool(on_devices)
    servers = f" and {counted(plan.servers, 'parameter server')}" if plan.servers else ""
    return f"{counted(plan.workers, 'worker')}{on_devices}{servers}"


def _percent(share: float) -> str:
    return f"{three_digits(100 * share, '+') if abs(share) < 0.1 else f'{100 * share:+.0f}'} %".replace("-", "−")
