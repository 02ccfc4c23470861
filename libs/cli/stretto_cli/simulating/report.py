"""A simulation of elastic jobs as a page: how long jobs took, how busy the pool was, and who had which nodes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stretto_sim.allocation import Outcome
from stretto_sim.measures import Level

from .. import figures as f
from .. import svg
from ..page import figure, head, page

LEFT, WIDTH, RIGHT, HEIGHT, TOP = 150.0, 1000.0, 24.0, 150.0, 24.0
LANE = 4.0
SHOWN_JOBS = 1500
LARGEST = 5
"""shades of sizes: 1, 2, 4, 8, 16 and more"""
HOUR_S = 3600.0


def write(folder: Path, name: str, text: str) -> None:
    """The page into a folder that is made if it has to be. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")


def page_of(found: Outcome, told: dict[str, Any], allocator: str) -> str:
    """The whole file. ``told`` is the answer as a document."""
    settings = found.settings
    command = (
        f"{allocator}, {settings.nodes} nodes, ETA noise {settings.eta_noise:g}, bugs {settings.bug_rate:g}, "
        f"terminations {settings.termination_rate:g}, delay {settings.scaling_delay_s:g} s, seed {settings.seed}"
    )
    tiles = [
        ("jobs", f"{told['jobs']:,}"),
        ("mean completion", f.seconds(told["mean_completion_s"])),
        ("of 90 % within", f.seconds(told["p90_completion_s"])),
        ("mean queueing", f.seconds(told["mean_queue_s"])),
        ("utilisation", f"{told['utilisation']:.1%}"),
        ("changes per job", f"{told['changes_per_job']:.1f}"),
    ]
    parts = [head("Elastic jobs on a pool of nodes", command, tiles)]
    if found.jobs:
        parts += _part("Completion times: share of the jobs that took at most so long", _distribution(found))
        parts += _part("Nodes that train, over hours", _pool(found))
        shown = f", the first {SHOWN_JOBS:,}" if len(found.jobs) > SHOWN_JOBS else ""
        legend = "the darker the more nodes; red: in the queue"
        parts += _part(f"Nodes of each job{shown}, over hours ({legend})", _jobs(found))
    return page("Elastic jobs, simulated", parts)


def _part(title: str, drawing: str) -> list[str]:
    return [f"<details open><summary>{title}</summary>{drawing}</details>"]


@dataclass(frozen=True, slots=True)
class _Span:
    """Hours as a place on the page."""

    begin_s: float
    end_s: float

    def x(self, time_s: float) -> float:
        return LEFT + WIDTH * (time_s - self.begin_s) / max(self.end_s - self.begin_s, 1e-9)

    def grid(self, height: float) -> Iterator[str]:
        hours = (self.end_s - self.begin_s) / HOUR_S
        step = 10.0 ** math.floor(math.log10(max(hours, 1e-3)))
        step *= next(times for times in (0.1, 0.2, 0.5, 1.0) if hours / (step * times) <= 14)
        for index in range(int(hours / step) + 1):
            x = self.x(self.begin_s + index * step * HOUR_S)
            yield svg.line(x, TOP - 4, x, height - 6, "grid")
            yield svg.text(x, 14, f"{index * step:g}", "tick")


def _distribution(found: Outcome) -> str:
    """On a logarithmic axis of time: sizes of jobs differ by orders of magnitude."""
    took_s = sorted(max(job.completion_s, 1.0) for job in found.jobs)
    low, high = math.log10(took_s[0]), max(math.log10(took_s[-1]), math.log10(took_s[0]) + 0.1)

    def place(value_s: float, share: float) -> tuple[float, float]:
        return LEFT + WIDTH * (math.log10(value_s) - low) / (high - low), TOP + HEIGHT * (1 - share)

    shapes = list[str]()
    for tick_s in (1, 10, 60, 600, 3600, 5 * 3600, 36_000, 180_000, 360_000, 3_600_000):
        x, _ = place(tick_s, 0)
        if LEFT <= x <= LEFT + WIDTH:
            shapes += [svg.line(x, TOP - 4, x, TOP + HEIGHT, "grid"), svg.text(x, 14, f.seconds(tick_s), "tick")]
    for share in (0.0, 0.5, 0.9, 1.0):
        _, y = place(1, share)
        shapes += [svg.line(LEFT, y, LEFT + WIDTH, y, "grid"), svg.text(LEFT - 12, y + 4, f"{share:.0%}", "name")]
    points = [place(value_s, (index + 1) / len(took_s)) for index, value_s in enumerate(took_s)]
    shapes += [svg.area(points, TOP + HEIGHT, "speed area"), svg.polyline(points, "speed line")]
    return figure(LEFT + WIDTH + RIGHT, TOP + HEIGHT + 8, "completion times", shapes)


def _pool(found: Outcome) -> str:
    span, nodes = _Span(*found.span_s), found.settings.nodes
    base = TOP + HEIGHT
    points: list[tuple[float, float]] = [(LEFT, base)]
    for time_s, amount in zip(found.in_use.times_s, found.in_use.amounts, strict=True):
        y = base - HEIGHT * amount / nodes
        points += [(span.x(time_s), points[-1][1]), (span.x(time_s), y)]
    shapes = [*span.grid(base + 8)]
    for share in (0, nodes):
        y = base - HEIGHT * share / nodes
        shapes += [svg.line(LEFT, y, LEFT + WIDTH, y, "axis"), svg.text(LEFT - 12, y + 4, f"{share}", "name")]
    shapes += [svg.area(points, base, "speed area"), svg.polyline(points, "speed line")]
    return figure(LEFT + WIDTH + RIGHT, base + 8, "nodes in use", shapes)


def _jobs(found: Outcome) -> str:
    """A lane for each job, in the order of submission."""
    shown = list(zip(found.jobs, found.of_job, strict=True))[:SHOWN_JOBS]
    span, height = _Span(*found.span_s), TOP + LANE * len(shown) + 8
    shapes = [*span.grid(height)]
    for index, (job, level) in enumerate(shown):
        y = TOP + LANE * index
        for begin_s, end_s, nodes in _pieces(level, job.submit_s, job.end_s):
            style = f"pool size{min(nodes.bit_length(), LARGEST)}" if nodes else "queue"
            what = f"{nodes} nodes" if nodes else "queue"
            title = (
                f"job {index + 1}, {what}, {f.seconds(end_s - begin_s)}; {job.how} after {f.seconds(job.completion_s)}"
            )
            x = span.x(begin_s)
            shapes.append(svg.rect(x, y, span.x(end_s) - x, LANE - 1, style, title, radius=0))
    return figure(LEFT + WIDTH + RIGHT, height, "nodes by job", shapes)


def _pieces(level: Level, begin_s: float, end_s: float) -> Iterator[tuple[float, float, int]]:
    """From when to when the job had how many nodes."""
    times, amounts = [begin_s, *level.times_s, end_s], [0.0, *level.amounts]
    for start_s, stop_s, amount in zip(times, times[1:], amounts, strict=False):
        if stop_s > start_s:
            yield start_s, stop_s, int(amount)
