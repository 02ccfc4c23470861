"""Placement of a model's layers: the type of device and the number of units of each stage (HeterPS §4).

A *stage* is a maximal run of layers on one type. For the profile batch its computation takes A + P/k seconds on k
units, A = sum OCT (1 - alpha) and P = sum OCT alpha over its layers (Eq. 1); its transfer, which overlaps, takes
E + F/k, that of its last layer (Eq. 2). A throughput of B/tau samples per second needs of every stage the fewest units
k >= 1 with both at most tau (Eq. 3, 4, 13 as they have to read). The cost is samples/throughput times what all units
cost in that time (Eq. 6-7).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from stretto_messages.base import InvalidValue

Floats = NDArray[np.float64]
SECONDS_PER_HOUR = 3600.0
UNITS_MAX = 10**6
"""Most units of a stage: where all work is parallel, each further unit saves ever less."""


@dataclass(frozen=True, slots=True)
class DeviceType:
    """A type of device: ``price_per_hour`` of a unit, and the ``limit`` of units (None: any number)."""

    name: str
    price_per_hour: float
    limit: int | None = None

    @property
    def is_cpu(self) -> bool:
        """Return whether the type is a CPU; all others are accelerators."""
        return self.name.startswith("cpu")


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer; the tuples have one value per type. Times in seconds for the profile batch on one unit, fractions
    are of that time what more units share (alpha, beta)."""

    name: str
    kind: str
    compute_s: tuple[float, ...]
    parallel_fraction: tuple[float, ...]
    transfer_s: tuple[float, ...]
    transfer_parallel_fraction: tuple[float, ...]
    input_bytes: float = 0.0
    weight_bytes: float = 0.0


@dataclass(frozen=True)
class PlacementProblem:
    """The input of a placement algorithm. ``profile_batch`` B in samples, ``throughput_limit`` the least samples per
    second, ``samples`` how many the whole training has. ``seed`` is for algorithms that draw random numbers.

    Raises InvalidValue for values outside their domains.
    """

    layers: tuple[Layer, ...]
    types: tuple[DeviceType, ...]
    profile_batch: float
    throughput_limit: float
    samples: float
    seed: int = 0
    table: StageTable = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.layers or not self.types:
            raise InvalidValue("layers and types: give at least one of each")
        for name in ("profile_batch", "throughput_limit", "samples"):
            if not getattr(self, name) > 0 or not math.isfinite(getattr(self, name)):
                raise InvalidValue(f"{name} is {getattr(self, name)!r}; give a finite number above 0")
        if not any(min(layer.compute_s) > 0 for layer in self.layers):
            raise InvalidValue("layers.compute_s: no layer takes time on every type; give one that does")
        object.__setattr__(self, "table", StageTable.of(self.layers))

    @property
    def slowest_s(self) -> float:
        """Return the largest allowed tau: seconds per profile batch."""
        return self.profile_batch / self.throughput_limit

    @property
    def prices(self) -> Floats:
        """Return the prices per hour, by type."""
        return np.array([kind.price_per_hour for kind in self.types])

    @property
    def limited(self) -> bool:
        """Return whether any type has a limit."""
        return any(kind.limit is not None for kind in self.types)

    def cost(self, tau_s: float, price_per_hour: float) -> float:
        """Return the cost of the whole training at ``tau_s`` seconds per batch on units of this total price."""
        return self.samples * tau_s / self.profile_batch / SECONDS_PER_HOUR * price_per_hour


@dataclass(frozen=True, slots=True)
class Stage:
    """Layers ``first`` to ``last``, 0-based and inclusive, on ``units`` of the type with that index."""

    type: int
    first: int
    last: int
    units: int


@dataclass(frozen=True, slots=True)
class Placement:
    """A plan. ``bound`` is a lower bound on the least cost (None if unknown), ``optimal`` means that it is proven."""

    stages: tuple[Stage, ...]
    throughput: float
    cost: float
    bound: float | None = None
    optimal: bool = False

    @property
    def assignment(self) -> list[int]:
        """Return the type of every layer."""
        return [stage.type for stage in self.stages for _ in range(stage.first, stage.last + 1)]


class PlacementAlgorithm(Protocol):
    """Algorithms of the kind ``place``. They return None where they find no placement of that throughput."""

    def __call__(self, problem: PlacementProblem) -> Placement | None: ...


Progress = Callable[[int, int], None]
"""Function that is called with the number of steps done and the number of all steps."""


def unheard(done: int, total: int) -> None:
    """Ignore the progress."""


class Learned(NamedTuple):
    """The placement found in training, and the model for other problems, as the content of a file."""

    placement: Placement | None
    model: bytes


@runtime_checkable
class LearningAlgorithm(PlacementAlgorithm, Protocol):
    """An algorithm of the kind ``place`` whose model can be kept. A plain call trains and drops the model."""

    def train(self, problem: PlacementProblem, progress: Progress = unheard) -> Learned:
        """Train a new model on this problem."""
        ...

    def apply(self, model: bytes, problem: PlacementProblem) -> Placement | None:
        """Place by a trained model, unchanged. Raises InvalidValue if the model is for other kinds of problems."""
        ...


@dataclass(frozen=True, slots=True)
class StageTable:
    """A, P by [first, last, type] (infinite where first > last) and E, F by [last, type], in seconds."""

    serial: Floats
    parallel: Floats
    transfer_serial: Floats
    transfer_parallel: Floats

    @staticmethod
    def of(layers: Sequence[Layer]) -> StageTable:
        """Return the coefficients from the profile of every layer."""

        def column(name: str) -> Floats:
            return np.array([getattr(layer, name) for layer in layers], dtype=np.float64)

        compute, alpha = column("compute_s"), column("parallel_fraction")
        transfer, beta = column("transfer_s"), column("transfer_parallel_fraction")
        return StageTable(_runs(compute * (1 - alpha)), _runs(compute * alpha), transfer * (1 - beta), transfer * beta)

    def units(self, tau_s: float) -> Floats:
        """Return the fewest units with which a stage takes ``tau_s``, by [first, last, type]; infinite if none."""
        computing = units_needed(self.serial, self.parallel, tau_s)
        return np.maximum(computing, units_needed(self.transfer_serial, self.transfer_parallel, tau_s))

    def seconds(self, units: Floats) -> Floats:
        """Return the seconds of a batch in every stage on these units, by [first, last, type]."""
        with np.errstate(invalid="ignore"):
            computing = self.serial + self.parallel / units
            return np.maximum(computing, self.transfer_serial + self.transfer_parallel / units)


def _runs(values: Floats) -> Floats:
    """Return sums over the layers first to last, by [first, last, type]; infinite where first > last."""
    count = len(values)
    sums = np.full((count, count, values.shape[1]), np.inf)
    for first in range(count):
        sums[first, first:] = np.cumsum(values[first:], axis=0)
    return sums


def units_needed(serial: Floats, parallel: Floats, tau_s: float) -> Floats:
    """Return the smallest whole k in 1..UNITS_MAX with serial + parallel/k <= tau in floats; infinite if none."""
    with np.errstate(divide="ignore", invalid="ignore"):
        units = np.ceil(parallel / (tau_s - serial))
        units = np.where((units >= 1) & (serial < tau_s), units, 1.0)
        fewer = np.maximum(units - 1, 1)
        units = np.where(serial + parallel / fewer <= tau_s, fewer, units)
        units = np.where(serial + parallel / units > tau_s, units + 1, units)
        return np.where((serial + parallel / units <= tau_s) & (units <= UNITS_MAX), units, np.inf)


def runs_of(assignment: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return (type, first, last) of each stage of an assignment of a type to every layer."""
    runs, first = list[tuple[int, int, int]](), 0
    for kind, group in groupby(assignment):
        last = first + len(list(group)) - 1
        runs.append((kind, first, last))
        first = last + 1
    return runs
