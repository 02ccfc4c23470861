"""What pods report about themselves, some once a second. Validated again by the profiler."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .base import Bytes, Cores, Count, EpochSeconds, Message, PodId, Seconds
from .values import StepTimes


class WorkerReported(Message):
    """A worker's last window. ``steps_total`` and ``samples_total`` never fall within the life of a pod."""

    pod: PodId
    plan_version: Annotated[Count, Field(description="the plan it was started or last told to train under")]
    ended_at_s: EpochSeconds
    window_s: Annotated[Seconds, Field(gt=0)]
    steps: Annotated[Count, Field(description="steps finished in the window")]
    steps_total: Count
    samples_total: Count
    step_time_s: Annotated[Seconds, Field(description="mean time of a step in the window, waiting for shards excluded")]
    longest_gap_s: Annotated[Seconds, Field(description="longest time between two finished steps in the window")]
    times: StepTimes
    cpu_used_cores: Cores
    cpu_limit_cores: Cores
    memory_used_bytes: Bytes
    memory_limit_bytes: Bytes


class PsReported(Message):
    """A parameter server's last window."""

    pod: PodId
    ended_at_s: EpochSeconds
    window_s: Annotated[Seconds, Field(gt=0)]
    updates: Annotated[Count, Field(description="pushes applied in the window")]
    update_time_s: Annotated[Seconds, Field(description="mean time of a push, queueing included")]
    applied_samples_total: Annotated[Count, Field(description="samples whose dense gradient it applied, all time")]
    categories: Annotated[Count, Field(description="rows in its embedding tables")]
    buckets: Annotated[int, Field(ge=0, le=1024)]
    cpu_used_cores: Cores
    cpu_limit_cores: Cores
    memory_used_bytes: Bytes
    memory_limit_bytes: Bytes
