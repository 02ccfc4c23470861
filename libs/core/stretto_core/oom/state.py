"""State of the memory watch of one job, its settings, and its one input that is no message."""

from __future__ import annotations

from dataclasses import dataclass, field

from stretto_core.machine import ValueRefused
from stretto_core.model.types import JobProfile
from stretto_core.oom.growth import GrowthPoint
from stretto_core.oom.usage import ServerUsage


class WatchError(ValueRefused):
    """A setting of the memory watch that cannot be."""


@dataclass(frozen=True, slots=True)
class JobOpened:
    """A job exists, with its memory bounds per parameter server."""

    samples_total: int
    min_bytes: int
    max_bytes: int
    profile: JobProfile | None = None
    """The job that remedies are priced for; None: it began before there were any."""


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """When to publish a forecast, and when to act."""

    lead_s: float = 30.0
    """Time that getting memory takes, with slack."""
    move_lead_s: float = 60.0
    """Time that moving buckets to other servers takes."""
    repeat_s: float = 30.0
    """A forecast without news is repeated so often."""
    change: float = 0.05
    """Relative change of a forecast that is news."""
    shrink_gain: float = 0.25
    """Part of the limit that a shrink must free."""
    shrink_gain_final: float = 0.1
    """The same once the end is well known."""
    shrink_patience_s: float = 60.0
    """A shrink must be right for so long, without a forecast that crosses the limit."""

    def __post_init__(self) -> None:
        for name in ("shrink_gain", "shrink_gain_final"):
            if not 0 < getattr(self, name) < 1:
                raise WatchError(name, getattr(self, name), "a fraction between 0 and 1")


@dataclass(slots=True)
class WatchState:
    """Memory of one job's watch; some KB."""

    opened: JobOpened | None = None
    closed: bool = False
    completed: bool = False
    samples_done: int = 0
    points: list[GrowthPoint] = field(default_factory=list[GrowthPoint])
    servers: dict[str, ServerUsage] = field(default_factory=dict[str, ServerUsage])
    layout: dict[str, int] = field(default_factory=dict[str, int])
    """Buckets of every server when everything was as planned."""
    step_times_s: list[float] = field(default_factory=list[float])
    """Step times of the latest settled windows under one plan, of this version:"""
    step_plan_version: int = 0
    read_ratios: list[float] = field(default_factory=list[float])
    """Rows read over those that the curve told, of the latest settled windows."""
    samples_total: int = 0
    samples_per_s: float = 0.0
    published_at_s: float = 0.0
    published_bytes: int = 0
    published_end_bytes: int = 0
    published_action: str = ""
    published_fault: bool = False
    """True if rows found no room by the forecast that was published last."""
    limit_bytes: int = 0
    """Limit of a server that starts now."""
    killed_bytes: int = 0
    """Least need of a server since one was killed for its memory, until the job is past ``killed_at_samples``."""
    killed_at_samples: int = 0
    roomy_since_s: float | None = None
    """Time since which the limit has been larger than needed, and never too small."""
