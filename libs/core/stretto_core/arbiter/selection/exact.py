"""The proven optimum: a multiple-choice knapsack by HiGHS, after all is removed that cannot be in it.

The relaxation bounds what any selection reaches, the greedy walk along the hulls reaches nearly as much. A row whose
loss is more than the difference of both is in no better selection (reduced-cost fixing); few rows are left, and for
most jobs one alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array, csr_array, vstack

from stretto_core.arbiter.selection.hull import climb
from stretto_core.arbiter.selection.problem import Selection, SelectionProblem
from stretto_core.arbiter.selection.relaxation import PRECISION, Relaxation, relaxed
from stretto_core.arbiter.selection.table import Floats, Ints, Table

Flags = NDArray[np.bool_]

NODES_MOST = 50_000
"""that the solver looks into at most (1,000 jobs have taken fifty): a limit in seconds would decide otherwise on a
busy machine, and when decisions are replayed"""
UNITS = 1000.0
"""that the bound, or a higher value, has in the programme: the solver stops at a millionth of one"""
GAP = 1e-9
INFEASIBLE = 2
FIRST_SHARE = 0.1
"""of the losses that are possible: what is found among few rows leaves fewer for the proof"""
FORBIDDEN_MAX = 20
"""solutions that fit within the solver's tolerance only"""


def exact(problem: SelectionProblem) -> Selection:
    """The best selection there is, and the bound that proves it; where the solver's nodes run out, the best found with
    what is proven by then. Raises InvalidValue."""
    table = Table.of(problem)
    if not table.jobs:
        return table.selection([], 0.0)
    relaxation = relaxed(table)
    at = climb(table, relaxation)
    bound, most = relaxation.bound, FIRST_SHARE * _possible(table, relaxation, at)
    while _possible(table, relaxation, at) > 2 * PRECISION * relaxation.bound:
        at, proven = _best_among(table, at, relaxation.loss <= most, relaxation.bound)
        if (possible := _possible(table, relaxation, at)) <= most:  # what was left out is in none that is better
            bound = min(bound, proven)
            break
        most = possible
    return table.selection(at, bound)


def _possible(table: Table, relaxation: Relaxation, at: Ints) -> float:
    """The most that a row may lose to be in a better selection."""
    return relaxation.bound * (1 + PRECISION) - table.value(at)


def _best_among(table: Table, at: Ints, kept: Flags, most: float) -> tuple[Ints, float]:
    """The best rows [jobs] of those ``kept`` and of ``at``, and what none of these exceed; ``most``: what none does."""
    kept = kept.copy()
    kept[at] = True
    counts = np.add.reduceat(kept.astype(np.int64), table.starts)
    rows = np.flatnonzero(kept & (counts > 1)[table.job])
    if not len(rows):
        return at, table.value(at)
    programme = _Programme(table, rows, at, most)
    for _ in range(FORBIDDEN_MAX):
        found, proven = programme.solve()
        most = min(most, max(proven, table.value(at)))
        if found is None:
            break
        if table.fits(found):
            return (found if table.value(found) > table.value(at) else at), max(most, table.value(found))
        programme.forbid(found)
    return at, most


class _Programme:
    """A binary for each of ``rows``; jobs without any keep their row of ``at``."""

    def __init__(self, table: Table, rows: Ints, at: Ints, bound: float) -> None:
        self.table, self.rows, self.at = table, rows, at
        self.jobs, owner = np.unique(table.job[rows], return_inverse=True)
        ones, columns = np.ones(len(rows)), np.arange(len(rows))
        self.once = csr_array(coo_array((ones, (owner, columns)), shape=(len(self.jobs), len(rows))))
        others = np.delete(at, self.jobs)
        self.left = table.room - table.amounts[others].sum(axis=0)
        self.settled = float(table.values[others].sum())
        self.unit = max(bound, float(table.values[rows].max())) / UNITS
        self.forbidden = list[Floats]()

    def solve(self) -> tuple[Ints | None, float]:
        """The best rows [jobs], not forbidden, if there are any, and what no others exceed."""
        table, count = self.table, len(self.jobs)
        forbidden = np.array(self.forbidden).reshape(-1, len(self.rows))
        matrix = vstack([self.once, csr_array(table.amounts[self.rows].T), csr_array(forbidden)])
        low = np.concatenate([np.ones(count), np.full(len(self.left) + len(self.forbidden), -np.inf)])
        high = np.concatenate([np.ones(count), self.left, np.full(len(self.forbidden), count - 1.0)])
        found = milp(
            -table.values[self.rows] / self.unit,
            integrality=np.ones(len(self.rows)),
            bounds=Bounds(0, 1),
            constraints=LinearConstraint(matrix, low, high),  # type: ignore[arg-type]  # arrays
            options={"mip_rel_gap": 0.0, "node_limit": NODES_MOST},
        )
        if found.status == INFEASIBLE:
            return None, -np.inf
        proven = found.mip_dual_bound
        proven = np.inf if proven is None else self.settled - float(proven) * self.unit + GAP * self.unit * UNITS
        if found.x is None:
            return None, proven
        rows = self.at.copy()
        taken = self.rows[np.asarray(found.x) > 0.5]
        rows[table.job[taken]] = taken
        return rows, proven

    def forbid(self, found: Ints) -> None:
        """Not these rows together again."""
        self.forbidden.append(np.isin(self.rows, found).astype(np.float64))
