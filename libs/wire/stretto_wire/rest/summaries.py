"""Short forms of jobs: a line of the list, and a line of the history; and the pages of the list."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from stretto_messages.base import EXACT
from stretto_messages.values import MetricValue, Plan

from .views import Status, View

Order = Literal[
    "submitted", "-submitted", "name", "-name", "state", "-state", "done", "-done", "speed", "-speed", "cost", "-cost",
    "quality", "-quality",
]  # fmt: skip
"""Orders of the list; a minus: the other way round. ``submitted`` and ``name`` never change, so that each job is on one
page; by the others, a job that moves between two pages may be on both, or on neither. ``quality``: by the loss."""
LIMIT_MAX = 1000
"""Jobs of a page."""


@dataclass(slots=True)
class JobSummary(View):
    """One line of the list of jobs."""

    name: str
    team: str
    status: Status
    submitted_at_s: float
    ended_at_s: float | None
    plan_version: int
    plan: Plan | None
    samples_done: int
    samples_total: int
    samples_per_s: float
    stalled_since_s: float | None
    reason: str
    submitted_by: str
    cost_per_hour: float | None
    """Cost of the present plan; null: it has none, or the job has ended."""
    priority: float
    deadline_s: float | None
    """The wish of its specification, in seconds after the submission."""
    ends_at_s: float | None
    """Time at which it ends at the present rate; null: it does not train, or its data grow."""
    oom_in_s: float | None
    """Time until the first parameter server is full, by the last forecast; null: none will be."""
    pods_pending: int
    """Number of pods that cannot run yet; the job's `pods` have the reasons."""
    samples_given_up: int = 0
    """That of its progress: also a finished job may have some."""
    ending: str = ""
    """Words that follow the state of a job that is not just finished: `0.4% given up, not evaluated`."""
    complete: bool = True
    """False: the result of the finished job lacks samples, its parameters or its evaluation."""
    stored_bytes: int | None = None
    """Bytes of its checkpoints that the store keeps; null: not told, since none is stored or by an older version."""
    cost_so_far: float = 0.0
    """Cost of the job up to its last event."""
    mean_samples_per_s: float | None = None
    quality: list[MetricValue] = field(default_factory=list[MetricValue])
    """Loss, AUC and own metrics on held-out samples: of the trained model, or the last ones."""
    level: int = EXACT
    """Level of the guarantee: 0 to 2 of a job that runs a program, 3 of a model."""
    cpu_used_cores: float | None = None
    """Cores that the worker of a program of level 0 uses, whose samples nobody knows; null: of others, or not told."""
    memory_used_bytes: int | None = None
    """The same of their memory."""
    unreadable: int = 0
    """Number of its stored events that cannot be read, so that this summary is incomplete."""


@dataclass(slots=True)
class PastJob(View):
    """A job of the history that warm start reads."""

    job: str
    time_s: float
    metadata: dict[str, str | int | float | bool]
    plan: Plan
    throughput: float
    duration_s: float
    ps_memory_peak_bytes: int
    samples: int
