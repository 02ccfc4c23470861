"""A shortest path over (layer, type) when the units of some types are limited.

Each limit gets a price per unit (Lagrangian relaxation): under any prices the cheapest path, less what the limits are
worth, is no dearer than the best path within the limits; a few subgradient steps find good prices. Where the path that
they give exceeds a limit, a best-first search over stages finds the best one that does not; what the prices say of the
rest of the layers is its bound on every beginning.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
from numpy.typing import NDArray

from stretto_core.planner.placement.paths import Cheapest, cheapest_path
from stretto_core.planner.placement.problem import DeviceType, Floats, runs_of

PRICE_STEPS = 8


@dataclass(slots=True)
class Caps:
    """The limited types, their limits, and the Lagrangian price of a unit, kept from search to search."""

    types: NDArray[np.int64]
    limits: Floats
    prices: Floats

    @staticmethod
    def of(types: Sequence[DeviceType]) -> Caps:
        """Return the types with a limit, at a price of 0."""
        limited = [(i, kind.limit) for i, kind in enumerate(types) if kind.limit is not None]
        which = np.array([i for i, _ in limited])
        return Caps(which, np.array([float(limit) for _, limit in limited]), np.zeros(len(limited)))


@dataclass(slots=True)
class Within:
    """``bound`` on every path within the limits; ``assignment`` of the one that reaches it, empty if none does;
    ``met``: paths within the limits that came up on the way; ``steps`` of search."""

    bound: float
    assignment: list[int] = field(default_factory=list[int])
    met: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    steps: int = 0


@dataclass(slots=True)
class _Priced:
    """The best prices so far: the bound that they prove, their path, and the weights under them."""

    bound: float
    path: Cheapest
    weight: Floats
    prices: Floats


def cheapest_within(weight: Floats, units: Floats, caps: Caps, enough: float, steps: int) -> Within:
    """Return the least weight of a path within the limits, or a bound on it as soon as that reaches ``enough``.

    ``weight`` and ``units`` by [first, last, type]; a stage that alone exceeds its type's limit is none.
    """
    weight = weight.copy()
    of_caps = units[:, :, caps.types]
    weight[:, :, caps.types] = np.where(of_caps > caps.limits, math.inf, weight[:, :, caps.types])
    found = Within(-math.inf)
    priced = _priced(weight, units, caps, enough, found)
    found.bound = priced.bound
    if not math.isfinite(priced.bound) or priced.bound >= enough:
        return found
    return _searched(weight, units, caps, enough, priced, found, steps)


def _used(assignment: Sequence[int], units: Floats, caps: Caps) -> Floats:
    total = np.zeros(units.shape[2])
    for kind, first, last in runs_of(assignment):
        total[kind] += units[first, last, kind]
    return total[caps.types]


def _priced(weight: Floats, units: Floats, caps: Caps, enough: float, found: Within) -> _Priced:
    """Find prices of the limits by subgradient steps (Polyak's, towards ``enough``)."""
    best: _Priced | None = None
    prices, scale = caps.prices.copy(), 1.0
    for _ in range(PRICE_STEPS):
        under = weight.copy()
        under[:, :, caps.types] += np.where(np.isfinite(units[:, :, caps.types]), units[:, :, caps.types], 0) * prices
        path = cheapest_path(under)
        bound = path.value - float(prices @ caps.limits)
        if not math.isfinite(path.value):
            return _Priced(math.inf, path, under, prices)
        over = _used(path.assignment, units, caps) - caps.limits
        if (over <= 0).all():
            found.met.append(tuple(path.assignment))
        if best is None or bound > best.bound:
            best = _Priced(bound, path, under, prices)
        else:
            scale /= 2
        slope = np.where((prices <= 0) & (over < 0), 0.0, over)
        size = float(slope @ slope)
        if bound >= enough or size < 1e-18:
            break
        target = enough if math.isfinite(enough) else bound + abs(path.value)
        prices = np.maximum(prices + scale * (target - bound) / size * slope, 0.0)
    assert best is not None
    caps.prices = best.prices
    return best


class _Settled:
    """Weights and used units of the expanded partial paths, at one number of layers and last type."""

    def __init__(self, columns: int) -> None:
        self.rows = np.empty((8, columns))
        self.count = 0

    def beats(self, spent: float, used: Floats) -> bool:
        """Return whether a kept one is as good in everything; keep this one if not."""
        label = np.concatenate([[spent], used])
        if bool((self.rows[: self.count] <= label).all(axis=1).any()):
            return True
        if self.count == len(self.rows):
            self.rows = np.concatenate([self.rows, np.empty_like(self.rows)])
        self.rows[self.count] = label
        self.count += 1
        return False


def _searched(
    weight: Floats, units: Floats, caps: Caps, enough: float, priced: _Priced, found: Within, steps: int
) -> Within:
    """Search best-first over partial paths, which are (layers placed, last type, weight so far, units used, stages).

    One that weighs no less and uses no less of any limit than another of the same layers and last type leads nowhere
    better.
    """
    layers, _, kinds = weight.shape
    column = np.full(kinds, -1)
    column[caps.types] = np.arange(len(caps.types))
    worth = float(priced.prices @ caps.limits)
    serial = count()
    settled = dict[tuple[int, int], _Settled]()
    waiting: list[tuple[float, int, int, int, float, float, Floats, tuple[int, ...]]] = [
        (priced.bound, next(serial), 0, -1, 0.0, 0.0, np.zeros(len(caps.types)), ())
    ]
    while waiting and found.steps < steps:
        bound, _, first, before, spent, reduced, used, assignment = heapq.heappop(waiting)
        found.bound = bound
        if bound >= enough:
            return found
        if first == layers:
            found.assignment = list(assignment)
            found.met.append(assignment)
            return found
        at_node = settled.setdefault((first, before), _Settled(len(used) + 1))
        if at_node.beats(spent, used):
            continue
        after = priced.weight[first, first:] + reduced
        least = after + priced.path.rest[first + 1 :] - worth
        if before >= 0:
            least[:, before] = math.inf
        for at, kind in zip(*np.nonzero(least < enough), strict=True):
            last = first + int(at)
            now = used
            if (cap := column[kind]) >= 0:
                now = used.copy()
                now[cap] += units[first, last, kind]
                if now[cap] > caps.limits[cap]:
                    continue
            total = spent + float(weight[first, last, kind])
            promised = total if last + 1 == layers else max(float(least[at, kind]), bound)
            if promised < enough:
                found.steps += 1
                stages = (*assignment, *(int(kind),) * (last + 1 - first))
                heapq.heappush(
                    waiting,
                    (promised, next(serial), last + 1, int(kind), total, float(after[at, kind]), now, stages),
                )
    if not waiting:
        found.bound = enough  # no better path exists than the known one
    return found
