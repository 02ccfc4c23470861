"""`stretto whatif select`: the candidate of each job, within the capacity of the cluster (DLRover-RM Eq. 11-14)."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from rich.console import Group, RenderableType
from stretto_core.algorithms import SELECT
from stretto_core.arbiter.selection import OBJECTIVE, RHO, Contender, Objective, Option, Selection, SelectionProblem

from ....options import OutputForm, OutputOption, answer
from ....reading import AlgorithmOption, FileArgument, Given, NotNegative, Positive, once, read_json, refuse
from ....render import table
from ....solving import algorithm, gap_to_upper, solved

SHOWN_JOBS = 40


class CandidateEntry(Given):
    """A change of a job: ``resources`` are additions, ``cost`` is their price per hour."""

    id: Annotated[str, Field(min_length=1)]
    resources: dict[str, NotNegative]
    cost: Positive
    gain: float
    throughput: Positive


class SelectableJob(Given):
    """A job that may get one of its candidates.

    ``throughput``, the present one, counts for ``completion``. Default: a candidate's throughput less its gain.
    """

    id: Annotated[str, Field(min_length=1)]
    remaining_samples: NotNegative
    throughput: NotNegative | None = None
    candidates: list[CandidateEntry]


class Candidates(Given):
    """The free capacity, the objective, and the candidates of each job."""

    capacity: dict[str, NotNegative]
    objective: Objective = OBJECTIVE
    rho: NotNegative = RHO
    epsilon: Positive = 1e-6
    jobs: list[SelectableJob]


def select(file: FileArgument, name: AlgorithmOption = SELECT.default, output: OutputOption = OutputForm.TABLE) -> None:
    """Choose at most one candidate for each job, within the capacity.

    The default, `exact-or-hull`, proves the best choice where that is short, as for a few dozen jobs; elsewhere it
    takes a fast one (`hull`), and the gap tells how far the best may be.
    """
    problem = problem_of(read_json(file, Candidates))
    found, solve_s = solved(algorithm(SELECT, name), problem)
    result = document_of(found, solve_s)
    answer(output, result, lambda: _view(result))


def problem_of(given: Candidates) -> SelectionProblem:
    """Return the problem as core states it. Raises BadData."""
    once((job.id for job in given.jobs), "jobs.id")
    for index, job in enumerate(given.jobs):
        once((candidate.id for candidate in job.candidates), f"jobs[{index}].candidates.id")
        for at, candidate in enumerate(job.candidates):
            for resource in candidate.resources:
                if resource not in given.capacity:
                    refuse(
                        f"jobs[{index}].candidates[{at}].resources",
                        resource,
                        f"one of capacity: {', '.join(given.capacity)}",
                    )
    contenders = tuple(
        Contender(
            job.id,
            job.remaining_samples,
            tuple(_option(candidate) for candidate in job.candidates),
            throughput=job.throughput,
        )
        for job in given.jobs
    )
    return SelectionProblem(
        contenders, dict(given.capacity), given.objective, given.rho, given.epsilon, least_cost=5e-324
    )


def _option(candidate: CandidateEntry) -> Option:
    return Option(candidate.id, dict(candidate.resources), candidate.cost, candidate.gain, candidate.throughput)


def document_of(found: Selection, solve_s: float) -> dict[str, Any]:
    """Return the answer as a document."""
    return {
        "chosen": found.chosen,
        "value": found.value,
        "bound": found.bound,
        "gap": gap_to_upper(found.value, found.bound),
        "solve_s": solve_s,
    }


def _view(result: dict[str, Any]) -> RenderableType:
    made = table("job", "candidate")
    chosen = list(result["chosen"].items())
    for job, candidate in chosen[:SHOWN_JOBS]:
        made.add_row(job, candidate or "–")
    if len(chosen) > SHOWN_JOBS:
        made.add_row(f"… and {len(chosen) - SHOWN_JOBS} more", "")
    summary = f"value {result['value']:.6g}, at most {result['gap']:.4%} below the best; {result['solve_s']:.3f} s"
    return Group(made, summary)
