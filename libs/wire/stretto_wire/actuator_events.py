"""Facts of the actuator: what became of the pods of a job, of its parameters, and of the job itself."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .base import Bytes, Cores, Count, Message, Name, PodId, Seconds, Text
from .books import AppliedBooks
from .values import Evaluation, ParameterServer, Plan, Role

__all__ = [
    "JobFailed",
    "JobFinished",
    "MigrationFinished",
    "MigrationStarted",
    "PlanApplied",
    "PodExited",
    "PodPending",
    "PodResized",
    "PodStarted",
    "ReplacementAsked",
    "ReplacementEnded",
    "ServersChanged",
]


class PodStarted(Message):
    """A pod is ready: a parameter server listens, a worker has asked for its first shard."""

    pod: PodId
    role: Role
    plan_version: Count
    address: Annotated[str, Field(max_length=300)]
    cpu_cores: Cores
    memory_bytes: Bytes
    took_s: Annotated[Seconds, Field(description="from launch to ready")]
    cause: Literal["plan", "relaunch", "adopted"]
    limits: Annotated[tuple[Name, ...], Field(max_length=8, description="how the limits are enforced here")] = ()


class PodPending(Message):
    """A pod that is wanted cannot run yet. Said once for each reason; it ends with pod-started or pod-exited."""

    pod: PodId
    role: Role
    reason: Annotated[
        Literal["no-room", "quota", "image-pull"],
        Field(description="no node has room; an account is used up; its image cannot be had, or is on its way"),
    ]
    detail: Text = ""


class PodExited(Message):
    """A pod is gone for good; its name is not used again."""

    pod: PodId
    role: Role
    reason: Annotated[
        Literal[
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
        ],
        Field(description="evicted, preempted, node-lost: by its node or scheduler; image-pull: never began"),
    ]
    exit_code: Annotated[int, Field(ge=-255, le=255)] | None
    detail: Text = ""


class PodResized(Message):
    """Limits of a running pod were changed in place."""

    pod: PodId
    cpu_cores: Cores
    memory_bytes: Bytes


class PlanApplied(Message):
    """All pods match the plan, and all parameters are where it wants them."""

    version: Annotated[int, Field(ge=1)]
    plan: Plan
    took_s: Seconds


class ServersChanged(Message):
    """The parameter servers of a job. Workers connect to new ones and leave those that are gone."""

    version: Annotated[int, Field(ge=1, description="grows with every change")]
    servers: Annotated[tuple[ParameterServer, ...], Field(max_length=1000)]


class MigrationStarted(Message):
    """Parameters begin to move while training goes on."""

    plan_version: Count
    cause: Literal["plan", "hot-ps", "memory", "repair"]
    sources: Annotated[tuple[PodId, ...], Field(max_length=1000)]
    destinations: Annotated[tuple[PodId, ...], Field(max_length=1000)]
    buckets: Annotated[Count, Field(description="embedding buckets and dense slices that move")]


class MigrationFinished(Message):
    """Every bucket that had to move has its new owner."""

    plan_version: Count
    buckets: Count
    moved_bytes: Bytes
    took_s: Seconds
    longest_freeze_s: Annotated[Seconds, Field(description="longest time one bucket refused pushes")]


class ReplacementAsked(Message):
    """A fresh parameter server would take the place of the hot ``pod``, if there is room for both of them."""

    pod: PodId


class ReplacementEnded(Message):
    """The job has no more servers than its plan says: ``pod`` has left, or the fresh one was given up."""

    pod: PodId


class JobFinished(Message):
    """The books of a completed job, counted where the gradients landed, and its pods are going."""

    samples_expected: Count
    samples_applied: Annotated[Count, Field(description="by the parameter servers' own count")]
    samples_lost: Annotated[Count, Field(description="by the worst column")]
    samples_repeated: Annotated[Count, Field(description="by the worst column: 0 unless something is broken")]
    repeats_recognised: Annotated[Count, Field(description="samples of repeated pushes that were not applied again")]
    rows: Count
    checksum: Annotated[str, Field(max_length=100)] = ""
    evaluation: Evaluation | None = None
    applied: AppliedBooks = AppliedBooks()


class JobFailed(Message):
    """The job cannot go on. What it has trained stays in its last checkpoint."""

    reason: Text
