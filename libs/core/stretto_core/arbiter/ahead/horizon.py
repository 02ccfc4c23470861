"""The choice over the steps ahead (ModelArts section 4), among live jobs with plans of their own.

In every step a job trains under its present plan or, from some step on, under one of its options: a job that changes
twice within the horizon pays for both changes. Served work is s(t) = min(R, s(t-1) + p v), of the R samples that
remain. The objective is the sum over jobs and steps of s(t)/R (Eq. 1), times the job's weight, beyond what the jobs
reach without any change. A job that ends frees what it holds for the steps that follow, so that a choice may wait for
it.

The problem is a selection whose rows are (option, first step) and whose resources are (resource, step). Therefore the
prices by step and resource, the proven bound and the walk are those of every selection. Only options of the first step
are carried out; the next round decides anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stretto_core.arbiter.selection.exact import SHORT, solved
from stretto_core.arbiter.selection.hull import climb
from stretto_core.arbiter.selection.problem import Contender, Option, Selection, SelectionProblem, speeds
from stretto_core.arbiter.selection.relaxation import Relaxation, at_prices
from stretto_core.arbiter.selection.table import ROOM_SLACK, STRICT, Floats, Ints, OptionTable, contending

OBJECTIVE = "work served ahead"
STEPS, STEP_S = 5, 300.0
"""The horizon of ModelArts section 5.1: 25 minutes in steps of five."""
DONE = 1 - 1e-9
"""Share of the remaining samples at which a job counts as ended."""
SAMPLED = 4
"""Step through the jobs in order of value: each fourth is in the sample on which the prices are found."""
ON_SAMPLE, ON_ALL = (24, 0.5), (10, 0.05)
"""Rounds and first width of the search for prices, on the sample and then on all jobs: by a sample's error alone they
are off by a few per cent."""
MENDED, NEAR, MANY = 10, 3, 1_000
"""Rows of the least loss for each job: ``MENDED`` of them mend the prices, and the walk chooses among ``NEAR``. Fewer
than ``MANY`` jobs have as many rows as ``MANY`` have."""
PROVEN_ROWS = 1_000
"""Most rows of a problem whose optimum is looked for; among more, a job's row is a small part of the value."""


@dataclass(frozen=True, slots=True)
class AheadTable(OptionTable):
    """Rows of (option, first step), with amounts by (resource, step), beyond what the jobs use without any change.

    ``options`` has None where a row changes nothing in the first step.
    """

    def fits(self, chosen: Ints) -> bool:
        """Return True if the rows fit in every step, and the options of the first step by the problem's test too."""
        return bool((self.amounts[chosen].sum(axis=0) <= self.room).all()) and OptionTable.fits(self, chosen)


def horizon(problem: SelectionProblem) -> Selection:
    """Return the first step of a plan for the steps ahead, with the plan's value and the bound that proves it.

    Raises InvalidValue for a job named twice.
    """
    table = ahead_table(problem)
    if len(table.values) <= PROVEN_ROWS:
        return solved(table, SHORT, OBJECTIVE)
    relaxation = at_prices(table, _prices(table))
    near = _near(table, relaxation, NEAR)
    found = near.selection(climb(near, at_prices(near, relaxation.price)), 0.0, OBJECTIVE)
    return replace(found, bound=max(relaxation.bound, found.value))


horizon.looks_ahead = True  # type: ignore[attr-defined]  # an attribute of the protocol


def _near(table: AheadTable, relaxation: Relaxation, of_job: int) -> AheadTable:
    """Return the table of ``of_job`` rows for each job on average, by the least loss, and of its row without change."""
    most = min(of_job * max(len(table.jobs), MANY), len(table.values)) - 1
    kept = relaxation.loss <= np.partition(relaxation.loss, most)[most]
    kept[table.starts] = True
    return table.part(kept)


def _prices(table: AheadTable) -> Floats:
    """Return prices at which the bound is nearly the least. They are found on a sample of jobs with its part of the
    room, and mended on the rows of all jobs that come near at the sample's prices."""
    highest = np.maximum.reduceat(table.values, table.starts)
    by_value = np.argsort(highest, kind="stable")
    sampled = np.zeros(len(table.jobs), dtype=np.bool_)
    sampled[by_value[min(SAMPLED // 2, len(by_value) - 1) :: SAMPLED]] = True
    room = table.room * (sampled.sum() / len(table.jobs))
    begin = float(highest.sum()) / (len(table.room) * table.room)  # the whole room costs what all jobs could gain
    price = _cleared(replace(table.part(sampled[table.job]), room=room), begin, *ON_SAMPLE)
    return _cleared(_near(table, at_prices(table, price), MENDED), price, *ON_ALL)


def _cleared(table: AheadTable, price: Floats, rounds: int, width: float) -> Floats:
    """Follow the excess demand, and return the prices of the least bound on the way.

    Each price moves by a share of its own, which halves whenever the price turns back (as in ``ahead.certified``). No
    solver is asked: many jobs' demands change almost smoothly, and a linear programme for each new tangent takes longer
    than the demands do (10 prices: 38 programmes, half of a choice's time, measured).
    """
    best, least = price, np.inf
    widths, before = np.full_like(price, width), np.zeros_like(price)
    for _ in range(rounds):
        reduced = table.values - table.priced(price)
        rows = table.best(reduced)
        bound = float((price * table.room).sum()) + float(reduced[rows].sum())
        if bound < least:
            best, least = price, bound
        over = table.amounts[rows].sum(axis=0) / table.room - 1
        widths = np.minimum(widths * np.where(np.sign(over) * before < 0, 0.5, 1.2), 1.0)
        before = np.sign(over)
        price = price * (1 + widths * np.clip(4 * over, -0.5, 1.0))
    return best


def ahead_table(problem: SelectionProblem) -> AheadTable:
    """Return the rows of all jobs that have options and samples left. Raises InvalidValue for a job named twice."""
    contenders = [contender for contender in contending(problem) if contender.remaining_samples > 0]
    listed = [(index, option) for index, each in enumerate(contenders) for option in _ordered(each)]
    names = sorted({name for _, option in listed for name in option.amounts})
    owner = np.array([index for index, _ in listed], dtype=np.int64)
    remaining = np.array([each.remaining_samples for each in contenders])[owner]
    pace = np.array([speeds(contenders[index], option) for index, option in listed]).reshape(-1, 2)
    served = _served(pace[:, 0] / remaining, pace[:, 1] / remaining)
    idle = served[:, STEPS : STEPS + 1]
    weight = np.array([each.weight for each in contenders])[owner]
    values = weight[:, None] * (served - idle)[:, :STEPS, 1:].sum(axis=2)
    held = _amounts([each.held for each in contenders], names)
    more = _amounts([option.amounts for _, option in listed], names)
    used = _used(served, held[owner], more)
    begins = np.tile(np.arange(STEPS), len(listed))
    amounts = (used[:, :STEPS] - used[:, STEPS:]).reshape(len(begins), STEPS * len(names))
    free = np.maximum(_amounts([problem.free], names), 0.0).T + _freed(problem, names)
    firsts = np.searchsorted(owner, np.arange(len(contenders)))  # of the jobs' options
    free += (held[:, :, None] - used[firsts, STEPS]).sum(axis=0)
    options = [option if begin == 0 else None for _, option in listed for begin in range(STEPS)]
    return _table(problem, contenders, np.repeat(owner, STEPS), options, values.ravel(), amounts, free.ravel())


def _ordered(contender: Contender) -> list[Option]:
    return sorted(contender.options, key=lambda option: option.id)


def _amounts(given: Sequence[dict[str, float]], names: Sequence[str]) -> Floats:
    """Return amounts by [each, resource]."""
    found = np.array([[each.get(name, 0.0) for name in names] for each in given], dtype=np.float64)
    return found.reshape(len(given), len(names))


def _served(now: Floats, then: Floats) -> Floats:
    """Return the served shares by [option, first step, end of step]; the last first step means: never, and the
    shares at the begin come first.

    ``now`` and ``then``: shares per second before and under the option.
    """
    first, passed = np.arange(STEPS + 1)[:, None], np.arange(STEPS + 1)
    before, under = np.minimum(first, passed) * STEP_S, np.maximum(passed - first, 0) * STEP_S
    return np.minimum(now[:, None, None] * before + then[:, None, None] * under, 1.0)


def _used(served: Floats, held: Floats, more: Floats) -> Floats:
    """Return the resources that a job uses by [option, first step, resource, step]; none once it has ended."""
    trains = (served[:, :, :STEPS] < DONE).astype(np.float64)
    under = (np.arange(STEPS) >= np.arange(STEPS + 1)[:, None]) * trains
    used = np.empty((*trains.shape[:2], held.shape[1], STEPS))
    for resource in range(held.shape[1]):
        of_held, of_more = held[:, resource, None, None], more[:, resource, None, None]
        used[:, :, resource] = trains * of_held + under * of_more
    return used


def _freed(problem: SelectionProblem, names: Sequence[str]) -> Floats:
    """Return what jobs without options have freed by the begin of each step, by [resource, step]; before the first
    step they have freed nothing that is not among the free amounts already."""
    held = _amounts([each.held for each in problem.endings], names)
    after_s = np.array([each.after_s for each in problem.endings]).reshape(-1)
    passed_s = np.arange(STEPS)[:, None] * STEP_S
    ended = (after_s <= passed_s) & (passed_s > 0)
    return np.stack([held[gone].sum(axis=0) for gone in ended], axis=1)


def _table(
    problem: SelectionProblem,
    contenders: Sequence[Contender],
    owner: Ints,
    options: Sequence[Option | None],
    values: Floats,
    amounts: Floats,
    free: Floats,
) -> AheadTable:
    """Return the table; the first row of each job changes nothing."""
    useful = (values > 0) | (amounts < 0).any(axis=1)
    order = np.flatnonzero(useful)
    order = order[np.argsort(owner[order], kind="stable")]
    job = np.concatenate([np.arange(len(contenders)), owner[order]])
    place = np.argsort(job, kind="stable")
    rows = np.concatenate([np.full(len(contenders), -1), order])[place]
    largest = np.maximum(np.abs(amounts).max(axis=0, initial=0.0), free)
    scale = np.ldexp(1.0, np.frexp(np.maximum(largest, ROOM_SLACK))[1])
    changes = rows >= 0
    of_rows = amounts[rows] / scale if len(values) else np.zeros((len(rows), len(free)))
    of_rows[~changes] = 0.0
    return AheadTable(
        problem,
        [contender.job for contender in contenders],
        [options[row] if row >= 0 else None for row in rows.tolist()],
        job[place],
        np.searchsorted(job[place], np.arange(len(contenders))).astype(np.int64),
        np.where(changes, values[rows] if len(values) else 0.0, 0.0),
        of_rows,
        (free + ROOM_SLACK) / scale,
        (free + STRICT) / scale,
    )
