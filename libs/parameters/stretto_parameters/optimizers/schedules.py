"""Learning rates as pure functions of the samples trained, so that a rate moves and restarts with its column."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import InputRefused

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]


class Schedule(Protocol):
    """A learning rate that may change with the number of samples trained."""

    def rate(self, samples: int) -> float:
        """Return the rate of the next update, after `samples` samples."""
        ...

    def lowest_rate(self) -> float:
        """Return a bound that no rate is below; an exponential decay nears 0 and has not reached it."""
        ...


@dataclass(frozen=True, slots=True)
class Constant:
    """The same rate always."""

    learning_rate: float

    def __post_init__(self) -> None:
        _positive(learning_rate=self.learning_rate)

    def rate(self, samples: int) -> float:
        """Return the rate."""
        return self.learning_rate

    def lowest_rate(self) -> float:
        """Return the rate."""
        return self.learning_rate


@dataclass(frozen=True, slots=True)
class Exponential:
    """The schedule rate = learning_rate * max(decay^(samples / every_samples), floor); `staircase` rounds the
    exponent down."""

    learning_rate: float
    decay: float
    every_samples: int
    staircase: bool = False
    floor: float = 0.0

    def __post_init__(self) -> None:
        _positive(learning_rate=self.learning_rate, decay=self.decay, every_samples=self.every_samples)
        if self.decay > 1:
            raise InputRefused(f"decay = {self.decay} must be at most 1: above it the rate grows without bound")
        _check_floor(self.floor)

    def rate(self, samples: int) -> float:
        """Return the rate after `samples`."""
        times = samples // self.every_samples if self.staircase else samples / self.every_samples
        return self.learning_rate * max(self.decay**times, self.floor)

    def lowest_rate(self) -> float:
        """Return the rate at the floor; without one it ends at 0, since float32 has no smaller positive numbers."""
        return self.learning_rate if self.decay == 1 else self.learning_rate * self.floor


@dataclass(frozen=True, slots=True)
class Cosine:
    """Half a cosine from learning_rate down to `floor` times it, at `over_samples` (Loshchilov & Hutter 2017)."""

    learning_rate: float
    over_samples: int
    floor: float = 0.0

    def __post_init__(self) -> None:
        _positive(learning_rate=self.learning_rate, over_samples=self.over_samples)
        _check_floor(self.floor)

    def rate(self, samples: int) -> float:
        """Return the rate after `samples`."""
        wave = 0.5 * (1 + math.cos(math.pi * min(samples / self.over_samples, 1.0)))
        return self.learning_rate * ((1 - self.floor) * wave + self.floor)

    def lowest_rate(self) -> float:
        """Return the rate at the end of the wave."""
        return self.learning_rate * self.floor


@dataclass(frozen=True, slots=True)
class Warmup:
    """A linear change from `first` times the rate (or from 0) to that of `then`, which counts from then on."""

    then: Constant | Exponential | Cosine
    over_samples: int
    first: float = 0.1

    def __post_init__(self) -> None:
        _positive(over_samples=self.over_samples)
        if not (math.isfinite(self.first) and self.first >= 0):
            raise InputRefused(f"first = {self.first} of a warm-up must not be negative or infinite")

    def rate(self, samples: int) -> float:
        """Return the rate after `samples`."""
        if samples >= self.over_samples:
            return self.then.rate(samples - self.over_samples)
        return self.then.rate(0) * (self.first + (1 - self.first) * samples / self.over_samples)

    def lowest_rate(self) -> float:
        """Return the lower one of the first rate and the lowest rate of `then`."""
        return min(self.first * self.then.rate(0), self.then.lowest_rate())


KINDS: dict[str, type[Any]] = {"constant": Constant, "exponential": Exponential, "cosine": Cosine, "warmup": Warmup}
"""Schedules by the names that a job uses."""


def rates(schedule: Schedule, samples: I64) -> F32:
    """Return the rate of each column from the samples that it has: float32, of the shape of `samples`."""
    counts: list[int] = samples.tolist()
    known = {count: schedule.rate(count) for count in set(counts)}  # columns mostly have the same count
    return np.array([known[count] for count in counts], np.float32)


def _check_floor(floor: float) -> None:
    if not 0 <= floor <= 1:
        raise InputRefused(f"floor = {floor} must be between 0 and 1, a share of the learning rate")


def _positive(**fields: float) -> None:
    for name, value in fields.items():
        if not (math.isfinite(value) and value > 0):
            raise InputRefused(f"{name} = {value} of a learning-rate schedule must be a positive number")
