"""The page of `simulate data-workers`: durations of jobs, allocations, and the data workers of each job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stretto_client import figures
from stretto_sim.data_workers import DataWorkersOutcome, Done
from stretto_sim.measures import Level

from ....charts import SHOWN_JOBS, Curve, Piece, distribution, lanes, levels, part, steps
from ....page import head, page

LARGEST = 5
"""Number of shades, for 1, 2-3, 4-7, 8-15 and more data workers."""


def page_of(found: DataWorkersOutcome, result: dict[str, Any], policy: str) -> str:
    """Return the page (HTML) of a simulation and its answer."""
    cluster = found.cluster
    known = "each job tuned by its queue" if found.tunes else "what each job needs is known"
    command = f"{policy}, {cluster.nodes} nodes of {cluster.gpus} GPUs and {cluster.cpus:g} CPUs; {known}"
    tiles = [
        ("jobs", f"{result['jobs']:,}"),
        ("mean completion", figures.seconds(result["mean_completion_s"])),
        ("mean with all CPUs", figures.seconds(found.ideal.mean_s)),
        ("mean queueing", figures.seconds(result["mean_queue_s"])),
        ("GPUs allocated", f"{result['gpu_utilisation']:.1%}"),
        ("CPUs allocated", f"{result['cpu_utilisation']:.1%}"),
    ]
    parts = [head("Data workers on a cluster", command, tiles)]
    if found.jobs:
        took_s = [job.completion_s for job in found.jobs]
        curves = [Curve(found.gpus, cluster.all_gpus), Curve(found.cpus, cluster.all_cpus, "done")]
        jobs = list(zip(found.jobs, found.workers, strict=True))[:SHOWN_JOBS]
        pieces = [_pieces(number, job, level) for number, (job, level) in enumerate(jobs, 1)]
        shown = f", the first {SHOWN_JOBS:,}" if len(found.jobs) > SHOWN_JOBS else ""
        legend = "the darker the more; grey: trains without; red: in the queue"
        parts += [
            part(
                "Completion times: share of the jobs that took at most so long",
                distribution("completion times", took_s),
            ),
            part(
                "Allocated of all GPUs (green) and of all CPUs (yellow), over hours",
                levels("GPUs and CPUs", found.span_s, curves, "100%"),
            ),
            part(
                f"Data workers of each job{shown}, over hours ({legend})",
                lanes("data workers by job", found.span_s, pieces),
            ),
        ]
    return page("Data workers, simulated", parts)


def _pieces(number: int, job: Done, level: Level) -> Iterator[Piece]:
    """Yield the pieces of a job's lane; ``number`` counts submissions."""
    end = f"{job.gpus} GPUs; ended after {figures.seconds(job.completion_s)}"
    if job.queued_s > 0:
        yield Piece(job.submit_s, job.start_s, "queue", f"job {number}, queue, {figures.seconds(job.queued_s)}; {end}")
    for begin_s, end_s, amount in steps(level, job.start_s, job.end_s):
        workers = int(amount)
        style = f"pool size{min(workers.bit_length(), LARGEST)}" if workers else "service"
        title = f"job {number}, {workers} data workers, {figures.seconds(end_s - begin_s)}; {end}"
        yield Piece(begin_s, end_s, style, title)
