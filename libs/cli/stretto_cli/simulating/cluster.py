"""`stretto simulate cluster`: recommender training jobs on shared nodes, with what goes wrong there (DLRover-RM §6)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import Field
from rich.console import Group
from rich.text import Text
from stretto_core.algorithms import DETECT, OOM, SIMULATE_CLUSTER
from stretto_core.model.types import JobLimits
from stretto_messages.base import GIB, InvalidValue
from stretto_messages.values import Plan
from stretto_sim.cluster import Arrival, Outcome, Policy, Settings, TraceJob, jobs_of, simulate
from stretto_sim.cluster.stretto import STRETTO, Knobs, with_knobs

from .. import figures as f
from ..options import Output, OutputOption, answer
from ..render import table
from ..whatif.reading import BadData, FileArgument, Given, NotNegative, refuse
from ..whatif.solving import algorithm, solved
from .charts import write
from .cluster_page import page_of
from .given import jobs_in, named_as_options
from .watching import watched

DEFAULT = Settings()
POD_CORES_MOST, WORKERS_MOST, PS_MOST = 16.0, 4, 4
"""of a job's plans: cores of a pod, and how many times what its user asked for"""

PolicyOption = Annotated[str, typer.Option(help="one of `stretto whatif algorithms`")]
NodesOption = Annotated[int, typer.Option(help="of the cluster")]
NodeCpuOption = Annotated[float, typer.Option(help="cores of each node")]
NodeMemoryOption = Annotated[float, typer.Option(help="GiB of each node")]
PodStartOption = Annotated[float, typer.Option(help="until a pod takes part, from when it has a node")]
RestartOption = Annotated[float, typer.Option(help="what saving and loading a checkpoint takes, if pods stop for it")]
NoiseOption = Annotated[float, typer.Option(help="of a measured step time, relative")]
FailureOption = Annotated[float, typer.Option(help="of one pod, preemption included; DLRover-RM saw 0.015")]
StragglerOption = Annotated[float, typer.Option(help="share of the jobs of which a worker turns slow; there 0.07")]
HotOption = Annotated[float, typer.Option(help="share of the jobs of which a server turns slow; there 0.08")]
BugOption = Annotated[float, typer.Option(help="share of the jobs that fail by their own fault; there 0.05")]
SeedOption = Annotated[int, typer.Option(help="of what is drawn: disturbances, noise, what the trace does not say")]
OomOption = Annotated[str, typer.Option(help="law of growth of the memory watch, with --policy stretto")]
DetectOption = Annotated[str, typer.Option(help="detector of hot servers, with --policy stretto")]
ReportOption = Annotated[Path | None, typer.Option(metavar="FOLDER", help="write a page with the figures there")]


Gib = Annotated[float, Field(ge=0, le=2**30)]


class Row(Given):
    """A job of the trace: an arrival, or all that it is."""

    submit_s: NotNegative
    duration_s: NotNegative = 0.0
    gpus: int = 0
    samples: int = 0
    batch_size: int = 512
    alpha_grad: NotNegative = 0.0
    alpha_upd: NotNegative = 0.0
    alpha_sync: NotNegative = 0.0
    alpha_emb: NotNegative = 0.0
    constant: NotNegative = 0.0
    per_worker_s: NotNegative = 0.0
    embedding_gib: Gib = 0.0
    growth: NotNegative = 0.7
    workers: int = 0
    ps: int = 0
    worker_cpu: NotNegative = 0.0
    ps_cpu: NotNegative = 0.0
    worker_memory_gib: Gib = 0.0
    ps_memory_gib: Gib = 0.0
    model: str = ""


def cluster(
    file: FileArgument,
    policy: PolicyOption = SIMULATE_CLUSTER.default,
    oom: OomOption = OOM.default,
    detect: DetectOption = DETECT.default,
    nodes: NodesOption = DEFAULT.nodes,
    node_cpu: NodeCpuOption = DEFAULT.node_cpu_cores,
    node_memory_gib: NodeMemoryOption = DEFAULT.node_memory_bytes / GIB,
    pod_start_s: PodStartOption = DEFAULT.pod_start_s,
    restart_s: RestartOption = DEFAULT.restart_s,
    noise: NoiseOption = DEFAULT.noise,
    pod_failures_per_day: FailureOption = DEFAULT.pod_failures_per_day,
    straggler_rate: StragglerOption = DEFAULT.straggler_rate,
    hot_rate: HotOption = DEFAULT.hot_rate,
    bug_rate: BugOption = DEFAULT.bug_rate,
    seed: SeedOption = 0,
    report: ReportOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Train the recommenders of a trace on shared nodes, from the first submission to the last end.

    FILE has a column submit_s and either duration_s and gpus, as the logs of clusters have them; what else a job needs
    is drawn then, from the figures that DLRover-RM publishes. Or it says all: samples, what `whatif fit --form paper`
    finds with M, B and D as parts of their coefficients (alpha_grad, alpha_upd, alpha_sync, alpha_emb, constant) and
    what its user asks for (workers, ps, worker_cpu, ps_cpu, worker_memory_gib, ps_memory_gib); if known also
    batch_size (512), per_worker_s, embedding_gib (when all is trained), growth (of it, as samples to this power) and
    model (runs of one resemble each other).
    """
    if not 0 < node_memory_gib < 2**40:
        refuse("--node-memory-gib", node_memory_gib, "GiB, more than 0")
    if not 1 <= node_cpu < math.inf:
        refuse("--node-cpu", node_cpu, "cores, 1 at least")
    with named_as_options(Settings):
        settings = Settings(
            nodes, node_cpu, round(node_memory_gib * GIB), pod_start_s, restart_s, noise=noise,
            pod_failures_per_day=pod_failures_per_day, straggler_rate=straggler_rate, hot_rate=hot_rate,
            bug_rate=bug_rate, seed=seed,
        )  # fmt: skip
    chosen = _policy(policy, oom, detect)
    jobs = _jobs(jobs_in(file, Row, output), settings)
    with watched(f"{policy} on {nodes} nodes") as progress:
        found, _ = solved(lambda trace: simulate(trace, chosen, settings, progress=progress), jobs)
    told = told_of(found)
    if report is not None:
        write(report, "cluster.html", page_of(found, told, policy))
    answer(output, told, lambda: _shown(told))


def _policy(name: str, oom: str, detect: str) -> Policy:
    """Of that name; only the services of ours have what the other two name."""
    chosen = algorithm(SIMULATE_CLUSTER, name)
    for option, value, kind in (("--oom", oom, OOM), ("--detect", detect, DETECT)):
        if value != kind.default and chosen is not STRETTO:
            refuse(option, value, f"--policy stretto beside it; {name} has none")
    if chosen is not STRETTO:
        return chosen
    return with_knobs(Knobs(law=algorithm(OOM, oom), detector=algorithm(DETECT, detect)))


def _jobs(given: Sequence[Row], settings: Settings) -> list[TraceJob]:
    """As many as rows. Raises BadData for the first that says neither how long it took nor what it is."""
    if all(row.samples == 0 for row in given):
        return jobs_of([_arrival(row, line) for line, row in enumerate(given, 2)], settings.seed)
    return [_job(row, settings, line) for line, row in enumerate(given, 2)]


def _arrival(row: Row, line: int) -> Arrival:
    for name, expected in (("duration_s", "a number above 0"), ("gpus", "at least 1")):
        if getattr(row, name) <= 0:
            given = getattr(row, name) if name in row.model_fields_set else ""
            refuse(f"line {line}.{name}", given, f"{expected}: the size of the recommender is drawn from duration_s and"
                   " gpus; leave out jobs that had none, or say samples and the other columns of a job")  # fmt: skip
    try:
        return Arrival(row.submit_s, row.duration_s, row.gpus)
    except InvalidValue as error:
        raise BadData(f"line {line}: {error}") from error


def _job(row: Row, settings: Settings, line: int) -> TraceJob:
    counts = ("samples", "batch_size", "workers", "ps")
    for name in (*counts, "worker_cpu", "ps_cpu", "worker_memory_gib", "ps_memory_gib"):
        if getattr(row, name) <= 0:
            given = getattr(row, name) if name in row.model_fields_set else ""
            refuse(f"line {line}.{name}", given, "at least 1" if name in counts else "a number above 0")
    try:
        request = Plan(
            row.workers, row.ps, row.worker_cpu, row.ps_cpu,
            round(row.worker_memory_gib * GIB), round(row.ps_memory_gib * GIB),
        )  # fmt: skip
        return TraceJob(
            submit_s=row.submit_s, samples=row.samples, batch_size=row.batch_size, alpha_grad=row.alpha_grad,
            alpha_upd=row.alpha_upd, alpha_sync=row.alpha_sync, alpha_emb=row.alpha_emb, constant_s=row.constant,
            request=request, limits=_limits(request, settings), per_worker_s=row.per_worker_s,
            embedding_bytes=round(row.embedding_gib * GIB), growth=row.growth,
            metadata={"model": row.model or "unnamed", "batch_size": row.batch_size, "samples": row.samples},
        )  # fmt: skip
    except InvalidValue as error:
        raise BadData(f"line {line}: {error}") from error


def _limits(request: Plan, settings: Settings) -> JobLimits:
    """Wide: what a scheduler may try, whatever the user asked for."""
    cores = max(min(POD_CORES_MOST, settings.node_cpu_cores), request.worker_cpu_cores, request.ps_cpu_cores)
    memory = settings.node_memory_bytes
    low = Plan(1, 1, min(1.0, cores), min(1.0, cores), min(GIB, memory), min(GIB, memory))
    high = Plan(
        max(WORKERS_MOST * request.workers, 8), max(PS_MOST * request.ps, 4), cores, cores,
        max(memory // 2, request.worker_memory_bytes, GIB), max(memory // 2, request.ps_memory_bytes, GIB),
    )  # fmt: skip
    return JobLimits(Plan(**{name: min(getattr(low, name), getattr(request, name)) for name in Plan.__slots__}), high)


def told_of(found: Outcome) -> dict[str, Any]:
    """The answer as a document. None: of no job at all, or of none that completed."""
    cores, memory = found.allocated
    took = found.completion if found.completed else None
    return {
        "jobs": len(found.jobs),
        "completion_rate": found.completion_rate if found.jobs else None,
        "mean_completion_s": None if took is None else took.mean_s,
        "median_completion_s": None if took is None else found.median_completion_s,
        "p90_completion_s": None if took is None else took.p90_s,
        "mean_queue_s": found.mean_queue_s,
        "cpu_utilisation": {"workers": found.utilisation("worker_core"), "ps": found.utilisation("ps_core")},
        "memory_utilisation": {"workers": found.utilisation("worker_byte"), "ps": found.utilisation("ps_byte")},
        "allocated": {"cpu": cores, "memory": memory},
        "changes_per_job": found.changes_per_job,
        "failures": found.failures,
    }


def _shown(told: dict[str, Any]) -> object:
    made = table("jobs", "completed", "completion", "median", "of 90 % within", "in the queue",
                 "cores used", "memory used", "cores given", "changes per job", "failed for")  # fmt: skip
    cpu, memory = told["cpu_utilisation"], told["memory_utilisation"]
    failed = ", ".join(f"{cause} {count}" for cause, count in told["failures"].items() if count)
    made.add_row(
        f"{told['jobs']:,}", f.share(told["completion_rate"]), f.seconds(told["mean_completion_s"]),
        f.seconds(told["median_completion_s"]), f.seconds(told["p90_completion_s"]), f.seconds(told["mean_queue_s"]),
        f"{cpu['workers']:.0%} / {cpu['ps']:.0%}", f"{memory['workers']:.0%} / {memory['ps']:.0%}",
        f"{told['allocated']['cpu']:.0%}", f"{told['changes_per_job']:.1f}", failed or "nothing",
    )  # fmt: skip
    return Group(made, Text("used: by workers / by servers, of what they were given; given: of the cluster", "dim"))
