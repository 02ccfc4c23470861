"""Reports of `whatif pareto` (the front and the plan to choose) and `whatif allocate` (nodes by job and step)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from ... import figures, svg
from ...charts import part, write
from ...page import figure, head, page

LEFT, WIDTH, RIGHT, TOP, HEIGHT = 150.0, 1000.0, 24.0, 24.0, 420.0
LANE, LARGEST, SHOWN_JOBS = 14.0, 5, 400
TICKS = 8
"""most ticks of an axis"""

Point = dict[str, Any]


def chosen(points: list[Point], budget_per_hour: float | None) -> Point | None:
    """Return the fastest plan within the budget, or None; without a budget, the plan with most samples per cost."""
    if budget_per_hour is None:
        return max(points, key=lambda point: point["throughput"] / point["cost_per_hour"], default=None)
    within = (point for point in points if point["cost_per_hour"] <= budget_per_hour)
    return max(within, key=lambda point: point["throughput"], default=None)


def front(folder: Path, points: list[Point], budget_per_hour: float | None) -> None:
    """Write ``pareto.html``: cost against throughput, both on logarithmic axes. Raises CliError."""
    best = chosen(points, budget_per_hour)
    rule = "the fastest within the budget" if budget_per_hour is not None else "the most samples per cost"
    tiles = [("plans on the front", f"{len(points):,}")]
    if best is not None:
        tiles += [
            ("chosen", _plan(best)),
            ("samples per second", _amount(best["throughput"])),
            ("cost per hour", f"{best['cost_per_hour']:.4g}"),
        ]
    remark = rule if best is not None else f"no plan costs at most {budget_per_hour:g} an hour"
    legend = "a dot is a plan; the large one is chosen"
    parts = [
        head("Plans that no other beats in cost and throughput", remark, tiles),
        part(f"Samples per second over cost per hour ({legend})", _front(points, best)),
    ]
    write(folder, "pareto.html", page("Pareto front", parts))


def allocation(folder: Path, result: Point) -> None:
    """Write ``allocation.html``: the nodes of each job, step by step. Raises CliError."""
    plans = list(result["plan"].items())
    tiles = [
        ("jobs", f"{len(plans):,}"),
        ("objective", f"{result['objective']:.4g}"),
        ("at most below the best", f"{result['gap']:.3%}"),
        ("solved in", figures.seconds(result["solve_s"])),
    ]
    more = f", the first {SHOWN_JOBS}" if len(plans) > SHOWN_JOBS else ""
    parts = [
        head("Nodes of elastic jobs in the steps ahead", "stretto whatif allocate", tiles),
        part(f"Nodes of each job{more}, step by step (the darker the more)", _lanes(plans[:SHOWN_JOBS])),
    ]
    write(folder, "allocation.html", page("Allocation", parts))


def _plan(point: Point) -> str:
    return f"{point['workers']} × {point['worker_cpu']} + {point['ps']} × {point['ps_cpu']} cores"


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


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


def _front(points: list[Point], best: Point | None) -> str:
    if not points:
        return ""
    base = TOP + HEIGHT
    x = _Axis([point["cost_per_hour"] for point in points], LEFT + 10, LEFT + WIDTH - 10)
    y = _Axis([point["throughput"] for point in points], base - 10, TOP + 10)
    shapes = list[str]()
    for tick in x.ticks():
        shapes += [
            svg.line(x.at(tick), TOP, x.at(tick), base, "grid"),
            svg.text(x.at(tick), base + 16, _amount(tick), "tick"),
        ]
    for tick in y.ticks():
        shapes += [svg.line(LEFT, y.at(tick), LEFT + WIDTH, y.at(tick), "grid")]
        shapes += [svg.text(LEFT - 12, y.at(tick) + 4, _amount(tick), "name")]
    for point in sorted(points, key=lambda point: point is best):  # the chosen one last, above the others
        title = f"{_plan(point)}: {_amount(point['throughput'])} samples/s, {point['cost_per_hour']:.4g} an hour"
        here = x.at(point["cost_per_hour"]), y.at(point["throughput"])
        shapes.append(
            svg.dot(*here, 7, "fault", f"chosen: {title}") if point is best else svg.dot(*here, 2.5, "pool", title)
        )
    return figure(LEFT + WIDTH + RIGHT, base + 28, "Pareto front", shapes)


def _lanes(plans: list[tuple[str, list[int]]]) -> str:
    steps = max((len(sizes) for _, sizes in plans), default=1)
    step, height = WIDTH / steps, TOP + LANE * len(plans) + 8
    shapes = [svg.text(LEFT + step * (n + 0.5), 14, f"step {n + 1}" if n else "now", "tick") for n in range(steps)]
    for lane, (job, sizes) in enumerate(plans):
        y = TOP + LANE * lane
        shapes.append(svg.text(LEFT - 12, y + LANE - 4, job[:20], "name"))
        for n, nodes in enumerate(sizes):
            style = f"pool size{min(nodes.bit_length(), LARGEST)}" if nodes else "queue"
            title = f"{job}, {'now' if n == 0 else f'step {n + 1}'}: {nodes} nodes"
            shapes.append(svg.rect(LEFT + step * n + 1, y, step - 2, LANE - 2, style, title, radius=1))
    return figure(LEFT + WIDTH + RIGHT, height, "nodes by job and step", shapes)
