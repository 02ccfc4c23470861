"""``stretto explain``: every decision about a job, and its reasons."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from stretto_client import figures
from stretto_messages.base import counted

from ...command import command
from ...errors import BadInput
from ...options import GatewayOptions, JobArgument, console, print_json
from ...render import Json, head, is_whole, rows_told, table, unreadable, why, wire_told

REFUSALS_SHOWN = 5
CANDIDATES_SHOWN = 12
ALTERNATIVES_SHOWN = 8
READ_SHARE_SHOWN = 0.01
"""Share of a step from which on the wait for its data is shown."""
VERSIONS_NAMED = 20
SPEED = (
    "speed = workers × batch / step; step = gradients + update + synchronisation + embeddings (DLRover-RM, Eq. 1 to 6)"
)


@command("See", "stretto explain ctr --decision 3")
def explain(
    options: GatewayOptions,
    job: JobArgument,
    version: Annotated[
        int | None, typer.Option("--decision", "-d", help="Explain only the decision of this version.")
    ] = None,
    derivation: Annotated[
        bool,
        typer.Option("--derivation", help="Show how each plan was computed: measurements, model, candidates, round."),
    ] = False,
) -> None:
    """Explain every decision in a sentence: what the change should bring, for how much, and what it brought.

    With --derivation also what was measured, the fitted model and its error, the candidates, and why not another plan.
    """
    with options.connect() as gateway:
        view = gateway.job(job)
    chosen = [d for d in view["decisions"] if version in (None, d["version"])]
    if version is not None and not chosen:
        known = ", ".join(str(d["version"]) for d in view["decisions"][-VERSIONS_NAMED:]) or "none yet"
        raise BadInput(f"--decision {version}: {job} has no such decision; its decisions are {known}")
    if options.is_json:
        told = {"job": job, "decisions": chosen, "refusals": view["refusals"], "data_workers": view.get("feeding")}
        print_json({**told, "unreadable": view.get("unreadable", 0)})
        return
    console.print(decisions(view, chosen, derivation))


def decisions(view: Json, chosen: list[Json], derivation: bool = True) -> RenderableType:
    """Render decisions of a job, oldest first, then refusals, losses and the end, under the job's name and plan.

    derivation: with how each plan was computed.
    """
    parts: list[RenderableType] = [head(view), Text(f"cost  {figures.cost(view.get('cost'))}")]
    parts += [Text(promise)] if (promise := view.get("guarantee")) else []
    parts += [Text(f"wire  {travels}")] if (travels := wire_told(view)) else []
    parts += [Text(lost, style="red")] if (lost := unreadable(view)) else []
    parts += [_decision(decision, derivation) for decision in chosen]
    if chosen and not derivation:
        parts.append(Text(f"stretto explain {view['name']} --derivation shows how it was computed", style="dim"))
    parts += [Text(told) for told in memory_told(view)]
    for refusal in view["refusals"][-REFUSALS_SHOWN:]:
        parts.append(
            Text(
                f"{figures.clock(refusal['time_s'])} refused {refusal['kind']}: "
                f"{figures.short_plan(refusal['wanted'])}; {'; '.join(refusal['reasons'])}",
                style="yellow",
            )
        )
    parts += [Text(data_workers(each)) for each in (view.get("feeding") or {}).get("decisions", ())]
    parts += [Text(loss(each), style="yellow") for each in view["losses"]]
    if view["reason"] and view["status"] != "waiting":  # a job that waits was refused, which is told above
        parts.append(Text(why(view), style="dim" if is_whole(view) else "red"))
    if not chosen and not lost:
        parts.append(Text("nothing was decided yet", style="dim"))
    return Group(*parts)


def memory_told(view: Json) -> Iterator[str]:
    """Yield what became of rows that found no room in memory: rounded ones, reads from disks, now and predicted."""
    servers = [pod for pod in view["pods"].values() if pod["role"] == "ps" and pod["state"] == "running"]
    rows = sum(pod["categories"] or 0 for pod in servers)
    if rounded := sum(pod.get("warm_rows", 0) for pod in servers):
        told = f"{rounded:,} of {counted(rows, 'row')} of the parameter servers are rounded to bfloat16"
        yield f"{told} for lack of memory, as `rows: {{warm: bf16}}` allows"
    hot_share = 1 - sum(pod.get("cold_rows", 0) for pod in servers) / max(rows, 1)
    for way in (view.get("forecast") or {}).get("remedies", ()):
        if way["kind"] == "spill" and way.get("reads_measured"):
            yield (
                f"{figures.clock(view['forecast']['time_s'])} with {hot_share:.0%} of the rows in memory a step read "
                f"{way['reads_measured']:.0f} of the fullest server; with {way['hot_share']:.0%}, as they are to be, "
                f"{_reads(way)} are predicted, by what was read so far"
            )
    for pod in servers:
        if fault := pod.get("spill_fault"):
            yield f"{pod['pod']} has no room for its rows: {fault}"


def _reads(way: Json) -> str:
    """Return the predicted reads of a remedy with their interval, if an installation of this version told it."""
    interval = way.get("reads_interval") or {"high": 0}
    between = f" ({interval['low']:.0f} to {interval['high']:.0f})" if interval["high"] else ""
    return f"{way['reads_per_step']:.0f} reads a step{between}"


def data_workers(each: Json) -> str:
    """Say how many data workers were decided on, why, and what they brought."""
    count = counted(each["count"], "data worker")
    wanted = f" of {each['wanted']} wanted" if each["wanted"] != each["count"] else ""
    size = f" of {figures.cores(each['cpu_cores'])}, {figures.size(each['memory_bytes'])}" if each["count"] else ""
    before, after = each["throughput_before"], each["throughput"]
    rates = f"; {figures.rate(before)} → {figures.rate(after)}" if before and after else ""
    return f"{figures.clock(each['time_s'])} {count}{wanted}{size}: {'; '.join(each['reasons']) or 'no reason'}{rates}"


def loss(each: Json) -> str:
    """Say what became of the columns of a lost parameter server."""
    begun = f"{figures.clock(each['time_s'])} {each['pod']} was lost; the other servers and all workers went on"
    if each["refused"] or each["returned_at_s"] is not None:
        why = each["refused"] or "another server was lost before its columns were back"
        back_s = each["returned_at_s"]
        where = "a checkpoint" if back_s is None else f"{each['checkpoint']} at {figures.clock(back_s)}"
        return f"{begun} until all parameters returned to {where}, because {why}"
    if each["restored_at_s"] is None:
        return f"{begun}. Its columns are not back yet"
    return (
        f"{begun}. Its {counted(each['columns'], 'column')} ({figures.size(each['size_bytes'])}) were back from "
        f"{each['checkpoint']} after {figures.seconds(each['restored_at_s'] - each['time_s'])}; "
        f"trained again for them: {counted(each['samples_recomputed'], 'sample')}"
    )


def _decision(d: Json, derivation: bool) -> RenderableType:
    title = f"[bold]v{d['version']} {d['kind']}[/bold]  {figures.clock(d['time_s'])}"
    computed = _derivation(d) if derivation else ()
    return Panel(
        Group(Text(d.get("in_words") or (*d["reasons"], "")[0]), *computed, _outcome(d)),
        title=title,
        title_align="left",
    )


def _derivation(d: Json) -> list[RenderableType]:
    """Render how a plan was computed."""
    parts: list[RenderableType] = [_line("computed as", SPEED), _why(d)]
    if d["warm_start"] and d["warm_start"]["matches"]:
        parts.append(_warm_start(d["warm_start"]))
    if d["forecast"]:
        parts.append(_forecast(d["forecast"]))
    if d["measured"]:
        parts.append(_measured(d["measured"]))
    if d["fitted"]:
        parts.append(_fitted(d["fitted"]))
    if d["front"] and d["front"]["candidates"]:
        parts.append(_front(d))
    if d["alternatives"]:
        parts.append(_alternatives(d))
    return parts


def _line(label: str, text: str) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=12, style="dim")
    grid.add_column()
    grid.add_row(label, escape(text))
    return grid


def _why(d: Json) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=12, style="dim")
    grid.add_column()
    grid.add_row("plan", figures.plan(d["plan"]))
    reasons = list(d["reasons"]) or ["no reason was given"]
    for index, reason in enumerate(reasons):
        grid.add_row("why" if index == 0 else "", escape(reason))
    if chosen := d.get("round"):
        grid.add_row("round", _round(chosen))
        if solve := chosen.get("background"):
            grid.add_row("background", _background_solve(solve))
    if d["previous"]:
        grid.add_row("instead of", figures.plan(d["previous"]))
    free = [figures.cores(d["free_cpu_cores"]), figures.size(d["free_memory_bytes"])]
    free += [f"{count} {escape(name)}" for name, count in d["free_extended"].items()]
    grid.add_row(
        "chosen by",
        f"the algorithm {d['algorithm']} (`stretto whatif select --help`); costs {d['cost_per_hour']:.3f} an hour by "
        f"the job's prices; leaves {' and '.join(free)} free in the cluster",
    )
    return grid


def _round(chosen: Json) -> str:
    """Return the value of the choice over all jobs, and its proven bound."""
    jobs = counted(chosen["jobs"], "job")
    return (
        f"{escape(chosen['algorithm'])} over {jobs}: {escape(chosen['objective'])} {chosen['value']:.6g}, at most "
        f"{chosen['bound']:.6g} is possible (gap {chosen['gap']:.3%}); this plan's part {chosen['term']:.4g}"
    )


def _background_solve(solve: Json) -> str:
    """Return the outcome of the slower algorithm that re-optimised the choice in the background."""
    took = "" if solve["took_s"] is None else f" after {figures.seconds(solve['took_s'])}"
    text = f"{solve['algorithm']}, {solve['outcome']}{took}: {solve['reason']}"
    if solve["value"] is not None:
        text += f"; {solve['value']:.6g} in place of {solve['instead_of']:.6g}"
    if solve["gap"] is not None:
        text += f"; at most {solve['gap']:.3%} below the optimum of its question"
    return escape(text)


def _warm_start(w: Json) -> RenderableType:
    made = table(
        "  similar past job",
        "similarity",
        "weight",
        "its plan",
        "its throughput",
        right=("similarity", "weight", "its throughput"),
    )
    for match in w["matches"]:
        made.add_row(
            f"  {match['job']}",
            f"{match['similarity']:.3f}",
            f"{match['weight']:.3f}",
            figures.short_plan(match["plan"]),
            figures.rate(match["throughput"]),
        )
    return made


def _forecast(w: Json) -> RenderableType:
    lines = [f"{w['action']}: {w['reason']}"]
    for way in w.get("remedies", ()):
        slow = way["slowdown_interval"]
        memory = figures.size(way["ps_memory_bytes"])
        told = f"{way['kind']}: {way['ps']} PS of {memory}, {way['cost_per_hour']:.3f} an hour"
        if way["kind"] == "spill":
            told += f", {way['hot_share']:.0%} of the rows in memory, {_reads(way)}"
        told += f", {way['slowdown']:.0%} slower ({slow['low']:.0%} to {slow['high']:.0%})"
        lines.append(told + (f"; steps differ by {way['noise']:.0%} anyway" if way.get("noise") else ""))
    for ps in w["ps"]:
        full = "never full" if ps["oom_in_s"] is None else f"full in {figures.seconds(ps['oom_in_s'])}"
        lines.append(
            f"{ps['pod']}: {figures.size(ps['used_bytes'])} of {figures.size(ps['limit_bytes'])} now, "
            f"{figures.size(ps['at_end_bytes'])} at the end, {full}"
        )
    return _line("forecast", "\n".join(lines))


def _measured(m: Json) -> RenderableType:
    times = m["times"]
    parts = {"T_emb": times["emb_s"], "T_grad": times["grad_s"], "T_upd": times["upd_s"], "T_sync": times["sync_s"]}
    if (read_s := times.get("read_s", 0.0)) >= READ_SHARE_SHOWN * m["step_time_s"]:
        parts["waiting for data"] = read_s
    told = ", ".join(f"{name} {figures.seconds(part_s)}" for name, part_s in parts.items())
    together_s, step_s = sum(parts.values()), m["step_time_s"]
    more = f"{figures.seconds(together_s - step_s)} of it at the same time"
    rest = f"the other {figures.seconds(step_s - together_s)} is in none of these"
    settled = "" if m["settled"] else " (not settled)"
    elsewhere = m.get("prepared_elsewhere", 0.0)
    fed = f"; data workers prepared {elsewhere:.0%} of the batches" if elsewhere else ""
    policy = rows_told(m["rows"]) if "rows" in m else ""
    rows = f"; {policy}" if policy else ""
    return _line(
        "measured",
        f"plan v{m['plan_version']}: {figures.rate(m['throughput'])}, step {figures.seconds(step_s)}: {told}, "
        f"together {figures.seconds(together_s)}, {more if together_s > step_s else rest}; "
        f"{counted(m['categories'], 'category', 'categories')}{rows}{fed}{settled}",
    )


def _fitted(m: Json) -> RenderableType:
    coefficients = ", ".join(f"{name} {value:.3g}" for name, value in m["coefficients"].items())
    unknown = f"; cannot be told apart yet: {', '.join(m['unidentified'])}" if m["unidentified"] else ""
    interval = figures.interval(m["predicted_interval_s"], "{:.4f}")
    return _line(
        "model",
        f"{m['form']} form, RMSLE {m['rmsle']:.3f} over {counted(m['points'], 'window')} of "
        f"{counted(m['configurations'], 'configuration')}; "
        f"step predicted {m['predicted_step_time_s']:.4f} s {interval}, measured {m['measured_step_time_s']:.4f} s; "
        f"{coefficients}{unknown}",
    )


def _front(d: Json) -> RenderableType:
    front = d["front"]
    made = table(
        "  id", "plan", "rate/s", "90 %", "gain/s", "waste", "cost/h", right=("rate/s", "gain/s", "waste", "cost/h")
    )
    for candidate in front["candidates"][:CANDIDATES_SHOWN]:
        mark, interval = "→" if candidate["plan"] == d["plan"] else " ", candidate["throughput_interval"]
        made.add_row(
            f"{mark} {candidate['id']}",
            figures.short_plan(candidate["plan"]),
            figures.short(candidate["throughput"]),
            f"{figures.short(interval['low'])} … {figures.short(interval['high'])}",
            figures.short(candidate["gain"], "+"),
            figures.seconds(candidate["overhead_s"]),
            f"{candidate['cost_per_hour']:.3f}",
        )
    rest = len(front["candidates"]) - CANDIDATES_SHOWN
    head = f"{len(front['candidates'])} on the Pareto front of {front['plans_considered']:,} ({front['algorithm']})"
    return Group(
        _line("candidates", head), made, Text(f"  and {rest} more", style="dim") if rest > 0 else Text("", end="")
    )


def _alternatives(d: Json) -> RenderableType:
    made = table(
        "  not taken",
        "rate/s",
        "cost/h",
        "efficiency",
        "why not",
        right=("rate/s", "cost/h", "efficiency"),
        wrapped="why not",
    )
    for other in d["alternatives"][:ALTERNATIVES_SHOWN]:
        made.add_row(
            f"  {figures.short_plan(other['plan'])}",
            figures.short(other["throughput"]),
            f"{other['cost_per_hour']:.3f}",
            f"{other['efficiency']:.3g}",
            escape(other["why_not"]),
        )
    return made


def _outcome(d: Json) -> RenderableType:
    outcome = d["outcome"]
    lines = ["nothing was predicted: there was no measurement to predict from"]
    if d["throughput"] is not None:
        interval = figures.interval(d["throughput_interval"])
        lines = [f"predicted {figures.rate(d['throughput'])}" + (f", with 90 % between {interval}" if interval else "")]
    if d.get("reads_per_step") is not None:
        lines[0] += f"; {d['reads_per_step']:.0f} reads a step"
    if d["throughput_before"] is not None:
        lines[0] += f"; {figures.rate(d['throughput_before'])} before"
    if outcome["applied_at_s"] is not None:
        lines.append(f"applied {figures.clock(outcome['applied_at_s'])}, took {figures.seconds(outcome['took_s'])}")
    if outcome["throughput"] is not None:
        error = "" if outcome["prediction_error"] is None else f", {figures.percent(outcome['prediction_error'])} off"
        inside = {True: ", inside the interval", False: ", outside the interval", None: ""}[outcome["inside_interval"]]
        gain = "" if outcome["gain"] is None else f" = {outcome['gain']:.2f} × before"
        lines.append(
            f"brought {figures.rate(outcome['throughput'])}{gain} over {counted(outcome['windows'], 'window')}{error}"
            f"{inside}"
        )
        if outcome.get("reads_per_step") is not None:
            lines[-1] += f"; {outcome['reads_per_step']:.0f} reads a step"
        if times := outcome.get("stage_times_s"):
            told = ", ".join(f"stage {stage} took {figures.seconds(each_s)}" for stage, each_s in enumerate(times))
            lines.append(f"for a batch {told}; the slowest one bounds the plan (HeterPS Eq. 3)")
    else:
        lines.append("what it brought was not measured: no settled window under it")
    return _line("outcome", "\n".join(lines))
