"""Views of the gateway as tables and panels."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from . import figures as f

Json = dict[str, Any]
_COLOURS = {"finished": "green", "training": "cyan", "failed": "red", "cancelled": "yellow", "waiting": "yellow"}
EXITED_SHOWN = 4


def status(name: str) -> str:
    """A job's state, coloured."""
    colour = _COLOURS.get(name, "white")
    return f"[{colour}]{name}[/{colour}]"


def table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """A plain table."""
    made = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", no_wrap=True)
    return made


def jobs(found: list[Json]) -> RenderableType:
    """The list of jobs."""
    if not found:
        return Text("no jobs yet; submit one with `stretto submit job.yaml`", style="dim")
    made = table("job", "state", "submitted", "plan", "done", "throughput", "reason", right=("done", "throughput"))
    for job in found:
        share = job["samples_done"] / job["samples_total"] if job["samples_total"] else 0.0
        made.add_row(
            job["name"],
            status(job["status"]),
            f.clock(job["submitted_at_s"]),
            f"v{job['plan_version']} {f.short_plan(job['plan'])}",
            f"{share:.0%}",
            f.rate(job["samples_per_s"]),
            escape(job["reason"][:60]),
        )
    return made


def job_summary(view: Json) -> RenderableType:
    """How a job ended."""
    lines = [f"{view['name']}  {status(view['status'])}  {escape(view['reason'])}"]
    return "\n".join(lines + _books(view))


def _books(view: Json) -> list[str]:
    """What was trained, and how well; data that were given up are part of it."""
    books = view["books"]
    if not books:
        return []
    abandoned = books["samples_abandoned"]
    lines = [
        f"samples: {books['samples_applied']:,} applied of {books['samples_expected'] + abandoned:,}, "
        f"{books['samples_lost']} lost, {books['samples_repeated']} repeated"
        + (
            f", [red]{abandoned:,} given up because their data failed[/red] (event shard-abandoned)"
            if abandoned
            else ""
        )
    ]
    if evaluation := books["evaluation"]:
        lines.append(f"held-out loss {evaluation['loss']:.5f}, AUC {evaluation['auc']:.4f}")
    return lines


def dashboard(view: Json) -> RenderableType:
    """Everything that `watch` shows."""
    parts: list[RenderableType] = [_head(view), _throughput(view), _pods(view)]
    if books := _books(view):
        parts.append("\n".join(books))
    elif view["forecast"]:
        parts.append(_memory(view))
    parts.append(_recent(view))
    return Panel(Group(*parts), title=f"[bold]{view['name']}[/bold]  {status(view['status'])}", title_align="left")


def _head(view: Json) -> RenderableType:
    progress, shards = view["progress"], view["shards"]
    total = progress["samples_total"] or 1
    share = progress["samples_done"] / total
    speed = progress["samples_per_s"]
    left = f", {f.seconds((total - progress['samples_done']) / speed)} left" if speed > 0 and share < 1 else ""
    made = Table.grid(padding=(0, 2))
    made.add_row("progress", f"{f.bar(share, 40)} {share:.1%} of {total:,} samples{left}")
    applied = "" if view["applied_version"] == view["plan_version"] else "  [yellow]being applied[/yellow]"
    made.add_row("plan", f"v{view['plan_version']}  {f.plan(view['plan'])}{applied}")
    made.add_row(
        "shards",
        f"{len(shards['leased'])} leased, {shards['completed']} completed, {shards['requeued']} requeued, "
        f"{shards['abandoned']} abandoned",
    )
    if view["reason"]:
        made.add_row("reason", escape(view["reason"]))
    return made


def _throughput(view: Json) -> RenderableType:
    points = [point["throughput"] for point in view["throughput"]]
    if not points:
        return Text("throughput  not measured yet", style="dim")
    return Text.assemble(
        "throughput  ", (f.sparkline(points), "cyan"), f"  {f.rate(points[-1])}  (top {f.rate(max(points))})"
    )


def _pods(view: Json) -> RenderableType:
    pods = sorted(view["pods"].values(), key=lambda pod: (pod["role"], int(pod["pod"].rpartition("-")[2])))
    running = [pod for pod in pods if pod["state"] == "running"]
    exited = sorted((pod for pod in pods if pod["state"] != "running"), key=lambda pod: pod["exited_at_s"] or 0)
    made = table("pod", "cpu", "memory", "rows", "speed", "", right=("cpu", "memory", "rows", "speed"))
    for pod in running:
        marks = [mark for mark in ("straggler", "hot") if pod[mark]]
        used = "–" if pod["cpu_used_cores"] is None else f"{pod['cpu_used_cores']:.2f}"
        limit = "–" if pod["cpu_limit_cores"] is None else f"{pod['cpu_limit_cores']:g}"
        made.add_row(
            pod["pod"],
            f"{used} / {limit}",
            f"{f.size(pod['memory_used_bytes'])} / {f.size(pod['memory_limit_bytes'])}",
            "" if pod["categories"] is None else f"{pod['categories']:,}",
            "" if pod["samples_per_s"] is None else f.rate(pod["samples_per_s"]),
            f"[yellow]{' '.join(marks)}[/yellow]",
        )
    for pod in exited[-EXITED_SHOWN:]:
        made.add_row(f"[dim]{pod['pod']}[/dim]", "", "", "", "", f"[dim]{pod['exit_reason']}[/dim]")
    return made


def _memory(view: Json) -> RenderableType:
    forecast = view["forecast"]
    made = table("memory forecast", "now", "limit", "at end (90 %)", "full in", "", right=("now", "limit"))
    for ps in forecast["ps"]:
        interval = ps["at_end_interval_bytes"]
        full = "[green]never[/green]" if ps["oom_in_s"] is None else f"[red]{f.seconds(ps['oom_in_s'])}[/red]"
        made.add_row(
            ps["pod"],
            f.size(ps["used_bytes"]),
            f.size(ps["limit_bytes"]),
            f"{f.size(ps['at_end_bytes'])} [{f.size(interval['low'])} … {f.size(interval['high'])}]".replace(
                "[", r"\["
            ),
            full,
            forecast["action"] if forecast["action"] != "none" else "",
        )
    return made


def _recent(view: Json) -> RenderableType:
    made = table("decision", "at", "why", "plan", "predicted", "brought")
    for decision in view["decisions"][-5:]:
        outcome = decision["outcome"]
        made.add_row(
            f"v{decision['version']} {decision['kind']}",
            f.clock(decision["time_s"]),
            escape((decision["reasons"] or ("",))[0][:60]),
            f.short_plan(decision["plan"]),
            f.rate(decision["throughput"]),
            f.rate(outcome["throughput"]),
        )
    return made


def gist(name: str, data: Json) -> str:
    """What an event says, in a few words."""
    make = _GISTS.get(name)
    if make is None:
        return ""
    try:
        return escape(make(data))
    except (KeyError, TypeError, IndexError):  # of a newer writer: the name alone must do
        return ""


def _first(reasons: list[str]) -> str:
    return reasons[0] if reasons else ""


def _last_line(detail: str) -> str:
    return detail.strip().rpartition("\n")[2][:120]


_GISTS: dict[str, Any] = {
    "job-submitted": lambda d: f"{d['spec']['model']['entry']}, {d['spec']['dataset']['samples']:,} samples",
    "job-cancelled": lambda d: d["reason"],
    "job-failed": lambda d: d["reason"],
    "job-progressed": lambda d: f"{d['samples_done']:,} of {d['samples_total']:,}, {f.rate(d['samples_per_s'])}",
    "job-completed": lambda d: f"{d['samples']:,} samples",
    "job-finished": lambda d: (
        f"{d['samples_applied']:,} applied, {d['samples_lost']} lost, {d['samples_repeated']} repeated"
    ),
    "profile-measured": lambda d: (
        f"plan v{d['plan_version']} {f.rate(d['throughput'])}, step {f.seconds(d['step_time_s'])}"
    ),
    "model-fitted": lambda d: f"{d['form']}, RMSLE {d['rmsle']:.3f}, {d['configurations']} configurations",
    "history-matched": lambda d: ", ".join(f"{m['job']} {m['similarity']:.2f}" for m in d["matches"]),
    "history-recorded": lambda d: f"{f.short_plan(d['plan'])}, {f.rate(d['throughput'])}",
    "plan-proposed": lambda d: f"{d['kind']}: {f.short_plan(d['plan'])}; {_first(d['reasons'])}",
    "candidates-computed": lambda d: f"{len(d['candidates'])} of {d['plans_considered']} by {d['algorithm']}",
    "plan-decided": lambda d: f"v{d['version']} {d['kind']}: {f.short_plan(d['plan'])}; {_first(d['reasons'])}",
    "plan-refused": lambda d: f"{d['kind']}: {f.short_plan(d['wanted'])}; {_first(d['reasons'])}",
    "plan-applied": lambda d: f"v{d['version']} in {f.seconds(d['took_s'])}",
    "pod-started": lambda d: f"{d['pod']} in {f.seconds(d['took_s'])} ({d['cause']})",
    "pod-exited": lambda d: f"{d['pod']} {d['reason']} {_last_line(d['detail'])}",
    "pod-resized": lambda d: f"{d['pod']} {d['cpu_cores']:g} cores, {f.size(d['memory_bytes'])}",
    "migration-started": lambda d: (
        f"{d['buckets']} buckets {','.join(d['sources'])} → {','.join(d['destinations'])} ({d['cause']})"
    ),
    "migration-finished": lambda d: (
        f"{f.size(d['moved_bytes'])} in {f.seconds(d['took_s'])}, longest freeze {f.seconds(d['longest_freeze_s'])}"
    ),
    "straggler-detected": lambda d: f"{d['pod']} {d['slowdown']:.1f} × slower",
    "hot-ps-detected": lambda d: d["pod"],
    "shard-leased": lambda d: f"{d['shard']['id']} attempt {d['shard']['attempt']} to {d['pod']}",
    "shard-completed": lambda d: f"{d['shard']['id']} by {d['pod']}",
    "shard-requeued": lambda d: f"{d['shard']['id']} of {d['pod']}: {d['reason']}",
    "shard-abandoned": lambda d: f"{d['shard']['id']}: {d['reason']}",
    "checkpoint-saved": lambda d: (
        f"{d['checkpoint']['id']} {f.size(d['checkpoint']['size_bytes'])}, pause {f.seconds(d['pause_s'])}"
    ),
    "checkpoint-flushed": lambda d: f"{d['checkpoint']['id']} → {d['checkpoint']['url']}",
    "checkpoint-failed": lambda d: f"{d['id']}: {d['reason']}",
    "oom-forecast": lambda d: f"{d['action']}: {d['reason']}",
}
