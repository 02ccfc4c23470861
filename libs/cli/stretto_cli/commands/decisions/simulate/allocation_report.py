"""The page of `simulate allocation`: durations of jobs, use of the pool, and the nodes of each job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stretto_client import figures
from stretto_sim.allocation import AllocationOutcome, Left
from stretto_sim.measures import Level

from ....charts import SHOWN_JOBS, Curve, Piece, distribution, lanes, levels, part, steps
from ....page import head, page

LARGEST = 5
"""Number of shades, for sizes of 1, 2, 4, 8, and 16 or more."""


def page_of(found: AllocationOutcome, result: dict[str, Any], allocator: str) -> str:
    """Return the page (HTML) of a simulation and its answer."""
    settings = found.settings
    command = (
        f"{allocator}, {settings.nodes} nodes, ETA noise {settings.eta_noise:g}, bugs {settings.bug_rate:g}, "
        f"terminations {settings.termination_rate:g}, delay {settings.scaling_delay_s:g} s, seed {settings.seed}"
    )
    tiles = [
        ("jobs", f"{result['jobs']:,}"),
        ("mean completion", figures.seconds(result["mean_completion_s"])),
        ("of 90 % within", figures.seconds(result["p90_completion_s"])),
        ("mean queueing", figures.seconds(result["mean_queue_s"])),
        ("utilisation", f"{result['utilisation']:.1%}"),
        ("changes per job", f"{result['changes_per_job']:.1f}"),
    ]
    parts = [head("Elastic jobs on a pool of nodes", command, tiles)]
    if found.jobs:
        took_s = [job.completion_s for job in found.jobs]
        pool = [Curve(found.in_use, settings.nodes)]
        jobs = list(zip(found.jobs, found.of_job, strict=True))[:SHOWN_JOBS]
        pieces = [_pieces(number, job, level) for number, (job, level) in enumerate(jobs, 1)]
        shown = f", the first {SHOWN_JOBS:,}" if len(found.jobs) > SHOWN_JOBS else ""
        legend = "the darker the more nodes; red: in the queue"
        parts += [
            part(
                "Completion times: share of the jobs that took at most so long",
                distribution("completion times", took_s),
            ),
            part("Nodes that train, over hours", levels("nodes in use", found.span_s, pool, f"{settings.nodes}")),
            part(f"Nodes of each job{shown}, over hours ({legend})", lanes("nodes by job", found.span_s, pieces)),
        ]
    return page("Elastic jobs, simulated", parts)


def _pieces(number: int, job: Left, level: Level) -> Iterator[Piece]:
    """Yield the pieces of a job's lane; ``number`` counts submissions."""
    end = f"{job.how} after {figures.seconds(job.completion_s)}"
    for begin_s, end_s, amount in steps(level, job.submit_s, job.end_s):
        nodes = int(amount)
        style = f"pool size{min(nodes.bit_length(), LARGEST)}" if nodes else "queue"
        what = f"{nodes} nodes" if nodes else "queue"
        yield Piece(begin_s, end_s, style, f"job {number}, {what}, {figures.seconds(end_s - begin_s)}; {end}")
