"""Greedy along every job's upper convex hull of value over price, with the bound of the linear relaxation.

The prices of the relaxation combine several resources into one weight. Along a job's hull, value per weight falls.
Taking the steps of all jobs in that order gives the relaxation's optimum, except for the last step of each resource
(Sinha and Zoltners, Operations Research 1979). The loss is less than one job's option.
"""

from __future__ import annotations

import numpy as np

from stretto_core.arbiter.selection.problem import Selection, SelectionProblem
from stretto_core.arbiter.selection.relaxation import Relaxation, relaxed
from stretto_core.arbiter.selection.table import Floats, Ints, OptionTable

NEAR = 1e-6
"""Relative precision of the bound. A better one would be smaller than the loss of the walk."""
IMPROVEMENTS = 400
"""Exchanges at most."""
PAIRED = 160
"""Rows among which pairs are tried for an exchange."""
NEGLIGIBLE = 1e-12
"""Weight relative to the heaviest option, and value relative to the bound, that count as zero."""


def hull(problem: SelectionProblem) -> Selection:
    """Return a selection within about one option of the optimum, and the bound that proves it. Raises InvalidValue."""
    table = OptionTable.of(problem)
    if not table.jobs:
        return table.selection([], 0.0)
    relaxation = relaxed(table, NEAR)
    return table.selection(climb(table, relaxation), relaxation.bound)


def climb(table: OptionTable, relaxation: Relaxation) -> Ints:
    """Return each job's row [jobs] at the end of the greedy walk; all together fit.

    An option that gives one resource back and takes another is on no walk from below. Where there are such options, a
    second start is each job's best row at the relaxation's prices, repaired until all fit.
    """
    weight = table.priced(relaxation.price)
    at = table.best(np.where((table.amounts <= 0).all(axis=1), -weight, -np.inf))
    at = _improve(table, _walk(table, at, *_steps(table, weight, at)), relaxation)
    if (table.amounts < 0).any():
        other = _repaired(table, table.best(table.values - weight), relaxation)
        if other is not None and table.value(other := _improve(table, other, relaxation)) > table.value(at):
            at = other
    while not table.fits(at):  # sums of many fractions may differ in their last digits
        taken = np.flatnonzero((table.amounts[at] > 0).any(axis=1))
        least = taken[table.values[at[taken]].argmin()]
        at[least] = table.starts[least]
    return at


def _steps(table: OptionTable, weight: Floats, start: Ints) -> tuple[Ints, Ints]:
    """Return the steps along all hulls as (job, row), the highest value per weight first."""
    at, least = start.copy(), NEGLIGIBLE * max(float(np.abs(weight).max(initial=0.0)), 1e-300)
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


def _walk(table: OptionTable, at: Ints, jobs: Ints, rows: Ints) -> Ints:
    """Take every step that fits beside those before it, and skip the others."""
    at = at.copy()
    used, most = table.amounts[at].sum(axis=0).tolist(), table.strict.tolist()
    worth, held = table.values[at].tolist(), table.amounts[at].tolist()
    steps = zip(jobs.tolist(), rows.tolist(), table.values[rows].tolist(), table.amounts[rows].tolist(), strict=True)
    for job, row, value, needed in steps:
        if value <= worth[job]:
            continue
        after = [total + more - less for total, more, less in zip(used, needed, held[job], strict=True)]
        if all(new <= limit or new <= old for new, limit, old in zip(after, most, used, strict=True)):
            used, at[job], worth[job], held[job] = after, row, value, needed
    return at


def _repaired(table: OptionTable, at: Ints, relaxation: Relaxation) -> Ints | None:
    """Exchange rows until all fit, the least loss per excess first; return None if that fails."""
    at = at.copy()
    for _ in range(IMPROVEMENTS):
        excess = table.amounts[at].sum(axis=0) - table.strict
        if (excess <= 0).all():
            return at
        over, relief = excess > 0, table.amounts[at][table.job] - table.amounts
        # relief of the exceeded resources, as shares of the excess; no other resource may become exceeded
        eased = np.minimum(relief[:, over] / excess[over], 1.0).sum(axis=1)
        allowed = (eased > 1e-12) & (relief[:, ~over] >= excess[~over]).all(axis=1)
        if not allowed.any():
            return None
        lost = np.maximum(relaxation.loss - relaxation.loss[at][table.job], 0.0)
        row = int(np.where(allowed, lost / np.maximum(eased, 1e-12), np.inf).argmin())
        at[table.job[row]] = row
    return None


def _improve(table: OptionTable, at: Ints, relaxation: Relaxation) -> Ints:
    """Exchange the row of one job, or the rows of two, for better ones that fit; the most valuable exchange first."""
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
            rows = [int(near[index]) for index in divmod(int(score.argmax()), len(near))]
            if score.max() <= NEGLIGIBLE * relaxation.bound:
                break
        at[table.job[rows]] = rows
    return at


def _least(loss: Floats) -> Ints:
    """Return the rows of the least loss, without the chosen ones, whose loss is infinite."""
    rows = np.argpartition(loss, PAIRED)[:PAIRED] if len(loss) > PAIRED else np.arange(len(loss))
    return np.sort(rows[np.isfinite(loss[rows])])
