"""`stretto whatif pareto`: the plans on the Pareto front of cost and throughput (DLRover-RM Eq. 7-9)."""

from __future__ import annotations

import math
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from stretto_core.algorithms import PARETO
from stretto_core.model.pareto import CandidateProblem, Grid, PricedPlan
from stretto_core.model.throughput import FittedModel
from stretto_core.model.types import Prices

from ....charts import ReportOption
from ....options import OutputForm, OutputOption, answer
from ....reading import AlgorithmOption, Count, FileArgument, Given, NotNegative, Positive, read_json, refuse
from ....render import table
from ....solving import algorithm, solved
from . import pages

BudgetOption = Annotated[float | None, typer.Option(help="most that the plan marked on the page may cost")]
PLANS_MAX = 20_000_000
"""Plans that fit into memory at once, at some 100 bytes each."""
HEADINGS = {
    "workers": "workers",
    "ps": "servers",
    "worker_cpu": "cores of a worker",
    "ps_cpu": "cores of a server",
    "cost_per_hour": "cost an hour",
    "throughput": "samples/s",
}
"""Column headings of the table."""


class Coefficients(Given):
    """Coefficients of the paper's form (Eq. 1-6)."""

    alpha_grad: NotNegative
    alpha_upd: NotNegative
    alpha_sync: NotNegative
    alpha_emb: NotNegative
    constant: NotNegative


class Ranges(Given):
    """Inclusive ranges of whole numbers."""

    workers: list[Count]
    ps: list[Count]
    worker_cpu: list[Count]
    ps_cpu: list[Count]


class Model(Given):
    """A job's model, its constants, and the grid of plans."""

    coefficients: Coefficients
    batch_size: Count
    param_mb: NotNegative
    bandwidth_mb_s: Positive
    embedding_dim: NotNegative
    grid: Ranges
    cpu_core_price: Positive


def pareto(
    file: FileArgument,
    name: AlgorithmOption = PARETO.default,
    report: ReportOption = None,
    budget_per_hour: BudgetOption = None,
    output: OutputOption = OutputForm.TABLE,
) -> None:
    """List the plans that no other plan beats in both cost and throughput, cheapest first.

    FILE is JSON: coefficients of the paper's form, as `whatif fit --form paper` prints them; the job's
    batch_size, param_mb (MB), bandwidth_mb_s (MB/s) and embedding_dim; grid, for workers, ps, worker_cpu and ps_cpu
    (cores of one pod) the first and last whole number, inclusive; cpu_core_price (per hour).
    The whole format, with an example: libs/cli/WHATIF.md.

    The page marks the fastest plan within --budget-per-hour; without a budget, the plan with most samples per cost.
    """
    if budget_per_hour is not None and not 0 <= budget_per_hour < math.inf:
        refuse("--budget-per-hour", budget_per_hour, "a finite number of at least 0")
    problem = problem_of(read_json(file, Model))
    front, solve_s = solved(algorithm(PARETO, name), problem)
    points = [_point(priced) for priced in front]
    if report is not None:
        pages.front(report, points, budget_per_hour)
    answer(output, {"points": points, "solve_s": solve_s}, lambda: _view(points))


def problem_of(model: Model) -> CandidateProblem:
    """Return the problem as core states it. M/B (Eq. 4) and D (Eq. 5) are folded into the coefficients."""
    given = model.coefficients
    folded = {
        "alpha_grad": given.alpha_grad,
        "alpha_upd": given.alpha_upd,
        "alpha_sync": given.alpha_sync * model.param_mb / model.bandwidth_mb_s,
        "alpha_emb": given.alpha_emb * model.embedding_dim,
        "constant": given.constant,
    }
    if not any(folded.values()):
        refuse("coefficients", given.model_dump(), "one above 0, so that a step takes time")
    axes = {name: _axis(model.grid, name) for name in Ranges.model_fields}
    plans = math.prod(map(len, axes.values()))
    if plans > PLANS_MAX:
        refuse("grid", f"{plans} plans", f"at most {PLANS_MAX}; narrow a range")
    grid = Grid(
        workers=tuple(axes["workers"]),
        ps=tuple(axes["ps"]),
        worker_cpu_cores=tuple(map(float, axes["worker_cpu"])),
        ps_cpu_cores=tuple(map(float, axes["ps_cpu"])),
        worker_memory_bytes=1,
        ps_memory_bytes=(1,) * len(axes["ps"]),
    )
    return CandidateProblem(_certain(folded), model.batch_size, grid, Prices(model.cpu_core_price, 0.0))


def _axis(ranges: Ranges, name: str) -> range:
    given = getattr(ranges, name)
    if len(given) != 2:
        refuse(f"grid.{name}", given, "two whole numbers, first and last")
    low, high = given
    if low > high:
        refuse(f"grid.{name}", [low, high], "the lower end first")
    return range(low, high + 1)


def _certain(coefficients: dict[str, float]) -> FittedModel:
    """Return a model with given coefficients: its covariance is zero."""
    nothing = tuple((0.0,) * len(coefficients) for _ in coefficients)
    return FittedModel("paper", coefficients, nothing, 0.0, 1.0, 0.0, (), ())


def _point(priced: PricedPlan) -> dict[str, Any]:
    plan = priced.plan
    return {
        "workers": plan.workers,
        "ps": plan.ps,
        "worker_cpu": round(plan.worker_cpu_cores),
        "ps_cpu": round(plan.ps_cpu_cores),
        "cost_per_hour": priced.cost_per_hour,
        "throughput": priced.throughput,
    }


def _view(points: list[dict[str, Any]]) -> RenderableType:
    made = table(*HEADINGS.values(), right=tuple(HEADINGS.values()))
    for point in points:
        values = [point[name] for name in HEADINGS]
        made.add_row(*(f"{value:.4g}" if isinstance(value, float) else str(value) for value in values))
    return made
