"""The owners that follow from the states of a column at all servers.

Nothing here decides where a column should be: the actuator plans that (``stretto_core.actuator.placement``).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from stretto_parameters import Own

from .layout import I64


def owners(own: Mapping[int, I64], columns: int) -> I64:
    """Return the server that serves reads of each column: [columns], -1 for a column without a server.

    MINE goes before FROZEN. Between the two last steps of a move one column has both states, and the server where it
    is MINE is ahead.
    """
    route = np.full(columns, -1, np.int64)
    for state in (Own.FROZEN, Own.MINE):
        for server, vector in own.items():
            route[vector == state] = server
    return route


__all__ = ["Own", "owners"]
