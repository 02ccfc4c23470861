"""Values that several messages share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Annotated, ClassVar, Literal, NamedTuple

from annotated_types import Ge, Gt, Le, MaxLen, MinLen

from stretto_messages.base import (
    GIB,
    NO_SERVERS,
    RATE_MAX,
    Bytes,
    Cores,
    Count,
    Doc,
    EpochSeconds,
    Fraction,
    InvalidValue,
    JobId,
    Money,
    Name,
    Pattern,
    PodId,
    Rate,
    Record,
    RowBytes,
    Seconds,
    Text,
)

Value = str | float | int | bool  # of one field of a job's metadata
Role = Literal["worker", "ps", "data"]
Reasons = Annotated[tuple[Text, ...], MaxLen(20)]


PlanKind = Literal["initial", "warm-start", "measure", "improve", "memory", "rebalance", "fit-capacity", "requested"]
Metadata = Annotated[
    dict[Annotated[str, Pattern(r"^[a-z][a-z0-9_]{0,39}$")], str | int | float | bool],
    MaxLen(40),
    Doc("properties of the model and its data, by which warm start finds similar jobs"),
]


BUCKETS = 64
"""Embedding buckets of every job: the actuator places them, the trainer lays rows out in them."""
SLICES = 12
"""Dense slices of every job, which are placed and moved like buckets."""

WORKERS_MAX = 10_000
"""Largest number of workers of one job."""
PS_MAX = 1_000
"""Largest number of parameter servers of one job."""
DATA_WORKERS_MAX = 1_000
"""Largest number of data workers of one job."""


EXTENDED_NAME = r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$"
ExtendedName = Annotated[
    str,
    Pattern(EXTENDED_NAME),
    Doc("name of an extended resource: its vendor's domain and a name, as in nvidia.com/gpu"),
]
EXTENDED_MAX = 20
"""Largest number of extended resources that a job or a cluster names."""
Extended = tuple[tuple[str, int], ...]
"""Counts of extended resources, such as GPUs, as Kubernetes has them: (name, count), sorted by name, without zeros."""


def extended_of(counts: Mapping[str, int]) -> Extended:
    """Return these counts in the one form that equal amounts have."""
    return tuple(sorted((name, count) for name, count in counts.items() if count))


def _by_name(combine: Callable[[int, int], int], one: Extended, other: Extended) -> Extended:
    """Combine the counts of every name; ``combine`` leaves two zeros zero."""
    ours, theirs = dict(one), dict(other)
    return extended_of({name: combine(ours.get(name, 0), theirs.get(name, 0)) for name in ours.keys() | theirs.keys()})


def added(one: Extended, other: Extended, times: int = 1) -> Extended:
    """Return ``one`` and ``other`` so many times, by name."""
    return _by_name(lambda ours, theirs: ours + times * theirs, one, other) if other else one


@dataclass(frozen=True, slots=True)
class Resources:
    """An amount of every resource that the cluster hands out: cores, bytes, and devices by their names.

    A difference may be negative.
    """

    cpu_cores: float
    memory_bytes: int
    extended: Extended = ()

    def __add__(self, other: Resources) -> Resources:
        cores, memory = self.cpu_cores + other.cpu_cores, self.memory_bytes + other.memory_bytes
        if not (self.extended or other.extended):  # so it is in most clusters, and nothing is computed as often
            return Resources(cores, memory)
        return Resources(cores, memory, added(self.extended, other.extended))

    def __sub__(self, other: Resources) -> Resources:
        cores, memory = self.cpu_cores - other.cpu_cores, self.memory_bytes - other.memory_bytes
        if not (self.extended or other.extended):
            return Resources(cores, memory)
        return Resources(cores, memory, added(self.extended, other.extended, -1))

    def fits(self, free: Resources) -> bool:
        """Return True if this amount is available in ``free`` (1e-9 of a core of slack for rounding).

        A lack of devices that this amount does not include has no effect.
        """
        if not (self.cpu_cores <= free.cpu_cores + 1e-9 and self.memory_bytes <= free.memory_bytes):
            return False
        return not self.extended or all(count <= 0 or count <= free.count_of(name) for name, count in self.extended)

    def count_of(self, name: str) -> int:
        """Return the count of an extended resource."""
        return dict(self.extended).get(name, 0)


NOTHING = Resources(0.0, 0)


def larger(one: Resources, other: Resources) -> Resources:
    """Return the larger amount of each resource, as pods of two plans claim while both may run."""
    cores, memory = max(one.cpu_cores, other.cpu_cores), max(one.memory_bytes, other.memory_bytes)
    if not (one.extended or other.extended):
        return Resources(cores, memory)
    return Resources(cores, memory, _by_name(max, one.extended, other.extended))


def lesser(one: Resources, other: Resources) -> Resources:
    """Return the smaller amount of each resource."""
    cores, memory = min(one.cpu_cores, other.cpu_cores), min(one.memory_bytes, other.memory_bytes)
    if not (one.extended or other.extended):
        return Resources(cores, memory)
    return Resources(cores, memory, _by_name(min, one.extended, other.extended))


def shortage(wanted: Resources, free: Resources) -> Resources:
    """Return the part of ``wanted`` that is not free; zero for a resource that suffices."""
    return larger(wanted - free, NOTHING)


def total(amounts: Iterable[Resources]) -> Resources:
    """Sum ``amounts``; the result does not depend on their order."""
    each = tuple(amounts)
    return Resources(
        math.fsum(one.cpu_cores for one in each),
        sum(one.memory_bytes for one in each),
        reduce(added, (one.extended for one in each), ()),
    )


DEVICES = "devices/"
"""Begins the name under which the units of a type of devices are counted among extended resources: devices/gpu-a."""
ANY_DEVICE = "auto"
"""Stands for every type of devices of the cluster."""
DEVICE_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$"
DeviceName = Annotated[
    str,
    Pattern(DEVICE_PATTERN),
    Doc("name of a type of devices of the installation: lower-case letters, digits and hyphens, at most 40"),
]
Device = Annotated[str, MaxLen(40), Doc("type of devices of a worker; empty: the cluster's own cores")]
TYPES_MAX = 16
"""Most types of devices of an installation: the front over their mixes is searched exactly."""
GROUPS_MAX = 2
"""Most groups of workers on devices of one plan. With three, a front over them is too large to search exactly."""
STAGES_MAX = 3
"""Most stages of one job: a fourth would wait for three others in each step, and no plan of the papers' has one."""
Stage = Annotated[
    int,
    Ge(0),
    Le(STAGES_MAX - 1),
    Doc("stage of a worker: 0 reads samples and pulls rows; a later one computes the layers from its first one on"),
]
LAYERS_MAX = 10_000
FirstLayer = Annotated[
    int,
    Ge(0),
    Le(LAYERS_MAX),
    Doc("first layer of a worker's stage, as `stretto check` lists the layers of a model; 0 is the rows"),
]


class WorkerPlace(NamedTuple):
    """Stage, first layer and devices of a worker, which no running one changes; in the order that a step passes."""

    stage: int
    first_layer: int
    device: Device


ON_CORES = WorkerPlace(0, 0, "")
"""Place of a worker that the plan lists in no group."""


@dataclass(frozen=True, slots=True)
class ExtendedPerPod:
    """Extended resources of one pod of each role. No plan changes them: only the number of pods is planned."""

    worker: Extended = ()
    ps: Extended = ()

    def of_pod(self, role: Role) -> Extended:
        """Return the counts of one pod of the role; a data worker has none."""
        return {"worker": self.worker, "ps": self.ps, "data": ()}[role]

    def of(self, workers: int, ps: int) -> Extended:
        """Return the counts of a job with these numbers of pods."""
        return added(added((), self.worker, workers), self.ps, ps)


NO_EXTENDED = ExtendedPerPod()


def require(name: str, value: float, low: float, high: float = math.inf) -> None:
    """Raise InvalidValue for NaN, infinities and values outside [low, high]."""
    if not math.isfinite(value) or not low <= value <= high:
        raise InvalidValue(f"{name} is {value!r}; give a finite number of at least {low:g}")


@dataclass(frozen=True, slots=True)
class WorkerGroup(Record):
    """Workers of one stage of a job that have a unit each of one type of devices (HeterPS §3: one resource type)."""

    device: DeviceName
    workers: Annotated[int, Ge(1), Le(WORKERS_MAX)]
    """Number of workers of the group."""
    cpu_cores: Annotated[float, Ge(0.001), Le(1024)]
    """CPU cores of one unit; they are none of the cluster's."""
    memory_bytes: Annotated[int, Ge(2**20), Le(2**46)]
    """Memory of one unit, in bytes; it is none of the cluster's."""
    stage: Stage = 0
    first_layer: FirstLayer = 0

    SELDOM: ClassVar[frozenset[str]] = frozenset({"stage", "first_layer"})

    @property
    def place(self) -> WorkerPlace:
        """Place of the group's workers."""
        return WorkerPlace(self.stage, self.first_layer, self.device)


@dataclass(frozen=True, slots=True)
class Plan(Record):
    """Number of pods of each role, and the size of each pod (DLRover-RM §4.1: w, p, lambda_w, lambda_p)."""

    workers: Annotated[int, Ge(0), Le(WORKERS_MAX)]
    """Number of workers, those of ``groups`` among them."""
    ps: Annotated[int, Ge(1), Le(PS_MAX)]
    """Number of parameter servers. A job that runs a program has none: its plans say 1, of 0.001 cores and 1 MiB."""
    worker_cpu_cores: Annotated[float, Ge(0.001), Le(1024)]
    """CPU cores of one worker."""
    ps_cpu_cores: Annotated[float, Ge(0.001), Le(1024)]
    """CPU cores of one parameter server."""
    worker_memory_bytes: Annotated[int, Ge(2**20), Le(2**46)]
    """Memory of one worker, in bytes."""
    ps_memory_bytes: Annotated[int, Ge(2**20), Le(2**46)]
    """Memory of one parameter server, in bytes."""
    groups: Annotated[tuple[WorkerGroup, ...], MaxLen(GROUPS_MAX)] = ()
    """Workers on types of devices, one group for each stage and type, in this order. The others, of stage 0, have
    ``worker_cpu_cores``."""

    SELDOM: ClassVar[frozenset[str]] = frozenset({"groups"})

    def __post_init__(self) -> None:
        """Raise InvalidValue outside the domain of every decision. Published plans keep the bounds of the fields."""
        # one condition for all fields: a candidate has a plan, a job fifty candidates, and nothing is made as often
        counts = len(self.groups) <= self.workers < math.inf and 1 <= self.ps < math.inf
        if self.groups:
            self._require_groups()
        cores = 1e-3 <= self.worker_cpu_cores < math.inf and 1e-3 <= self.ps_cpu_cores < math.inf
        if counts and cores and 1 <= self.worker_memory_bytes < math.inf and 1 <= self.ps_memory_bytes < math.inf:
            return
        require("workers", self.workers, 0)
        for name in ("ps", "worker_memory_bytes", "ps_memory_bytes"):
            require(name, getattr(self, name), 1)
        for name in ("worker_cpu_cores", "ps_cpu_cores"):
            require(name, getattr(self, name), 1e-3)

    def _require_groups(self) -> None:
        """Raise InvalidValue unless the groups have different places, in order, and no more than all workers."""
        places = [group.place for group in self.groups]
        if places != sorted({*places}):
            names = [f"{place.device} (stage {place.stage})" if place.stage else place.device for place in places]
            raise InvalidValue(f"groups name the devices {names}; give each once a stage, in alphabetical order")
        if sum(group.workers for group in self.groups) > self.workers:
            raise InvalidValue(f"workers is {self.workers}, fewer than those of groups; count those of groups, too")
        if self.stages > 1:
            self._require_stages()

    def _require_stages(self) -> None:
        """Raise InvalidValue unless each stage up to the last has workers, and begins after the one before it."""
        begins = sorted({(place.stage, place.first_layer) for place in self.worker_places})
        stages, layers = [stage for stage, _ in begins], [layer for _, layer in begins]
        if stages != [*range(self.stages)] or layers != sorted({*layers}) or layers[:2] != [0, 1]:
            raise InvalidValue(
                f"workers are of the (stage, first_layer) {begins}; give each stage from 0 on at least one worker and "
                "one first_layer: stage 0 has the rows, 0; stage 1 begins behind them, at 1; each later stage begins "
                "after the stage before"
            )

    @property
    def servers(self) -> int:
        """Number of parameter servers that run: v1 of the messages has no plan with 0 of them, and a mark instead."""
        return 0 if (self.ps, self.ps_cpu_cores, self.ps_memory_bytes) == NO_SERVERS else self.ps

    @property
    def cpu_workers(self) -> int:
        """Number of workers on the cluster's own cores: those of no group."""
        return self.workers - sum(group.workers for group in self.groups) if self.groups else self.workers

    @property
    def stages(self) -> int:
        """Number of stages that a step passes; 1: each worker computes all layers."""
        return self.groups[-1].stage + 1 if self.groups else 1

    @property
    def worker_places(self) -> dict[WorkerPlace, int]:
        """Numbers of workers by their places, without zeros; those on cores are under ``ON_CORES``."""
        on_cores = {ON_CORES: self.cpu_workers} if self.cpu_workers else {}
        return on_cores | {group.place: group.workers for group in self.groups}

    def with_workers(self, cpu_workers: int, groups: Iterable[WorkerGroup]) -> Plan:
        """Return the plan with these workers; groups that have none go, and of equal types there is one."""
        kept = tuple(sorted((group for group in groups if group.workers), key=lambda group: group.place))
        return replace(self, workers=cpu_workers + sum(group.workers for group in kept), groups=kept)

    def fewer_workers(self, most: int) -> Plan:
        """Return the plan with at most so many workers: those on cores go first, the last group's next.

        Each stage keeps one as long as all can; otherwise the later ones go.
        """
        if self.stages > max(most, 1):
            first = [group for group in self.groups if not group.stage]
            return self.with_workers(self.cpu_workers, first).fewer_workers(most)
        surplus, single = max(self.workers - most, 0), 1 if self.stages > 1 else 0
        kept = single if self.groups and self.groups[0].stage else 0
        left, surplus = max(self.cpu_workers - surplus, kept), max(surplus - self.cpu_workers + kept, 0)
        groups = list[WorkerGroup]()
        for group in reversed(self.groups):
            gone = min(group.workers - (single if group.stage else 0), surplus)
            surplus -= gone
            groups.append(replace(group, workers=group.workers - gone))
        return self.with_workers(left, groups)

    def resources(self, extended: ExtendedPerPod) -> Resources:
        """Return the resources of the whole job, whose pods on cores have ``extended`` each."""
        workers, servers = self.cpu_workers, self.servers
        cores = workers * self.worker_cpu_cores + servers * self.ps_cpu_cores
        memory = workers * self.worker_memory_bytes + servers * self.ps_memory_bytes
        if not (extended.worker or extended.ps or self.groups):
            return Resources(cores, memory)
        units = reduce(added, (((DEVICES + group.device, group.workers),) for group in self.groups), ())
        return Resources(cores, memory, added(extended.of(workers, servers), units))

    def pod(self, role: Literal["worker", "ps"], extended: ExtendedPerPod, device: str = "") -> Resources:
        """Return the resources of one pod of the role: of a worker on a type of devices, one unit of it."""
        if device:
            return Resources(0.0, 0, ((DEVICES + device, 1),))
        if role == "worker":
            return Resources(self.worker_cpu_cores, self.worker_memory_bytes, extended.of_pod(role))
        return Resources(self.ps_cpu_cores, self.ps_memory_bytes, extended.of_pod(role))

    def describe(self) -> str:
        """Return a short phrase for reasons that people read."""
        workers = [
            f"{self.cpu_workers} worker{'s' * (self.cpu_workers != 1)} x {self.worker_cpu_cores:g} cores"
            f" / {self.worker_memory_bytes / GIB:.2f} GiB"
        ]
        of_groups = [
            f"{group.workers} worker{'s' * (group.workers != 1)}{f' of stage {group.stage}' * (group.stage > 0)}"
            f" on {group.device}"
            for group in self.groups
        ]
        servers = [f"{self.ps} PS x {self.ps_cpu_cores:g} cores / {self.ps_memory_bytes / GIB:.2f} GiB"]
        return ", ".join(workers * (self.cpu_workers > 0 or not of_groups) + of_groups + servers * (self.servers > 0))


PLAN_FIELDS = ("workers", "ps", "worker_cpu_cores", "ps_cpu_cores", "worker_memory_bytes", "ps_memory_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval(Record):
    """A 90 % interval."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise InvalidValue("low must not be above high")


NO_CHANGE = Interval(low=0.0, high=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate(Record):
    """A plan that a job could have: a point of its Pareto front (DLRover-RM Eq. 7-9)."""

    id: Name
    plan: Plan
    cost_per_hour: Money
    throughput: Rate
    throughput_interval: Interval
    gain: float
    """Samples per second over the current plan, less the overhead (Eq. 8)."""
    overhead_s: Seconds
    """Training time that changing to this plan costs."""
    stage_times_s: Annotated[tuple[Seconds, ...], MaxLen(STAGES_MAX)] = ()
    """Time of each stage for a batch, the slowest of which bounds the plan (HeterPS Eq. 3); empty: it has one."""

    SELDOM: ClassVar[frozenset[str]] = frozenset({"stage_times_s"})


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel(Record):
    """The throughput model of a finished job, as the history keeps it. Fields as in ModelFitted."""

    form: Literal["default", "paper"]
    coefficients: Annotated[dict[Name, Annotated[float, Ge(0)]], MaxLen(20)]
    overlap: Annotated[float, Ge(1)] = 1.0


UNIT_CORES_MAX = 10**9
"""Largest number of the cluster's cores that one unit of a type of devices is as fast as."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpeed(Record):
    """How fast workers of a job computed on a type of devices, beside those on the cluster's own cores."""

    device: DeviceName
    cores: Annotated[float, Gt(0), Le(UNIT_CORES_MAX)]
    """Number of the cluster's cores that compute a batch in the time of one unit."""
    log_sd: Annotated[float, Ge(0)]
    """Standard deviation of the logarithm of that number."""
    job: JobId
    """The job that measured it."""
    measured_at_s: EpochSeconds = 0.0
    """Time at which that job ended; 0: not known."""

    SELDOM: ClassVar[frozenset[str]] = frozenset({"measured_at_s"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Match(Record):
    """A past job that resembles a new one (DLRover-RM Alg. 1)."""

    job: JobId
    similarity: Fraction
    weight: Fraction
    """Weight of this job in the smoothed plan (Eq. 10)."""
    plan: Plan
    throughput: Rate
    features: Annotated[dict[Name, Fraction], MaxLen(80)] = field(default_factory=dict[str, float])
    """Similarity of each metadata field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredConfiguration(Record):
    """The step time of one configuration over all its windows: a point that a throughput model is fitted to."""

    workers: Annotated[int, Ge(1), Le(WORKERS_MAX)]
    ps: Annotated[int, Ge(1), Le(1000)]
    worker_cpu_cores: Annotated[float, Gt(0), Le(1024)]
    ps_cpu_cores: Annotated[float, Gt(0), Le(1024)]
    batch_size: Annotated[int, Ge(1)]
    device: Device = ""
    mixed: bool = False
    """Other workers of the job had devices of another type."""
    step_time_s: Annotated[float, Gt(0), Le(10**9)]
    """Median over windows."""
    windows: Annotated[int, Ge(1), Le(10**9)]
    log_sd: Annotated[float, Ge(0)]
    """Standard error of the logarithm of the step time."""

    SELDOM: ClassVar[frozenset[str]] = frozenset({"device", "mixed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundReport(Record):
    """A slower algorithm's solution of a round, computed in the background, and what became of it. Null: no answer."""

    algorithm: Name
    outcome: Literal["begun", "adopted", "dropped"]
    """begun: this plan was decided without waiting for the answer."""
    reason: Text
    value: float | None = None
    """Value of the objective with the background solution."""
    instead_of: float | None = None
    """Value of the objective without it."""
    gap: Annotated[float | None, Ge(0)] = None
    """Proven optimality gap of the background solution; null: none is proven."""
    took_s: Seconds | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Round(Record):
    """One choice over all jobs under the cluster's capacity, with a proven bound."""

    algorithm: Name
    objective: Name
    jobs: Annotated[int, Ge(1)]
    """Number of jobs that could get another plan."""
    value: float
    """Value of the objective over all jobs."""
    bound: float
    """Proven upper bound of the objective."""
    gap: Annotated[float, Ge(0)]
    """(bound - value) / bound: the largest share that may be missing to the optimum."""
    term: float
    """Part of the value that this plan contributes."""
    background: BackgroundReport | None = None
    """The background solution of the round; null: none was requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative(Record):
    """A plan that was considered and not chosen, with the reason."""

    plan: Plan
    throughput: Rate
    cost_per_hour: Money
    efficiency: float
    """Gain over cost times weight: the term of Eq. 12."""
    why_not: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard(Record):
    """A lease of consecutive samples of one epoch's order.

    A requeued shard keeps its id and range; ``attempt`` grows, so that a late report of an earlier holder is
    recognised. ``offset`` samples of it are known to be processed.
    """

    id: Count
    attempt: Annotated[int, Ge(1), Le(10**6)]
    epoch: Annotated[int, Ge(0), Le(10**6)]
    start: Count
    """First sample, in the order of the dataset or of its data partition."""
    length: Annotated[int, Ge(1), Le(10**12)]
    offset: Count = 0
    partition: Annotated[str, MaxLen(60)] = ""
    """Data partition; empty: the dataset has none."""
    kind: Literal["train", "evaluate"] = "train"
    """evaluate: held-out samples, which are never trained."""


PartitionName = Annotated[
    str,
    Pattern(r"^[A-Za-z0-9][A-Za-z0-9_.:=/-]{0,59}$"),
    Doc("letters, digits and _.:=/-, at most 60, as in day=2026-11-21"),
]


SAMPLES_MAX = 10**13
"""Largest number of samples of an epoch, or of a partition of it."""
GIVEN_UP_PERCENT = 1
"""Share of a job's samples that may be given up, by shards whose reading fails, where its job file states no number."""
PARTITIONS_MAX = 1000
"""Largest number of partitions of one job, in all its life."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPartition(Record):
    """A named part of a dataset, with its number of samples and its priority."""

    name: PartitionName
    samples: Annotated[int, Ge(1), Le(SAMPLES_MAX)]
    """Number of samples so far."""
    priority: Annotated[int, Ge(-1000), Le(1000)] = 0
    """Higher priorities are trained first; equal ones are mixed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerProfile(Record):
    """One worker over a window."""

    pod: PodId
    step_time_s: Seconds
    samples_per_s: Rate
    cpu_used_cores: Cores
    memory_used_bytes: Bytes
    device: Device = ""
    stage: Stage = 0

    SELDOM: ClassVar[frozenset[str]] = frozenset({"device", "stage"})


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupProfile(Record):
    """The workers of one stage of a plan on one type of devices over a window: medians."""

    device: Device
    workers: Count
    step_time_s: Seconds
    times: StepTimes
    stage: Stage = 0

    SELDOM: ClassVar[frozenset[str]] = frozenset({"stage"})


MISS_POINTS = 16
MissRatios = Annotated[
    tuple[Fraction, ...],
    MaxLen(MISS_POINTS),
    Doc(
        f"the k-th of {MISS_POINTS}: share of a batch's rows that would be read from the disk if k/{MISS_POINTS} of "
        "all rows were in memory; empty: not known"
    ),
]
ReadRate = Annotated[float, Ge(0), Le(RATE_MAX), Doc("rows per second")]


@dataclass(frozen=True, slots=True, kw_only=True)
class PsProfile(Record):
    """One parameter server at the end of a window."""

    pod: PodId
    cpu_used_cores: Cores
    cpu_limit_cores: Cores
    memory_used_bytes: Bytes
    memory_limit_bytes: Bytes
    categories: Count
    """Number of rows in its embedding tables."""
    row_bytes: RowBytes
    """Mean over those rows, by the layout."""
    table_bytes: Bytes
    """Exact size of rows, entries, indices and dense parameters."""
    buckets: Count
    """Number of embedding buckets that it owns."""
    update_time_s: Seconds
    """Mean time of one push, queueing included."""
    cold_rows: Count = 0
    """Rows on its disk; they are among its categories."""
    log_bytes: Bytes = 0
    """Size of the file that holds them."""
    warm_rows: Count = 0
    """Rows that are rounded to bfloat16 in its memory, for lack of room; they are among its categories."""
    warm_bytes: Bytes = 0
    """Memory that they take, but for their entries and index."""
    disk_free_bytes: Bytes = 0
    rows_pulled: Count = 0
    """Rows that training pulled in the window, each once a batch."""
    rows_read: Count = 0
    """Rows that batches of training had read from the disk in the window, not for copies or evaluations."""
    disk_reads_per_s: ReadRate = 0.0
    """Random reads of a row that its disk can do at depth; 0: not measured."""

    SELDOM: ClassVar[frozenset[str]] = frozenset({"warm_rows", "warm_bytes"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PsForecast(Record):
    """Forecast of the memory of one parameter server (DLRover-RM section 5.3)."""

    pod: PodId
    used_bytes: Bytes
    limit_bytes: Bytes
    at_end_bytes: Bytes
    at_end_interval_bytes: Interval
    oom_in_s: Seconds | None
    oom_at_samples: Count | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy(Record):
    """A way out for parameter servers whose rows outgrow their memory, with the job's cost and speed under it.

    grow: more memory each; move: more servers; spill: no more memory, rows that are used least go to the disks.
    """

    kind: Literal["grow", "move", "spill"]
    ps: Annotated[int, Ge(1), Le(PS_MAX)]
    ps_memory_bytes: Bytes
    """Memory of one parameter server."""
    cost_per_hour: Money
    """Cost of the whole job."""
    slowdown: Annotated[float, Ge(0)] = 0.0
    """Share by which a step takes longer."""
    slowdown_interval: Interval = NO_CHANGE
    noise: Annotated[float, Ge(0)] = 0.0
    """Half the 90 % interval of the logarithm of a window's step time, given another window's: not of the slow-down."""
    reads_per_step: Annotated[float, Ge(0)] = 0.0
    """Rows that a step will read from the disk of the fullest server, by what was measured of reads so far."""
    reads_interval: Interval = NO_CHANGE
    """Its 90 % interval."""
    reads_measured: Annotated[float, Ge(0)] = 0.0
    """Rows that a step read from that disk in the last window; 0: none did."""
    hot_share: Fraction = 1.0
    """Share of the rows that are in memory."""
    disk_bytes: Bytes = 0
    """Most of the disk of one parameter server."""

    SELDOM: ClassVar[frozenset[str]] = frozenset({"noise", "reads_measured"})


PlaneAddress = Annotated[str, Pattern(r"^([A-Za-z0-9_.:\[\]-]{3,260}|unix:/[^\x00-\x1f]{1,280})$")]
"""``host:port``, or ``unix:/path`` where pods share a machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataWorker(Record):
    """Address of a data worker. ``index`` is the number in its name."""

    index: Annotated[int, Ge(0), Le(10**9)]
    address: PlaneAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember(Record):
    """Address of a worker that averages dense gradients with others, or that computes a stage of their steps.

    ``index`` is the number in its name.
    """

    index: Annotated[int, Ge(0), Le(10**9)]
    address: PlaneAddress
    device: Device = ""
    stage: Stage = 0
    first_layer: FirstLayer = 0

    SELDOM: ClassVar[frozenset[str]] = frozenset({"stage", "first_layer"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterServer(Record):
    """Address of a parameter server. ``index`` is the number in its name."""

    index: Annotated[int, Ge(0), Le(10**9)]
    address: PlaneAddress
    leaving: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRef(Record):
    """A complete checkpoint: model parameters and ledger state of one instant."""

    id: Name
    url: Annotated[str, MaxLen(1000)]
    """URL of its manifest, in any scheme of fsspec."""
    samples: Count
    size_bytes: Bytes
    ps: Annotated[int, Ge(1), Le(1000)]
    """Number of parameter servers that wrote it."""


MetricName = Annotated[str, MinLen(1), MaxLen(200)]


LossName = Annotated[
    str, MaxLen(200), Doc("what the loss is: `log loss`, or the model's own by name; empty: not told by its writer")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricValue(Record):
    """A metric that the user compiled into the model."""

    name: MetricName
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation(Record):
    """Quality on held-out samples: those that follow the training samples in the dataset."""

    samples: Count
    loss: Annotated[float, Ge(0)]
    """Mean log loss of the first output with probabilities; without one the model's own mean loss, at least 0."""
    auc: Fraction
    """Area under the ROC curve of that output; 0.5 without one."""
    metrics: Annotated[tuple[MetricValue, ...], MaxLen(64)] = ()
    loss_name: LossName = ""


def measures(found: Evaluation) -> dict[str, float]:
    """Return loss, AUC and the model's own metrics by their names.

    A model that publishes a loss has no output of probabilities: its loss stands for ours, and it has no AUC.
    """
    own = {each.name: each.value for each in found.metrics}
    return own if "loss" in own else {"loss": found.loss, "auc": found.auc} | own


SCORE_BINS = 256


Histogram = Annotated[tuple[Count, ...], MinLen(SCORE_BINS), MaxLen(SCORE_BINS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSum(Record):
    """A metric that is the mean total / count, so that the sums of several workers add up."""

    name: MetricName
    total: float
    count: Annotated[float, Ge(0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialEvaluation(Record):
    """Counts of one worker on some held-out samples. Bins are equal steps of the logit from -12 to 12."""

    samples: Annotated[int, Ge(1), Le(10**12)]
    loss_sum: Annotated[float, Ge(0), Le(10**15)]
    """Log loss, summed over samples."""
    positives: Histogram
    negatives: Histogram
    metrics: Annotated[tuple[MetricSum, ...], MaxLen(64)] = ()
    """Those of the metrics compiled by the user that are means."""
    loss_name: LossName = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedProfile(Record):
    """The data queue of a job in a window: what its workers take, and what is prepared for them (GoldMiner, 3.4).

    Rates are batches per second of all workers, or of all data workers, together.
    """

    dequeued_per_s: Rate
    """Batches that workers take while they need not wait."""
    enqueued_per_s: Rate
    """Batches that data workers can prepare; 0: not known."""
    read_share: Fraction
    """Part of the workers' time that they wait for batches."""
    prepare_s: Seconds
    """Time that a worker needs to prepare a batch; 0: not known."""
    prepare_cpu_s: Seconds
    """Processor time that a worker needs to prepare a batch."""
    cpu_share: Fraction
    """Used part of the workers' cores."""
    lanes: Count
    """Batches that data workers prepare at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes(Record):
    """Parts of the time of a training step (DLRover-RM Eq. 2-5), seconds per step.

    ``emb_s`` pull of embedding rows, ``grad_s`` local computation, ``upd_s`` slowest update in a parameter server,
    ``sync_s`` dense pull and push less the update. ``read_s``: the wait until the step's batch was prepared, which no
    part of the training model explains (GoldMiner, section 3.3).
    """

    emb_s: Seconds
    grad_s: Seconds
    upd_s: Seconds
    sync_s: Seconds
    read_s: Seconds = 0.0
