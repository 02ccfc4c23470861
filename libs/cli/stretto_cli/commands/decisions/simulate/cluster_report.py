"""The page of `simulate cluster`: durations of jobs, use of cores and memory, failures, and the cores of each job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stretto_client import figures
from stretto_client.drawing import svg
from stretto_sim.cluster import COMPLETED, ClusterOutcome, Left
from stretto_sim.measures import Level

from ....charts import LEFT, SHOWN_JOBS, WIDTH, Curve, Piece, distribution, lanes, levels, part, steps
from ....page import head, page

LARGEST = 5
"""Shades of sizes: up to 8 cores, 16, 32, 64 and more."""
LEAST_BITS = 3
BAR, GAP = 18.0, 10.0


def page_of(found: ClusterOutcome, result: dict[str, Any], policy: str) -> str:
    """Return the page (HTML) of a simulation and its answer."""
    settings = found.settings
    command = (
        f"{policy}, {settings.nodes} nodes of {settings.node_cpu_cores:g} cores and"
        f" {figures.size(settings.node_memory_bytes)}, pods start in {settings.pod_start_s:g} s, restarts take"
        f" {settings.restart_s:g} s, pod failures per day {settings.pod_failures_per_day:g}, stragglers"
        f" {settings.straggler_rate:g}, hot servers {settings.hot_rate:g}, bugs of jobs {settings.bug_rate:g},"
        f" seed {settings.seed}"
    )
    cpu, memory = result["cpu_utilisation"], result["memory_utilisation"]
    tiles = [
        ("jobs", f"{result['jobs']:,}"),
        ("completed", figures.share(result["completion_rate"])),
        ("mean completion", figures.seconds(result["mean_completion_s"])),
        ("median", figures.seconds(result["median_completion_s"])),
        ("cores used, workers / PS", f"{cpu['workers']:.0%} / {cpu['ps']:.0%}"),
        ("memory used, workers / PS", f"{memory['workers']:.0%} / {memory['ps']:.0%}"),
        ("changes per job", f"{result['changes_per_job']:.1f}"),
    ]
    parts = [head("Training jobs on shared nodes", command, tiles)]
    if found.jobs:
        cores = settings.capacity.cpu_cores
        curves = [Curve(found.reserved_cores, cores, "done"), Curve(found.busy_cores, cores)]
        gib = [Curve(found.reserved_bytes, settings.capacity.memory_bytes)]
        jobs = list(zip(found.jobs, found.cores_of_job, strict=True))[:SHOWN_JOBS]
        pieces = [_pieces(number, job, level) for number, (job, level) in enumerate(jobs, 1)]
        shown = f", the first {SHOWN_JOBS:,}" if len(found.jobs) > SHOWN_JOBS else ""
        took_s = [job.completion_s for job in found.completed]
        if took_s:
            parts.append(
                part(
                    "Completion times: share of the completed jobs that took at most so long",
                    distribution("completion times", took_s),
                )
            )
        parts += [
            part(
                "Cores given to jobs (yellow), and at work (green), over hours",
                levels("cores over time", found.span_s, curves, f"{cores:g} cores"),
            ),
            part(
                "Memory given to jobs, over hours",
                levels("memory over time", found.span_s, gib, figures.size(settings.capacity.memory_bytes)),
            ),
            part("Failures by cause", _failures(result["failures"], len(found.jobs))),
            part(
                f"Cores of each job{shown}, over hours (the darker the more cores; red: none)",
                lanes("cores by job", found.span_s, pieces),
            ),
        ]
    return page("Training jobs, simulated", parts)


def _failures(failures: dict[str, int], jobs: int) -> str:
    """Draw one bar per cause, as a share of all jobs."""
    shapes, most = list[str](), max(*failures.values(), 1)
    for index, (cause, count) in enumerate(failures.items()):
        y = GAP + index * (BAR + GAP)
        shapes.append(svg.text(LEFT - 12, y + BAR - 5, cause, "name"))
        if count:
            shapes.append(svg.rect(LEFT, y, 0.8 * WIDTH * count / most, BAR, "queue", f"{count} of {jobs} jobs"))
        shapes.append(svg.text(LEFT + 0.8 * WIDTH * count / most + 40, y + BAR - 5, f"{count / jobs:.2%}", "tick"))
    return svg.figure(LEFT + WIDTH, GAP + len(failures) * (BAR + GAP), "failures by cause", shapes)


def _pieces(number: int, job: Left, level: Level) -> Iterator[Piece]:
    """Yield the pieces of a job's lane, numbered as in the trace."""
    end = f"{job.how} after {figures.seconds(job.completion_s)}"
    end += f", with a {job.slow}" if job.slow and job.how == COMPLETED else ""
    for begin_s, end_s, cores in steps(level, job.submit_s, job.end_s):
        shade = min(max(int(cores - 0.5).bit_length() - LEAST_BITS, 0) + 1, LARGEST)
        style = f"pool size{shade}" if cores else "queue"
        what = f"{cores:g} cores" if cores else "none"
        yield Piece(begin_s, end_s, style, f"job {number}, {what}, {figures.seconds(end_s - begin_s)}; {end}")
