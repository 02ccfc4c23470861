"""The report: a document for programs, tables for people; all of it is computed from stored events."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text
from stretto_cli.render import table
from stretto_client import figures

from . import effects
from .course import Happening, JobEnd
from .record import StreamRecord
from .schedule import KINDS

Json = dict[str, Any]
COUNTED = {
    "restores": "checkpoint-restored",
    "column_restores": "columns-restored",
    "migrations": "migration-finished",
    "checkpoints": "checkpoint-flushed",
    "shards_requeued": "shard-requeued",
    "plans_applied": "plan-applied",
}


def build(outcomes: Sequence[JobEnd], where: Json) -> Json:
    """Build the document of all runs."""
    runs = [run(outcome) for outcome in outcomes]
    disturbed = [one for one in runs if one["seed"] is not None]
    calm = [one for one in runs if one["seed"] is None]
    return {
        "passed": bool(runs) and all(one["exact"] for one in runs),
        **where,
        "runs": runs,
        "quality": {"disturbed": _quality(disturbed), "undisturbed": _quality(calm)},
    }


def run(outcome: JobEnd) -> Json:
    """Build the document of one job."""
    record, audit = outcome.record, outcome.audit
    finished = next((fact.data for fact in record.facts if fact.name == "job-finished"), None)
    names = [fact.name for fact in record.facts]
    until_s = trained_until(outcome)
    silent = effects.stalls(record.workers, until_s)
    return {
        "job": record.job,
        "seed": outcome.schedule.seed if outcome.schedule else None,
        "intensity": str(outcome.schedule.intensity) if outcome.schedule else None,
        "status": record.ended or "given up",
        "reason": record.reason or outcome.trouble,
        "exact": outcome.exact,
        "took_s": round(outcome.ended_s - outcome.began_s, 1),
        "happenings": [_happening(one, outcome, silent) for one in outcome.happenings],
        "counts": {title: names.count(name) for title, name in COUNTED.items()}
        | {"pods_started": names.count("pod-started"), "pods_lost": _lost(record)},
        "books": None if audit is None or finished is None else _books(audit, finished),
        "findings": [] if audit is None else audit["findings"],
        "evaluation": finished and finished["evaluation"],
        "schedule": outcome.schedule.document() if outcome.schedule else None,
    }


def trained_until(outcome: JobEnd) -> float:
    """Return when all samples were last complete, or the end of a job that never completed."""
    completed = [fact.time_s for fact in outcome.record.facts if fact.name == "job-completed"]
    return completed[-1] if completed else outcome.ended_s


def _lost(record: StreamRecord) -> int:
    return sum(pod.reason in ("killed", "vanished", "failed", "oom-killed") for pod in record.pods.values())


def _books(audit: Json, finished: Json) -> Json:
    """Return the counts of the ledger and of the servers; lost and repeated are those of the worst column."""
    return {
        "samples": audit["samples_total"],
        "assigned": audit["samples_assigned"],
        "reported": audit["samples_done"],
        "applied": finished["samples_applied"],
        "lost": audit["samples_lost"],
        "repeated": audit["samples_repeated"],
        "given_up": audit["samples_given_up"],
        "recognised": finished["repeats_recognised"],
        "columns": audit["columns"],
        "columns_exact": audit["columns_exact"],
    }


def _happening(one: Happening, outcome: JobEnd, silent: Sequence[effects.TimeSpan]) -> Json:
    planned, at_s = one.planned, one.at_s
    if at_s is None or one.skipped:
        seen = effects.Effect(None, None)
    else:
        struck = [o.at_s for o in outcome.happenings if o.at_s is not None and not o.planned.planned and o is not one]
        until_s = effects.effect_ends(at_s, one.healed_s, struck)
        seen = effects.effect(at_s, until_s, outcome.record.workers, silent)
    return {
        "number": planned.number,
        "kind": planned.kind,
        "title": KINDS[planned.kind].title,
        "planned_change": planned.planned,
        "on": one.on,
        "due_at": planned.at,
        "at_s": None if at_s is None else round(at_s - outcome.began_s, 2),
        "healed_after_s": None if at_s is None or one.healed_s is None else round(one.healed_s - at_s, 2),
        "healed": one.well,
        "skipped": one.skipped,
        "longest_pause_s": None if seen.pause_s is None else round(seen.pause_s, 3),
        "trained_again_after_s": None if seen.stall_s is None else round(seen.stall_s, 2),
    }


def _quality(runs: Sequence[Json]) -> Json | None:
    """Return mean, deviation and range of loss and AUC over several jobs on the same data."""
    measured = [one["evaluation"] for one in runs if one["evaluation"]]
    if not measured:
        return None
    found: Json = {"jobs": len(measured)}
    for name in ("loss", "auc"):
        values = [one[name] for one in measured]
        found[name] = {
            "mean": statistics.fmean(values),
            "sd": statistics.stdev(values) if len(values) > 1 else None,
            "min": min(values),
            "max": max(values),
        }
    return found


# for people ----------------------------------------------------------------------------------------------------


def of_run(one: Json) -> RenderableType:
    """Render a job's faults and its books."""
    right = ("#", "at", "healed", "longest pause", "trained again")
    made = table("#", "what", "on", "at", "healed", "longest pause", "trained again", right=right, wrapped="on")
    for h in one["happenings"]:
        style = "cyan" if h["planned_change"] else "red"
        title = f"[{style}]{h['kind']}[/{style}]"
        if h["skipped"]:
            made.add_row(str(h["number"]), f"[dim]{h['kind']}[/dim]", f"[dim]– {escape(h['skipped'])}[/dim]")
            continue
        healed = f"{figures.seconds(h['healed_after_s'])}" if h["healed"] else "[red]not healed[/red]"
        again = h["trained_again_after_s"]
        made.add_row(
            str(h["number"]),
            title,
            escape(h["on"]),
            figures.seconds(h["at_s"]),
            healed,
            figures.seconds(h["longest_pause_s"]),
            "never stopped" if again == 0 else figures.seconds(again),
        )
    return Group(made, Text(), *_verdict(one))


def _verdict(one: Json) -> list[RenderableType]:
    books, counts = one["books"], one["counts"]
    lines: list[RenderableType] = []
    if books:
        names = ("samples", "assigned", "reported", "applied", "lost", "repeated", "recognised")
        shown = table(*names, "columns", right=names)
        shown.add_row(*(f"{books[name]:,}" for name in names), f"{books['columns_exact']} of {books['columns']} exact")
        lines.append(shown)
    lines += [f"[red]{escape(finding)}[/red]" for finding in one["findings"]]
    counted = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if count)
    if quality := one["evaluation"]:
        counted += f"; held-out loss {quality['loss']:.5f}, AUC {quality['auc']:.4f}"
    verdict = "[green bold]exact[/green bold]" if one["exact"] else "[red bold]not exact[/red bold]"
    reason = f": {escape(one['reason'])}" if one["reason"] else ""
    lines.append(f"{verdict}, {one['status']}{reason} in {figures.seconds(one['took_s'])}; {counted}")
    return lines


def summary(document: Json) -> RenderableType:
    """Render several jobs next to each other, and their quality."""
    right = ("faults", "lost", "repeated", "longest pause", "took", "loss", "AUC")
    made = table("job", "faults", "lost", "repeated", "longest pause", "took", "loss", "AUC", "", right=right)
    for one in document["runs"]:
        books, quality = one["books"], one["evaluation"]
        done = [h for h in one["happenings"] if not h["skipped"] and not h["planned_change"]]
        pauses = [h["longest_pause_s"] for h in done if h["longest_pause_s"] is not None]
        made.add_row(
            one["job"],
            str(len(done)),
            "–" if books is None else f"{books['lost']:,}",
            "–" if books is None else f"{books['repeated']:,}",
            figures.seconds(max(pauses, default=None)),
            figures.seconds(one["took_s"]),
            f"{quality['loss']:.5f}" if quality else "–",
            f"{quality['auc']:.4f}" if quality else "–",
            "[green]exact[/green]" if one["exact"] else f"[red]{one['status']}, not exact[/red]",
        )
    parts: list[RenderableType] = [made]
    shown = table("held-out quality", "jobs", "loss", "AUC", right=("jobs",))
    for name, quality in document["quality"].items():
        if quality:
            shown.add_row(name, str(quality["jobs"]), _spread(quality["loss"], 5), _spread(quality["auc"], 4))
    if shown.row_count:
        parts += [Text(), shown]
    return Group(*parts)


def _spread(value: Json, digits: int) -> str:
    sd = "" if value["sd"] is None else f" ± {value['sd']:.{digits}f}"
    return f"{value['mean']:.{digits}f}{sd}  ({value['min']:.{digits}f} to {value['max']:.{digits}f})"
