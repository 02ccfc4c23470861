"""Weighted greedy selection under the cluster's capacity (DLRover-RM Eq. 11-14)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from stretto_core.selection.problem import Option, Selection, SelectionProblem
from stretto_core.types import InvalidValue

IMPROVEMENT_ROUNDS = 8
BOUND_ROUNDS = 60
ROOM_SLACK = 0.9e-9


@dataclass(frozen=True, slots=True)
class _Item:
    job: int
    option: Option
    value: float
    share: float  # the largest share of any free resource that it takes


def weighted_greedy(problem: SelectionProblem) -> Selection:
    """Greedy by the term of Eq. 12 and by that term per share of the capacity; the better of both, then exchanges.

    Deterministic: ties go by job and option id.
    """
    names = [contender.job for contender in problem.contenders]
    if len(set(names)) != len(names):
        raise InvalidValue(f"contenders are {names!r}; name every job once")
    items = _items(problem)
    orders: list[Callable[[_Item], float]] = [
        lambda item: -item.value,
        lambda item: -item.value / max(item.share, 1e-9),
    ]
    best: dict[int, _Item] = {}
    for order in orders:
        room, ordered = _Room(problem), sorted(items, key=lambda i: (order(i), i.job, i.option.id))
        taken = _improve(room, items, _take(room, ordered))
        if _total(taken) > _total(best):
            best = taken
    chosen = {name: best[i].option.id if i in best else None for i, name in enumerate(names)}
    return Selection(chosen, _total(best), max(_bound(problem), _total(best)))


def _items(problem: SelectionProblem) -> list[_Item]:
    """Options worth taking: a positive value."""
    items: list[_Item] = []
    for i, contender in enumerate(problem.contenders):
        for option in contender.options:
            value = problem.value(contender, option)
            if value > 0:
                shares = [
                    max(amount, 0.0) / max(problem.free.get(name, 0.0), 1e-9) for name, amount in option.amounts.items()
                ]
                items.append(_Item(i, option, value, max(shares, default=0.0)))
    return items


def _total(taken: dict[int, _Item]) -> float:
    return math.fsum(item.value for item in taken.values())


class _Room:
    """Sums of what is taken of every resource; a hair stricter than ``SelectionProblem.fits``, which adds up anew."""

    def __init__(self, problem: SelectionProblem) -> None:
        self._most = {name: max(amount, 0.0) + ROOM_SLACK for name, amount in problem.free.items()}
        self._taken: dict[str, float] = {}

    def exchange(self, here: Option | None, there: Option) -> bool:
        """Take ``there`` in place of ``here``, if that fits."""
        before = here.amounts if here is not None else {}
        totals: dict[str, float] = {}
        for name in there.amounts if before.keys() <= there.amounts.keys() else {**before, **there.amounts}:
            total = self._taken.get(name, 0.0) + there.amounts.get(name, 0.0) - before.get(name, 0.0)
            if total > 0 and total > self._most.get(name, ROOM_SLACK):
                return False
            totals[name] = total
        self._taken |= totals
        return True


def _take(room: _Room, ordered: Sequence[_Item]) -> dict[int, _Item]:
    taken: dict[int, _Item] = {}
    for item in ordered:
        if item.job not in taken and room.exchange(None, item.option):
            taken[item.job] = item
    return taken


def _improve(room: _Room, items: Sequence[_Item], taken: dict[int, _Item]) -> dict[int, _Item]:
    """Exchange a job's option for a better one while that fits beside the others."""
    for _ in range(IMPROVEMENT_ROUNDS):
        changed = False
        for item in items:
            here = taken.get(item.job)
            if item.value > (here.value if here else 0.0) and room.exchange(here and here.option, item.option):
                taken[item.job] = item
                changed = True
        if not changed:
            break
    return taken


def _bound(problem: SelectionProblem) -> float:
    """An upper bound: the Lagrangian of Eq. 13, its prices found by Polyak steps. Every price >= 0 proves one.

    Options without value count too: giving back what one holds may be what lets another grow. Amounts are scaled,
    so that cores and bytes weigh alike.
    """
    contenders = [c for c in problem.contenders if c.options]
    if not contenders:
        return 0.0
    values = np.array([problem.value(c, option) for c in contenders for option in c.options])
    resources = sorted({name for c in contenders for option in c.options for name in option.amounts})
    rows = [[option.amounts.get(name, 0.0) for name in resources] for c in contenders for option in c.options]
    free = np.array([max(problem.free.get(name, 0.0), 0.0) for name in resources])
    amounts = np.array(rows).reshape(len(values), len(resources))
    scale = np.maximum(np.maximum(free, np.abs(amounts).max(axis=0)), 1e-12)
    free, amounts = free / scale, amounts / scale
    counts = np.array([len(c.options) for c in contenders])
    starts = np.cumsum(counts) - counts
    price, best = np.zeros(len(resources)), math.inf
    for round_number in range(BOUND_ROUNDS):
        reduced = values - amounts @ price
        highest = np.maximum.reduceat(reduced, starts)
        at = np.flatnonzero(reduced == np.repeat(highest, counts))
        first = at[np.searchsorted(at, starts)]  # of a contender's equally good options
        worth = highest > 0
        value = float(price @ free) + float(highest[worth].sum())
        slope = free - amounts[first[worth]].sum(axis=0)
        best = min(best, value)
        size = float(slope @ slope)
        if size < 1e-18:
            break
        price = np.maximum(price - 0.5 * abs(value) / size / (1 + round_number) * slope, 0.0)
    return best
