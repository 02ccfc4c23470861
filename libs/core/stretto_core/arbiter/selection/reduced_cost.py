"""Reduced-cost fixing: which jobs get the same option in every better selection, and which may get another one.

The relaxation bounds the value of every selection that contains a given row. A row whose bound is below the value to
beat is in no better selection. A job with no row left but the chosen one is fixed, the others are ambiguous. Often they
are few, and only they are worth a longer search. ``exact`` reduces its problem in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from stretto_core.arbiter.selection.problem import SelectionProblem
from stretto_core.arbiter.selection.relaxation import PRECISION, relaxed
from stretto_core.arbiter.selection.table import OptionTable


def ambiguous_jobs(problem: SelectionProblem, chosen: Mapping[str, str | None], value: float) -> set[str]:
    """Return the jobs that a selection of more than ``value`` may give another option than ``chosen`` does.

    Every such selection, if there is one, gives all other jobs the chosen option.
    """
    table = OptionTable.of(problem)
    if not table.jobs:
        return set()
    relaxation = relaxed(table)
    possible = np.flatnonzero(relaxation.loss <= relaxation.bound * (1 + PRECISION) - value)
    options = ((table.jobs[table.job[row]], table.options[row]) for row in possible)
    return {job for job, option in options if (option and option.id) != chosen.get(job)}
