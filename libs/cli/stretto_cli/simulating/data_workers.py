"""`stretto simulate data-workers`: jobs whose data are prepared beside them (GoldMiner §5.6)."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from stretto_core.algorithms import SIMULATE_DATA_WORKERS
from stretto_messages.base import InvalidValue
from stretto_sim.data_workers import Outcome, TraceJob, simulate

from .. import figures as f
from ..options import Output, OutputOption, answer
from ..render import table
from ..whatif.reading import BadData, Count, FileArgument, Given, NotNegative, Positive
from ..whatif.solving import algorithm, solved
from .allocation import ReportOption
from .charts import write
from .data_workers_report import page_of
from .given import jobs_in
from .watching import watched


class Row(Given):
    """A job of the trace."""

    submit_s: NotNegative
    steps: Count
    gpus: Count
    step_s_ideal: Positive
    cpus_per_gpu: Positive


def data_workers(
    file: FileArgument,
    policy: Annotated[str, typer.Option(help="one of `stretto whatif algorithms`")] = SIMULATE_DATA_WORKERS.default,
    report: ReportOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Share the CPUs of 8 nodes of 8 GPUs and 64 CPUs between the jobs of a trace, which start in their order.

    FILE has the columns submit_s, steps, gpus, step_s_ideal, cpus_per_gpu: the seconds of a step that waits for no
    data, and the CPUs per GPU that this takes. Up to 3 of them, at most half, are the training worker's; the rest can
    be data workers on any node. Policies without data workers: tuned (all CPUs beside the GPU), hardware (8 per GPU);
    with as many as a job can use, from start to end: fixed; with as many as others leave: fair, maxtp, srtf. These are
    told what each job needs; under srtf-by-queue every job finds that out by its own data queue, as a service would.
    """
    chosen = algorithm(SIMULATE_DATA_WORKERS, policy)
    jobs = [_job(row, line) for line, row in enumerate(jobs_in(file, Row, output), 2)]
    with watched(f"{policy} on 64 GPUs") as progress:
        found, _ = solved(lambda trace: simulate(trace, chosen, progress=progress), jobs)
    told = told_of(found)
    if report is not None:
        write(report, "data-workers.html", page_of(found, told, policy))
    answer(output, told, lambda: _shown(told))


def _job(row: Row, line: int) -> TraceJob:
    try:
        return TraceJob(row.submit_s, row.steps, row.gpus, row.step_s_ideal, row.cpus_per_gpu)
    except InvalidValue as error:
        raise BadData(f"line {line}: {error}") from error


def told_of(found: Outcome) -> dict[str, Any]:
    """The answer as a document."""
    return {
        "jobs": len(found.jobs),
        "mean_completion_s": found.completion.mean_s,
        "mean_queue_s": found.mean_queue_s,
        "gpu_utilisation": found.gpu_utilisation,
        "cpu_utilisation": found.cpu_utilisation,
    }


def _shown(told: dict[str, Any]) -> object:
    made = table("jobs", "completion", "in the queue", "GPUs allocated", "CPUs allocated")
    made.add_row(
        f"{told['jobs']:,}", f.seconds(told["mean_completion_s"]), f.seconds(told["mean_queue_s"]),
        f"{told['gpu_utilisation']:.1%}", f"{told['cpu_utilisation']:.1%}",
    )  # fmt: skip
    return made
