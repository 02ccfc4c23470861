"""Reports of `whatif pareto` (the front and the plan to choose) and `whatif allocate` (nodes by job and step)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stretto_client import figures
from stretto_client.drawing import front as front_drawing
from stretto_client.drawing import svg
from stretto_client.drawing.front import amount

from ....charts import part, write
from ....page import head, page

LEFT, WIDTH, RIGHT, TOP = 150.0, 1000.0, 24.0, 24.0
LANE, LARGEST, SHOWN_JOBS = 14.0, 5, 400

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
            ("samples per second", amount(best["throughput"])),
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


def _front(points: list[Point], best: Point | None) -> str:
    return front_drawing.drawing([_drawn(point, point is best) for point in points])


def _drawn(point: Point, chosen: bool) -> front_drawing.Point:
    title = f"{_plan(point)}: {amount(point['throughput'])} samples/s, {point['cost_per_hour']:.4g} an hour"
    return front_drawing.Point(point["cost_per_hour"], point["throughput"], title, chosen)


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
    return svg.figure(LEFT + WIDTH + RIGHT, height, "nodes by job and step", shapes)
