"""The proven optimum: a multiple-choice knapsack by HiGHS, without the rows that cannot be part of it.

The relaxation bounds the value of any selection; the greedy walk along the hulls nearly reaches it. A row whose loss
exceeds the difference of both is in no better selection (reduced-cost fixing). Few rows are left, for most jobs a
single one. ``exact_or_hull`` goes so far only where these rows, and the solver's nodes, are few.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array, csr_array, vstack

from stretto_core.arbiter.selection.hull import climb
from stretto_core.arbiter.selection.problem import Selection, SelectionProblem
from stretto_core.arbiter.selection.relaxation import PRECISION, Relaxation, relaxed
from stretto_core.arbiter.selection.table import Floats, Ints, OptionTable

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Effort:
    """Most work for a proof: ``rows`` of one programme, None for any number, and ``nodes`` that the solver explores.

    A limit in seconds would give other decisions on a busy machine, and in a replay.
    """

    rows: int | None
    nodes: int


WHOLE = Effort(rows=None, nodes=50_000)
"""Effort of ``exact``: 1,000 jobs have taken a hundred nodes."""
SHORT = Effort(rows=150, nodes=50)
"""Effort of ``exact_or_hull``: milliseconds for a dozen jobs, half a second at most for 1,000 (measured)."""
UNITS = 1000.0
"""The programme is scaled so that its bound, or a higher value, is this number: the solver stops at an absolute gap of
1e-6."""
GAP = 1e-9
"""Tolerance of the solver's bound, relative."""
INFEASIBLE = 2
"""Status of ``milp``."""
FIRST_SHARE = 0.1
"""Share of the possible loss up to which rows are tried first: a better start leaves fewer rows for the proof."""
FORBIDDEN_MAX = 20
"""Solutions that fit only within the solver's tolerance, and are excluded one by one."""


def exact(problem: SelectionProblem) -> Selection:
    """Return the optimum and the bound that proves it. Raises InvalidValue.

    If the solver's nodes run out, it is the best selection found, with the bound proven so far.
    """
    return solved(OptionTable.of(problem), WHOLE)


def exact_or_hull(problem: SelectionProblem) -> Selection:
    """Return the optimum where a short proof finds it, and else a selection no worse than the greedy walk's.

    The bound is the best that is proven by then: the solver's, or the relaxation's. Raises InvalidValue.
    """
    return solved(OptionTable.of(problem), SHORT)


def solved(table: OptionTable, effort: Effort, objective: str = "") -> Selection:
    """Return the best selection found within the effort, and the bound proven by then."""
    if not table.jobs:
        return table.selection([], 0.0, objective)
    relaxation = relaxed(table)
    at = climb(table, relaxation)
    bound, most = relaxation.bound, FIRST_SHARE * _possible(table, relaxation, at)
    while _possible(table, relaxation, at) > 2 * PRECISION * relaxation.bound:
        rows = _open_rows(table, at, relaxation.loss <= most)
        if effort.rows is not None and len(rows) > effort.rows:
            break
        at, proven = _best_among(table, at, rows, relaxation.bound, effort.nodes)
        if (possible := _possible(table, relaxation, at)) <= most:  # no row left out is in a better selection
            bound = min(bound, proven)
            break
        most = possible
    return table.selection(at, bound, objective)


def _possible(table: OptionTable, relaxation: Relaxation, at: Ints) -> float:
    """Return the largest loss of a row that may be in a better selection than ``at``."""
    return relaxation.bound * (1 + PRECISION) - table.value(at)


def _open_rows(table: OptionTable, at: Ints, kept: Flags) -> Ints:
    """Return the ``kept`` rows and the rows of ``at``, of jobs with more than one such row."""
    kept = kept.copy()
    kept[at] = True
    counts = np.add.reduceat(kept.astype(np.int64), table.starts)
    return np.flatnonzero(kept & (counts > 1)[table.job])


def _best_among(table: OptionTable, at: Ints, rows: Ints, most: float, nodes: int) -> tuple[Ints, float]:
    """Return the best choice [jobs] among ``rows`` and the rows of ``at``, and a bound on the value of all such
    choices.

    ``most`` is a bound on the value of any choice; the solver explores at most ``nodes`` nodes.
    """
    if not len(rows):
        return at, table.value(at)
    programme = _Programme(table, rows, at, most)
    for _ in range(FORBIDDEN_MAX):
        found, proven = programme.solve(nodes)
        most = min(most, max(proven, table.value(at)))
        if found is None:
            break
        if table.fits(found):
            return (found if table.value(found) > table.value(at) else at), max(most, table.value(found))
        programme.forbid(found)
    return at, most


class _Programme:
    """A mixed-integer programme with a binary variable for each of ``rows``; other jobs keep their row of ``at``."""

    def __init__(self, table: OptionTable, rows: Ints, at: Ints, bound: float) -> None:
        self.table, self.rows, self.at = table, rows, at
        self.jobs, owner = np.unique(table.job[rows], return_inverse=True)
        ones, columns = np.ones(len(rows)), np.arange(len(rows))
        self.once = csr_array(coo_array((ones, (owner, columns)), shape=(len(self.jobs), len(rows))))
        others = np.delete(at, self.jobs)
        self.left = table.room - table.amounts[others].sum(axis=0)
        self.settled = float(table.values[others].sum())
        self.unit = max(bound, float(table.values[rows].max())) / UNITS
        self.forbidden = list[Floats]()

    def solve(self, nodes: int) -> tuple[Ints | None, float]:
        """Return the best rows [jobs] that are not forbidden, or None, and a bound on the value of all of these.

        The solver explores so many ``nodes`` at most.
        """
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
            options={"mip_rel_gap": 0.0, "node_limit": nodes},
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
        """Exclude these rows together from further solutions."""
        self.forbidden.append(np.isin(self.rows, found).astype(np.float64))
