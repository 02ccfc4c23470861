"""The gradients of several batches of a worker, added up for one push. Pure.

With the gradients g_1 … g_n of n batches, a push brings g_1 + … + g_n, as in Downpour SGD (Dean et al., Large Scale
Distributed Deep Networks, 2012: n_push); beside it, for rules that take squares, g_1² + … + g_n². So plain SGD moves
as far as in n steps, and Adagrad's accumulators grow as in n steps. Each gradient is of the parameters that its batch
pulled, and within the limits of its batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import starmap

import numpy as np
from stretto_parameters.keys import union

from ..engine.layout import F32, KeyBatch, Layout, TableKeys
from ..model.program import Gradients

_NONE: F32 = np.zeros(0, np.float32)


class GradientSum:
    """The sum of the gradients of batches, in their order. Its loss is that of the last one.

    A program gives squares beside the gradients of a table, or of the dense parameters, with each batch or with none.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._keys: list[KeyBatch] = []
        self._found: list[Gradients] = []
        """Gradients of rows by batch; the sum of all others is in the last entry."""

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, keys: KeyBatch, gradients: Gradients) -> None:
        """Add the gradients of a batch."""
        if self._found:
            before, gradients = self._found[-1], self._squared(gradients)
            if len(self) == 1:
                before = self._squared(before)
            self._found[-1] = replace(before, dense=_NONE, state_delta=_NONE, dense_squares=None)
            gradients = replace(
                gradients,
                dense=before.dense + gradients.dense,
                state_delta=before.state_delta + gradients.state_delta,
                dense_squares=_both(before.dense_squares, gradients.dense_squares),
            )
        self._keys.append(keys)
        self._found.append(gradients)

    def _squared(self, gradients: Gradients) -> Gradients:
        """Return gradients of a batch with their squares, where the rule of a part takes any."""
        given = gradients.row_squares or [None] * len(gradients.rows)
        takes = [table.optimizer.TAKES_SQUARES for table in self._layout.tables]
        return replace(
            gradients,
            row_squares=tuple(starmap(_squares, zip(gradients.rows, given, takes, strict=True))),
            dense_squares=_squares(gradients.dense, gradients.dense_squares, self._layout.optimizer.TAKES_SQUARES),
        )

    def total(self) -> tuple[KeyBatch, Gradients]:
        """Return the keys of all batches, each once, with the sums; of a single batch what was added."""
        if len(self) == 1:
            return self._keys[0], self._found[0]
        keys = union(self._keys)
        rows = zip(*(each.rows for each in self._found), strict=True)
        squares = zip(*(each.row_squares for each in self._found), strict=True)
        return keys, replace(
            self._found[-1],
            rows=tuple(starmap(_added, zip(keys.tables, rows, strict=True))),
            row_squares=tuple(
                _added(table, known) if (known := [each for each in parts if each is not None]) else None
                for table, parts in zip(keys.tables, squares, strict=True)
            ),
        )


def _added(keys: TableKeys, parts: Sequence[F32]) -> F32:
    """Return rows [keys, width], the sums of those that each batch has for its own keys."""
    total = np.zeros((len(keys), parts[0].shape[1]), np.float32)
    begin = 0
    for part in parts:
        total[keys.inverse[begin : begin + len(part)]] += part
        begin += len(part)
    return total


def _squares(gradients: F32, given: F32 | None, takes: bool) -> F32 | None:
    return given if given is not None or not takes else gradients * gradients


def _both(one: F32 | None, other: F32 | None) -> F32 | None:
    return None if one is None or other is None else one + other
