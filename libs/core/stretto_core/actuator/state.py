"""State of the actuator's machine: one job, its pods, its parameter servers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from stretto_messages.base import Message
from stretto_messages.dispatcher import JobCompleted
from stretto_messages.values import DataWorker, Device, GroupMember, Plan, WorkerPlace

Role = Literal["worker", "ps", "data"]
WaitReason = Literal["no-room", "quota", "image-pull"]
MigrationCause = Literal["plan", "hot-ps", "memory", "repair"]
PodCause = Literal["plan", "relaunch"]
Phase = Literal["unknown", "active", "completing", "finished", "failed", "cancelled"]
Facts = list[Message]
"""Messages to publish, in order."""


@dataclass(frozen=True, slots=True)
class DataWorkers:
    """Number and size of the pods that prepare batches for workers. They hold nothing: no plan waits for them."""

    count: int = 0
    cpu_cores: float = 0.0
    memory_bytes: int = 0


NO_DATA_WORKERS = DataWorkers()


@dataclass(frozen=True, slots=True)
class JobOpened:
    """The fields of a job's specification that the actuator decides by."""

    job: str
    spec: str = ""
    """The specification as JSON, for the pods; the machine does not read it."""
    samples_total: int = 0
    """0: only the ledger knows, since the data grow."""
    evaluate: int = 0
    best_metric: str = ""
    """The metric by which the job's best model is found; empty: none is looked for."""
    worker_failures: int = 10
    samples_given_up_max: int | None = None
    """None: ``GIVEN_UP_PERCENT`` of all samples."""
    restores: bool = False
    """Parameters come from a checkpoint."""
    final_checkpoint: bool = False
    """A checkpoint is taken after the last shard."""
    worker_memory_max_bytes: int = 0
    """Limit of the memory of workers whose predecessor was killed for its memory; 0: they never get more."""
    data: DataWorkers = NO_DATA_WORKERS
    averages_dense: bool = False
    """Workers average dense gradients, and have to know each other. Workers of stages know each other in any case."""
    together: bool = False
    """Workers run one program of several ranks, and have to know each other."""
    runs_program: bool = False
    """Workers run a program of the user's: there are no parameter servers, and a worker ends when its program does."""
    watched: bool = False
    """Each worker begins the program anew, so that no worker is ended for another size."""


@dataclass(slots=True)
class Pod:
    """A pod that is wanted, or that is not gone yet. ``cpu_cores`` and ``memory_bytes`` are what it should have."""

    name: str
    role: Role
    number: int
    cpu_cores: float
    memory_bytes: int
    plan_version: int
    cause: PodCause
    wanted_at_s: float
    device: Device = ""
    """A worker's type of devices; of its size the plan's group says what a unit has."""
    stage: int = 0
    first_layer: int = 0
    """A worker's stage, and the first layer of that stage."""
    not_before_s: float = 0.0
    phase: Literal["starting", "running", "stopping"] = "starting"
    waiting: WaitReason | None = None
    """The reason why it cannot run yet that was published last."""
    waiting_since_s: float = 0.0
    leaving: bool = False
    """A parameter server whose parameters are moving away."""
    retired: bool = False
    """Leaving for good: it is being replaced."""
    listed: bool = False
    """A parameter server that workers know of; it may own parameters."""
    relieved: bool = False
    """A worker of a later stage that the plan has no more, and that goes once those run that it has instead."""
    emptying: bool = False
    """A parameter server that may still hold what the job goes back from."""
    address: str = ""
    started_at_s: float | None = None
    cpu_cores_now: float = 0.0
    memory_bytes_now: int = 0

    @property
    def place(self) -> WorkerPlace:
        """A worker's place."""
        return WorkerPlace(self.stage, self.first_layer, self.device)

    def stop(self) -> None:
        """Want the pod gone."""
        self.phase = "stopping"
        self.leaving = self.relieved = False
        self.listed = False
        self.emptying = False


@dataclass(slots=True)
class Migration:
    """A migration that has begun."""

    cause: MigrationCause
    started_at_s: float


@dataclass(slots=True)
class Replacement:
    """The replacement of the hot server ``pod``: asked for at ``since_s`` or, once there is room, granted then."""

    pod: str
    since_s: float
    granted: bool = False


@dataclass(slots=True)
class ActuatorState:
    """Everything that the actuator knows of one job."""

    job: str = ""
    spec: str = ""
    phase: Phase = "unknown"
    evaluate: int = 0
    best_metric: str = ""
    """The metric that the first evaluation must have; empty: no metric is asked for, or an evaluation had it."""
    worker_failures_allowed: int = 0
    samples_given_up_max: int | None = None
    """None: ``GIVEN_UP_PERCENT`` of all samples."""
    samples_given_up: int = 0
    """Samples of shards that were abandoned, since the last return to a checkpoint."""
    given_up_reason: str = ""
    """Reason of the shard that was abandoned last."""
    final_checkpoint: bool = False
    final_checkpoint_due: bool = False
    final_checkpoint_failure: str = ""
    samples_total: int = 0
    """Samples of all epochs; 0: only the ledger knows, since the data grow."""
    samples_known: int = 0
    """Samples of all epochs that the ledger has told of."""
    completed: JobCompleted | None = None
    completed_at_s: float = 0.0

    plan: Plan | None = None
    plan_version: int = 0
    decided_at_s: float = 0.0
    applied_version: int = 0

    data: DataWorkers = NO_DATA_WORKERS
    data_decided: int = 0
    """Version of the last DataWorkersDecided."""
    data_version: int = 0
    """Version of the last DataWorkersChanged."""
    data_failure: str = ""
    """How the last data worker died."""
    data_published: tuple[DataWorker, ...] = ()

    runs_program: bool = False
    watched: bool = False
    averages_dense: bool = False
    together: bool = False
    group_version: int = 0
    """Version of the last GroupChanged."""
    group_published: tuple[GroupMember, ...] = ()
    group_wanted: int = 0
    """Workers that the plan had then, of a program of several ranks."""

    pods: dict[str, Pod] = field(default_factory=dict[str, Pod])
    next_number: dict[str, int] = field(default_factory=lambda: {"worker": 0, "ps": 0, "data": 0})
    servers_version: int = 0

    layout: Literal["empty", "restoring", "recovering", "ready"] = "empty"
    """``recovering``: some columns were lost and come back on the servers that survive; nothing moves meanwhile."""
    loss: int = 0
    """Version of the last ParametersLost."""
    restores: bool = False
    """Empty servers get their parameters from a checkpoint, not by claiming new ones."""
    returned_version: int = 0
    """Version of the last ServersChanged without servers: it names the return of the job."""
    returned_to: str = ""
    """Checkpoint to which the job returned last, after it had trained."""
    samples_undone: int = 0
    """Samples that such returns undid."""
    weights: dict[str, float] = field(default_factory=dict[str, float])
    """Share of a parameter server relative to its peers, where it is not 1."""
    rebalance: MigrationCause | None = None
    rebalance_number: int = 0
    migration: Migration | None = None
    last_hot_at_s: float = 0.0
    replacement: Replacement | None = None
    replaced: int = 0
    """Number of hot parameter servers for which fresh ones were started."""

    failures_in_row: dict[str, int] = field(default_factory=lambda: {"worker": 0, "ps": 0, "data": 0})
    user_failures: int = 0
    """Ends of workers with the user's error."""
    stage_failures: dict[str, int] = field(default_factory=dict[str, int])
    """The same by later stage, as long as none of its workers is known to have run stably."""
    begun_stages: list[int] = field(default_factory=list[int])
    """Later stages of which a worker ran stably before one died."""
    samples_at_start: int = 0
    """Samples that were done before the job trained any, where it continues the ledger of another job's checkpoint."""
    has_trained: bool = False
    """True once the job has trained a sample."""
    crashes_in_row: int = 0
    worker_memory_max_bytes: int = 0
    worker_memory_least_bytes: int = 0
    """Least memory of new workers, after one was killed for its memory."""
    recoveries: int = 0
    """Losses of parameters in a row."""
    lost_at_s: float | None = None
    """Time of the last one."""

    @property
    def ended(self) -> bool:
        """True once nothing is left to do but to stop pods."""
        return self.phase in ("finished", "failed", "cancelled")

    def faults(self) -> list[str]:
        """Return what must not be, such as a number given twice, or a pod that an ended job wants."""
        faults = [] if self.applied_version <= self.plan_version else ["a plan is applied that was not decided"]
        if self.phase == "completing" and self.completed is None:
            faults.append("the job completes without the ledger's word")
        for name, pod in self.pods.items():
            if pod.number >= self.next_number.get(pod.role, 0):
                faults.append(f"{name} has a number that was not given yet")
            if pod.role != "ps" and (pod.listed or pod.leaving):
                faults.append(f"{name} is treated as a server")
            if self.ended and pod.phase != "stopping":
                faults.append(f"{name} is wanted by an ended job")
        return faults

    def of_role(self, role: str) -> list[Pod]:
        """Return the wanted pods of a role by number, without those that are leaving or relieved."""
        return sorted(
            (
                pod
                for pod in self.pods.values()
                if pod.role == role and pod.phase != "stopping" and not (pod.leaving or pod.relieved)
            ),
            key=lambda pod: pod.number,
        )

    def listed(self) -> list[Pod]:
        """Return the parameter servers that workers know of, by number."""
        return sorted((p for p in self.pods.values() if p.listed), key=lambda pod: pod.number)

    def relayout(self, cause: MigrationCause) -> None:
        """Want the parameters spread anew."""
        if self.layout == "ready":
            self.rebalance = cause
            self.rebalance_number += 1
