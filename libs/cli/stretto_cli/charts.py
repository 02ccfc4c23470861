"""Charts of a simulation's page: the distribution of durations, levels over time, and a lane per job over time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from stretto_client import figures
from stretto_client.drawing import svg
from stretto_sim.measures import Level

from .errors import of_system

ReportOption = Annotated[Path | None, typer.Option(metavar="FOLDER", help="write a page with figures into FOLDER")]

LEFT, WIDTH, RIGHT, HEIGHT, TOP = 150.0, 1000.0, 24.0, 150.0, 24.0
LANE = 4.0
SHOWN_JOBS = 1500
"""Number of jobs that get a lane: the first ones of the trace."""
HOUR_S = 3600.0
TICKS_S = tuple(
    each * unit_s
    for unit_s, eachs in ((1, (1, 2, 5, 10, 30)), (60, (1, 2, 5, 10, 20, 30)), (3600, (1, 2, 5, 10, 20, 50, 100, 1000)))
    for each in eachs
)
TICK_WIDTH = 70.0
"""Least distance of two labelled ticks; a nearer one is left out."""

Span = tuple[float, float]
"""Begin and end of a span, in seconds."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A level over time. ``most`` is the value at the top of the chart, ``colour`` a class of the style sheet."""

    level: Level
    most: float
    colour: str = "speed"


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a lane. ``style`` names classes of the style sheet; ``title`` is the tooltip."""

    begin_s: float
    end_s: float
    style: str
    title: str


def write(folder: Path, name: str, text: str) -> None:
    """Write a page into the folder of ``--report``, which is made if it does not exist. Raises CliError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise of_system(error, "--report") from error


def part(title: str, drawing: str) -> str:
    """Return a drawing below its title as a foldable part of a page (HTML)."""
    return f"<details open><summary>{title}</summary>{drawing}</details>"


def distribution(label: str, took_s: Sequence[float]) -> str:
    """Draw the cumulative distribution of at least one duration, on a logarithmic axis."""
    took_s = sorted(max(each_s, 1.0) for each_s in took_s)
    low, high = math.log10(took_s[0]), max(math.log10(took_s[-1]), math.log10(took_s[0]) + 0.1)

    def place(value_s: float, share: float) -> tuple[float, float]:
        return LEFT + WIDTH * (math.log10(value_s) - low) / (high - low), TOP + HEIGHT * (1 - share)

    shapes = list[str]()
    last = -math.inf
    for tick_s in TICKS_S:
        x, _ = place(tick_s, 0)
        if LEFT <= x <= LEFT + WIDTH and x >= last + TICK_WIDTH:
            last = x
            shapes += [svg.line(x, TOP - 4, x, TOP + HEIGHT, "grid"), svg.text(x, 14, figures.seconds(tick_s), "tick")]
    for share in (0.0, 0.5, 0.9, 1.0):
        _, y = place(1, share)
        shapes += [svg.line(LEFT, y, LEFT + WIDTH, y, "grid"), svg.text(LEFT - 12, y + 4, f"{share:.0%}", "name")]
    points = [place(value_s, (index + after) / len(took_s)) for index, value_s in enumerate(took_s) for after in (0, 1)]
    points.append((LEFT + WIDTH, TOP))
    shapes += [svg.area(points, TOP + HEIGHT, "speed area"), svg.polyline(points, "speed line")]
    return svg.figure(LEFT + WIDTH + RIGHT, TOP + HEIGHT + 8, label, shapes)


def levels(label: str, span: Span, curves: Iterable[Curve], top: str) -> str:
    """Draw levels over hours on one axis; ``top`` labels its upper end."""
    base = TOP + HEIGHT
    shapes = [*_grid(span, base + 8)]
    for y, name in ((base, "0"), (TOP, top)):
        shapes += [svg.line(LEFT, y, LEFT + WIDTH, y, "axis"), svg.text(LEFT - 12, y + 4, name, "name")]
    for curve in curves:
        points: list[tuple[float, float]] = [(LEFT, base)]
        for time_s, amount in zip(curve.level.times_s, curve.level.amounts, strict=True):
            y = base - HEIGHT * amount / curve.most
            points += [(_x(span, time_s), points[-1][1]), (_x(span, time_s), y)]
        shapes += [svg.area(points, base, f"{curve.colour} area"), svg.polyline(points, f"{curve.colour} line")]
    return svg.figure(LEFT + WIDTH + RIGHT, base + 8, label, shapes)


def lanes(label: str, span: Span, jobs: Sequence[Iterable[Piece]]) -> str:
    """Draw one lane of pieces per job, over hours. The caller passes at most :data:`SHOWN_JOBS` jobs."""
    height = TOP + LANE * len(jobs) + 8
    shapes = [*_grid(span, height)]
    for index, pieces in enumerate(jobs):
        y = TOP + LANE * index
        for piece in pieces:
            x = _x(span, piece.begin_s)
            shapes.append(svg.rect(x, y, _x(span, piece.end_s) - x, LANE - 1, piece.style, piece.title, radius=0))
    return svg.figure(LEFT + WIDTH + RIGHT, height, label, shapes)


def steps(level: Level, begin_s: float, end_s: float) -> Iterator[tuple[float, float, float]]:
    """Yield (begin, end, amount) of each constant stretch of the level between the two times."""
    times, amounts = [begin_s, *level.times_s, end_s], [0.0, *level.amounts]
    for start_s, stop_s, amount in zip(times, times[1:], amounts, strict=False):
        if stop_s > start_s:
            yield start_s, stop_s, amount


def _x(span: Span, time_s: float) -> float:
    begin_s, end_s = span
    return LEFT + WIDTH * (time_s - begin_s) / max(end_s - begin_s, 1e-9)


def _grid(span: Span, height: float) -> Iterator[str]:
    """Draw a line at round numbers of hours since the begin of the span, 14 at most."""
    hours = (span[1] - span[0]) / HOUR_S
    step = 10.0 ** math.floor(math.log10(max(hours, 1e-3)))
    step *= next(times for times in (0.1, 0.2, 0.5, 1.0) if hours / (step * times) <= 14)
    for index in range(int(hours / step) + 1):
        x = _x(span, span[0] + index * step * HOUR_S)
        yield svg.line(x, TOP - 4, x, height - 6, "grid")
        yield svg.text(x, 14, f"{index * step:g}", "tick")
