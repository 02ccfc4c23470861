"""Choose the configurations to measure next, for a job known only by its measurements (DLRover-RM §4.3).

While few configurations are measured, or an axis never varied, the next one is the furthest from all measured ones
(maximin, in logs); later ones have the highest optimistic throughput (log throughput + 1 sd), while that promises
enough. The model's fastest configuration is committed to only once it was measured itself: a model is best where it
is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any, cast

import numpy as np

from stretto_core.model.throughput import COUNTS, Array, Configuration, FittedModel, Inputs, Measurement, throughput

FIRST = 4
"""Configurations spread over the space before a model proposes any."""
OPTIMISTIC_GAIN_MIN = 0.05
APART = math.log(1.5)
"""Least distance of two proposals, in logs: a nearer one tells nearly the same."""
READING_SHARE = 0.5
"""Weight of a reading beside the model: the reading is off by its noise, the model by what its form lacks, and neither
is known to be more."""
REACH = 2.0
"""Largest proposed value, as a multiple of the largest measured one."""


def worth_measuring(
    model: FittedModel,
    measured: Sequence[Configuration],
    axes: Sequence[str],
    most: int = 3,
    among: Sequence[Configuration] | None = None,
    gain_min: float = OPTIMISTIC_GAIN_MIN,
) -> list[Configuration]:
    """At most ``most`` configurations, the most telling first; ``axes`` are the fields that can be varied, ``among``
    what can be had (None: whatever is within reach of what was measured). Empty: even optimism promises less than
    ``gain_min`` more than what was measured."""
    known = list(dict.fromkeys(measured))
    possible = [row for row in (_grid(known, axes) if among is None else among) if row not in known]
    chosen = list[Configuration]()
    while possible and len(chosen) < most:
        seen = [*known, *chosen]
        distance = _distances(possible, seen, axes)
        fixed = [axis for axis in axes if len({getattr(row, axis) for row in seen}) == 1]
        if len(seen) < FIRST or fixed:
            best = int(distance.argmax())
        else:
            optimistic = np.where(distance >= APART, _optimistic(model, possible), 0.0)
            best = int(optimistic.argmax())
            if optimistic[best] < (1 + gain_min) * _reached(model, known):
                break
        chosen.append(possible[best])
    return chosen


def fastest(model: FittedModel, among: Sequence[Configuration], readings: Sequence[Measurement] = ()) -> Configuration:
    """By the model, which is refitted with every measurement; what was read counts half beside it, in logs. The first
    of several."""
    x = Inputs.of(among)
    rate = throughput(model.step_time_s(x), x)
    for row in readings:
        at = [i for i, configuration in enumerate(among) if configuration == row.configuration]
        read = row.configuration.workers * row.configuration.batch_size / row.step_time_s
        rate[at] *= (read / rate[at]) ** READING_SHARE
    return among[int(rate.argmax())]


def to_verify(
    model: FittedModel, readings: Sequence[Measurement], among: Sequence[Configuration]
) -> Configuration | None:
    """Return the fastest predicted configuration to measure before choosing it; None if it was measured."""
    best = fastest(model, among, readings)
    return None if best in [row.configuration for row in readings] else best


def _grid(known: Sequence[Configuration], axes: Sequence[str]) -> list[Configuration]:
    """Return all combinations of some values per axis, at the most frequently measured batch size."""
    batches = [row.batch_size for row in known]
    usual = next(row for row in known if row.batch_size == max(sorted(set(batches)), key=batches.count))
    values = [_values([getattr(row, axis) for row in known], axis in COUNTS) for axis in axes]
    return [replace(usual, **cast("Any", dict(zip(axes, picked, strict=True)))) for picked in product(*values)]


def _values(measured: Sequence[float], whole: bool) -> list[float]:
    """Return values from the least to ``REACH`` times the largest, in factors of about 1.5; counts begin at 1."""
    low, high = (1.0 if whole else min(measured)), REACH * max(measured)
    steps = max(2, round(math.log(high / low) / APART) + 1)
    values = np.geomspace(low, high, min(steps, 12)).tolist()
    return sorted({round(value) if whole else round(value, 1) or value for value in values})


def _distances(possible: Sequence[Configuration], seen: Sequence[Configuration], axes: Sequence[str]) -> Array:
    """Return the distance of each to its nearest measured one, in logarithms."""

    def logs(rows: Sequence[Configuration]) -> Array:
        return np.log(np.array([[getattr(row, axis) for axis in axes] for row in rows], dtype=np.float64))

    return np.sqrt(((logs(possible)[:, None, :] - logs(seen)[None, :, :]) ** 2).sum(axis=2).min(axis=1))


def _optimistic(model: FittedModel, rows: Sequence[Configuration]) -> Array:
    x = Inputs.of(rows)
    return throughput(model.step_time_s(x), x) * np.exp(np.minimum(model.log_sd(x), 5.0))


def _reached(model: FittedModel, known: Sequence[Configuration]) -> float:
    """Return the largest measured throughput in samples per second."""
    x = Inputs.of(known)
    return float(throughput(model.step_time_s(x), x).max())
