"""Marginal doubling among live jobs: the job that gains most speed for its price goes first, small ones before large.

Mean completion time is least if a job with less remaining work gets more than its share, and how much depends on its
rank alone (heSRPT; Berg, Vesilo and Harchol-Balter, SIGMETRICS 2020; ``ahead.doubling`` has it for a pool of nodes).
Live jobs have speeds of their own. So a job's work is the time that it would still take at its present speed, and what
an option brings is the logarithm of the factor on this speed: each doubling counts alike. The walk along the jobs'
hulls hands out steps by value per price, and the linear relaxation bounds the value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from stretto_core.arbiter.ahead.doubling import SMALL_FIRST
from stretto_core.arbiter.selection.hull import NEAR, climb
from stretto_core.arbiter.selection.problem import Contender, Option, Selection, SelectionProblem, speeds
from stretto_core.arbiter.selection.relaxation import relaxed
from stretto_core.arbiter.selection.table import OptionTable

OBJECTIVE = "doublings by rank"


def doubling(problem: SelectionProblem) -> Selection:
    """Return a selection within about one option of the largest sum of weighted doublings of speed, and the bound that
    proves it. Raises InvalidValue."""
    ranks = _ranks(problem)

    def valued(contender: Contender, options: Sequence[Option]) -> list[float]:
        factor = contender.weight * ranks[contender.job] ** SMALL_FIRST
        pairs = (speeds(contender, option) for option in options)
        return [factor * math.log2(then / now) for now, then in pairs]

    table = OptionTable.of(problem, valued)
    if not table.jobs:
        return table.selection([], 0.0, OBJECTIVE)
    relaxation = relaxed(table, NEAR)
    return table.selection(climb(table, relaxation), relaxation.bound, OBJECTIVE)


def _ranks(problem: SelectionProblem) -> dict[str, int]:
    """Return the rank of each job with options: 1 for the largest remaining time at the present speed."""
    left = {
        each.job: each.remaining_samples / speeds(each, each.options[0])[0]
        for each in problem.contenders
        if each.options
    }
    order = sorted(left, key=lambda job: (-left[job], job))
    return {job: rank for rank, job in enumerate(order, 1)}
