"""Value types that every decision shares: plans, limits, prices, amounts of resources."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from stretto_core.machine import CoreError

GIB = 1024**3

Value = str | float | int | bool  # of one field of a job's metadata


class InvalidValue(CoreError):
    """A value outside its domain; says the field, the value and the remedy."""


def _require(name: str, value: float, low: float, high: float = math.inf) -> None:
    """Refuse NaN, infinities and values outside [low, high]."""
    if not math.isfinite(value) or not low <= value <= high:
        raise InvalidValue(f"{name} is {value!r}; give a finite number of at least {low:g}")


@dataclass(frozen=True, slots=True)
class Resources:
    """An amount of every resource that the cluster hands out, cores and bytes. A difference may be negative."""

    cpu_cores: float
    memory_bytes: int

    def __add__(self, other: Resources) -> Resources:
        return Resources(self.cpu_cores + other.cpu_cores, self.memory_bytes + other.memory_bytes)

    def __sub__(self, other: Resources) -> Resources:
        return Resources(self.cpu_cores - other.cpu_cores, self.memory_bytes - other.memory_bytes)

    def fits(self, free: Resources) -> bool:
        """Whether this amount is available in ``free`` (1e-9 of a core of slack for rounding)."""
        return self.cpu_cores <= free.cpu_cores + 1e-9 and self.memory_bytes <= free.memory_bytes


NOTHING = Resources(0.0, 0)


def total(amounts: Iterable[Resources]) -> Resources:
    """Their sum, the same in whatever order."""
    each = tuple(amounts)
    return Resources(math.fsum(one.cpu_cores for one in each), sum(one.memory_bytes for one in each))


@dataclass(frozen=True, slots=True)
class Plan:
    """How many pods a job has and what each of them gets (DLRover-RM §4.1: w, p, lambda_w, lambda_p)."""

    workers: int
    ps: int
    worker_cpu_cores: float
    ps_cpu_cores: float
    worker_memory_bytes: int
    ps_memory_bytes: int

    def __post_init__(self) -> None:
        # nothing is made as often: a candidate has one, a job fifty candidates
        counts = 0 <= self.workers < math.inf and 1 <= self.ps < math.inf
        cores = 1e-3 <= self.worker_cpu_cores < math.inf and 1e-3 <= self.ps_cpu_cores < math.inf
        if counts and cores and 1 <= self.worker_memory_bytes < math.inf and 1 <= self.ps_memory_bytes < math.inf:
            return
        _require("workers", self.workers, 0)
        for name in ("ps", "worker_memory_bytes", "ps_memory_bytes"):
            _require(name, getattr(self, name), 1)
        for name in ("worker_cpu_cores", "ps_cpu_cores"):
            _require(name, getattr(self, name), 1e-3)

    @property
    def resources(self) -> Resources:
        """The whole job's claim on the cluster."""
        return Resources(
            self.workers * self.worker_cpu_cores + self.ps * self.ps_cpu_cores,
            self.workers * self.worker_memory_bytes + self.ps * self.ps_memory_bytes,
        )

    def pod(self, role: Literal["worker", "ps"]) -> Resources:
        """What one pod of the role gets."""
        if role == "worker":
            return Resources(self.worker_cpu_cores, self.worker_memory_bytes)
        return Resources(self.ps_cpu_cores, self.ps_memory_bytes)

    def same_speed(self, other: Plan) -> bool:
        """Whether both plans are one configuration for the throughput model, which does not see memory."""
        return (self.workers, self.ps, self.worker_cpu_cores, self.ps_cpu_cores) == (
            other.workers,
            other.ps,
            other.worker_cpu_cores,
            other.ps_cpu_cores,
        )

    def describe(self) -> str:
        """One short phrase for reasons that people read."""
        return (
            f"{self.workers} worker{'s' * (self.workers != 1)} x {self.worker_cpu_cores:g} cores"
            f" / {self.worker_memory_bytes / GIB:.2f} GiB,"
            f" {self.ps} PS x {self.ps_cpu_cores:g} cores / {self.ps_memory_bytes / GIB:.2f} GiB"
        )


@dataclass(frozen=True, slots=True)
class JobLimits:
    """Inclusive bounds of every field of a job's plan; ``low`` and ``high`` are plans themselves."""

    low: Plan
    high: Plan

    def __post_init__(self) -> None:
        for name in PLAN_FIELDS:
            low, high = getattr(self.low, name), getattr(self.high, name)
            if low > high:
                raise InvalidValue(f"{name} has minimum {low!r} above maximum {high!r}; swap or widen them")

    def clamp(self, plan: Plan) -> Plan:
        """The nearest plan within the bounds, field by field."""
        inside = {
            name: min(max(getattr(plan, name), getattr(self.low, name)), getattr(self.high, name))
            for name in PLAN_FIELDS
        }
        return Plan(**inside)

    def allows(self, plan: Plan) -> bool:
        """Whether every field of ``plan`` is within the bounds."""
        return self.clamp(plan) == plan


PLAN_FIELDS = ("workers", "ps", "worker_cpu_cores", "ps_cpu_cores", "worker_memory_bytes", "ps_memory_bytes")


@dataclass(frozen=True, slots=True)
class Prices:
    """What one unit of each resource costs per hour: Money(a_r) of DLRover-RM Eq. 7."""

    cpu_core_hour: float = 0.04
    memory_gib_hour: float = 0.005

    def __post_init__(self) -> None:
        _require("cpu_core_hour", self.cpu_core_hour, 0.0)
        _require("memory_gib_hour", self.memory_gib_hour, 0.0)
        if self.cpu_core_hour == 0 and self.memory_gib_hour == 0:
            raise InvalidValue("cpu_core_hour and memory_gib_hour are both 0; give at least one a price")

    def cost_per_hour(self, amount: Resources) -> float:
        """RC(A) = sum a_r x Money(a_r) (Eq. 7), in the currency of the prices per hour."""
        return amount.cpu_cores * self.cpu_core_hour + amount.memory_bytes / GIB * self.memory_gib_hour


@dataclass(frozen=True, slots=True)
class JobProfile:
    """What the decisions need to know of a job's specification.

    ``samples`` counts all epochs. ``metadata`` is what warm start compares: numbers and short strings.
    ``weight`` is the job's priority, a positive factor (1 = ordinary). ``fixed`` keeps the initial plan, whatever the
    throughput; memory is watched over all the same. ``deadline_s`` counts from the submission.
    """

    batch_size: int
    samples: int
    limits: JobLimits
    prices: Prices = field(default_factory=Prices)
    weight: float = 1.0
    metadata: dict[str, Value] = field(default_factory=dict[str, Value])
    initial: Plan | None = None
    fixed: bool = False
    deadline_s: float | None = None

    def __post_init__(self) -> None:
        _require("batch_size", self.batch_size, 1)
        _require("samples", self.samples, 1)
        _require("weight", self.weight, 1e-9)
