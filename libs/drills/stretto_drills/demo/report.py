"""The demonstration's report, from the gateway's views: a document and tables."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text
from stretto_cli.render import table
from stretto_client import figures

from .stations import Station

TOOK_BAR_S = 210.0
"""Longest time that the demonstration should take. A miss is reported; the exit status depends on the samples, not on
the speed of the machine."""
Json = dict[str, Any]


def good_plan(view: Json) -> Json:
    """The fastest of the measured plans."""
    measured = [d for d in view["decisions"] if d["outcome"]["throughput"]]
    best = max(measured, key=lambda d: d["outcome"]["throughput"], default=None)
    return best["plan"] if best else view["plan"]


def build(
    view: Json,
    reference: Json | None,
    stations: dict[str, Station],
    ready_s: float,
    elapsed_s: float,
    *,
    compared: bool = True,
) -> Json:
    """Build the document of the demonstration. ``compared``: the reference was to be trained, too."""
    found = passed(stations)
    if compared:
        found["reference"] = {
            "passed": reference is not None and reference["status"] == "finished",
            "title": "the same data at a fixed configuration",
            "after_s": None,
            "what": "" if reference is None else reference["status"],
        }
    exact = _exact(view) and (not compared or (reference is not None and _exact(reference)))
    return {
        "passed": exact and all(station["passed"] for station in found.values()),
        "took_s": round(elapsed_s, 1),
        "bars": [took(elapsed_s, TOOK_BAR_S)],
        "control_plane_ready_s": ready_s,
        "stations": found,
        "decisions": [decision(each) for each in view["decisions"]],
        "pauses": pauses(view),
        "migrations": view["migrations"],
        "samples": _samples(view),
        "reference_samples": reference and _samples(reference),
        "quality": {"elastic": _quality(view), "reference": _quality(reference)},
        "reference_plan": reference and reference["plan"],
        "forecasts": _forecasts(view),
        "job_status": {"elastic": view["status"], "reason": view["reason"]},
        "job_s": _duration(view),
        "reference_job_s": _duration(reference),
    }


def passed(stations: dict[str, Station]) -> Json:
    """Return which stations were passed, and when."""
    return {
        name: {"passed": s.seen_s is not None, "title": s.title, "after_s": s.seen_s, "what": s.what}
        for name, s in stations.items()
    }


def took(elapsed_s: float, bar_s: float) -> Json:
    """Return the time that a demonstration took, beside the longest that it should take."""
    return {"name": "took_s", "value": round(elapsed_s, 1), "bar": bar_s, "met": elapsed_s <= bar_s}


def decision(d: Json) -> Json:
    """Return what a decision was to bring, and what it brought."""
    outcome = d["outcome"]
    return {
        "version": d["version"],
        "kind": d["kind"],
        "plan": d["plan"],
        "reasons": d["reasons"],
        "throughput_before": d["throughput_before"],
        "throughput_predicted": d["throughput"],
        "throughput_interval": d["throughput_interval"],
        "throughput_after": outcome["throughput"],
        "windows": outcome["windows"],
        "prediction_error": outcome["prediction_error"],
        "inside_interval": outcome["inside_interval"],
        "applied_in_s": outcome["took_s"],
    }


def pauses(view: Json) -> list[Json]:
    """Return the longest time between two steps of any worker, per phase."""
    return [
        {
            "phase": phase["kind"],
            "plan_version": phase["plan_version"],
            "detail": phase["detail"],
            "lasted_s": None if phase["ended_at_s"] is None else phase["ended_at_s"] - phase["started_at_s"],
            "longest_gap_s": phase["longest_gap_s"],
            "pod": phase["longest_gap_pod"],
        }
        for phase in view["phases"]
        if phase["reports"]
    ]


def _exact(view: Json) -> bool:
    """Return whether the servers applied every sample exactly once."""
    books = view["books"]
    return (
        books is not None
        and books["samples_lost"] == 0
        and books["samples_repeated"] == 0
        and books["samples_applied"] == books["samples_expected"]
    )


def _samples(view: Json) -> Json | None:
    books = view["books"]
    return books and {k: v for k, v in books.items() if k.startswith(("samples_", "repeats_"))}


def _quality(view: Json | None) -> Json | None:
    return view["books"]["evaluation"] if view and view["books"] else None


def _duration(view: Json | None) -> float | None:
    return view["ended_at_s"] - view["submitted_at_s"] if view and view["ended_at_s"] else None


def _forecasts(view: Json) -> list[Json]:
    """Return the forecasts that were acted on, with the memory that each server used in the end."""
    found: list[Json] = []
    for decision in view["decisions"]:
        if decision["kind"] != "memory" or not decision["forecast"]:
            continue
        for ps in decision["forecast"]["ps"]:
            pod = view["pods"].get(ps["pod"], {})
            found.append(
                {
                    "decision": decision["version"],
                    "pod": ps["pod"],
                    "used_bytes": ps["used_bytes"],
                    "limit_bytes": ps["limit_bytes"],
                    "oom_in_s": ps["oom_in_s"],
                    "at_end_bytes": ps["at_end_bytes"],
                    "at_end_interval_bytes": ps["at_end_interval_bytes"],
                    "came_bytes": pod.get("memory_used_bytes"),
                    "servers_then": len(decision["forecast"]["ps"]),
                    "servers_at_end": view["plan"]["ps"],
                }
            )
    return found


def tables(s: Json) -> RenderableType:
    """Render the summary for people."""
    parts: list[RenderableType] = [Text()]
    for made in (station_table(s), decision_table(s), pause_table(s)):
        parts += [made, Text()]
    if s["forecasts"]:
        made = table("memory forecast", "limit", "forecast for the end", "came")
        for w in s["forecasts"]:
            spread = "" if w["servers_then"] == w["servers_at_end"] else f" (spread over {w['servers_at_end']})"
            made.add_row(
                w["pod"],
                figures.size(w["limit_bytes"]),
                figures.size(w["at_end_bytes"]),
                figures.size(w["came_bytes"]) + spread,
            )
        parts += [made, Text()]
    parts.append(_quality_table(s))
    if samples := s["samples"]:
        again = f"; {samples['repeats_recognised']:,} pushed again after the kill and recognised"
        parts.append(f"\nsamples, counted by the parameter servers: {_counted(samples)}{again}")
    if samples := s["reference_samples"]:
        parts.append(f"of the reference: {_counted(samples)}")
    return Group(*parts, *verdict(s))


def station_table(s: Json) -> RenderableType:
    made = table("station", "after", "what", right=("after",))
    for station in s["stations"].values():
        mark = "[green]✔[/green]" if station["passed"] else "[red]✘ did not happen:[/red]"
        made.add_row(f"{mark} {station['title']}", figures.seconds(station["after_s"]), escape(station["what"]))
    return made


def decision_table(s: Json) -> RenderableType:
    made = table("decision", "plan", "before", "predicted", "90 %", "came", right=("before", "predicted", "came"))
    for d in s["decisions"]:
        made.add_row(
            f"v{d['version']} {d['kind']}",
            figures.short_plan(d["plan"]),
            figures.rate(d["throughput_before"]),
            figures.rate(d["throughput_predicted"]),
            escape(figures.interval(d["throughput_interval"])),
            figures.rate(d["throughput_after"]),
        )
    return made


def pause_table(s: Json) -> RenderableType:
    made = table("phase", "lasted", "longest pause of any worker", right=("lasted",))
    for p in s["pauses"]:
        made.add_row(
            f"{p['phase']}: {escape(p['detail'])}", figures.seconds(p["lasted_s"]), figures.seconds(p["longest_gap_s"])
        )
    return made


def verdict(s: Json) -> list[str]:
    """Say whether the demonstration passed, and which of its bars were met."""
    word = "[green bold]passed[/green bold]" if s["passed"] else "[red bold]not passed[/red bold]"
    lines = [f"{word} in {figures.seconds(s['took_s'])}"]
    for bar in s["bars"]:
        mark = "[green]met[/green]" if bar["met"] else "[red]missed[/red]"
        lines.append(f"at most {figures.seconds(bar['bar'])}: {mark}, {figures.seconds(bar['value'])}")
    return lines


def _counted(samples: Json) -> str:
    return (
        f"{samples['samples_applied']:,} applied of {samples['samples_expected']:,}; "
        f"[bold]{samples['samples_lost']} lost, {samples['samples_repeated']} repeated[/bold]"
    )


def _quality_table(s: Json) -> RenderableType:
    made = table("held-out quality", "loss", "AUC", "job took", right=("loss", "AUC", "job took"))
    for name, took in (("elastic", s["job_s"]), ("reference", s["reference_job_s"])):
        quality = s["quality"][name]
        if quality:
            made.add_row(name, f"{quality['loss']:.5f}", f"{quality['auc']:.4f}", figures.seconds(took))
    return made
