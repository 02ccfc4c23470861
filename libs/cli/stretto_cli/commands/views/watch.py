"""``stretto watch``: one job on one screen, from 80 columns and 24 rows on."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from stretto_client import figures
from stretto_client.documents import Documents
from stretto_client.protocol.operations import ENDED_STATES
from stretto_messages.base import counted

from ...command import command
from ...options import GatewayOptions, JobArgument, console, print_json, quantity
from ...render import Json, books, fault_of, last_words, measures, quality, stalled, state, table, unreadable, used

DECISIONS_SHOWN = 3
EXITED_SHOWN = 2
PODS_LEAST = 3
WIDE = 110


@command("See", "stretto watch ctr")
def watch(
    options: GatewayOptions,
    job: JobArgument,
    interval_s: Annotated[
        float,
        typer.Option(
            "--interval",
            parser=quantity("seconds", 0.2, 60),
            metavar="DURATION",
            help="Time between two updates, in seconds or as in 500ms; 0.2 to 60 seconds.",
        ),
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Show the job once and exit.")] = False,
) -> None:
    """Show throughput, plan, pods, shards and memory forecast of a job, live, until it ends.

    With -o json: one line per update, with everything known about the job. Without --once: exit status 1 if the job
    failed or was cancelled, or its result lacks something: samples, stored parameters or its evaluation.
    """
    with options.connect() as gateway:
        view = gateway.job(job)
        ended = once or view["status"] in ENDED_STATES
        if options.is_json:
            print_json(view, lines=True)
        elif ended or not console.is_terminal:
            console.print(dashboard(view, console.width))
        if not ended and options.is_json:
            view = _follow(gateway, view, interval_s, lambda found: print_json(found, lines=True))
        elif not ended:
            with Live(_screen(view), console=console, auto_refresh=False, vertical_overflow="crop") as live:
                live.refresh()
                view = _follow(gateway, view, interval_s, lambda found: live.update(_screen(found), refresh=True))
    if not once and fault_of(view):
        raise typer.Exit(1)  # the screen says why


def _follow(gateway: Documents, view: Json, interval_s: float, show: Callable[[Json], None]) -> Json:
    """Show a job until it has ended; returns its last view."""
    while view["status"] not in ENDED_STATES:
        time.sleep(interval_s)
        view = gateway.job(view["name"])
        show(view)
    return view


def _screen(view: Json) -> RenderableType:
    return dashboard(view, console.width, console.height)


def dashboard(view: Json, width: int = 160, rows: int | None = None) -> RenderableType:
    """Render a job. ``rows``: height of the screen; pods beyond it are only counted. None: no limit."""
    top = _top(view, width)
    ended = books(view)
    decisions = _decisions(view, width)
    reason = [Text(f"reason    {view['reason']}")] if view["reason"] else []
    reason += [Text(f"warning   {lost}")] if (lost := unreadable(view)) else []
    wrapped = sum(1 + len(line) // (width - 12) for line in reason)
    taken = 3 + top.row_count + wrapped + len(ended) + len(decisions)  # borders and the head of the pods
    pods = _pods(view, width, None if rows is None else max(PODS_LEAST, rows - 1 - taken))
    parts: list[RenderableType] = [top, *reason, pods, *decisions, *ended]
    return Panel(Group(*parts), title=f"[bold]{view['name']}[/bold]  {state(view)}", title_align="left")


def _top(view: Json, width: int) -> Table:
    progress, shards = view["progress"], view["shards"]
    total = progress["samples_total"] or 1
    share, speed = progress["samples_done"] / total, progress["samples_per_s"]
    left = f", {figures.seconds((total - progress['samples_done']) / speed)} left" if speed > 0 and share < 1 else ""
    made = Table.grid(padding=(0, 2))
    made.add_column(style="dim", no_wrap=True, min_width=8)
    made.add_column(no_wrap=True, overflow="ellipsis")
    if view.get("level") == 0:
        made.add_row("uses", _watched(view))
    else:
        made.add_row("progress", f"{figures.bar(share, (width - 54) // 2)} {share:.1%} of {total:,}{left}")
        made.add_row("speed", _speed(view, width - 54))
    applied = "" if view["applied_version"] == view["plan_version"] else f"  [yellow]{_applying(view)}[/yellow]"
    plan = figures.plan(view["plan"]) if width >= WIDE else figures.short_plan(view["plan"])
    made.add_row("plan", f"v{view['plan_version']}  {plan}{applied}" if view["plan"] else "none yet")
    told = [f"{len(shards['leased'])} leased", f"{shards['completed']} completed"]
    told += [f"[yellow]{shards[kind]} {kind}[/yellow]" for kind in ("requeued", "abandoned") if shards[kind]]
    if view.get("level") != 0:
        made.add_row("shards", ", ".join(told))
    program = view.get("spec", {}).get("program")
    if program:
        made.add_row("program", escape(" ".join(program["command"])))
    if promise := view.get("guarantee"):
        made.add_row("promise", promise)
    if program and (last := _last_exit(view)):
        made.add_row("last end", last)
    if parts := view["data"]["partitions"]:
        made.add_row("data", _partitions(view["data"], parts))
    if fed := _feed(view):
        made.add_row("feed", fed)
    made.add_row("cost", figures.cost(view.get("cost")))
    if curve := view["learning"]:
        made.add_row("quality", _quality(curve, width - 60))
    return made


def _watched(view: Json) -> str:
    """Say what the worker of a program uses that tells no samples."""
    running = [pod for pod in view["pods"].values() if pod["state"] == "running"]
    if not running:
        return "no worker runs"
    pod = running[-1]
    rate = view["throughput"][-1]["throughput"] if view["throughput"] else None
    steps = "" if rate is None else f", {rate:.3g} steps/s"
    since = figures.clock(pod["started_at_s"])
    return f"{used(pod['cpu_used_cores'], pod['memory_used_bytes'])}{steps}, since {since}"


def _last_exit(view: Json) -> str:
    """Say how a worker of a program last ended by itself, and when another one follows; empty: none did so."""
    ended = [pod for pod in view["pods"].values() if pod["exit_reason"] not in (None, "stopped", "completed")]
    if not ended:
        return ""
    pod = max(ended, key=lambda pod: pod["exited_at_s"])
    code = "" if pod["exit_code"] is None else f" {pod['exit_code']}"
    told = f"{pod['pod']} {pod['exit_reason']}{code} at {figures.clock(pod['exited_at_s'])}"
    told += f": {escape(why)}" if (why := last_words(pod["detail"])) else ""
    again_at_s = pod.get("again_at_s")
    if again_at_s is None or view["status"] in ENDED_STATES:
        return told
    return f"{told}; another one from {figures.clock(again_at_s)} on, later after each failure in a row"


def _feed(view: Json) -> str:
    """Say what data workers bring, and how long workers wait; empty for a job that has and wants none."""
    feeding = view.get("feeding") or {}
    queue, decisions = feeding.get("queue"), feeding.get("decisions")
    if not queue or not (queue["lanes"] or decisions):
        return ""
    waits = f"workers wait {queue['read_share']:.0%}"
    count = sum(pod["role"] == "data" and pod["state"] == "running" for pod in view["pods"].values())
    wanted = decisions[-1]["count"] if decisions else count
    starting = f" [yellow]of {wanted}[/yellow]" if count != wanted else ""
    if not count:
        return f"0{starting} data workers, {waits}" if wanted else f"no data workers, {waits}"
    rates = f"{queue['enqueued_per_s']:.0f} of {queue['dequeued_per_s']:.0f} batches/s"
    at_home = f"home {1 - feeding['prepared_elsewhere']:.0%}"
    return f"{count}{starting} data worker{'s' * (wanted != 1)}, {rates}, {waits}, {at_home}"


def _partitions(data: Json, parts: Json) -> str:
    """List the partitions, newest first; the table cuts the rest."""
    named = ", ".join(f"{escape(name)} {figures.short(part['samples'])}" for name, part in reversed(parts.items()))
    return f"{counted(len(parts), 'partition')}{', growing' * data['growing']}: {named}"


def _quality(curve: list[Json], width: int) -> str:
    """Summarise the quality from the first evaluation to the last: on windows alone if the last one is on a window."""
    last = curve[-1]
    curve = [point for point in curve if point.get("trained_next") == last.get("trained_next")]
    of = f"on {escape(last['partition'])}, before it trains, " if last.get("trained_next") else ""
    samples = f"{of}at {figures.short(last['samples_done'])} samples"
    if len(curve) == 1:
        return f"{quality(curve[0])} {samples}"
    found, own = measures(curve[-1])
    drawn = "AUC" if "AUC" in found else next(iter(found))
    values = [measures(point)[0].get(drawn, found[drawn]) for point in curve]
    line = figures.sparkline([value - min(values) for value in values], width)
    told = [f"{name} {value:.4f}" for name, value in found.items() if name != drawn] + [own] * bool(own)
    return f"[cyan]{line}[/cyan]  {drawn} {values[0]:.4f} → {', '.join([f'{values[-1]:.4f}', *told])} {samples}"


def _applying(view: Json) -> str:
    """Say how many pods run already: a worker imports its framework first, which takes a while."""
    running = sum(pod["state"] == "running" for pod in view["pods"].values())
    if view["status"] == "starting":
        return f"starting: {running} of {view['plan']['workers'] + view['plan']['ps']} pods run"
    return "" if view["status"] in ("finished", "failed", "cancelled") else "being applied"


def _speed(view: Json, width: int) -> str:
    points = [point["throughput"] for point in view["throughput"]]
    line = f"[cyan]{figures.sparkline(points, width)}[/cyan]  " if points else ""
    top = f"  [dim]top {figures.rate(max(points))}[/dim]" if points else ""
    if since := stalled(view["progress"]["stalled_since_s"]):
        return f"{line}[red]0/s[/red]  {since}"
    if view["status"] != "training":
        return f"{line.rstrip()}{top}" if points else "not measured yet"
    per_s = view["progress"]["samples_per_s"]
    return f"{line}{figures.rate(per_s)}{top}" if per_s or points else "the first samples are trained; no rate yet"


def _pods(view: Json, width: int, rows: int | None) -> RenderableType:
    pods = sorted(view["pods"].values(), key=lambda pod: (pod["role"], int(pod["pod"].rpartition("-")[2])))
    running = [pod for pod in pods if pod["state"] != "exited"]
    running.sort(
        key=lambda pod: not (pod["straggler"] or pod["hot"] or _pending(pod))
    )  # pods with a problem come first
    exited = [pod for pod in pods if pod["state"] == "exited"]
    exited.sort(key=lambda pod: (pod["exit_reason"] != "stopped", pod["exited_at_s"] or 0))  # failures stay longest
    forecast = {ps["pod"]: ps for ps in (view["forecast"] or {"ps": ()})["ps"]} if not view["books"] else {}
    made = table("pod", "cores", "memory", "rows", "speed", "", right=("cores", "memory", "rows", "speed"))
    most = EXITED_SHOWN if running else rows
    gone = exited if most is None or len(exited) <= most else exited[-(most if running else most - 1) :]
    shown = running if rows is None or len(running) + len(gone) <= rows else running[: max(1, rows - len(gone) - 1)]
    for pod in shown:
        made.add_row(*_running(pod, forecast.get(pod["pod"]), width))
    if len(shown) < len(running):
        made.add_row(f"[dim]… {len(running) - len(shown)} more[/dim]")
    if not running and len(gone) < len(exited):
        made.add_row(f"[dim]{len(exited) - len(gone)} before[/dim]")
    for pod in gone:
        made.add_row(f"[dim]{pod['pod']}[/dim]", "", "", "", "", f"[dim]{pod['exit_reason']}[/dim]")
    return made if made.row_count else Text("no pod runs", style="dim")


def _running(pod: Json, ps: Json | None, width: int) -> tuple[str, ...]:
    used = "–" if pod["cpu_used_cores"] is None else f"{pod['cpu_used_cores']:.2f}"
    limit = "–" if pod["cpu_limit_cores"] is None else f"{pod['cpu_limit_cores']:g}"
    remarks = [f"[yellow]{mark}[/yellow]" for mark in ("straggler", "hot") if pod[mark]]
    if _pending(pod):
        remarks.append(f"[yellow]pending: {pod['pending_reason']}[/yellow]")
    if ps is not None:
        remarks.append(_memory(ps, width))
    return (
        pod["pod"],
        f"{used}/{limit}",
        f"{figures.size(pod['memory_used_bytes'])}/{figures.size(pod['memory_limit_bytes'])}",
        "" if pod["categories"] is None else f"{pod['categories']:,}",
        _pod_rate(pod),
        " ".join(remarks),
    )


def _pending(pod: Json) -> bool:
    return pod["state"] == "pending"


def _pod_rate(pod: Json) -> str:
    if (batches_per_s := pod.get("batches_per_s")) is not None:
        return f"{batches_per_s:.0f} batches/s"
    return "" if pod["samples_per_s"] is None else figures.short_rate(pod["samples_per_s"])


def _memory(ps: Json, width: int) -> str:
    """Return the forecast of a server's memory at the end, or the time until it is full."""
    if ps["oom_in_s"] is not None:
        return f"[red]full in {figures.seconds(ps['oom_in_s'])}[/red]"
    end = f"at end {figures.size(ps['at_end_bytes'])}"
    if width < WIDE:
        return end
    interval = ps["at_end_interval_bytes"]
    return rf"{end} \[{figures.size(interval['low'])} … {figures.size(interval['high'])}], never full"


def _decisions(view: Json, width: int) -> list[RenderableType]:
    """Render the latest decisions, one per line; on a narrow screen, the reason is on the next line."""
    lines: list[RenderableType] = []
    for decision in view["decisions"][-DECISIONS_SHOWN:]:
        brought = (
            f"{figures.short_rate(decision['throughput'])} → {figures.short_rate(decision['outcome']['throughput'])}"
        )
        line = (
            f"{'v' + str(decision['version']):<4} {decision['kind']:<12} {figures.clock(decision['time_s'])}  "
            f"{figures.short_plan(decision['plan']):<22} {brought:<18} "
        )
        why = decision.get("in_words") or (*decision["reasons"], "")[0]
        lines += [_line(line + why)] if width >= WIDE else [_line(line), _line("     " + why, "dim")]
    if lines:
        lines.insert(
            0,
            _line(
                f"{'decision':<17} {'at':<9} {'plan':<22} {'predicted → brought':<19}"
                + (" why" if width >= WIDE else ""),
                "dim",
            ),
        )
    return lines


def _line(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")
