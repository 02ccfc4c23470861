"""The choice over all jobs: at most one option of each job, within the free resources (DLRover-RM Eq. 11-14)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, log
from typing import Literal, Protocol

Objective = Literal["efficiency", "gain", "completion", "cost"]
OBJECTIVE: Objective = "efficiency"
RHO = 2.5
"""The defaults of every selection: Eq. 12 with the paper's exponent of Eq. 14."""

STANDSTILL = 1e-3
"""Throughput of a job that stands still, as a share of an option's, so that its remaining time stays finite."""


@dataclass(frozen=True, slots=True)
class Option:
    """One candidate of a job. ``amounts`` are additions to the job's resources, by name; negative ones give back.

    ``cost`` of the additions per hour (RC, Eq. 7), ``gain`` (TG, Eq. 8) and ``throughput`` in samples per second.
    """

    id: str
    amounts: dict[str, float]
    cost: float
    gain: float
    throughput: float


@dataclass(frozen=True, slots=True)
class Ending:
    """A running job without options, expected to end in ``after_s`` seconds; then its ``held`` resources are free."""

    after_s: float
    held: dict[str, float]


@dataclass(frozen=True, slots=True)
class Contender:
    """A job that may get one of its options, or none. ``weight`` is its priority, a factor beside Eq. 14's.

    ``throughput`` is the present one; None if it is unknown: then an option's throughput less its gain stands for it.
    ``held``: the resources of its present plan, by name, which are free once it has ended; stated for algorithms that
    look ahead.
    """

    job: str
    remaining_samples: float
    options: tuple[Option, ...]
    weight: float = 1.0
    throughput: float | None = None
    held: dict[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class SelectionProblem:
    """Input of a selection algorithm. ``free`` bounds each resource (Eq. 13).

    ``objective``: ``efficiency`` is the paper's (Eq. 12), ``gain`` the sum of throughput gains, ``completion`` the
    seconds by which the jobs end earlier, all together; each weighted by the jobs' priorities. ``cost`` is
    ``efficiency`` where only plans are offered that train a sample for less (``worth.cheaper``).
    ``rho`` > 0 prefers jobs that finish soon, < 0 the others, 0 none (Eq. 14). ``epsilon_s`` keeps it finite.
    ``endings``: other jobs whose resources will be free; stated for algorithms that look ahead.
    """

    contenders: tuple[Contender, ...]
    free: dict[str, float]
    objective: Objective = OBJECTIVE
    rho: float = RHO
    epsilon_s: float = 1e-6
    least_cost: float = 1e-6  # of a change that costs nothing or saves, so that its efficiency stays finite
    endings: tuple[Ending, ...] = ()

    def value(self, contender: Contender, option: Option) -> float:
        """Return the option's term of the objective: RE x WG (Eq. 12), its gain, or the seconds by which the job ends
        earlier; each times the priority."""
        return self.values(contender, (option,))[0]

    def values(self, contender: Contender, options: Sequence[Option]) -> list[float]:
        """Return the terms of several options of the job in one call: a round has tens of thousands."""
        weight = contender.weight
        match self.objective:
            case "gain":
                return [weight * option.gain for option in options]
            case "completion":
                return [weight * _seconds_earlier(contender, option) for option in options]
            case "efficiency" | "cost":
                least, samples, epsilon, rho = self.least_cost, contender.remaining_samples, self.epsilon_s, -self.rho
                remaining_s = [samples / max(option.throughput, 1e-12) + epsilon for option in options]
                # logarithm of WG (Eq. 14), within the range of a float
                powers = [min(max(rho * log(max(left, 1e-12)), -230.0), 230.0) for left in remaining_s]
                return [
                    weight * (option.gain / max(option.cost, least)) * exp(power)  # Eq. 11, 12
                    for option, power in zip(options, powers, strict=True)
                ]

    def fits(self, options: Sequence[Option]) -> bool:
        """Return True if all these options together fit the free amounts; a resource that is not listed has none."""
        for name in {resource for option in options for resource in option.amounts}:
            total = math.fsum(option.amounts.get(name, 0.0) for option in options)
            if total > max(self.free.get(name, 0.0), 0.0) + 1e-9 and total > 0:
                return False
        return True


def _seconds_earlier(contender: Contender, option: Option) -> float:
    """Return (remaining / throughput now) - (remaining / throughput then), with the change's overhead as in Eq. 8."""
    now, then = speeds(contender, option)
    return contender.remaining_samples * (1 / now - 1 / then)


def speeds(contender: Contender, option: Option) -> tuple[float, float]:
    """Return the samples per second now and under the option, net of its change's overhead (Eq. 8); both above 0."""
    least = max(STANDSTILL * option.throughput, 1e-12)
    if contender.throughput is None:
        return max(option.throughput - option.gain, least), max(option.throughput, least)
    now = max(contender.throughput, least)
    return now, max(now + option.gain, least)


@dataclass(frozen=True, slots=True)
class Selection:
    """The id of the chosen option by job (None: no option), the objective's value, and a proven upper bound on it.

    ``objective``: the name of the algorithm's own objective, whose value and bound these are; empty: the problem's.
    """

    chosen: dict[str, str | None]
    value: float
    bound: float
    objective: str = ""


class SelectionAlgorithm(Protocol):
    """Algorithms of the kind ``select``.

    An algorithm whose attribute ``looks_ahead`` is True also gets ``Contender.held`` and ``SelectionProblem.endings``.
    """

    def __call__(self, problem: SelectionProblem) -> Selection: ...
