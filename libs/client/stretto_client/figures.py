"""Numbers formatted for people."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from stretto_messages.base import NO_SERVERS, three_digits

_BARS = "▁▂▃▄▅▆▇█"


def size(value: float | None) -> str:
    """Format bytes in binary units."""
    if value is None:
        return "–"
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"):
        if abs(amount) < 1024 or unit == "EiB":
            return f"{amount:.0f} {unit}" if unit in ("B", "KiB") or amount >= 100 else f"{_one(amount)} {unit}"
        amount /= 1024
    raise AssertionError


def _one(amount: float) -> str:
    return f"{amount:.1f}".removesuffix(".0")


def rate(value: float | None) -> str:
    """Format samples per second."""
    return "–" if value is None else f"{value:,.0f}/s"


def short_rate(value: float | None) -> str:
    """Format samples per second in thousands or millions, for tables."""
    return "–" if value is None else f"{short(value)}/s"


def short(value: float, sign: str = "") -> str:
    """Format a count in thousands or millions. ``sign``: "+" for a difference."""
    if abs(value) < 999.5:
        return f"{value:{sign}.0f}"
    amount, unit = (value / 1e6, "M") if abs(value) >= 999_950 else (value / 1e3, "k")
    return f"{amount:{sign}.1f}{unit}"


def seconds(value: float | None) -> str:
    """Format a duration in a suitable unit."""
    if value is None:
        return "–"
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 100:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 100 else f"{value / 3600:.1f} h"


def share(value: float | None) -> str:
    """Format a share of 1 in per cent."""
    return "–" if value is None else f"{value:.1%}"


def state(status: str, ending: str) -> str:
    """Name the state of a job. A state of an incomplete result names what it lacks: `finished, 59% given up`."""
    return f"{status}, {ending}" if ending else status


def percent(value: float | None) -> str:
    """Format a ratio in per cent with its sign."""
    return "–" if value is None else f"{value:+.0%}"


def clock(epoch_s: float | None) -> str:
    """Format a time as local time of day."""
    return "–" if epoch_s is None else datetime.fromtimestamp(epoch_s).astimezone().strftime("%H:%M:%S")


def date_and_time(epoch_s: float) -> str:
    """Format a time as local date and time of day."""
    return f"{datetime.fromtimestamp(epoch_s).astimezone():%Y-%m-%d %H:%M:%S}"


def cores(value: float) -> str:
    """Format a number of CPU cores."""
    return f"{value:g} core" if value == 1 else f"{value:g} cores"


def plan(value: dict[str, Any] | None) -> str:
    """Format a plan in one line: workers x (cores, memory), workers on devices, servers x (cores, memory)."""
    if value is None:
        return "–"
    groups = value.get("groups", ())
    on_cores = value["workers"] - sum(group["workers"] for group in groups)
    workers = [f"{on_cores} × worker ({cores(value['worker_cpu_cores'])}, {size(value['worker_memory_bytes'])})"]
    workers = workers * (on_cores > 0 or not groups) + [
        f"{each['workers']} × worker{_stage(each, ' of stage')} on {each['device']}" for each in groups
    ]
    servers = f"{value['ps']} × ps ({cores(value['ps_cpu_cores'])}, {size(value['ps_memory_bytes'])})"
    return "  ".join([*workers, *[servers] * _has_servers(value)])


def short_plan(value: dict[str, Any] | None) -> str:
    """Format what distinguishes the plans of one job: counts and cores of both roles, memory of the servers."""
    if value is None:
        return "–"
    groups = value.get("groups", ())
    on_cores = value["workers"] - sum(group["workers"] for group in groups)
    workers = [f"{on_cores}w×{value['worker_cpu_cores']:g}"] * (on_cores > 0 or not groups)
    workers += [f"{each['workers']}w {each['device']}{_stage(each, ' stage')}" for each in groups]
    servers = f"{value['ps']}ps×{value['ps_cpu_cores']:g} {size(value['ps_memory_bytes'])}"
    return " ".join([*workers, *[servers] * _has_servers(value)])


def _stage(group: dict[str, Any], name: str) -> str:
    """Say of which later stage a group of workers, or one of them, is; nothing of stage 0."""
    return f"{name} {group['stage']}" if group.get("stage") else ""


def _has_servers(value: dict[str, Any]) -> bool:
    return (value["ps"], value["ps_cpu_cores"], value["ps_memory_bytes"]) != NO_SERVERS


def interval(value: dict[str, float] | None, form: str = "{:,.0f}") -> str:
    """Format a 90 % interval."""
    return "" if value is None else f"[{form.format(value['low'])} … {form.format(value['high'])}]"


def money(value: float | None) -> str:
    """Format an amount in the currency of a job's prices with three digits."""
    return "–" if value is None else three_digits(value)


def cost(found: dict[str, Any] | None) -> str:
    """Say what a job has cost, beside what its first plan would have cost for the same samples; None: an older gateway
    does not tell."""
    if found is None:
        return "–"
    told = money(found["so_far"])
    if (first := found["as_first_planned"]) is None:
        return told
    told += f"; as first planned it would have cost {money(first)} in {seconds(found['as_first_planned_s'])}"
    return f"{told}, had its servers held the model" if found["first_lacks_memory"] else told


def sparkline(values: Sequence[float], width: int = 60) -> str:
    """Draw values as bars from zero to their maximum; only the newest ``width`` values."""
    shown = values[max(0, len(values) - max(0, width)) :]
    top = max(shown, default=0.0)
    if top <= 0:
        return ""
    return "".join(_BARS[min(len(_BARS) - 1, int(value / top * (len(_BARS) - 1) + 0.5))] for value in shown)


def bar(share: float, width: int = 20) -> str:
    """Draw a share of 1 as a bar."""
    full = round(max(0.0, min(1.0, share)) * width)
    return "█" * full + "░" * (width - full)
