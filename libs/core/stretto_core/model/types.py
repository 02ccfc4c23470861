"""The parts of a job's specification that decisions read: limits, prices, profile."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from stretto_messages.base import DEFAULT_TEAM, GIB, InvalidValue
from stretto_messages.values import (
    ANY_DEVICE,
    DEVICES,
    NO_EXTENDED,
    NOTHING,
    PLAN_FIELDS,
    DeviceSpeed,
    Extended,
    ExtendedPerPod,
    Plan,
    Resources,
    Value,
    WorkerGroup,
    require,
)

HOUR_S = 3600.0
LOST_MAX = 0.99
"""Most of a worker's time that interruptions are taken to cost: if none were left, a sample would have no price."""
GUESSED_SD = 0.7
"""Standard deviation of the log of a stated speed of devices: a factor of two."""


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
        groups = plan.fewer_workers(self.high.workers).groups if plan.groups else ()
        return Plan(**inside, groups=groups)


@dataclass(frozen=True, slots=True)
class Prices:
    """The price of one unit of each resource per hour: Money(a_r) of DLRover-RM Eq. 7."""

    cpu_core_hour: float = 0.04
    memory_gib_hour: float = 0.005
    extended_hour: dict[str, float] = field(default_factory=dict[str, float])
    """Prices of one unit of extended resources, by name; others cost nothing."""
    disk_gib_hour: float = 0.0

    def __post_init__(self) -> None:
        require("cpu_core_hour", self.cpu_core_hour, 0.0)
        require("memory_gib_hour", self.memory_gib_hour, 0.0)
        require("disk_gib_hour", self.disk_gib_hour, 0.0)
        for name, price in self.extended_hour.items():
            require(f"extended_hour.{name}", price, 0.0)
        if self.cpu_core_hour == 0 and self.memory_gib_hour == 0:
            raise InvalidValue("cpu_core_hour and memory_gib_hour are both 0; give at least one a price")

    def cost_per_hour(self, amount: Resources) -> float:
        """RC(A) = sum a_r x Money(a_r) (Eq. 7), in the currency of the prices per hour."""
        cost = amount.cpu_cores * self.cpu_core_hour + amount.memory_bytes / GIB * self.memory_gib_hour
        return cost + self.of_extended(amount.extended) if amount.extended else cost

    def of_disk(self, size_bytes: int) -> float:
        """Return the cost per hour of so much of pods' disks."""
        return size_bytes / GIB * self.disk_gib_hour

    def of_extended(self, counts: Extended) -> float:
        """Return the part of the cost per hour that extended resources cause."""
        return math.fsum(count * self.extended_hour.get(name, 0.0) for name, count in counts)


@dataclass(frozen=True, slots=True)
class DeviceType:
    """A type of devices of the cluster, whose units are whole: a worker on it has one, and nobody else has a part.

    ``price_per_hour`` of one unit, of which there are ``count``. ``cpu_cores`` and ``memory_bytes`` come with a unit.
    ``speed``: what a core of it computes, as a multiple of one of the cluster's own cores; a guess until a worker has
    been measured, with ``speed_log_sd`` as the standard deviation of its log. ``speed_of``: the past job that measured
    it; empty: it is stated. ``interruptions_per_hour``: how often a unit is taken away (a spot price's risk).
    """

    name: str
    price_per_hour: float
    count: int
    cpu_cores: float
    memory_bytes: int
    speed: float = 1.0
    interruptions_per_hour: float = 0.0
    speed_log_sd: float = GUESSED_SD
    speed_of: str = ""

    @property
    def resource(self) -> str:
        """The name under which its units are counted among extended resources."""
        return DEVICES + self.name

    def group(self, workers: int) -> WorkerGroup:
        """Return a group of this number of workers on the type."""
        return WorkerGroup(self.name, workers, self.cpu_cores, self.memory_bytes)

    def as_known(self, known: DeviceSpeed) -> DeviceType:
        """Return the type with the speed that a past job measured, unless the stated speed is surer."""
        if not known.log_sd < GUESSED_SD:
            return self
        return replace(self, speed=known.cores / self.cpu_cores, speed_log_sd=known.log_sd, speed_of=known.job)

    def lost(self, back_s: float) -> float:
        """Return the share of a worker's time that interruptions cost: each takes ``back_s`` until another one trains.

        Books are exact: the shard goes on where the last push stood, so at most one batch is computed again.
        """
        return min(self.interruptions_per_hour * back_s / HOUR_S, LOST_MAX)


@dataclass(frozen=True, slots=True)
class DataWorkerLimits:
    """Data workers of a job: what each has, how many are there from start to end, and up to how many may come.

    ``reads_ahead``: a worker that reads for itself prepares a batch while it trains another, as programs of others do
    not.
    """

    each: Resources = NOTHING
    always: int = 0
    most: int = 0
    reads_ahead: bool = True

    def of(self, count: int) -> Resources:
        """Return the resources of so many."""
        return Resources(count * self.each.cpu_cores, count * self.each.memory_bytes)

    @property
    def lanes(self) -> int:
        """Batches that one prepares at once: one for each whole core."""
        return max(1, math.floor(self.each.cpu_cores))


NO_DATA_WORKERS = DataWorkerLimits()

SpillPolicy = Literal["never", "emergency", "auto"]
"""When rows may go to a server's disk: never, if it would run out of memory, or also where that is cheaper."""

Stages = Literal[1, 2, 3, "auto"]
"""Number of stages that a job asks for; auto: one or two, whichever costs less a sample."""


@dataclass(frozen=True, slots=True)
class JobProfile:
    """The parts of a job's specification that decisions read.

    ``samples`` counts all epochs. ``metadata`` is what warm start compares: numbers and short strings.
    ``weight`` is the job's priority, a positive factor (1 = ordinary). ``fixed`` keeps the initial plan, whatever the
    throughput; memory is watched over all the same. ``deadline_s`` counts from the submission. ``extended``: what every
    pod has beside the cores and the memory of its plan. ``data``: the job's data workers. ``spill``: when rows may go
    to the servers' disks, on each at most ``spill_limit_bytes``; None: what is free. ``devices_asked``: the types of
    devices that its workers may have beside cores, or ``ANY_DEVICE``; ``devices``: those of them that there are.
    ``speeds``: what similar past jobs measured of types. ``stages``: how many its workers are to have, or ``auto``.
    ``watched``: it runs a program that tells no samples.
    ``elsewhere``: it is an object whose pods another controller runs.
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
    extended: ExtendedPerPod = NO_EXTENDED
    data: DataWorkerLimits = NO_DATA_WORKERS
    spill: SpillPolicy = "emergency"
    spill_limit_bytes: int | None = None
    devices_asked: tuple[str, ...] = ()
    devices: tuple[DeviceType, ...] = ()
    speeds: tuple[DeviceSpeed, ...] = ()
    stages: Stages = 1
    watched: bool = False
    elsewhere: bool = False

    def __post_init__(self) -> None:
        require("batch_size", self.batch_size, 1)
        require("samples", self.samples, 1)
        require("weight", self.weight, 1e-9)

    def asks_for(self, device: str) -> bool:
        """Return whether workers may have this type of devices."""
        return bool({device, ANY_DEVICE} & {*self.devices_asked})

    def among(self, devices: Iterable[DeviceType]) -> JobProfile:
        """Return the profile in a cluster that has these types of devices, with their prices."""
        known = {each.device: each for each in self.speeds}
        asked = (each for each in devices if self.asks_for(each.name))
        may = tuple(each.as_known(known[each.name]) if each.name in known else each for each in asked)
        if may == self.devices:
            return self
        of_others = {name: price for name, price in self.prices.extended_hour.items() if not name.startswith(DEVICES)}
        prices = replace(self.prices, extended_hour=of_others | {each.resource: each.price_per_hour for each in may})
        return replace(self, devices=may, prices=prices)

    def resources(self, plan: Plan) -> Resources:
        """Return the resources of the whole job under ``plan``."""
        of_plan = plan.resources(self.extended)
        return of_plan if not self.data.always else of_plan + self.data.of(self.data.always)

    def cost_per_hour(self, plan: Plan) -> float:
        """Return the cost of the job under ``plan`` (Eq. 7)."""
        return self.prices.cost_per_hour(self.resources(plan))


def servers_to_hold(ps: int, need_bytes: float, base_bytes: float, each_bytes: float) -> int:
    """Return how many servers of ``each_bytes`` hold the rows of ``ps`` that would need ``need_bytes`` each.

    ``base_bytes``: what a server takes beside its rows, however few it has.
    """
    base_bytes = base_bytes if base_bytes < each_bytes else 0.0
    return math.ceil(ps * max(need_bytes - base_bytes, 0.0) / (each_bytes - base_bytes))


@dataclass(frozen=True, slots=True)
class JobOpened:
    """A job exists, with what its specification says of it.

    Services make it of `gateway.job-submitted`, whose specification only pydantic reads.
    """

    job: str
    profile: JobProfile
    team: str = DEFAULT_TEAM
