"""Greedy along every job's upper convex hull of value over price, with the bound of the linear relaxation.

The prices at which the relaxation clears make one weight of several resources. Along a job's hull, value per weight
falls; taking the steps of all jobs in that order is the relaxation's optimum but for the last step of each resource
(Sinha and Zoltners, Operations Research 1979): what is lost is less than one job's option.
"""

from __future__ import annotations

import numpy as np

from stretto_core.arbiter.selection.problem import Selection, SelectionProblem
from stretto_core.arbiter.selection.relaxation import Relaxation, relaxed
from stretto_core.arbiter.selection.table import Floats, Ints, Table

NEAR = 1e-6
"""of the bound: what more rounds would bring is less than what is lost"""
IMPROVEMENTS = 400
PAIRED = 160
"""rows among which two are looked for that could be exchanged together"""
NEXT_TO_NOTHING = 1e-12
"""of weight, relative to the heaviest option; of value, to all"""


def hull(problem: SelectionProblem) -> Selection:
    """Within one option or so of the optimum, and the bound that shows it. Raises InvalidValue."""
    table = Table.of(problem)
    if not table.jobs:
        return table.selection([], 0.0)
    relaxation = relaxed(table, NEAR)
    return table.selection(climb(table, relaxation), relaxation.bound)


def climb(table: Table, relaxation: Relaxation) -> Ints:
    """Each job's row [jobs] that the greedy walk ends on; it fits.

    Who gives one resource back and takes another is on no walk from below: what all jobs want at the relaxation's
    prices, mended, is a second start.
    """
    weight = table.priced(relaxation.price)
    at = table.best(np.where((table.amounts <= 0).all(axis=1), -weight, -np.inf))
    at = _improve(table, _walk(table, at, *_steps(table, weight, at)), relaxation)
    if (table.amounts < 0).any():
        other = _mended(table, table.best(table.values - weight), relaxation)
        if other is not None and table.value(other := _improve(table, other, relaxation)) > table.value(at):
            at = other
    while not table.fits(at):  # sums of many fractions differ in their last digits
        taken = np.flatnonzero((table.amounts[at] > 0).any(axis=1))
        least = taken[table.values[at[taken]].argmin()]
        at[least] = table.starts[least]
    return at


def _steps(table: Table, weight: Floats, start: Ints) -> tuple[Ints, Ints]:
    """The steps along all hulls as (job, row), the best value per weight first."""
    at, least = start.copy(), NEXT_TO_NOTHING * max(float(np.abs(weight).max(initial=0.0)), 1e-300)
    jobs, rows, densities = list[Ints](), list[Ints](), list[Floats]()
    while True:
        more, heavier = table.values - table.values[at][table.job], weight - weight[at][table.job]
        with np.errstate(over="ignore"):
            density = np.where((more > 0) & (heavier >= -least), more / np.maximum(heavier, least), -np.inf)
        nearest = table.best(density)
        moving = np.flatnonzero(density[nearest] > -np.inf)
        if not len(moving):
            break
        at[moving] = nearest[moving]
        jobs.append(moving)
        rows.append(nearest[moving])
        densities.append(density[nearest[moving]])
    if not jobs:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    order = np.argsort(-np.concatenate(densities), kind="stable")
    return np.concatenate(jobs)[order], np.concatenate(rows)[order]


def _walk(table: Table, at: Ints, jobs: Ints, rows: Ints) -> Ints:
    """Take every step that fits beside those before it; one that does not is passed over."""
    at = at.copy()
    used, most = table.amounts[at].sum(axis=0).tolist(), table.strict.tolist()
    worth, held = table.values[at].tolist(), table.amounts[at].tolist()
    steps = zip(jobs.tolist(), rows.tolist(), table.values[rows].tolist(), table.amounts[rows].tolist(), strict=True)
    for job, row, value, needed in steps:
        if value <= worth[job]:
            continue
        after = [u + n - b for u, n, b in zip(used, needed, held[job], strict=True)]
        if all(a <= m or a <= u for a, m, u in zip(after, most, used, strict=True)):
            used, at[job], worth[job], held[job] = after, row, value, needed
    return at


def _mended(table: Table, at: Ints, relaxation: Relaxation) -> Ints | None:
    """Exchange rows until all fits, the least loss per excess first; None: that does not succeed."""
    at = at.copy()
    for _ in range(IMPROVEMENTS):
        excess = table.amounts[at].sum(axis=0) - table.strict
        if (excess <= 0).all():
            return at
        over, relief = excess > 0, table.amounts[at][table.job] - table.amounts
        # less of what there is too much of, in shares of the excess, and no more than there is of anything else
        eased = np.minimum(relief[:, over] / excess[over], 1.0).sum(axis=1)
        allowed = (eased > 1e-12) & (relief[:, ~over] >= excess[~over]).all(axis=1)
        if not allowed.any():
            return None
        lost = np.maximum(relaxation.loss - relaxation.loss[at][table.job], 0.0)
        row = int(np.where(allowed, lost / np.maximum(eased, 1e-12), np.inf).argmin())
        at[table.job[row]] = row
    return None


def _improve(table: Table, at: Ints, relaxation: Relaxation) -> Ints:
    """Exchange one job's row for a better one, or those of two, while that fits; the most valuable exchange first."""
    for _ in range(IMPROVEMENTS):
        left = np.maximum(table.strict - table.amounts[at].sum(axis=0), 0.0)
        more, taken = table.values - table.values[at][table.job], table.amounts - table.amounts[at][table.job]
        score = np.where((taken <= left).all(axis=1), more, 0.0)
        rows = [int(score.argmax())]
        if score[rows[0]] <= 0:
            less = relaxation.loss - relaxation.loss[at][table.job]
            less[at] = np.inf
            near = _least(less)
            if not len(near):
                break
            both = more[near][:, None] + more[near]
            fits = (taken[near][:, None] + taken[near] <= left).all(axis=2)
            score = np.where(fits & (table.job[near][:, None] != table.job[near]), both, 0.0)
            rows = [int(near[i]) for i in divmod(int(score.argmax()), len(near))]
            if score.max() <= NEXT_TO_NOTHING * relaxation.bound:
                break
        at[table.job[rows]] = rows
    return at


def _least(loss: Floats) -> Ints:
    """The rows of the least loss, but those that are chosen."""
    rows = np.argpartition(loss, PAIRED)[:PAIRED] if len(loss) > PAIRED else np.arange(len(loss))
    return np.sort(rows[np.isfinite(loss[rows])])
