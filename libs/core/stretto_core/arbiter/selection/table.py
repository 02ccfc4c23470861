"""A selection problem as arrays: for each job a row without an option, and a row for every option of possible use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Self

import numpy as np
from numpy.typing import NDArray
from stretto_messages.base import InvalidValue

from stretto_core.arbiter.selection.problem import Contender, Option, Selection, SelectionProblem

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ROOM_SLACK = 1e-9
"""Excess of a resource that ``SelectionProblem.fits`` tolerates."""
STRICT = 0.9e-9
"""Part of this excess that a search may use: sums in another order differ in their last digits."""
NO_AMOUNTS: dict[str, float] = {}
Valued = Callable[[Contender, Sequence[Option]], Sequence[float]]
"""The terms of several options of a job, in place of ``SelectionProblem.values``."""


@dataclass(frozen=True, slots=True)
class OptionTable:
    """Rows sorted by job and option id, so that the order of the input has no effect.

    ``options`` [rows], None in the first row of each job: the job keeps its plan. ``job`` [rows] is an index
    into ``jobs``, ``starts`` [jobs] its first row. ``amounts`` [rows, resources], ``room`` and ``strict`` [resources]
    are divided by powers of two, so that cores and bytes weigh alike and sums of whole numbers stay exact.
    """

    problem: SelectionProblem
    jobs: list[str]
    options: list[Option | None]
    job: Ints
    starts: Ints
    values: Floats
    amounts: Floats
    room: Floats
    strict: Floats

    @staticmethod
    def of(problem: SelectionProblem, valued: Valued | None = None) -> OptionTable:
        """Return the table of a problem; ``valued`` replaces its objective. Raises InvalidValue for a job named
        twice."""
        contenders, valued = contending(problem), valued or problem.values
        options, values, counts = list[Option | None](), list[float](), list[int]()
        for contender in contenders:
            ordered = sorted(contender.options, key=attrgetter("id"))
            options += [None, *ordered]
            values += [0.0, *valued(contender, ordered)]
            counts.append(1 + len(ordered))
        had = [NO_AMOUNTS if option is None else option.amounts for option in options]
        resources = sorted(set().union(*had))
        amounts = np.array([[each.get(name, 0.0) for each in had] for name in resources], dtype=np.float64)
        amounts = np.ascontiguousarray(amounts.reshape(len(resources), len(options)).T)
        free = np.array([max(problem.free.get(name, 0.0), 0.0) for name in resources])
        largest = np.maximum(np.abs(amounts).max(axis=0, initial=0.0), free)
        scale = np.ldexp(1.0, np.frexp(np.maximum(largest, ROOM_SLACK))[1])
        value = np.array(values, dtype=np.float64)
        job = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
        starts = np.cumsum([0, *counts[:-1]], dtype=np.int64) if counts else np.zeros(0, dtype=np.int64)
        useful = _useful(value, amounts, free, job, starts)
        useful[starts] = True
        rows = np.flatnonzero(useful)
        job = job[rows]
        return OptionTable(
            problem,
            [contender.job for contender in contenders],
            [options[row] for row in rows],
            job,
            np.searchsorted(job, np.arange(len(contenders))).astype(np.int64),
            value[rows],
            amounts[rows] / scale,
            (free + ROOM_SLACK) / scale,
            (free + STRICT) / scale,
        )

    def part(self, kept: NDArray[np.bool_]) -> Self:
        """Return the table of the ``kept`` rows; the first row of every job that stays has to be among them."""
        rows = np.flatnonzero(kept)
        present, job = np.unique(self.job[rows], return_inverse=True)
        return replace(
            self,
            jobs=[self.jobs[index] for index in present.tolist()],
            options=[self.options[row] for row in rows.tolist()],
            job=job,
            starts=np.searchsorted(job, np.arange(len(present))).astype(np.int64),
            values=self.values[rows],
            amounts=self.amounts[rows],
        )

    def best(self, score: Floats) -> Ints:
        """Return each job's row of the highest score [jobs], the first of several equal ones."""
        highest = np.maximum.reduceat(score, self.starts)
        at = np.flatnonzero(score == highest[self.job])
        return at[np.searchsorted(at, self.starts)]

    def priced(self, price: Floats) -> Floats:
        """Return the price of each row's amounts [rows]. No matrix product: its last digit differs between processors,
        and a replay on another one must reach the same decisions."""
        return np.asarray((self.amounts * price).sum(axis=1), dtype=np.float64)

    def value(self, chosen: Ints) -> float:
        """Return the objective of the chosen rows [jobs]."""
        return float(self.values[chosen].sum())

    def fits(self, chosen: Ints) -> bool:
        """Return True if the options fit, by the same test as the problem's."""
        return self.problem.fits([option for row in chosen if (option := self.options[row]) is not None])

    def selection(self, chosen: Sequence[int] | Ints, bound: float, objective: str = "") -> Selection:
        """Return the chosen rows [jobs] as a selection of the problem."""
        ids: dict[str, str | None] = {contender.job: None for contender in self.problem.contenders}
        for name, row in zip(self.jobs, chosen, strict=True):
            option = self.options[row]
            ids[name] = option.id if option is not None else None
        value = self.value(np.asarray(chosen, dtype=np.int64)) if self.jobs else 0.0
        return Selection(ids, value, max(bound, value), objective)


def contending(problem: SelectionProblem) -> list[Contender]:
    """Return the contenders that have options, by name. Raises InvalidValue for a job named twice."""
    names = [contender.job for contender in problem.contenders]
    if len(set(names)) != len(names):
        raise InvalidValue(f"contenders are {names!r}; name every job once")
    return sorted((contender for contender in problem.contenders if contender.options), key=attrgetter("job"))


def _useful(values: Floats, amounts: Floats, free: Floats, job: Ints, starts: Ints) -> NDArray[np.bool_]:
    """Return True for options that could be of use [rows].

    An option is useless if it has no value and gives nothing back, or if it needs more than the free amount and all
    that other jobs can give back.
    """
    given = np.maximum(-np.minimum.reduceat(amounts, starts), 0.0) if len(starts) else amounts
    offered = given.sum(axis=0) - given[job] + free + ROOM_SLACK
    return ~(amounts > offered).any(axis=1) & ((values > 0) | (amounts < 0).any(axis=1))
