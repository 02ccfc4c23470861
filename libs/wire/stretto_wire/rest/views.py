"""The views of a job: plain records for JSON, which the gateway folds from events.

Times ``*_at_s`` and ``time_s`` are stored timestamps of events, seconds since 1970-01-01 UTC; throughput is samples
per second.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, Self

from stretto_messages.base import DEFAULT_TEAM, EXACT, Described
from stretto_messages.books import ALL_ROWS, GivenUp, RowBooks, Shortfall
from stretto_messages.fitter import ModelFitted
from stretto_messages.values import (
    Alternative,
    Candidate,
    CheckpointRef,
    DeviceSpeed,
    Evaluation,
    FeedProfile,
    Interval,
    Match,
    MeasuredConfiguration,
    MetricValue,
    Plan,
    PsForecast,
    Remedy,
    Round,
    StepTimes,
    measures,
)

from ..codec import COMPLETE
from ..jobspec.spec import JobSpec

Status = Literal["submitted", "waiting", "starting", "training", "finishing", "finished", "failed", "cancelled"]
"""States of a job. The ``ending`` of a finished job says what its result lacks, or why it took longer."""
OVER: frozenset[Status] = frozenset({"finished", "failed", "cancelled"})
CheckpointStage = Literal["cached", "stored", "restored", "failed"]
PhaseKind = Literal["starting", "applying", "steady", "migrating", "recovering", "finishing"]


@dataclass(slots=True)
class View(Described):
    """A record of an answer."""

    __pydantic_config__: ClassVar[dict[str, Any]] = COMPLETE


@dataclass(slots=True)
class ThroughputPoint(View):
    """Throughput in one measured window."""

    time_s: float
    plan_version: int
    workers: int
    ps: int
    throughput: float
    step_time_s: float
    settled: bool


@dataclass(slots=True)
class Measured(View):
    """The profile on which a decision was based."""

    time_s: float
    plan_version: int
    plan: Plan
    throughput: float
    step_time_s: float
    times: StepTimes
    window_s: float
    samples_total: int
    categories: int
    settled: bool
    prepared_elsewhere: float = 0.0
    rows: RowBooks = ALL_ROWS


@dataclass(slots=True)
class FitQuality(View):
    """A fit of the throughput model: its error, and the coefficients that the measurements do not identify."""

    time_s: float
    form: str
    rmsle: float
    log_sd: float
    points: int
    configurations: int
    unidentified: tuple[str, ...]
    measured_step_time_s: float
    predicted_step_time_s: float
    predicted_interval_s: Interval

    @classmethod
    def of(cls, message: ModelFitted, time_s: float) -> Self:
        """Return the fit that a message tells, which has the same fields but the time."""
        return cls(time_s, **{one.name: getattr(message, one.name) for one in fields(cls) if one.name != "time_s"})


@dataclass(slots=True)
class Fitted(FitQuality):
    """The throughput model on which a decision was based."""

    coefficients: dict[str, float]


@dataclass(slots=True)
class Model(Fitted):
    """The present throughput model with all that a prediction needs."""

    overlap: float = 1.0
    """Overlap of the paths of a step. 1: their times add up."""
    covariance: tuple[tuple[float, ...], ...] = ()
    """Posterior covariance of the coefficients, in their order, per unit of ``log_sd`` squared."""
    degrees_of_freedom: float = 4.0
    """Degrees of freedom of the t quantile of intervals."""
    measured: tuple[MeasuredConfiguration, ...] = ()
    batch_size: int = 1
    plan_version: int = 0

    def basis(self) -> Fitted:
        """Return the model without the details that are only kept of the present one."""
        return Fitted(*(getattr(self, one.name) for one in fields(Fitted)))


@dataclass(slots=True)
class Fit(FitQuality):
    """A fit in the history of fits."""

    plan_version: int


@dataclass(slots=True)
class Front(View):
    """The Pareto front from which a plan was chosen."""

    time_s: float
    algorithm: str
    plans_considered: int
    throughput: float
    candidates: tuple[Candidate, ...]


@dataclass(slots=True)
class Proposal(View):
    """A plan proposed for a reason other than throughput alone."""

    time_s: float
    kind: str
    plan: Plan
    throughput: float | None
    throughput_interval: Interval | None
    reasons: tuple[str, ...]


@dataclass(slots=True)
class WarmStart(View):
    """The past jobs from which a first plan was derived."""

    time_s: float
    matches: tuple[Match, ...]
    smoothing: float
    plan: Plan | None
    speeds: tuple[DeviceSpeed, ...] = ()
    """Speeds that past jobs have measured, of the types of devices that the job may have."""


@dataclass(slots=True)
class Forecast(View):
    """A forecast of the parameter servers' memory."""

    time_s: float
    ps: tuple[PsForecast, ...]
    samples_done: int
    samples_total: int
    horizon_s: float
    recommended_ps_memory_bytes: int
    limit_ps_memory_bytes: int
    action: str
    reason: str
    remedies: tuple[Remedy, ...] = ()
    """Ways out for servers that lack memory, or keep rows on their disks, with cost and speed."""


@dataclass(slots=True)
class MemoryPoint(View):
    """Memory of the parameter servers when a forecast was made, and the forecast."""

    time_s: float
    samples_done: int
    ps: tuple[PsForecast, ...]


@dataclass(slots=True)
class Outcome(View):
    """The effect of a decision, measured in settled windows of its plan."""

    applied_at_s: float | None = None
    took_s: float | None = None
    windows: int = 0
    throughput: float | None = None
    step_time_s: float | None = None
    gain: float | None = None
    """measured throughput over the one before the decision; 1.0 = no change"""
    prediction_error: float | None = None
    """(measured - predicted) / predicted"""
    inside_interval: bool | None = None
    reads_per_step: float | None = None
    """Rows that a step read from the disk of the busiest server; null: none did."""
    stage_times_s: tuple[float, ...] = ()
    """Seconds that each stage of the plan took for a batch, in its last settled window; empty for a plan of one."""


@dataclass(slots=True)
class Decision(View):
    """A decided plan, its basis, and its outcome."""

    version: int
    kind: str
    time_s: float
    seq: int
    plan: Plan
    previous: Plan | None
    throughput: float | None
    throughput_interval: Interval | None
    throughput_before: float | None
    cost_per_hour: float
    reasons: tuple[str, ...]
    alternatives: tuple[Alternative, ...]
    algorithm: str
    free_cpu_cores: float
    free_memory_bytes: int
    measured: Measured | None
    fitted: Fitted | None
    front: Front | None
    proposal: Proposal | None
    warm_start: WarmStart | None
    forecast: Forecast | None
    outcome: Outcome = field(default_factory=Outcome)
    round: Round | None = None
    free_extended: dict[str, int] = field(default_factory=dict[str, int])
    cost_before: float | None = None
    """Cost per hour of the plan before."""
    in_words: str = ""
    """The decision in one sentence: what the change should bring, for how much, and what it brought."""
    reads_per_step: float | None = None
    """Reads a step that were predicted, if rows go to the disks of the servers instead of more memory."""


@dataclass(slots=True)
class Refusal(View):
    """A plan that was refused."""

    time_s: float
    kind: str
    wanted: Plan
    reasons: tuple[str, ...]


@dataclass(slots=True)
class Request(View):
    """A change of the number of pods that a user asked for."""

    time_s: float
    by: str
    kind: Literal["plan", "data-workers"]
    plan: Plan | None = None
    data: int | None = None
    """Data workers asked for beyond the plan; of such a request, None: as many as the data queue tells."""


@dataclass(slots=True)
class Replacement(View):
    """A hot parameter server that the actuator wants to replace by a new one, and the arbiter's answer."""

    pod: str
    asked_at_s: float
    decided_at_s: float | None = None
    granted: bool | None = None
    reasons: tuple[str, ...] = ()
    ended_at_s: float | None = None
    """Time when the job had no more servers than its plan again."""


@dataclass(slots=True)
class PodView(View):
    """A pod: not running yet, running or exited."""

    pod: str
    role: str
    state: Literal["pending", "running", "exited"] = "running"
    pending_since_s: float | None = None
    pending_reason: str | None = None
    """No-room, quota or image-pull."""
    pending_detail: str = ""
    plan_version: int = 0
    cause: str = ""
    address: str = ""
    started_at_s: float | None = None
    took_s: float | None = None
    exited_at_s: float | None = None
    exit_reason: str | None = None
    exit_code: int | None = None
    detail: str = ""
    again_at_s: float | None = None
    """Time from which on another pod may start in the place of this one, if it failed repeatedly."""
    limits: tuple[str, ...] = ()
    cpu_limit_cores: float | None = None
    memory_limit_bytes: int | None = None
    cpu_used_cores: float | None = None
    memory_used_bytes: int | None = None
    samples_per_s: float | None = None
    samples_total: int | None = None
    step_time_s: float | None = None
    step_bytes: int = 0
    """Size of what a worker's step sends and gets, where the job's `model.wire` makes it smaller; else 0."""
    step_bytes_exact: int = 0
    """The same size in float32."""
    update_time_s: float | None = None
    categories: int | None = None
    row_bytes: float | None = None
    """Mean memory of a row that is neither rounded nor on its disk, its entry and share of the index included."""
    buckets: int | None = None
    cold_rows: int = 0
    """Rows on its disk."""
    log_bytes: int = 0
    """Size of the file that holds them."""
    warm_rows: int = 0
    """Rows that are rounded to bfloat16 in its memory."""
    warm_bytes: int = 0
    """Memory that they take, but for their entries and index."""
    spill_fault: str = ""
    """Why its rows find no room: the disk refuses them, or memory is too small for what stays there; empty: they do."""
    batches_per_s: float | None = None
    """Batches that a data worker prepares."""
    straggler: bool = False
    hot: bool = False
    reported_at_s: float | None = None


@dataclass(slots=True)
class Shards(View):
    """Counts of the ledger's events; ``leased``: shard id to the pod that holds it now."""

    leased: dict[str, str] = field(default_factory=dict[str, str])
    leases: int = 0
    completed: int = 0
    requeued: int = 0
    abandoned: int = 0


@dataclass(slots=True)
class Progress(View):
    """Progress of a job."""

    samples_done: int = 0
    samples_total: int = 0
    samples_given_up: int = 0
    """Samples of `samples_total` that nobody trains, since their reading failed; also a finished job may have some."""
    epoch: int = 0
    samples_per_s: float = 0.0
    updated_at_s: float | None = None
    advanced_at_s: float | None = None
    """Time when samples were last completed, or when the job began to train."""
    samples_recomputed: int = 0
    """Samples handed out again for columns that came back from a checkpoint while the others went on."""
    stalled_since_s: float | None = None
    """The same for a job that should train and does not; set by ``as_of``."""
    mean_samples_per_s: float | None = None
    """Samples that are done over the time since the job began to train, pauses included."""


@dataclass(slots=True)
class Cost(View):
    """Cost of a job, and of its first plan for the same samples, in the currency of the job's prices.

    ``so_far`` sums over the job's sizes: price per hour of the plan and its data workers x hours for which they were
    held, from the first decision on. ``as_first_planned`` = ``first_per_hour`` x ``as_first_planned_s`` / 3600, and
    ``as_first_planned_s`` = seconds from the first decision to the first sample + samples done / ``first_throughput``.
    """

    so_far: float = 0.0
    until_s: float | None = None
    """Time up to which ``so_far`` counts."""
    per_hour: float = 0.0
    """Price of the present plan and its data workers; 0 after the end."""
    first_plan: Plan | None = None
    """The plan that the job file states, or else the first one that was decided."""
    first_per_hour: float = 0.0
    first_throughput: float | None = None
    """Median of the settled windows under the first plan, before other data workers came."""
    as_first_planned: float | None = None
    """Null: the job still has its first plan, or not one settled window was measured under it."""
    as_first_planned_s: float | None = None
    first_lacks_memory: bool = False
    """True: parameter servers needed more memory later than the first plan gives them."""


@dataclass(slots=True)
class PartitionView(View):
    """A named part of the data."""

    samples: int
    priority: int = 0


@dataclass(slots=True)
class DataView(View):
    """The data of a job as far as known. ``last_seq``: sequence of the last event about it."""

    growing: bool = False
    samples: int = 0
    given_up: int = 0
    given_up_last: list[GivenUp] = field(default_factory=list[GivenUp])
    """The last shards that were given up, with the reasons."""
    partitions: dict[str, PartitionView] = field(default_factory=dict[str, PartitionView])
    last_seq: int = 0


@dataclass(slots=True)
class LearningPoint(View):
    """Quality on held-out samples, measured between these two numbers of completed samples.

    ``trained_next``: the samples are the next window's of ``partition``, which is trained after. ``best``: it was the
    best evaluation so far, by the metric that the job names.
    """

    time_s: float
    samples_done: int
    samples_done_after: int
    samples: int
    loss: float
    auc: float
    metrics: tuple[MetricValue, ...] = ()
    loss_name: str = ""
    partition: str = ""
    trained_next: bool = False
    best: bool = False


def quality_of(found: Evaluation) -> list[MetricValue]:
    """Return the measures of an evaluation under the names that people read, the loss first."""
    names = {"loss": found.loss_name or "loss", "auc": "AUC"}
    values = measures(found)
    return [MetricValue(name=names.get(name, name), value=values[name]) for name in sorted(values, key="loss".__ne__)]


@dataclass(slots=True)
class Migration(View):
    """A move of parameters during training."""

    plan_version: int
    cause: str
    sources: tuple[str, ...]
    destinations: tuple[str, ...]
    buckets: int
    started_at_s: float
    finished_at_s: float | None = None
    moved_bytes: int = 0
    took_s: float | None = None
    longest_freeze_s: float | None = None
    longest_gap_s: float | None = None  # between two finished steps of any worker while it ran


@dataclass(slots=True)
class Phase(View):
    """A stretch of the job's life, with the longest pause of any worker within it."""

    kind: PhaseKind
    plan_version: int
    detail: str
    started_at_s: float
    ended_at_s: float | None = None
    longest_gap_s: float | None = None
    longest_gap_pod: str | None = None
    reports: int = 0


@dataclass(slots=True)
class Loss(View):
    """A parameter server that was lost while others went on, and how its columns came back."""

    time_s: float
    pod: str
    version: int
    """Version of the list of the servers that survived."""
    checkpoint: str = ""
    columns: int = 0
    size_bytes: int = 0
    restored_at_s: float | None = None
    samples_recomputed: int = 0
    refused: str = ""
    """Reason why all parameters have to go back to a checkpoint instead."""
    returned_at_s: float | None = None
    """When all parameters had gone back to `checkpoint`: for that reason, or because another server was lost."""


@dataclass(slots=True)
class Resize(View):
    """A change of a pod's limits in place."""

    time_s: float
    pod: str
    cpu_cores: float
    memory_bytes: int
    memory_before_bytes: int | None


@dataclass(slots=True)
class CheckpointView(View):
    """A checkpoint and its stage."""

    id: str
    stage: CheckpointStage
    time_s: float
    checkpoint: CheckpointRef | None = None
    pause_s: float | None = None
    detail: str = ""


@dataclass(slots=True)
class Books(View):
    """The books of a finished job, counted by the parameter servers."""

    samples_expected: int
    samples_applied: int
    samples_lost: int
    samples_repeated: int
    repeats_recognised: int
    samples_abandoned: int
    rows: int
    checksum: str
    evaluation: Evaluation | None
    shards: int
    requeued: int
    given_up: list[GivenUp] = field(default_factory=list[GivenUp])
    """The last shards that were given up, with the reasons; the audit has more of them, ``samples_abandoned`` all."""


@dataclass(slots=True)
class DataWorkerDecision(View):
    """A number of data workers that was decided on, the queue before it, and what it brought."""

    time_s: float
    version: int
    count: int
    wanted: int
    cpu_cores: float
    """Cores of one data worker."""
    memory_bytes: int
    """Memory of one data worker."""
    policy: str
    reasons: tuple[str, ...]
    queue: FeedProfile | None
    throughput_before: float | None
    """Mean of the last settled windows before they served or went, under the same plan."""
    throughput: float | None = None
    """Mean of the first settled windows in which all of them served, or none did if none were to."""


@dataclass(slots=True)
class Feeding(View):
    """The data queue of a job in the last window, and the decisions on its data workers, oldest first."""

    queue: FeedProfile | None = None
    prepared_elsewhere: float = 0.0
    decisions: list[DataWorkerDecision] = field(default_factory=list[DataWorkerDecision])


@dataclass(slots=True)
class JobView(View):
    """Everything known about a job."""

    name: str
    status: Status
    spec: JobSpec
    submitted_at_s: float
    submitted_by: str
    team: str = DEFAULT_TEAM
    level: int = EXACT
    """Level of the guarantee: 0 to 2 of a job that runs a program, 3 of a model."""
    guarantee: str = ""
    """Promise of that level about the job's samples, in words; empty: told by an older version."""
    trace_id: str | None = None
    started_at_s: float | None = None
    ended_at_s: float | None = None
    reason: str = ""
    ending: str = ""
    """Words that follow the state of a job that is not just finished: `0.4% given up, not evaluated`."""
    complete: bool = True
    """False: the result of the finished job lacks samples, its parameters or its evaluation."""
    shortfalls: list[Shortfall] = field(default_factory=list[Shortfall])
    """Why a finished job is not just finished."""
    unreadable: int = 0
    """Number of its stored events that cannot be read, so that this view is incomplete; `stretto status` names them."""
    plan_version: int = 0
    plan: Plan | None = None
    applied_version: int = 0
    cost_per_hour: float | None = None
    cost: Cost = field(default_factory=Cost)
    progress: Progress = field(default_factory=Progress)
    data: DataView = field(default_factory=DataView)
    feeding: Feeding = field(default_factory=Feeding)
    learning: list[LearningPoint] = field(default_factory=list[LearningPoint])
    quality: list[MetricValue] = field(default_factory=list[MetricValue])
    """Loss by its name, AUC and the model's own metrics on held-out samples: of the trained model, or the last ones."""
    shards: Shards = field(default_factory=Shards)
    pods: dict[str, PodView] = field(default_factory=dict[str, PodView])
    throughput: list[ThroughputPoint] = field(default_factory=list[ThroughputPoint])
    decisions: list[Decision] = field(default_factory=list[Decision])
    refusals: list[Refusal] = field(default_factory=list[Refusal])
    requests: list[Request] = field(default_factory=list[Request])
    replacements: list[Replacement] = field(default_factory=list[Replacement])
    phases: list[Phase] = field(default_factory=list[Phase])
    migrations: list[Migration] = field(default_factory=list[Migration])
    resizes: list[Resize] = field(default_factory=list[Resize])
    losses: list[Loss] = field(default_factory=list[Loss])
    checkpoints: list[CheckpointView] = field(default_factory=list[CheckpointView])
    best_checkpoint: CheckpointRef | None = None
    """The stored checkpoint after the best evaluation, of a job that names a metric for it."""
    stored_bytes: int | None = None
    """Bytes of its checkpoints that the store keeps; null: not told, since none is stored or by an older version."""
    final_checkpoint_failure: str = ""
    """Reason why the checkpoint after the last shard is not stored, by the last try; with it, the trained parameters of
    a finished job are lost."""
    model: Model | None = None
    fits: list[Fit] = field(default_factory=list[Fit])
    front: Front | None = None
    """The latest Pareto front; that of a decision is kept with it."""
    forecast: Forecast | None = None
    forecasts: list[Forecast] = field(default_factory=list[Forecast])
    memory: list[MemoryPoint] = field(default_factory=list[MemoryPoint])
    books: Books | None = None
    last_seq: int = 0
