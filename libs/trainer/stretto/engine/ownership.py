"""The states of a column at a server, and the owners that follow from them.

Nothing here decides where a column should be: the actuator plans that (``stretto_core.actuator.placement``).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

import numpy as np

from .layout import I64


class Own(IntEnum):
    """The state of one column at one server."""

    NOT_MINE = 0
    MINE = 1
    FROZEN = 2  # mine and readable, but every push to it is rejected: it is being moved or copied


def owners(own: Mapping[int, I64], columns: int) -> I64:
    """Return the server that serves reads of each column: [columns], -1 where there is none.

    MINE goes before FROZEN. Between the two last steps of a move one column has both states, and the server where it
    is MINE is ahead.
    """
    route = np.full(columns, -1, np.int64)
    for state in (Own.FROZEN, Own.MINE):
        for server, vector in own.items():
            route[vector == state] = server
    return route
