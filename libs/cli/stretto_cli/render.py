"""The gateway's views and events as tables and lines."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from stretto_client import figures
from stretto_client.protocol.events import Event
from stretto_messages.base import DEFAULT_TEAM, EXACT, counted

from .options import console

Json = dict[str, Any]
FREQUENT_EVENTS = frozenset({"shard-leased", "shard-completed", "job-progressed", "profile-measured"})
"""Events so frequent that people see them only on request."""
WIDTH_WITH_TIMES = 100
"""From this many columns on, the list of jobs has room for the times of submission and for quality."""
REMARKS_SHOWN = 8
DETAIL_CHARACTERS = 160
_COLOURS = {"finished": "green", "training": "cyan", "failed": "red", "cancelled": "yellow", "waiting": "yellow"}


def state(found: Json) -> str:
    """Return the state of a job's view or summary in its colour; a finished job that lacks something is a warning."""
    colour = _COLOURS.get(found["status"], "white") if found["complete"] else "yellow"
    return f"[{colour}]{figures.state(_status(found), found['ending'])}[/{colour}]"


def _status(found: Json) -> str:
    """Return the status of a job, and the level of a program that runs; whether one of level 0 trains, nobody knows."""
    level = found.get("level", EXACT)
    if found["status"] != "training" or level == EXACT:
        return str(found["status"])
    return f"{'training' if level else 'running'}, level {level}"


def is_watched(found: Json) -> bool:
    """Return whether a job now runs a program that tells nothing of its samples."""
    return found["status"] == "training" and found.get("level") == 0


def table(*columns: str, right: tuple[str, ...] = (), wrapped: str = "") -> Table:
    """Make a plain table; the column ``wrapped`` wraps when the table is too wide."""
    made = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", no_wrap=column != wrapped)
    return made


def unreadable(found: Json) -> str:
    """Say that stored events of a job cannot be read, so that what is told of it is incomplete; empty: all can be."""
    if not (lost := found.get("unreadable")):
        return ""
    return f"{counted(lost, 'stored event')} of {found['name']} cannot be read: what is told of it is incomplete"


def head(view: Json) -> str:
    """Return a job's name, state and plan in one line."""
    decided = f"v{view['plan_version']}: {figures.plan(view['plan'])}" if view["plan"] else "no plan yet"
    team = "" if view["team"] == DEFAULT_TEAM else f"  team {view['team']}"
    return f"[bold]{view['name']}[/bold]{team}  {state(view)}  {decided}"


def jobs(found: list[Json], width: int = 160, options: str = "") -> RenderableType:
    """Render the list of jobs with remarks on the latest below; the times of submission where there is room.

    ``options``: command-line options for the same gateway, for the hint of an empty list.
    """
    if not found:
        return Text(f"no jobs yet; submit one with `stretto submit job.yaml{options}`", style="dim")
    teamed = ("team",) if any(job["team"] != DEFAULT_TEAM for job in found) else ()
    dated = ("submitted",) if width >= WIDTH_WITH_TIMES else ()
    told = ("quality",) if width >= WIDTH_WITH_TIMES else ()
    stored = ("disk",) if any(job.get("stored_bytes") for job in found) else ()
    right = ("done", "speed", "cost", *stored)
    made = table("job", *teamed, "state", *dated, "plan", "done", "speed", *told, "cost", *stored, right=right)
    remarks: list[RenderableType] = []
    for job in found:
        share = job["samples_done"] / job["samples_total"] if job["samples_total"] else 0.0
        since_s = job["stalled_since_s"]
        made.add_row(
            job["name"],
            *([job["team"]] if teamed else []),
            state(job) if since_s is None else "[red]stalled[/red]",
            *([figures.clock(job["submitted_at_s"])] if dated else []),
            f"v{job['plan_version']} {figures.short_plan(job['plan'])}" if job["plan"] else "–",
            "–" if job.get("level") == 0 else f"{share:.0%}",
            _speed(job),
            *([_brief(job.get("quality", []))] if told else []),
            figures.money(job.get("cost_so_far")),
            *([figures.size(job.get("stored_bytes"))] if stored else []),
        )
        if lost := unreadable(job):
            remarks.append(Text(lost, style="red"))
        if since_s is not None:
            remarks.append(Text(f"{job['name']}: no sample since {figures.clock(since_s)}", style="red"))
        elif job["reason"]:
            harmless = job["complete"] and job["status"] != "finishing"  # its final checkpoint is not stored
            remarks.append(Text(f"{job['name']}: {job['reason']}", style="dim" if harmless else "red"))
    return Group(made, *_stored_by_team(found, bool(teamed)), *remarks[-REMARKS_SHOWN:])


def _speed(job: Json) -> str:
    """Return the rate of a job that trains, of which there is none just after its start, or an ended job's mean.

    Of a program that is only watched: what it uses.
    """
    if job.get("level") == 0:
        return used(job["cpu_used_cores"], job["memory_used_bytes"]) if is_watched(job) else "–"
    if job["status"] != "training":
        return figures.short_rate(job.get("mean_samples_per_s"))
    is_new = not job["samples_per_s"] and job["stalled_since_s"] is None
    return "…" if is_new else figures.short_rate(job["samples_per_s"])


def used(cpu_cores: float | None, memory_bytes: int | None) -> str:
    """Say what pods use."""
    return "…" if cpu_cores is None else f"{cpu_cores:.2f} cores, {figures.size(memory_bytes)}"


def _stored_by_team(found: list[Json], teamed: bool) -> list[RenderableType]:
    """Return what the checkpoints of each team take in the store, in a line."""
    teams = Counter[str]()
    for job in found:
        teams[job["team"]] += job.get("stored_bytes") or 0
    told = ", ".join(f"team {team} {figures.size(size)}" for team, size in teams.most_common())
    return [Text(f"checkpoints in the store: {told}", style="dim")] if teamed and any(teams.values()) else []


def _brief(quality: list[Json]) -> str:
    """Return the first two measures of a model: its loss and AUC."""
    return ", ".join(f"{escape(one['name'])} {one['value']:.4f}" for one in quality[:2]) or "–"


def stalled(since_s: float | None) -> str:
    """Return since when a job has trained no sample although it should; empty for other jobs."""
    return "" if since_s is None else f"[red]stalled since {figures.clock(since_s)}[/red]"


def job_summary(view: Json) -> RenderableType:
    """Return a job's state, reason and books in a few lines."""
    lines = [f"{view['name']}  {state(view)}  {escape(view['reason'].removeprefix('cancelled '))}"]
    return "\n".join(lines + books(view))


def is_whole(view: Json) -> bool:
    """Return whether a job has finished and its result lacks nothing."""
    return view["status"] == "finished" and view["complete"]


def fault_of(view: Json) -> str:
    """Return what is wrong with the end of a job; empty if its result is whole."""
    if is_whole(view):
        return ""
    if view["status"] == "finished":
        return f"{view['name']} finished, but {view['reason']}"
    return f"{view['name']} {why(view)}"


def why(view: Json) -> str:
    """Return a job's state with its reason, which begins with the state if it says who cancelled the job."""
    status, reason = view["status"], view["reason"]
    return reason if reason.startswith(status) else f"{status}: {reason}"


def cancelled(view: Json) -> str:
    """Say what is left of a cancelled job: its last checkpoint and how many samples are lost, or its program's."""
    done = view["progress"]["samples_done"]
    if program := view["spec"].get("program"):
        after = f" after {counted(done, 'sample')}" if program["level"] else ""
        kept = "; the last checkpoint of its program stays in the store" if done and program.get("consistent") else ""
        return f"{view['name']} cancelled{after}{kept}"
    stored = [each["checkpoint"] for each in view["checkpoints"] if each["stage"] in ("stored", "restored")]
    if not stored:
        lost = f"the {counted(done, 'sample')} that it trained are lost" if done else "it had trained nothing"
        return f"{view['name']} cancelled; no checkpoint of it is stored: {lost}"
    last = stored[-1]
    lost = f"{counted(max(0, done - last['samples']), 'sample')} trained since are lost"
    return (
        f"{view['name']} cancelled; its last stored checkpoint, {last['id']}, has "
        f"{counted(last['samples'], 'sample')}: {lost}; a job goes on from it with "
        f"checkpoint.restore_from = {last['url']}"
    )


def rows_told(rows: Json) -> str:
    """Say what a job's policy of rows left out and dropped; nothing where it did not."""
    parts: list[str] = []
    if left_out := rows["gradients_left_out"]:
        keys = counted(rows["keys_without_row"], "key")
        parts.append(f"{counted(left_out, 'gradient')} left out, of keys without a row yet; about {keys} have none now")
    if expired := rows["rows_expired"]:
        parts.append(f"{counted(expired, 'row')} expired")
    return "; ".join(parts)


def wire_told(view: Json) -> str:
    """Say what a job's types of the wire save, by its first worker that told, and cost; empty if all is float32."""
    model = view["spec"]["model"]
    chosen = {"transfer": model["transfer"], **model["wire"]}
    parts = [", ".join(f"{name} {value}" for name, value in chosen.items() if value not in ("float32", 1))]
    if told := next((pod for pod in view["pods"].values() if pod.get("step_bytes_exact")), None):
        sent, exact = told["step_bytes"], told["step_bytes_exact"]
        parts.append(f"{figures.size(sent)} a step in place of {figures.size(exact)}, {1 - sent / exact:.0%} less")
    if {"bfloat16", "int8"} & set(chosen.values()):
        parts.append("rounding moves the held-out loss by less than another seed does")
    if (every := chosen["dense_every"]) > 1:
        parts.append(f"dense parameters are up to {counted(every - 1, 'step')} older")
    if (batches := chosen["push_every"]) > 1:
        parts.append(f"parameter servers make one step with the gradients of {batches} batches")
    return "; ".join(part for part in parts if part)


def books(view: Json) -> list[str]:
    """Return what was trained, and how well, in lines; it includes data that were given up."""
    counted = view["books"]
    if not counted:
        return []
    abandoned = counted["samples_abandoned"]
    lines = [
        f"samples: {counted['samples_applied']:,} applied of {counted['samples_expected'] + abandoned:,}, "
        f"{counted['samples_lost']} lost"
        # nothing counts the repeated samples of a program: its reason tells how many there are at most
        + ("" if view.get("spec", {}).get("program") else f", {counted['samples_repeated']} repeated")
        + (
            f", [red]{abandoned:,} given up because their data failed[/red] (listed by `stretto audit`)"
            if abandoned
            else ""
        )
    ]
    if evaluation := counted["evaluation"]:
        lines.append(f"held-out {quality(evaluation)}")
    return lines


def quality(evaluation: Json) -> str:
    """Return the quality of a model; the user's own metrics apart, since they may have the same names."""
    found, own = measures(evaluation)
    told = ", ".join(f"{name} {value:.5f}" for name, value in found.items())
    return f"{told}; metrics of the model: {own}" if own else told


def measures(evaluation: Json) -> tuple[dict[str, float], str]:
    """Return loss and AUC, and the user's own metrics in words. A model without probabilities has no AUC."""
    metrics = {each["name"]: each["value"] for each in evaluation.get("metrics", ())}
    loss = escape(evaluation.get("loss_name") or "loss")
    own = metrics.pop("loss", None)  # published by a model without an output of probabilities
    found = {loss: evaluation["loss"], "AUC": evaluation["auc"]} if own is None else {loss: own}
    return found, ", ".join(f"{escape(name)} {value:.5g}" for name, value in metrics.items())


def print_event(event: Event, with_job: bool = True) -> None:
    """Print an event in one line; ``with_job``: with its job, for streams of several jobs."""
    body = event.body
    job = f"{body['job']:<16}  " if with_job else ""
    console.print(
        f"[dim]{event.id:>7}  {figures.clock(body['time_s'])}[/dim]  {job}"
        f"[bold]{body['service']}[/bold] {event.name}  [dim]{gist(event.name, body['data'])}[/dim]",
        soft_wrap=True,
    )


def gist(name: str, data: Json) -> str:
    """Return an event's content in a few words."""
    make = _GISTS.get(name)
    if make is None:
        return ""
    try:
        return escape(make(data))
    except (KeyError, TypeError, IndexError):  # written by a newer version: show the name alone
        return ""


def _first(reasons: list[str]) -> str:
    return reasons[0] if reasons else ""


def last_words(detail: str) -> str:
    """Return the last line that a pod wrote, without the prefix that every line of its log has."""
    return re.sub(r"^.* trace=\w* ", "", detail.strip().rpartition("\n")[2])[:DETAIL_CHARACTERS]


def _trains(spec: Json) -> str:
    program = spec.get("program")
    trained = " ".join(program["command"]) if program else str(spec["model"]["entry"])
    is_watched = bool(program) and program.get("level") == 0
    return trained if is_watched else f"{trained}, {counted(spec['dataset']['samples'], 'sample')}"


_GISTS: dict[str, Any] = {
    "job-submitted": lambda d: _trains(d["spec"]),
    "job-cancelled": lambda d: f"by {d['by']}" + (f": {d['reason']}" if d["reason"] else ""),
    "job-failed": lambda d: d["reason"],
    "end-lost": lambda d: f"the server has lost what it had stored after {d['kept']}",
    "data-arrived": lambda d: ", ".join(
        [*(f"{p['name']}: {counted(p['samples'], 'sample')}" for p in d["partitions"]), *["closed"] * d["closed"]]
    ),
    "evaluation-measured": lambda d: f"at {d['samples_done']:,} samples: {quality(d['evaluation'])}",
    "job-progressed": lambda d: f"{d['samples_done']:,} of {d['samples_total']:,}, {figures.rate(d['samples_per_s'])}",
    "job-completed": lambda d: f"{counted(d['samples'], 'sample')}",
    "job-finished": lambda d: (
        f"{d['samples_applied']:,} applied, {d['samples_lost']} lost, {d['samples_repeated']} repeated"
        + "".join(f"; {one['words']}" for one in d.get("shortfalls", ()))
    ),
    "profile-measured": lambda d: (
        f"plan v{d['plan_version']} {figures.rate(d['throughput'])}, step {figures.seconds(d['step_time_s'])}"
    ),
    "model-fitted": lambda d: f"{d['form']}, RMSLE {d['rmsle']:.3f}, {counted(d['configurations'], 'configuration')}",
    "history-matched": lambda d: (
        ", ".join(f"{m['job']} {m['similarity']:.2f}" for m in d["matches"]) or "no past job is like it"
    ),
    "history-recorded": lambda d: f"{figures.short_plan(d['plan'])}, {figures.rate(d['throughput'])}",
    "plan-proposed": lambda d: f"{d['kind']}: {figures.short_plan(d['plan'])}; {_first(d['reasons'])}",
    "candidates-computed": lambda d: f"{len(d['candidates'])} of {d['plans_considered']} by {d['algorithm']}",
    "plan-requested": lambda d: f"{figures.short_plan(d['plan'])} by {d['by']}",
    "plan-decided": lambda d: f"v{d['version']} {d['kind']}: {figures.short_plan(d['plan'])}; {_first(d['reasons'])}",
    "plan-refused": lambda d: f"{d['kind']}: {figures.short_plan(d['wanted'])}; {_first(d['reasons'])}",
    "replacement-asked": lambda d: f"another server in the place of {d['pod']}",
    "replacement-decided": lambda d: (
        f"{d['pod']} {'may' if d['granted'] else 'cannot'} be replaced; {_first(d['reasons'])}"
    ),
    "replacement-ended": lambda d: d["pod"],
    "plan-applied": lambda d: f"v{d['version']} in {figures.seconds(d['took_s'])}",
    "object-adopted": lambda d: str(d["spec"]["program"]["object"]),
    "size-decided": lambda d: f"{d['purpose']}: {d['before']} to {counted(d['count'], 'pod')}; {d['reason']}",
    "size-settled": lambda d: f"{d['outcome']}: {counted(d['count'], 'pod')}; {d['reason']}",
    "object-released": lambda d: f"{d['ending']}: {d['reason']}",
    "pod-started": lambda d: f"{d['pod']} in {figures.seconds(d['took_s'])} ({d['cause']})",
    "pod-pending": lambda d: f"{d['pod']} {d['reason']} {last_words(d['detail'])}",
    "pod-exited": lambda d: f"{d['pod']} {d['reason']} {last_words(d['detail'])}",
    "data-workers-proposed": lambda d: f"{d['count']} ({d['phase']}); {_first(d['reasons'])}",
    "data-workers-requested": lambda d: f"{'auto' if d['count'] is None else d['count']} by {d['by']}",
    "data-workers-decided": lambda d: f"v{d['version']} {d['count']} of {d['wanted']}; {_first(d['reasons'])}",
    "data-workers-changed": lambda d: ", ".join(f"data-{each['index']}" for each in d["data_workers"]) or "none",
    "group-changed": lambda d: ", ".join(f"worker-{each['index']}" for each in d["workers"]) or "none",
    "servers-changed": lambda d: ", ".join(f"ps-{ps['index']} at {ps['address']}" for ps in d["servers"]) or "none",
    "parameters-lost": lambda d: (
        f"the columns of {d['pod']}; {', '.join('ps-' + str(ps['index']) for ps in d['servers'])} go on"
    ),
    "pod-resized": lambda d: f"{d['pod']} {figures.cores(d['cpu_cores'])}, {figures.size(d['memory_bytes'])}",
    "migration-started": lambda d: (
        f"{counted(d['buckets'], 'bucket')} {','.join(d['sources'])} → {','.join(d['destinations'])} ({d['cause']})"
    ),
    "migration-finished": lambda d: (
        f"{figures.size(d['moved_bytes'])} in {figures.seconds(d['took_s'])}, "
        f"longest freeze {figures.seconds(d['longest_freeze_s'])}"
    ),
    "straggler-detected": lambda d: f"{d['pod']} {d['slowdown']:.1f} × slower",
    "straggler-cleared": lambda d: d["pod"],
    "hot-ps-detected": lambda d: (
        f"{d['pod']} updates in {figures.seconds(d['update_time_s'])}, "
        f"usual is {figures.seconds(d['peers_update_time_s'])}"
    ),
    "hot-ps-cleared": lambda d: f"{d['pod']} updates in {figures.seconds(d['update_time_s'])}",
    "shard-leased": lambda d: f"{d['shard']['id']} attempt {d['shard']['attempt']} to {d['pod']}",
    "shard-completed": lambda d: f"{d['shard']['id']} by {d['pod']}",
    "shard-requeued": lambda d: f"{d['shard']['id']} of {d['pod']}: {d['reason']}",
    "shard-abandoned": lambda d: f"{d['shard']['id']}: {d['reason']}",
    "checkpoint-saved": lambda d: (
        f"{d['checkpoint']['id']} {figures.size(d['checkpoint']['size_bytes'])} in memory, not stored yet; "
        f"pause {figures.seconds(d['pause_s'])}"
    ),
    "checkpoint-flushed": lambda d: f"{d['checkpoint']['id']} → {d['checkpoint']['url']}",
    "checkpoint-restored": lambda d: f"{d['checkpoint']['id']} on {counted(d['ps'], 'parameter server')}",
    "columns-restored": lambda d: (
        f"{counted(d['columns'], 'column')} of {d['checkpoint']['id']}, {figures.size(d['size_bytes'])} in "
        f"{figures.seconds(d['took_s'])}"
    ),
    "recomputation-decided": lambda d: (
        f"{counted(d['samples'], 'sample')} of {counted(d['shards'], 'shard')} again"
        if d["granted"]
        else f"not possible: {d['reason']}"
    ),
    "checkpoint-failed": lambda d: (
        f"{d['id']}: {d['reason']}"
        + (f"; the next try is at {figures.clock(d['next_try_at_s'])}" if d.get("next_try_at_s") else "")
    ),
    "oom-forecast": lambda d: f"{d['action']}: {d['reason']}",
}
