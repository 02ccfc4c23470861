"""The Pareto front of cost and throughput as a drawing with two logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from . import svg

LEFT, WIDTH, RIGHT, TOP, HEIGHT = 150.0, 1000.0, 24.0, 24.0, 420.0
TICKS = 8
"""Largest number of ticks on an axis."""


@dataclass(frozen=True, slots=True)
class Point:
    """A plan. ``title`` is the tooltip; one plan is ``chosen``."""

    cost_per_hour: float
    throughput: float
    title: str
    chosen: bool = False


def amount(value: float) -> str:
    """Format a value at a tick or in a tooltip."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def drawing(points: Sequence[Point]) -> str:
    """Draw plans: samples per second over cost per hour. Plans without cost or throughput have no place there."""
    points = [point for point in points if point.cost_per_hour > 0 and point.throughput > 0]
    if not points:
        return ""
    base = TOP + HEIGHT
    x = _Axis([point.cost_per_hour for point in points], LEFT + 10, LEFT + WIDTH - 10)
    y = _Axis([point.throughput for point in points], base - 10, TOP + 10)
    shapes = list[str]()
    for tick in x.ticks():
        shapes += [
            svg.line(x.at(tick), TOP, x.at(tick), base, "grid"),
            svg.text(x.at(tick), base + 16, amount(tick), "tick"),
        ]
    for tick in y.ticks():
        shapes += [svg.line(LEFT, y.at(tick), LEFT + WIDTH, y.at(tick), "grid")]
        shapes += [svg.text(LEFT - 12, y.at(tick) + 4, amount(tick), "name")]
    for point in sorted(points, key=lambda point: point.chosen):  # the chosen one last, above the others
        here = x.at(point.cost_per_hour), y.at(point.throughput)
        shapes.append(
            svg.dot(*here, 7, "fault", f"chosen: {point.title}")
            if point.chosen
            else svg.dot(*here, 2.5, "pool", point.title)
        )
    return svg.figure(LEFT + WIDTH + RIGHT, base + 28, "Pareto front", shapes)


class _Axis:
    """A logarithmic axis between the coordinates ``begin`` and ``end``."""

    def __init__(self, values: list[float], begin: float, end: float) -> None:
        self.low, self.high = math.log10(min(values)), math.log10(max(values))
        if self.high - self.low < 1e-9:
            self.low, self.high = self.low - 0.1, self.high + 0.1
        self.begin, self.end = begin, end

    def at(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return self.begin + (self.end - self.begin) * share

    def ticks(self) -> list[float]:
        """Return 1, 2 and 5 of every decade, or only the decades where that is too many."""
        decades = range(math.floor(self.low), math.ceil(self.high) + 1)
        for digits in ((1, 2, 5), (1,)):
            found = [digit * 10.0**decade for decade in decades for digit in digits]
            found = [tick for tick in found if self.low <= math.log10(tick) <= self.high]
            if len(found) <= TICKS:
                break
        return found[:: math.ceil(len(found) / TICKS)] if found else [10**self.low]
