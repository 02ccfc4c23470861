"""Shortest paths over (layer, type): runs of layers in which neighbours differ in type."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from stretto_core.planner.placement.problem import Floats


class Cheapest(NamedTuple):
    """The least sum of stage weights and the type of every layer; the value is infinite without a path.

    ``rest`` by [layer, type]: the least weight of this layer and all that follow, when the layer before is on the
    type; the row after the last layer is 0.
    """

    value: float
    assignment: list[int]
    rest: Floats


def cheapest_path(weight: Floats) -> Cheapest:
    """Return the shortest path for stage weights by [first, last, type], from the last layer to the first."""
    count, _, kinds = weight.shape
    every = np.arange(kinds)
    rest = np.zeros((count + 1, kinds))
    begun = np.empty((count, kinds))  # least weight from a layer on, if a stage of the type begins there
    lasts = np.empty((count, kinds), dtype=np.int64)
    for first in range(count - 1, -1, -1):
        total = weight[first, first:] + rest[first + 1 :]
        ends = total.argmin(axis=0)
        lasts[first] = ends + first
        begun[first] = total[ends, every]
        rest[first] = _least_of_others(begun[first])
    assignment = list[int]()
    kind = int(begun[0].argmin())
    while True:
        first = len(assignment)
        assignment += [kind] * (int(lasts[first, kind]) + 1 - first)
        if len(assignment) == count:
            return Cheapest(float(begun[0].min()), assignment, rest)
        others = begun[len(assignment)].copy()
        others[kind] = math.inf
        kind = int(others.argmin())


def _least_of_others(values: Floats) -> Floats:
    """Return the least value of all other positions, for every position."""
    best = int(values.argmin())
    others = np.full_like(values, values[best])
    values = values.copy()
    values[best] = math.inf
    others[best] = values.min()
    return others
