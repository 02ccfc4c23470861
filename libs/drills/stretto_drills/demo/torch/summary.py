"""The report of the acts with PyTorch, from the gateway's views: a document and tables."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from .. import report
from ..stations import Station

TOOK_BAR_S = 240.0
Json = dict[str, Any]


def build(ddp: Json, grows: Json, books: Json, stations: dict[str, Station], ready_s: float, elapsed_s: float) -> Json:
    """Build the document. ``books``: the audit of the script of several ranks, whose view is ``ddp``."""
    passed = report.passed(stations)
    return {
        "passed": books["exact"] and all(station["passed"] for station in passed.values()),
        "took_s": round(elapsed_s, 1),
        "bars": [report.took(elapsed_s, TOOK_BAR_S)],
        "control_plane_ready_s": ready_s,
        "stations": passed,
        "decisions": [report.decision(each) for view in (ddp, grows) for each in view["decisions"]],
        "pauses": report.pauses(ddp),
        "books": {name: books[name] for name in ("samples_total", "samples_done", "samples_recomputed", "exact")},
        "guarantees": {view["name"]: view["guarantee"] for view in (ddp, grows)},
        "job_status": {view["name"]: view["status"] for view in (ddp, grows)},
    }


def tables(s: Json) -> RenderableType:
    """Render the summary for people."""
    parts: list[RenderableType] = [Text()]
    for made in (report.station_table(s), report.decision_table(s), report.pause_table(s)):
        parts += [made, Text()]
    parts += [f"{name}: {guarantee}" for name, guarantee in s["guarantees"].items()]
    return Group(*parts, *report.verdict(s))
