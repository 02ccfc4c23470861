"""Facts of the actuator about a job's pods, parameters and end; the requests that it answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le, MaxLen, MinLen

from stretto_messages.base import GIB, Bytes, Cores, Count, Message, Name, PodId, RequestId, Seconds, Text, example
from stretto_messages.books import AppliedBooks, Shortfall
from stretto_messages.scenario import APPLIED, JOB, SERVERS, WIDER
from stretto_messages.values import (
    DATA_WORKERS_MAX,
    WORKERS_MAX,
    DataWorker,
    Device,
    Evaluation,
    GroupMember,
    ParameterServer,
    Plan,
    Role,
    Stage,
)

LOG_PART_MAX = 32 << 10
"""Characters of one part of a pod's log; each may take six bytes in a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodStarted(Message):
    """A pod is ready: a parameter server listens, a worker has asked for its first shard."""

    pod: PodId
    role: Role
    plan_version: Count
    address: Annotated[str, MaxLen(300)]
    cpu_cores: Cores
    memory_bytes: Bytes
    took_s: Seconds
    """Time from launch to ready."""
    cause: Literal["plan", "relaunch", "adopted"]
    limits: Annotated[tuple[Name, ...], MaxLen(8)] = ()
    """Mechanisms that enforce the limits."""
    device: Device = ""
    stage: Stage = 0

    SELDOM: ClassVar[frozenset[str]] = frozenset({"device", "stage"})


example(
    PodStarted(
        job=JOB,
        pod="worker-2",
        role="worker",
        plan_version=2,
        address="10.4.0.17:41203",
        cpu_cores=2.0,
        memory_bytes=4 * GIB,
        took_s=6.4,
        cause="plan",
        limits=("cgroup-cpu", "cgroup-memory"),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPending(Message):
    """A pod of the plan cannot run yet. Published once for each reason; PodStarted or PodExited follows."""

    pod: PodId
    role: Role
    reason: Literal["no-room", "quota", "image-pull"]
    """no-room: no node has room. quota: a quota is used up. image-pull: its image is not there (yet)."""
    detail: Text = ""
    device: Device = ""
    stage: Stage = 0

    SELDOM: ClassVar[frozenset[str]] = frozenset({"device", "stage"})


example(
    PodPending(
        job=JOB, pod="worker-3", role="worker", reason="no-room", detail="0/3 nodes are available: 3 Insufficient cpu."
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodExited(Message):
    """A pod is gone for good; its name is not used again."""

    pod: PodId
    role: Role
    reason: Literal[
        "completed",
        "stopped",
        "failed",
        "killed",
        "oom-killed",
        "evicted",
        "preempted",
        "node-lost",
        "image-pull",
        "vanished",
    ]
    """evicted, preempted, node-lost: ended by its node or scheduler. image-pull: it never began."""
    exit_code: Annotated[int, Ge(-255), Le(255)] | None
    detail: Text = ""
    """The pod's place states this about its end, or its program about itself. Never other lines of its log, which are
    its owner's alone."""
    used_up: Text = ""
    """Words for what all processes of the machine need and the job has used up: the pod was ended for that."""
    again_in_s: Seconds = 0.0
    """Time until another pod may start in its place, after repeated failures; 0: at once, or none will."""


example(
    PodExited(job=JOB, pod="worker-1", role="worker", reason="killed", exit_code=-9, detail="signal 9 from outside")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodResized(Message):
    """Limits of a running pod were changed in place."""

    pod: PodId
    cpu_cores: Cores
    memory_bytes: Bytes


example(PodResized(job=JOB, pod="ps-0", cpu_cores=1.5, memory_bytes=2 * GIB))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanApplied(Message):
    """All pods match the plan, and all parameters are on its servers."""

    version: Annotated[int, Ge(1)]
    plan: Plan
    took_s: Seconds


example(PlanApplied(job=JOB, version=2, plan=WIDER, took_s=7.9))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServersChanged(Message):
    """The parameter servers of a job. Workers connect to new ones and leave those that are gone."""

    version: Annotated[int, Ge(1)]
    """Grows with every change."""
    servers: Annotated[tuple[ParameterServer, ...], MaxLen(1000)]


example(
    ServersChanged(
        job=JOB,
        version=3,
        servers=(
            ParameterServer(index=0, address="10.4.0.11:40101"),
            ParameterServer(index=1, address="10.4.0.12:40102", leaving=True),
        ),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataWorkersChanged(Message):
    """The data workers of a job, which prepare batches for its workers. Workers use these and no others."""

    version: Annotated[int, Ge(1)]
    """Grows with every change."""
    data_workers: Annotated[tuple[DataWorker, ...], MaxLen(DATA_WORKERS_MAX)]


example(DataWorkersChanged(job=JOB, version=2, data_workers=(DataWorker(index=0, address="10.4.0.31:40201"),)))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupChanged(Message):
    """The workers of a job that address each other, where its file asks for that.

    With ``dense: group`` those of the same devices average their dense gradients. With stages, those of a stage ask
    one of the next stage for the rest of each step. With ``program.resize: restart`` they are the ranks of one program.
    """

    version: Annotated[int, Ge(1)]
    """Grows with every change."""
    workers: Annotated[tuple[GroupMember, ...], MaxLen(WORKERS_MAX)]
    wanted: Count = 0
    """The number of workers that the plan has, of a program of several ranks, which waits a while for those that lack;
    0: nobody waits for them."""

    SELDOM: ClassVar[frozenset[str]] = frozenset({"wanted"})


example(GroupChanged(job=JOB, version=3, workers=(GroupMember(index=0, address="10.4.0.21:40301"),)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ParametersLost(Message):
    """A parameter server died, and its columns with it; the servers that survive keep theirs, and no pod restarts.

    The ServersChanged of the same version follows. Until RecomputationDecided or CheckpointRestored, no column moves.
    """

    pod: PodId
    version: Annotated[int, Ge(1)]
    """Version of the list of the servers that survive; it names this loss."""
    servers: Annotated[tuple[ParameterServer, ...], MaxLen(1000)]


example(ParametersLost(job=JOB, pod="ps-1", version=4, servers=(ParameterServer(index=0, address="10.4.0.11:40101"),)))


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationStarted(Message):
    """Parameters begin to move while training goes on."""

    plan_version: Count
    cause: Literal["plan", "hot-ps", "memory", "repair"]
    sources: Annotated[tuple[PodId, ...], MaxLen(1000)]
    destinations: Annotated[tuple[PodId, ...], MaxLen(1000)]
    buckets: Count
    """Number of embedding buckets and dense slices that move."""


example(
    MigrationStarted(
        job=JOB, plan_version=3, cause="plan", sources=("ps-0", "ps-1"), destinations=("ps-2",), buckets=25
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationFinished(Message):
    """Every bucket that had to move has its new owner."""

    plan_version: Count
    buckets: Count
    moved_bytes: Bytes
    took_s: Seconds
    longest_freeze_s: Seconds
    """Longest time for which one bucket refused pushes."""


example(
    MigrationFinished(job=JOB, plan_version=3, buckets=25, moved_bytes=89_478_485, took_s=3.2, longest_freeze_s=0.09)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacementAsked(Message):
    """The actuator wants to replace the hot parameter server ``pod`` by a new one, which needs room beyond the plan."""

    pod: PodId


example(ReplacementAsked(job=JOB, pod="ps-1"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacementEnded(Message):
    """The job has no more servers than its plan again: ``pod`` has left, or the new server was given up."""

    pod: PodId


example(ReplacementEnded(job=JOB, pod="ps-1"))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFinished(Message):
    """The accounts of a completed job, counted where the gradients landed. Its pods are being stopped."""

    samples_expected: Count
    samples_applied: Count
    """Samples applied, by the parameter servers' own count."""
    samples_lost: Count
    """Samples lost in the worst column."""
    samples_repeated: Count
    """Samples repeated in the worst column; 0 unless something is broken."""
    repeats_recognised: Count
    """Samples of repeated pushes that were not applied again."""
    rows: Count
    checksum: Annotated[str, MaxLen(100)] = ""
    evaluation: Evaluation | None = None
    applied: AppliedBooks = field(default_factory=AppliedBooks)
    shortfalls: Annotated[tuple[Shortfall, ...], MaxLen(8)] = ()
    """Why the job is not just finished. A final checkpoint that fails later is told by CheckpointFailed."""


example(
    JobFinished(
        job=JOB,
        samples_expected=91_681_234,
        samples_applied=91_681_234,
        samples_lost=0,
        samples_repeated=0,
        repeats_recognised=1536,
        rows=2_811_902,
        checksum="9f1c2d",
        evaluation=Evaluation(samples=100_000, loss=0.4512, auc=0.7983),
        applied=APPLIED,
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailed(Message):
    """The job cannot go on. Its last checkpoint stays."""

    reason: Text


example(JobFailed(job=JOB, reason="the model's code failed 10 times: ValueError: unknown column C27"))


@dataclass(frozen=True, slots=True, kw_only=True)
class GetServers(Message):
    """A pod asks which parameter servers and data workers its job has."""

    request_id: RequestId
    pod: PodId


example(GetServers(job=JOB, request_id="worker-1:servers:0", pod="worker-1"))


@dataclass(frozen=True, slots=True, kw_only=True)
class GetServersReply(Message):
    """The servers as of ``version`` (0: none yet), the plan under which pods train, and the data workers."""

    answer: Literal["ok", "unknown"]
    version: Count = 0
    plan_version: Count = 0
    servers: Annotated[tuple[ParameterServer, ...], MaxLen(1000)] = ()
    data_version: Count = 0
    data_workers: Annotated[tuple[DataWorker, ...], MaxLen(DATA_WORKERS_MAX)] = ()
    group_version: Count = 0
    group: Annotated[tuple[GroupMember, ...], MaxLen(WORKERS_MAX)] = ()
    group_wanted: Count = 0

    SELDOM: ClassVar[frozenset[str]] = frozenset({"group_version", "group", "group_wanted"})


example(GetServersReply(job=JOB, answer="ok", version=2, plan_version=1, servers=SERVERS))


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewCredentials(Message):
    """A pod presents the token of its credentials and gets one that expires later. Its key never leaves the pod."""

    pod: PodId
    token: Annotated[str, MinLen(1), MaxLen(8192)]


example(RenewCredentials(job=JOB, pod="worker-1", token="eyJ0eXAiOiJKV1QifQ.eyJuYW1lIjoid29ya2VyLTEifQ.c2lnbmF0dXJl"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewCredentialsReply(Message):
    """The new token. ``unknown``: the pod does not exist any more."""

    answer: Literal["ok", "unknown"]
    token: Annotated[str, MaxLen(8192)] = ""


example(RenewCredentialsReply(job=JOB, answer="ok", token="eyJ0eXAiOiJKV1QifQ.eyJuYW1lIjoid29ya2VyLTEifQ.bGF0ZXItZW5k"))


@dataclass(frozen=True, slots=True, kw_only=True)
class GetPodLog(Message):
    """The gateway asks for the last lines of a pod that has failed, or for its log, for a reader of its job."""

    pod: PodId
    whole: bool = False
    """Ask for a part of the log, whether the pod runs, has ended, or has failed."""
    skip: Count = 0
    """Characters at the end of the log to leave out: those of the parts that were asked for before."""


example(GetPodLog(job=JOB, pod="worker-1"))


@dataclass(frozen=True, slots=True, kw_only=True)
class GetPodLogReply(Message):
    """The last lines. ``unknown``: the pod has not failed, or the actuator has been replaced since."""

    answer: Literal["ok", "unknown"]
    text: Text = ""
    part: Annotated[str, MaxLen(LOG_PART_MAX)] = ""
    """The part of the log that was asked for; it may begin within a line."""
    more: bool = False
    """The log has an earlier part."""


example(GetPodLogReply(job=JOB, answer="ok", text="ValueError: column 7 is not a number"))
