"""`stretto whatif allocate`: the nodes of each elastic job in the steps ahead (ModelArts)."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import Field
from rich.console import Group, RenderableType
from stretto_core.algorithms import ALLOCATE
from stretto_core.arbiter.ahead import Allocation, AllocationProblem, ElasticJob

from ....charts import ReportOption
from ....options import OutputForm, OutputOption, answer
from ....reading import (
    AlgorithmOption,
    Count,
    FileArgument,
    Given,
    NotNegative,
    Positive,
    Whole,
    once,
    read_json,
    refuse,
)
from ....render import table
from ....solving import algorithm, gap_to_upper, solved
from . import pages

SHOWN_JOBS = 40


class AllocatedJob(Given):
    """An elastic job; only ``greedy`` reads the last two fields."""

    id: Annotated[str, Field(min_length=1)]
    demand_node_hours: Positive
    min_nodes: Whole
    max_nodes: Whole
    current_nodes: Whole = 0
    trained_s: NotNegative = 0.0


class Instance(Given):
    """The pool, the steps ahead, and the jobs in the order of their submission."""

    nodes: Whole
    steps: Count
    step_hours: Positive
    sizes: list[Count] = Field(min_length=1)
    doubling_efficiency: Annotated[float, Field(gt=0, le=1)]
    jobs: list[AllocatedJob]


def allocate(
    file: FileArgument,
    name: AlgorithmOption = ALLOCATE.default,
    report: ReportOption = None,
    output: OutputOption = OutputForm.TABLE,
) -> None:
    """Share a pool of nodes between elastic jobs over the steps ahead.

    FILE is JSON: nodes, steps, step_hours (of each), sizes (nodes that a job can have), doubling_efficiency (speed on n
    nodes is n times this to the power log2 n), and jobs, in the order of the queue: id, demand_node_hours, min_nodes
    and max_nodes (inclusive; min_nodes 0: the job can wait), optionally current_nodes and trained_s (seconds).
    The whole format, with an example: libs/cli/WHATIF.md.
    """
    problem = problem_of(read_json(file, Instance))
    solve = algorithm(ALLOCATE, name)
    if reason := problem.infeasible():
        result: dict[str, Any] = {"feasible": False, "reason": reason}
    else:
        found, solve_s = solved(solve, problem)
        result = document_of(problem, found, solve_s)
        if report is not None:
            pages.allocation(report, result)
    answer(output, result, lambda: _view(result))


def problem_of(given: Instance) -> AllocationProblem:
    """Return the problem as core states it. Raises BadData."""
    once((job.id for job in given.jobs), "jobs.id")
    if len(set(given.sizes)) < len(given.sizes):
        refuse("sizes", given.sizes, "every size once")
    for index, job in enumerate(given.jobs):
        if job.min_nodes > job.max_nodes:
            refuse(f"jobs[{index}].min_nodes", job.min_nodes, f"at most max_nodes, {job.max_nodes}")
    jobs = tuple(ElasticJob(**job.model_dump(include=set(AllocatedJob.model_fields))) for job in given.jobs)
    return AllocationProblem(
        jobs, given.nodes, given.steps, given.step_hours, tuple(given.sizes), given.doubling_efficiency
    )


def document_of(problem: AllocationProblem, found: Allocation, solve_s: float) -> dict[str, Any]:
    """Return the answer as a document. The certified bound replaces that of an allocator that proves none."""
    bound = found.bound
    if not math.isfinite(bound):
        from stretto_core.arbiter.ahead.certified import (
            certified,
        )  # loads SciPy, which greedy does not need

        bound = max(certified(problem).bound, found.objective)
    return {
        "feasible": True,
        "nodes": found.first(problem),
        "plan": {job.id: [int(n) for n in row] for job, row in zip(problem.jobs, found.plan, strict=True)},
        "objective": found.objective,
        "bound": bound,
        "gap": gap_to_upper(found.objective, bound),
        "solve_s": solve_s,
    }


def _view(result: dict[str, Any]) -> RenderableType:
    if not result["feasible"]:
        return f"not feasible: {result['reason']}"
    made = table("job", "nodes now", "then", right=("nodes now",))
    plans = list(result["plan"].items())
    for job, sizes in plans[:SHOWN_JOBS]:
        made.add_row(job, str(sizes[0]), " ".join(map(str, sizes[1:])))
    if len(plans) > SHOWN_JOBS:
        made.add_row(f"… and {len(plans) - SHOWN_JOBS} more", "", "")
    summary = (
        f"objective {result['objective']:.4f}, at most {result['gap']:.3%} below the best; {result['solve_s']:.3f} s"
    )
    return Group(made, summary)
