"""Consecutive layers of a model, which one stage of a job computes: what crosses to them, and what comes back. Pure.

Layer 0 is the rows. Behind it stand the layers of the model in the order in which a step passes them. A cut before a
layer is crossed by all tensors that later layers take; a cut behind layer 0 by the rows themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from .engine.layout import F32, I64, KeyBatch, Layout
from .readers import Batch

NOTHING: F32 = np.zeros(0, np.float32)
_NO_SLICES: I64 = np.zeros(0, np.int64)
FIRST_LAYER = 1
"""The first layer that is not the rows."""


class Given(NamedTuple):
    """The part of a batch that crosses a cut. rows, keys: of the cut behind layer 0; live: the tensors that cross a
    later cut, in the order of the model. batch: over a later cut, the labels alone."""

    rows: tuple[F32, ...]
    keys: KeyBatch
    batch: Batch
    live: tuple[NDArray[Any], ...] = ()


class Returned(NamedTuple):
    """The answer that comes back over a cut: the loss, and the gradients of all that has crossed.

    live: of each tensor, empty for one that has none. shared [n]: dense slices that earlier layers have parameters in,
    too; shared_gradients [n, slice_length]: the part of their gradients that is of these layers. state_delta: what
    these layers add to the state, empty if they have none.
    """

    loss: float
    rows: tuple[F32, ...] = ()
    row_squares: tuple[F32 | None, ...] = ()
    live: tuple[F32, ...] = ()
    shared: I64 = _NO_SLICES
    shared_gradients: F32 = NOTHING
    state_delta: F32 = NOTHING


class Found(NamedTuple):
    """The outcome of a step of some layers: their gradients, of which `Part.pushed` are pushed, and the answer."""

    answer: Returned
    dense: F32
    state_delta: F32
    dense_squares: F32 | None = None


Rest = Callable[[Given], Returned]
"""Computes the layers behind a part."""


class Part(Protocol):
    """Consecutive layers. Only one thread at a time may be in the turn that a step is given."""

    pulled: I64
    """The dense slices that have parameters of these layers."""
    pushed: I64
    """The dense slices that whoever computes these layers pushes: those in which no earlier layer has parameters."""

    def step(self, given: Given, dense: F32, state: F32, rest: Rest, turn: AbstractContextManager[Any]) -> Found:
        """Compute a step, within the turn, and outside of it ask the rest. dense: values in the slices `pulled`.

        Raises ModelRefused, and what the rest raises.
        """
        ...

    def warm(self) -> None:
        """Do what would make the first step slower than the others."""
        ...


def no_keys(layout: Layout) -> KeyBatch:
    """Return the keys of a batch without rows."""
    return layout.index(*[np.zeros(0, np.int64)] * len(layout.tables))
