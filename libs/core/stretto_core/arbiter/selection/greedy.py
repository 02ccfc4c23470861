"""Weighted greedy selection under the cluster's capacity (DLRover-RM Eq. 11-14)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stretto_core.arbiter.selection.problem import Contender, Option, Selection, SelectionProblem
from stretto_core.arbiter.selection.relaxation import relaxed
from stretto_core.arbiter.selection.table import STRICT, OptionTable

IMPROVEMENT_ROUNDS = 8
NEAR = 1e-6
"""Relative precision of the bound."""


@dataclass(frozen=True, slots=True)
class _Item:
    job: int
    option: Option
    value: float
    share: float  # the largest share of any free resource that it takes


def weighted_greedy(problem: SelectionProblem) -> Selection:
    """Select greedily by the term of Eq. 12 and by that term per share of the capacity, each followed by exchanges.

    Return the better of both. Ties are broken by job and option id. The paper gives no bound; this one is the linear
    relaxation's. Raises InvalidValue.
    """
    table = OptionTable.of(problem)
    if not table.jobs:
        return table.selection([], 0.0)
    contenders = sorted(problem.contenders, key=lambda contender: contender.job)
    items = _items(problem, contenders)
    orders: list[Callable[[_Item], float]] = [
        lambda item: -item.value,
        lambda item: -item.value / max(item.share, 1e-9),
    ]
    best: dict[int, _Item] = {}
    for order in orders:
        room, ordered = _Room(problem), sorted(items, key=lambda item: (order(item), item.job, item.option.id))
        taken = _improve(room, items, _take(room, ordered))
        if _total(taken) > _total(best):
            best = taken
    chosen: dict[str, str | None] = {contender.job: None for contender in problem.contenders}
    chosen |= {contenders[i].job: item.option.id for i, item in best.items()}
    return Selection(chosen, _total(best), max(relaxed(table, NEAR).bound, _total(best)))


def _items(problem: SelectionProblem, contenders: Sequence[Contender]) -> list[_Item]:
    """Return the options of a positive value."""
    items: list[_Item] = []
    for i, contender in enumerate(contenders):
        for option in sorted(contender.options, key=lambda option: option.id):
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
    """Sums of the taken amounts, by resource; slightly stricter than ``SelectionProblem.fits``, which sums exactly."""

    def __init__(self, problem: SelectionProblem) -> None:
        self._most = {name: max(amount, 0.0) + STRICT for name, amount in problem.free.items()}
        self._taken: dict[str, float] = {}

    def exchange(self, here: Option | None, there: Option) -> bool:
        """Take ``there`` in place of ``here`` and return True, if it fits."""
        before = here.amounts if here is not None else {}
        totals: dict[str, float] = {}
        for name in there.amounts if before.keys() <= there.amounts.keys() else {**before, **there.amounts}:
            total = self._taken.get(name, 0.0) + there.amounts.get(name, 0.0) - before.get(name, 0.0)
            if total > 0 and total > self._most.get(name, STRICT):
                return False
            totals[name] = total
        self._taken |= totals
        return True


def _take(room: _Room, ordered: Sequence[_Item]) -> dict[int, _Item]:
    """Take the first item of each job that fits beside the items before it."""
    taken: dict[int, _Item] = {}
    for item in ordered:
        if item.job not in taken and room.exchange(None, item.option):
            taken[item.job] = item
    return taken


def _improve(room: _Room, items: Sequence[_Item], taken: dict[int, _Item]) -> dict[int, _Item]:
    """Exchange options for better ones of the same job, as long as they fit beside the others."""
    for _ in range(IMPROVEMENT_ROUNDS):
        changed = False
        for item in items:
            here = taken.get(item.job)
            if item.value > (here.value if here else 0.0) and room.exchange(here.option if here else None, item.option):
                taken[item.job] = item
                changed = True
        if not changed:
            break
    return taken
