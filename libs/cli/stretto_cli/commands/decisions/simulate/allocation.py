"""`stretto simulate allocation`: elastic jobs on a pool of nodes (ModelArts §5)."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer
from stretto_client import figures
from stretto_core.algorithms import SIMULATE_ALLOCATION
from stretto_sim.allocation import AllocationOutcome, PoolTraceSettings, TraceJob, simulate

from ....charts import ReportOption, write
from ....options import OutputForm, OutputOption, answer
from ....progress import watched
from ....reading import Count, FileArgument, Given, NotNegative, Positive
from ....render import table
from ....solving import algorithm, solved
from .allocation_report import page_of
from .traces import jobs_in, named_as_options

NoiseOption = Annotated[float, typer.Option(help="largest relative error of the demand that the allocator knows")]
BugOption = Annotated[float, typer.Option(help="share of the jobs that fail within 5 minutes of training")]
TerminationOption = Annotated[float, typer.Option(help="share of the jobs that their users end at any time")]
DelayOption = Annotated[float, typer.Option(help="seconds until a starting or growing job uses its new nodes")]


class Row(Given):
    """A job of the trace."""

    submit_s: NotNegative
    demand_node_hours: Positive
    max_nodes: Count


def allocation(
    file: FileArgument,
    nodes: Annotated[int, typer.Option(help="nodes of the pool")],
    allocator: Annotated[
        str, typer.Option(help="an algorithm that `stretto whatif algorithms` lists")
    ] = SIMULATE_ALLOCATION.default,
    eta_noise: NoiseOption = 0.0,
    bug_rate: BugOption = 0.0,
    termination_rate: TerminationOption = 0.0,
    scaling_delay_s: DelayOption = 0.0,
    seed: Annotated[int, typer.Option(help="seed of noise, bugs and terminations")] = 0,
    report: ReportOption = None,
    output: OutputOption = OutputForm.TABLE,
) -> None:
    """Share a pool of nodes between the jobs of a trace, from the first submission to the last end.

    FILE has the columns submit_s, demand_node_hours, max_nodes. Decisions are made every 5 minutes, and by
    marginal-doubling whenever a job arrives or ends.
    """
    with named_as_options(PoolTraceSettings):
        settings = PoolTraceSettings(nodes, eta_noise, bug_rate, termination_rate, scaling_delay_s, seed)
    policy = algorithm(SIMULATE_ALLOCATION, allocator)
    jobs = [TraceJob(row.submit_s, row.demand_node_hours, row.max_nodes) for row in jobs_in(file, Row, output)]
    with watched(f"{allocator} on {nodes} nodes") as progress:
        found, _ = solved(
            lambda trace: simulate(trace, policy, settings, clock=time.perf_counter, progress=progress), jobs
        )
    result = document_of(found)
    if report is not None:
        write(report, "allocation.html", page_of(found, result, allocator))
    answer(output, result, lambda: _view(result))


def document_of(found: AllocationOutcome) -> dict[str, Any]:
    """Return the answer as a document."""
    decide_s = found.decide_s
    return {
        "jobs": len(found.jobs),
        "mean_completion_s": found.completion.mean_s,
        "p90_completion_s": found.completion.p90_s,
        "mean_queue_s": found.mean_queue_s,
        "utilisation": found.utilisation,
        "changes_per_job": found.changes_per_job,
        "decide_s": {
            "mean": sum(decide_s) / len(decide_s) if decide_s else 0.0,
            "max": max(decide_s, default=0.0),
        },
    }


def _view(result: dict[str, Any]) -> object:
    made = table(
        "jobs",
        "completion",
        "of 90 % within",
        "in the queue",
        "utilisation",
        "changes per job",
        "a decision takes",
        "the slowest",
    )
    decide_s = result["decide_s"]
    made.add_row(
        f"{result['jobs']:,}",
        figures.seconds(result["mean_completion_s"]),
        figures.seconds(result["p90_completion_s"]),
        figures.seconds(result["mean_queue_s"]),
        f"{result['utilisation']:.1%}",
        f"{result['changes_per_job']:.1f}",
        f"{decide_s['mean'] * 1e3:.2f} ms",
        f"{decide_s['max'] * 1e3:.2f} ms",
    )
    return made
