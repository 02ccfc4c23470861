"""Values that several messages share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from .base import Bytes, Cores, Count, Fraction, JobId, Money, Name, PodId, Rate, Record, Seconds, Text

Role = Literal["worker", "ps", "data"]
Reasons = Annotated[tuple[Text, ...], Field(max_length=20)]
PlanKind = Literal["initial", "warm-start", "measure", "improve", "memory", "rebalance", "fit-capacity", "requested"]

Metadata = Annotated[
    dict[Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,39}$")], str | int | float | bool],
    Field(max_length=40, description="what is known of the model and its data; warm start compares jobs by it"),
]


PS_MAX = 1_000
"""parameter servers of one job"""


class Plan(Record):
    """How many pods of each role, and how large each is."""

    workers: Annotated[int, Field(ge=0, le=10_000)]
    ps: Annotated[int, Field(ge=1, le=PS_MAX)]
    worker_cpu_cores: Annotated[float, Field(gt=0, le=1024)]
    ps_cpu_cores: Annotated[float, Field(gt=0, le=1024)]
    worker_memory_bytes: Annotated[int, Field(ge=2**20, le=2**46)]
    ps_memory_bytes: Annotated[int, Field(ge=2**20, le=2**46)]


class Interval(Record):
    """A 90 % interval."""

    low: float
    high: float

    @model_validator(mode="after")
    def _ordered(self) -> Interval:
        if self.low > self.high:
            raise ValueError("low must not be above high")
        return self


class Candidate(Record):
    """A plan that a job could have: a point of its Pareto front (DLRover-RM Eq. 7-9)."""

    id: Name
    plan: Plan
    cost_per_hour: Money
    throughput: Rate
    throughput_interval: Interval
    gain: Annotated[float, Field(description="samples per second over the current plan, less the overhead (Eq. 8)")]
    overhead_s: Annotated[Seconds, Field(description="training time lost by changing to it")]


class KnownModel(Record):
    """What is remembered of a job's throughput model when the job is over; as in `fitter.model-fitted`."""

    form: Literal["default", "paper"]
    coefficients: Annotated[dict[Name, Annotated[float, Field(ge=0)]], Field(max_length=20)]
    overlap: Annotated[float, Field(ge=1)] = 1.0


class Match(Record):
    """A past job that resembles a new one (DLRover-RM Alg. 1)."""

    job: JobId
    similarity: Fraction
    weight: Annotated[Fraction, Field(description="its share in the smoothed plan (Eq. 10)")]
    plan: Plan
    throughput: Rate
    features: Annotated[dict[Name, Fraction], Field(max_length=80, description="similarity of each metadata field")] = (
        Field(default_factory=dict[str, float])
    )


class MeasuredConfiguration(Record):
    """The step time of one configuration over all its windows: a point that a throughput model is fitted to."""

    workers: Annotated[int, Field(ge=1, le=10_000)]
    ps: Annotated[int, Field(ge=1, le=1_000)]
    worker_cpu_cores: Annotated[float, Field(gt=0, le=1024)]
    ps_cpu_cores: Annotated[float, Field(gt=0, le=1024)]
    batch_size: Annotated[int, Field(ge=1)]
    step_time_s: Annotated[float, Field(gt=0, le=10**9, description="robust: a median over windows")]
    windows: Annotated[int, Field(ge=1, le=10**9)]
    log_sd: Annotated[float, Field(ge=0, description="standard error of the logarithm of the step time")]


class Studied(Record):
    """A slower algorithm's look at a choice, beside it, and what became of that. Null where there is no answer."""

    algorithm: Name
    outcome: Annotated[
        Literal["begun", "adopted", "dropped"], Field(description="begun: nobody waits for it who gets this plan")
    ]
    reason: Text
    value: Annotated[float | None, Field(description="of the objective, what a choice with its answer reaches")] = None
    instead_of: Annotated[float | None, Field(description="of the objective, what the choice without it reaches")] = (
        None
    )
    gap: Annotated[float | None, Field(ge=0, description="proven for what it was asked; null: nothing is")] = None
    took_s: Seconds | None = None


class Round(Record):
    """A choice over all jobs under the cluster's capacity, and what proves how good it is."""

    algorithm: Name
    objective: Name
    jobs: Annotated[int, Field(ge=1, description="that could get something")]
    value: Annotated[float, Field(description="of the objective, what is chosen for all jobs")]
    bound: Annotated[float, Field(description="no choice exceeds it: proven")]
    gap: Annotated[float, Field(ge=0, description="(bound - value) / bound: what may be missing at most")]
    term: Annotated[float, Field(description="this plan's part of the value")]
    study: Annotated[Studied | None, Field(description="null: none was asked for")] = None


class Alternative(Record):
    """A plan that was considered and not taken, and why."""

    plan: Plan
    throughput: Rate
    cost_per_hour: Money
    efficiency: Annotated[float, Field(description="gain over cost times weight: the term of Eq. 12")]
    why_not: Text


class Shard(Record):
    """A lease of consecutive samples of one epoch's order.

    A requeued shard keeps its id and range; ``attempt`` grows, so that a late report of an earlier holder is
    recognised. ``offset`` samples of it are known to be processed.
    """

    id: Count
    attempt: Annotated[int, Field(ge=1, le=10**6)]
    epoch: Annotated[int, Field(ge=0, le=10**6)]
    start: Annotated[Count, Field(description="first sample, in the order of the dataset, or of its partition")]
    length: Annotated[int, Field(ge=1, le=10**12)]
    offset: Count = 0
    partition: Annotated[str, Field(max_length=60, description="empty: the dataset has none")] = ""
    kind: Annotated[Literal["train", "evaluate"], Field(description="evaluate: held-out samples, never trained")] = (
        "train"
    )


PartitionName = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:=/-]{0,59}$"),
    Field(description="letters, digits and _.:=/-, at most 60, as in day=2026-11-21"),
]


PARTITIONS_MAX = 1000
"""of one job, in all its life"""


class DataPartition(Record):
    """A named part of a dataset: all samples that it has so far, and what it is trained before."""

    name: PartitionName
    samples: Annotated[int, Field(ge=1, le=10**13, description="all that it has so far")]
    priority: Annotated[int, Field(ge=-1000, le=1000, description="higher is trained first, equal ones are mixed")] = 0


class WorkerProfile(Record):
    """One worker over a window."""

    pod: PodId
    step_time_s: Seconds
    samples_per_s: Rate
    cpu_used_cores: Cores
    memory_used_bytes: Bytes


class PsProfile(Record):
    """One parameter server at the end of a window."""

    pod: PodId
    cpu_used_cores: Cores
    cpu_limit_cores: Cores
    memory_used_bytes: Bytes
    memory_limit_bytes: Bytes
    categories: Annotated[Count, Field(description="rows in its embedding tables")]
    buckets: Annotated[Count, Field(description="embedding buckets that it owns")]
    update_time_s: Annotated[Seconds, Field(description="mean time of one push in it, queueing included")]


class PsForecast(Record):
    """Where the memory of one parameter server is going (DLRover-RM section 5.3)."""

    pod: PodId
    used_bytes: Bytes
    limit_bytes: Bytes
    at_end_bytes: Bytes
    at_end_interval_bytes: Interval
    oom_in_s: Seconds | None
    oom_at_samples: Count | None


class ParameterServer(Record):
    """Where a parameter server listens. ``index`` is the number in its name."""

    index: Annotated[int, Field(ge=0, le=10**9)]
    address: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.:\[\]-]{3,260}$")]
    leaving: bool = False


class CheckpointRef(Record):
    """A complete checkpoint: model parameters and ledger state of one instant."""

    id: Name
    url: Annotated[str, StringConstraints(max_length=1000), Field(description="its manifest, any fsspec URL")]
    samples: Count
    size_bytes: Bytes
    ps: Annotated[int, Field(ge=1, le=1_000, description="parameter servers that wrote it")]


class Evaluation(Record):
    """Quality on held-out samples: those that follow the training samples in the dataset."""

    samples: Count
    loss: Annotated[float, Field(ge=0, description="mean log loss")]
    auc: Fraction


SCORE_BINS = 256
Histogram = Annotated[tuple[Count, ...], Field(min_length=SCORE_BINS, max_length=SCORE_BINS)]


class PartialEvaluation(Record):
    """What one worker found on some held-out samples. Bins are equal steps of the logit from -12 to 12."""

    samples: Annotated[int, Field(ge=1, le=10**12)]
    loss_sum: Annotated[float, Field(ge=0, le=10**15, description="log loss, summed over samples")]
    positives: Histogram
    negatives: Histogram


class StepTimes(Record):
    """Where the time of a training step goes (DLRover-RM Eq. 2-5), seconds per step.

    ``emb_s`` pull of embedding rows, ``grad_s`` local computation, ``upd_s`` slowest update in a parameter server,
    ``sync_s`` dense pull and push less the update.
    """

    emb_s: Seconds
    grad_s: Seconds
    upd_s: Seconds
    sync_s: Seconds
