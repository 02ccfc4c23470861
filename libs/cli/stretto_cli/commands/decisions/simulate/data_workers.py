"""`stretto simulate data-workers`: jobs whose data are prepared on other CPUs (GoldMiner §5.6)."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from stretto_client import figures
from stretto_core.algorithms import SIMULATE_DATA_WORKERS
from stretto_messages.base import InvalidValue
from stretto_sim.data_workers import DataWorkersOutcome, TraceJob, simulate

from ....charts import ReportOption, write
from ....options import OutputForm, OutputOption, answer
from ....progress import watched
from ....reading import BadData, Count, FileArgument, Given, NotNegative, Positive
from ....render import table
from ....solving import algorithm, solved
from .data_workers_report import page_of
from .traces import jobs_in


class Row(Given):
    """A job of the trace."""

    submit_s: NotNegative
    steps: Count
    gpus: Count
    step_s_ideal: Positive
    cpus_per_gpu: Positive


def data_workers(
    file: FileArgument,
    policy: Annotated[
        str, typer.Option(help="a policy that `stretto whatif algorithms` lists")
    ] = SIMULATE_DATA_WORKERS.default,
    report: ReportOption = None,
    output: OutputOption = OutputForm.TABLE,
) -> None:
    """Share the CPUs of 8 nodes of 8 GPUs and 64 CPUs between the jobs of a trace, which start in their order.

    FILE has the columns submit_s, steps, gpus, step_s_ideal, cpus_per_gpu: the seconds of a step that does not wait
    for data, and the CPUs per GPU that this takes. The training worker has 3 of them, at most half; the others can be
    data workers on any node. Policies without data workers are tuned (all CPUs beside the GPU) and hardware (8 per
    GPU). Under fixed a job has as many as it can use, from start to end. These three know what each job needs. Under
    fair, maxtp and srtf every job learns it from its own data queue, as jobs of Stretto do, and the arbiter shares out
    what training workers leave.
    """
    chosen = algorithm(SIMULATE_DATA_WORKERS, policy)
    jobs = [_job(row, line) for line, row in enumerate(jobs_in(file, Row, output), 2)]
    with watched(f"{policy} on 64 GPUs") as progress:
        found, _ = solved(lambda trace: simulate(trace, chosen, progress=progress), jobs)
    result = document_of(found)
    if report is not None:
        write(report, "data-workers.html", page_of(found, result, policy))
    answer(output, result, lambda: _view(result))


def _job(row: Row, line: int) -> TraceJob:
    try:
        return TraceJob(row.submit_s, row.steps, row.gpus, row.step_s_ideal, row.cpus_per_gpu)
    except InvalidValue as error:
        raise BadData(f"line {line}: {error}") from error


def document_of(found: DataWorkersOutcome) -> dict[str, Any]:
    """Return the answer as a document."""
    return {
        "jobs": len(found.jobs),
        "mean_completion_s": found.completion.mean_s,
        "mean_queue_s": found.mean_queue_s,
        "gpu_utilisation": found.gpu_utilisation,
        "cpu_utilisation": found.cpu_utilisation,
    }


def _view(result: dict[str, Any]) -> object:
    made = table("jobs", "completion", "in the queue", "GPUs allocated", "CPUs allocated")
    made.add_row(
        f"{result['jobs']:,}",
        figures.seconds(result["mean_completion_s"]),
        figures.seconds(result["mean_queue_s"]),
        f"{result['gpu_utilisation']:.1%}",
        f"{result['cpu_utilisation']:.1%}",
    )
    return made
