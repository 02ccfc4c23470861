"""`stretto simulate cluster`: recommender training jobs on shared nodes, with their failures (DLRover-RM §6)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import typer
from pydantic import Field
from rich.console import Group, RenderableType
from rich.text import Text
from stretto_client import figures
from stretto_core.algorithms import DETECT, OOM, SIMULATE_CLUSTER
from stretto_core.arbiter.selection import OBJECTIVE, Objective
from stretto_core.model.types import JobLimits, Prices
from stretto_messages.base import GIB, InvalidValue
from stretto_messages.values import Plan
from stretto_sim.cluster import Arrival, ClusterOutcome, ClusterTraceSettings, Policy, TraceJob, jobs_of, simulate
from stretto_sim.cluster.policies import STATIC
from stretto_sim.cluster.stretto import STRETTO, Knobs, with_knobs
from stretto_sim.costs import compared

from ....charts import write
from ....options import OutputForm, OutputOption, answer
from ....progress import watched
from ....reading import BadData, FileArgument, Given, NotNegative, refuse
from ....render import table
from ....solving import algorithm, solved
from . import cluster_cost
from .cluster_report import page_of
from .traces import jobs_in, named_as_options

DEFAULT, PRICES, COST = ClusterTraceSettings(), Prices(), Path("cost")
POD_CORES_MOST, WORKERS_MOST, PS_MOST = 16.0, 4, 4
"""Most cores of a pod, and most workers and servers as multiples of the user's request."""

PolicyOption = Annotated[str, typer.Option(help="a policy that `stretto whatif algorithms` lists")]
NodesOption = Annotated[int, typer.Option(help="nodes of the cluster")]
NodeCpuOption = Annotated[float, typer.Option(help="cores of each node")]
NodeMemoryOption = Annotated[float, typer.Option(help="GiB of each node")]
PodStartOption = Annotated[float, typer.Option(help="seconds from a pod's placement on a node until it works")]
RestartOption = Annotated[float, typer.Option(help="seconds to save and load a checkpoint where pods stop for it")]
NoiseOption = Annotated[float, typer.Option(help="relative noise of a measured step time")]
FailureOption = Annotated[
    float, typer.Option(help="failures of one pod per day, preemption included; DLRover-RM measured 0.015")
]
StragglerOption = Annotated[float, typer.Option(help="share of the jobs with a slow worker; DLRover-RM measured 0.07")]
HotOption = Annotated[float, typer.Option(help="share of the jobs with a slow server; DLRover-RM measured 0.08")]
BugOption = Annotated[
    float, typer.Option(help="share of the jobs that fail by a bug of their own; DLRover-RM measured 0.05")
]
SeedOption = Annotated[int, typer.Option(help="seed of disturbances, noise, and what the trace leaves out")]
ObjectiveOption = Annotated[
    str, typer.Option(help="efficiency, gain, completion or cost: what rounds maximise, with --policy stretto")
]
OomOption = Annotated[str, typer.Option(help="law of memory growth that forecasts OOMs, with --policy stretto")]
CoreHourOption = Annotated[float, typer.Option(help="price of a core for an hour, with --report cost")]
GibHourOption = Annotated[float, typer.Option(help="price of a GiB of memory for an hour, with --report cost")]
ReportOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER|cost",
        help="write a page with figures into FOLDER, `./cost` too; `cost`: compare costs with what users stated",
    ),
]
DetectOption = Annotated[str, typer.Option(help="detector of hot servers, with --policy stretto")]


Gib = Annotated[float, Field(ge=0, le=2**30)]


class Row(Given):
    """A job of the trace: an arrival (duration_s and gpus), or a full description."""

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
    objective: ObjectiveOption = OBJECTIVE,
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
    cpu_core_hour: CoreHourOption = PRICES.cpu_core_hour,
    memory_gib_hour: GibHourOption = PRICES.memory_gib_hour,
    report: ReportOption = None,
    output: OutputOption = OutputForm.TABLE,
) -> None:
    """Train the recommenders of a trace on shared nodes, from the first submission to the last end.

    FILE is CSV with submit_s (seconds). With duration_s and gpus, as logs of clusters have them, the rest of a job is
    drawn from the figures that DLRover-RM publishes. Otherwise a row describes its job: samples; the coefficients of
    `whatif fit --form paper` with M, B and D folded in (alpha_grad, alpha_upd, alpha_sync, alpha_emb, constant); the
    request of its user (workers, ps, worker_cpu, ps_cpu, worker_memory_gib, ps_memory_gib); optionally batch_size
    (512), per_worker_s, embedding_gib (at the end), growth (its exponent over samples) and model (its runs are alike).
    With --report cost, the trace is also played with the plans that users stated.
    """
    if not 0 < node_memory_gib < 2**40:
        refuse("--node-memory-gib", node_memory_gib, "GiB, more than 0")
    if not 1 <= node_cpu < math.inf:
        refuse("--node-cpu", node_cpu, "cores, 1 at least")
    with named_as_options(ClusterTraceSettings):
        settings = ClusterTraceSettings(
            nodes,
            node_cpu,
            round(node_memory_gib * GIB),
            pod_start_s,
            restart_s,
            noise=noise,
            pod_failures_per_day=pod_failures_per_day,
            straggler_rate=straggler_rate,
            hot_rate=hot_rate,
            bug_rate=bug_rate,
            seed=seed,
        )
    chosen = _policy(policy, objective, oom, detect)
    jobs = _jobs(jobs_in(file, Row, output), settings)
    with watched(f"{policy} on {nodes} nodes") as progress:
        found, _ = solved(lambda trace: simulate(trace, chosen, settings, progress=progress), jobs)
    result = document_of(found)
    if costs := report == COST and bool(found.completed):
        with named_as_options(Prices):
            prices = Prices(cpu_core_hour, memory_gib_hour)
        result["cost"] = cluster_cost.document_of(compared(jobs, found, simulate(jobs, STATIC, settings), prices))
    elif report is not None and report != COST:
        write(report, "cluster.html", page_of(found, result, policy))
    shown = [cluster_cost.view(result["cost"], policy)] if costs else []
    answer(output, result, lambda: Group(_view(result), *shown))


def _policy(name: str, objective: str, oom: str, detect: str) -> Policy:
    """Return the policy ``name``; only our own services have an objective, a memory forecast and a detector."""
    chosen = algorithm(SIMULATE_CLUSTER, name)
    if objective not in get_args(Objective):
        refuse("--objective", objective, f"one of {', '.join(get_args(Objective))}")
    given = (("--objective", objective, OBJECTIVE), ("--oom", oom, OOM.default), ("--detect", detect, DETECT.default))
    for option, value, default in given:
        if value != default and chosen is not STRETTO:
            refuse(option, value, f"--policy stretto beside it; {name} has none")
    if chosen is not STRETTO:
        return chosen
    return with_knobs(
        Knobs(objective=cast("Objective", objective), law=algorithm(OOM, oom), detector=algorithm(DETECT, detect))
    )


def _jobs(given: Sequence[Row], settings: ClusterTraceSettings) -> list[TraceJob]:
    """Return one job per row. Raises BadData for a row that is neither an arrival nor a full description."""
    if all(row.samples == 0 for row in given):
        return jobs_of([_arrival(row, line) for line, row in enumerate(given, 2)], settings.seed)
    return [_job(row, settings, line) for line, row in enumerate(given, 2)]


def _arrival(row: Row, line: int) -> Arrival:
    for name, expected in (("duration_s", "a number above 0"), ("gpus", "at least 1")):
        if getattr(row, name) <= 0:
            given = getattr(row, name) if name in row.model_fields_set else ""
            refuse(
                f"line {line}.{name}",
                given,
                f"{expected}: the size of the recommender is drawn from duration_s and"
                " gpus; leave out jobs that had none, or say samples and the other columns of a job",
            )
    try:
        return Arrival(row.submit_s, row.duration_s, row.gpus)
    except InvalidValue as error:
        raise BadData(f"line {line}: {error}") from error


def _job(row: Row, settings: ClusterTraceSettings, line: int) -> TraceJob:
    counts = ("samples", "batch_size", "workers", "ps")
    for name in (*counts, "worker_cpu", "ps_cpu", "worker_memory_gib", "ps_memory_gib"):
        if getattr(row, name) <= 0:
            given = getattr(row, name) if name in row.model_fields_set else ""
            refuse(f"line {line}.{name}", given, "at least 1" if name in counts else "a number above 0")
    try:
        request = Plan(
            row.workers,
            row.ps,
            row.worker_cpu,
            row.ps_cpu,
            round(row.worker_memory_gib * GIB),
            round(row.ps_memory_gib * GIB),
        )
        return TraceJob(
            submit_s=row.submit_s,
            samples=row.samples,
            batch_size=row.batch_size,
            alpha_grad=row.alpha_grad,
            alpha_upd=row.alpha_upd,
            alpha_sync=row.alpha_sync,
            alpha_emb=row.alpha_emb,
            constant_s=row.constant,
            request=request,
            limits=_limits(request, settings),
            per_worker_s=row.per_worker_s,
            embedding_bytes=round(row.embedding_gib * GIB),
            growth=row.growth,
            metadata={"model": row.model or "unnamed", "batch_size": row.batch_size, "samples": row.samples},
        )
    except InvalidValue as error:
        raise BadData(f"line {line}: {error}") from error


def _limits(request: Plan, settings: ClusterTraceSettings) -> JobLimits:
    """Return wide limits: a scheduler may try far more than the user requested."""
    cores = max(min(POD_CORES_MOST, settings.node_cpu_cores), request.worker_cpu_cores, request.ps_cpu_cores)
    memory = settings.node_memory_bytes
    low = Plan(1, 1, min(1.0, cores), min(1.0, cores), min(GIB, memory), min(GIB, memory))
    high = Plan(
        max(WORKERS_MOST * request.workers, 8),
        max(PS_MOST * request.ps, 4),
        cores,
        cores,
        max(memory // 2, request.worker_memory_bytes, GIB),
        max(memory // 2, request.ps_memory_bytes, GIB),
    )
    return JobLimits(Plan(**{name: min(getattr(low, name), getattr(request, name)) for name in Plan.__slots__}), high)


def document_of(found: ClusterOutcome) -> dict[str, Any]:
    """Return the answer as a document. A figure is None without any (completed) job."""
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


def _view(result: dict[str, Any]) -> RenderableType:
    made = table(
        "jobs",
        "completed",
        "completion",
        "median",
        "of 90 % within",
        "in the queue",
        "cores used",
        "memory used",
        "cores given",
        "changes per job",
        "failed for",
    )
    cpu, memory = result["cpu_utilisation"], result["memory_utilisation"]
    failed = ", ".join(f"{cause} {count}" for cause, count in result["failures"].items() if count)
    made.add_row(
        f"{result['jobs']:,}",
        figures.share(result["completion_rate"]),
        figures.seconds(result["mean_completion_s"]),
        figures.seconds(result["median_completion_s"]),
        figures.seconds(result["p90_completion_s"]),
        figures.seconds(result["mean_queue_s"]),
        f"{cpu['workers']:.0%} / {cpu['ps']:.0%}",
        f"{memory['workers']:.0%} / {memory['ps']:.0%}",
        f"{result['allocated']['cpu']:.0%}",
        f"{result['changes_per_job']:.1f}",
        failed or "nothing",
    )
    return Group(made, Text("used: by workers / by servers, of what they were given; given: of the cluster", "dim"))
