"""What the actuator is told of a job, what it tells, and what it remembers.

Several facts are also observations: the edge proposes them, the machine accepts each at most once and tells it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from stretto_messages.values import Plan

from stretto_core.dispatcher.audit import Applied, Counted

Role = Literal["worker", "ps"]
NobodysFault = Literal["evicted", "preempted", "node-lost"]
ExitReason = Literal["completed", "stopped", "failed", "killed", "oom-killed", "image-pull", "vanished"] | NobodysFault
WaitReason = Literal["no-room", "quota", "image-pull"]
MigrationCause = Literal["plan", "hot-ps", "memory", "repair"]

USER_ERROR = 3
"""Exit code of a pod whose user's code or data failed."""


# what happens ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """A job exists. ``restores``: parameters come from a checkpoint. ``final_checkpoint``: one is taken at the end.

    ``spec`` is the specification as JSON, for the pods; the machine does not read it. ``samples_total``: 0 when only
    the ledger knows, of data that grow. ``worker_memory_max_bytes``: up
    to where a worker that was killed for its memory gets more; 0: it never does.
    """

    job: str
    spec: str = ""
    samples_total: int = 0
    evaluate: int = 0
    worker_failures: int = 10
    samples_given_up_max: int | None = None
    restores: bool = False
    final_checkpoint: bool = False
    worker_memory_max_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PlanDecided:
    """The plan that the job has to have from now on."""

    version: int
    plan: Plan


@dataclass(frozen=True, slots=True)
class BucketsClaimed:
    """Observed: every one of these new parameter servers owns its part of an empty model."""

    pods: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HotPsDetected:
    """A parameter server is much slower or busier than its peers. Seconds of an update; 0: not known."""

    pod: str
    update_time_s: float = 0.0
    peers_update_time_s: float = 0.0


@dataclass(frozen=True, slots=True)
class HotPsCleared:
    """A server that was hot keeps pace with its peers again."""

    pod: str
    update_time_s: float = 0.0
    peers_update_time_s: float = 0.0


@dataclass(frozen=True, slots=True)
class CheckpointRestored:
    """The parameter servers hold the parameters of a checkpoint, and the ledger went back with them."""


@dataclass(frozen=True, slots=True)
class CheckpointFlushed:
    """A checkpoint is safe. ``final``: it is the one that was taken after the last shard."""

    id: str
    final: bool


@dataclass(frozen=True, slots=True)
class CheckpointFailed:
    """A checkpoint could not be taken (``final`` as above), or parameters could not go back to it (``restore``)."""

    id: str
    reason: str
    final: bool = False
    restore: bool = False


@dataclass(frozen=True, slots=True)
class JobCompleted:
    """Every sample of every epoch was trained, but for those that were given up by name: ``given_up`` tells of what
    shards, and how many samples of each were applied before; so does it of what was not complete of other data.
    ``unproven``: samples of such shards that are not among them."""

    samples_abandoned: int = 0
    samples_before: int = 0
    fingerprint: int | None = None
    given_up: tuple[tuple[int, int], ...] = ()
    unproven: int = 0
    samples: int = 0


@dataclass(frozen=True, slots=True)
class ShardAbandoned:
    """``samples`` of a shard failed as often as allowed and were given up."""

    samples: int
    reason: str


@dataclass(frozen=True, slots=True)
class JobCancelled:
    """A user ended the job."""


@dataclass(frozen=True, slots=True)
class ServersAsked:
    """``pod`` asks which parameter servers there are. One that has exited, or never was, is told that it is unknown."""

    pod: str = ""


# what is observed and told ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PodStarted:
    """A pod is ready. The machine fills in what the edge does not know."""

    pod: str
    address: str
    took_s: float
    limits: tuple[str, ...]
    cpu_cores: float
    memory_bytes: int
    adopted: bool = False
    role: Role = "worker"
    plan_version: int = 0
    cause: Literal["plan", "relaunch", "adopted"] = "plan"


@dataclass(frozen=True, slots=True)
class PodExited:
    """A pod is gone for good."""

    pod: str
    reason: ExitReason
    exit_code: int | None
    detail: str = ""
    role: Role = "worker"


@dataclass(frozen=True, slots=True)
class PodResized:
    """The limits of a running pod were changed in place."""

    pod: str
    cpu_cores: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class PlanApplied:
    """Pods and parameters are as the plan wants them. The edge proposes only the version."""

    version: int
    plan: Plan | None = None
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class MigrationStarted:
    """Parameters begin to move. ``number`` counts the layouts that were wanted, so that a late word is recognised."""

    number: int
    sources: tuple[str, ...]
    destinations: tuple[str, ...]
    buckets: int
    plan_version: int = 0
    cause: MigrationCause = "plan"


@dataclass(frozen=True, slots=True)
class MigrationFinished:
    """Nothing is left to move for the wanted layout ``number``."""

    number: int
    buckets: int
    moved_bytes: int
    longest_freeze_s: float
    plan_version: int = 0
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Book:
    """One parameter server's own count. ``checksum``: hexadecimal, order-free; sums over servers compare."""

    skipped_repeats: int
    rows: int
    checksum: str
    columns_total: int
    counted: tuple[Counted, ...]
    applied: tuple[Applied, ...] = ()


@dataclass(frozen=True, slots=True)
class BooksTaken:
    """Observed: the counts of all parameter servers; the evaluation as samples, loss, AUC."""

    books: tuple[Book, ...]
    evaluation: tuple[int, float, float] | None


@dataclass(frozen=True, slots=True)
class JobFinished:
    """The books, counted where gradients land. ``evaluation``: samples, loss, AUC."""

    samples_expected: int
    samples_applied: int
    samples_lost: int
    samples_repeated: int
    repeats_recognised: int
    rows: int
    checksum: str
    evaluation: tuple[int, float, float] | None
    columns_total: int = 0
    counted: tuple[Counted, ...] = ()
    applied: tuple[Applied, ...] = ()


# what is only told -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Server:
    """Where a parameter server listens; ``index`` is the number in its name."""

    index: int
    address: str
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class ServersChanged:
    """The parameter servers of the job. None at all: the parameters are gone; the next ones await a checkpoint."""

    version: int
    servers: tuple[Server, ...]


@dataclass(frozen=True, slots=True)
class ServersKnown:
    """The answer to ``ServersAsked``; version 0: no servers yet."""

    known: bool
    version: int
    plan_version: int
    servers: tuple[Server, ...]


@dataclass(frozen=True, slots=True)
class JobFailed:
    """The job cannot go on."""

    reason: str


# what is remembered ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Pod:
    """A pod that is wanted, or that is not gone yet. ``cpu_cores`` and ``memory_bytes`` are what it should have."""

    name: str
    role: Role
    number: int
    cpu_cores: float
    memory_bytes: int
    plan_version: int
    cause: Literal["plan", "relaunch"]
    wanted_at_s: float
    not_before_s: float = 0.0
    phase: Literal["starting", "running", "stopping"] = "starting"
    waiting: WaitReason | None = None
    """why it could not run when that was last told, since when"""
    waiting_since_s: float = 0.0
    leaving: bool = False
    """a parameter server whose parameters are moving away"""
    retired: bool = False
    """leaving for good: it is being replaced"""
    listed: bool = False
    """a parameter server that workers know of; it may own parameters"""
    address: str = ""
    started_at_s: float | None = None
    cpu_cores_now: float = 0.0
    memory_bytes_now: int = 0


@dataclass(slots=True)
class Migration:
    """A migration that has begun."""

    cause: MigrationCause
    started_at_s: float


@dataclass(slots=True)
class Replacement:
    """Of the hot server ``pod``: asked for ``since_s`` or, once there is room, ``granted`` then."""

    pod: str
    since_s: float
    granted: bool = False


@dataclass(slots=True)
class ActuatorState:
    """Everything that the actuator knows of one job."""

    job: str = ""
    spec: str = ""
    phase: Literal["unknown", "active", "completing", "finished", "failed", "cancelled"] = "unknown"
    evaluate: int = 0
    worker_failures_allowed: int = 0
    samples_given_up_max: int | None = None
    samples_given_up: int = 0
    final_checkpoint: bool = False
    final_checkpoint_due: bool = False
    samples_total: int = 0
    completed: JobCompleted = field(default_factory=JobCompleted)
    completed_at_s: float = 0.0

    plan: Plan | None = None
    plan_version: int = 0
    decided_at_s: float = 0.0
    applied_version: int = 0

    pods: dict[str, Pod] = field(default_factory=dict[str, Pod])
    next_number: dict[str, int] = field(default_factory=lambda: {"worker": 0, "ps": 0})
    servers_version: int = 0

    layout: Literal["empty", "restoring", "ready"] = "empty"
    restores: bool = False
    """empty servers get their parameters from a checkpoint, not by claiming new ones"""
    weights: dict[str, float] = field(default_factory=dict[str, float])
    """share of a parameter server beside its peers, where it is not 1"""
    rebalance: MigrationCause | None = None
    rebalance_number: int = 0
    migration: Migration | None = None
    last_hot_at_s: float = 0.0
    replacement: Replacement | None = None
    replaced: int = 0
    """hot parameter servers for which fresh ones were started"""

    failures_in_row: dict[str, int] = field(default_factory=lambda: {"worker": 0, "ps": 0})
    user_failures: int = 0
    crashes_in_row: int = 0
    worker_memory_max_bytes: int = 0
    worker_memory_least_bytes: int = 0
    """of new workers, after one was killed for its memory"""
    recoveries: int = 0

    @property
    def ended(self) -> bool:
        """Whether nothing is left to do but to stop pods."""
        return self.phase in ("finished", "failed", "cancelled")

    def of_role(self, role: str) -> list[Pod]:
        """Pods of a role that are wanted, leaving ones excluded, by number."""
        return sorted(
            (p for p in self.pods.values() if p.role == role and p.phase != "stopping" and not p.leaving),
            key=lambda pod: pod.number,
        )

    def listed(self) -> list[Pod]:
        """The parameter servers that workers know of, by number."""
        return sorted((p for p in self.pods.values() if p.listed), key=lambda pod: pod.number)
