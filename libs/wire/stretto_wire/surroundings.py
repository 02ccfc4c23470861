"""The surroundings of a process, beside messages: two clocks, and chance. Product code takes them here alone.

So a simulation gives every process its own, drawn from a seed (``stretto-testing``). Keys and secrets are no business
of this module: a seed must never make one.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from random import Random

_SYSTEM = random.SystemRandom()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The clocks and the chance of one process. By default they are those of the machine."""

    wall_ns: Callable[[], int] = time.time_ns
    """Nanoseconds since 1970-01-01 UTC, by a clock that people set."""
    monotonic_s: Callable[[], float] = time.monotonic
    chance: Random = _SYSTEM


CURRENT: ContextVar[Surroundings] = ContextVar("stretto surroundings", default=Surroundings())  # noqa: B039 - frozen
"""The surroundings of whoever runs; a task inherits those of its maker."""


def wall_ns() -> int:
    """Return nanoseconds since 1970-01-01 UTC."""
    return CURRENT.get().wall_ns()


def wall_s() -> float:
    """Return seconds since 1970-01-01 UTC."""
    return CURRENT.get().wall_ns() / 1e9


def monotonic_s() -> float:
    """Return seconds by a clock that nobody sets, for intervals."""
    return CURRENT.get().monotonic_s()


def chance() -> Random:
    """Return the generator that draws what may be anything: an order, a port, an instant within an interval."""
    return CURRENT.get().chance


def new_id(digits: int = 32) -> str:
    """Return a new id of so many hexadecimal digits (4 bits each): the same one never comes twice in practice."""
    return f"{CURRENT.get().chance.getrandbits(4 * digits):0{digits}x}"
