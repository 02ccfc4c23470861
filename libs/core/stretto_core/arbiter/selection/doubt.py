"""Which jobs a better selection could give something else: often few, and only they are worth a longer search.

The relaxation bounds what any selection reaches that has a given row (reduced-cost fixing, as ``exact`` does it).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from stretto_core.arbiter.selection.problem import SelectionProblem
from stretto_core.arbiter.selection.relaxation import PRECISION, relaxed
from stretto_core.arbiter.selection.table import Table


def doubtful(problem: SelectionProblem, chosen: Mapping[str, str | None], value: float) -> set[str]:
    """The jobs that some selection of more than ``value`` may give another option than is ``chosen``.

    Every such selection gives all other jobs what is chosen; where there is none, that may be nobody.
    """
    table = Table.of(problem)
    if not table.jobs:
        return set()
    relaxation = relaxed(table)
    possible = np.flatnonzero(relaxation.loss <= relaxation.bound * (1 + PRECISION) - value)
    options = ((table.jobs[table.job[row]], table.options[row]) for row in possible)
    return {job for job, option in options if (option and option.id) != chosen.get(job)}
