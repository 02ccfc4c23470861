"""Consecutive layers of a model, which one stage of a job computes: what crosses to them, and what comes back. Pure.

Layer 0 is the rows. Behind it stand the layers of the model in the order in which a step passes them. A cut before a
layer is crossed by all tensors that later layers take; a cut behind layer 0 by the rows themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from .engine.layout import F32, I64, KeyBatch, Layout
from .errors import ModelRefused
from .readers import Batch

NOTHING: F32 = np.zeros(0, np.float32)
_NO_SLICES: I64 = np.zeros(0, np.int64)
FIRST_LAYER = 1
"""The first layer that is not the rows."""
RANGES_TOLD = 12
"""Ranges of layers that an error names."""


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


class Variable(NamedTuple):
    """A parameter or a state of a model. layers: those that take it. place: where a trained one is in the dense vector;
    None: it is not trained."""

    name: str
    layers: Sequence[int]
    place: slice | None = None


class ModelLayer(NamedTuple):
    """A layer of a model. uncut: why no stage can begin with it; "" where one can."""

    name: str
    uncut: str = ""


class Uncrossed(NamedTuple):
    """A value that crosses no cut, from the layer that makes it to the last layer that takes it. why: it stays."""

    first: int
    last: int
    why: str


class Chain:
    """The layers of a model in the order of a step, and the dense slices that have their parameters.

    model: its name. names: of the layers behind the rows. variables: the trained ones in the order of the layout, then
    the others. kept: values that cross no cut.
    """

    def __init__(
        self, model: str, names: Sequence[str], layout: Layout, variables: Sequence[Variable], kept: Sequence[Uncrossed]
    ) -> None:
        self.model, self.names, self.layout, self.variables = model, names, layout, variables
        self._kept = [*kept]
        for each in variables:
            if len(each.layers) > 1:
                taking = ", ".join(map(str, each.layers))
                why = f"the variable {each.name} is taken by the layers {taking}, and belongs to one stage"
                self._kept.append(Uncrossed(min(each.layers), max(each.layers), why))

    @property
    def end(self) -> int:
        """The layer behind the last one."""
        return len(self.names) + FIRST_LAYER

    @property
    def layers(self) -> list[ModelLayer]:
        """The layers behind the rows."""
        return [ModelLayer(name, self._uncut(layer)) for layer, name in enumerate(self.names, FIRST_LAYER)]

    def _uncut(self, layer: int) -> str:
        """Return why the model is not cut before a layer; "" where it is."""
        return next((each.why for each in self._kept if each.first < layer <= each.last), "")

    def slices_of(self, place: slice) -> I64:
        """Return the dense slices that have values of a trained variable."""
        length = self.layout.slice_length
        return np.arange(place.start // length, -(-place.stop // length))

    def slices_between(self, first: int, end: int) -> tuple[I64, I64]:
        """Return the slices with parameters of the layers from one up to another, and those that these layers push.

        A slice is pushed by the first layer that has parameters in it. The first layer behind the rows pushes those
        without any, and the first slice, with which the state travels.
        """
        firsts, pulled = np.full(self.layout.slices, self.end), [_NO_SLICES]
        for variable in self.variables:
            if variable.place is None:
                continue
            its = self.slices_of(variable.place)
            firsts[its] = np.minimum(firsts[its], min(variable.layers, default=FIRST_LAYER))
            if any(first <= layer < end for layer in variable.layers):
                pulled.append(its)
        firsts[firsts >= self.end] = FIRST_LAYER
        firsts[0] = FIRST_LAYER
        return np.unique(np.concatenate(pulled)), np.flatnonzero((firsts >= first) & (firsts < end))

    def check(self, first: int, until: int | None) -> int:
        """Return the layer behind the last one of a part. Raises ModelRefused for layers that cannot be computed by
        themselves."""
        for layer, whose in ((first, ""), (until, " of the next stage")):
            if layer is not None and (why := self._refused(layer)):
                raise ModelRefused(f"first_layer = {layer}{whose}: {why}; {self._remedy()}")
        if until is not None and until <= first:
            raise ModelRefused(
                f"first_layer = {until} of the next stage: the stage before it begins with layer {first} of "
                f"{self.model!r}, and has at least one; {self._remedy()}"
            )
        return self.end if until is None else until

    def _refused(self, layer: int) -> str:
        """Return why a stage behind the rows cannot begin with this layer; "" where one can."""
        if not FIRST_LAYER <= layer < self.end:
            return f"{self.model!r} has the layers 0 (the rows) to {len(self.names)} ({self.names[-1]})"
        why = self._uncut(layer)
        return why and f"no cut before {self.names[layer - FIRST_LAYER]} of {self.model!r}: {why}"

    def _remedy(self) -> str:
        possible = [at for at, layer in enumerate(self.layers, FIRST_LAYER) if at > FIRST_LAYER and not layer.uncut]
        if not possible:
            return f"no stage can begin behind layer {FIRST_LAYER}: set resources.workers.stages: 2"
        return f"stage 2 can begin with layer {told_numbers(possible)}; `stretto check` lists all layers"

    def found(self, pulled: I64, pushed: I64, dense: F32, behind: Returned, state_delta: F32, **answer: Any) -> Found:
        """Return the outcome of a step of a part. dense: the gradients of its own parameters; gradients of the layers
        behind are added in shared slices. behind: their answer, whose parts of slices are pushed or passed on here.
        answer: the gradients of rows or of tensors that came in."""
        slices = self.layout.split_dense(dense)
        slices[behind.shared] += behind.shared_gradients.reshape(len(behind.shared), self.layout.slice_length)
        shared = np.setdiff1d(np.union1d(pulled, behind.shared), pushed)
        if len(behind.state_delta):
            state_delta = state_delta + behind.state_delta
        is_told = 0 in pushed  # the state travels with the first slice
        told = Returned(
            behind.loss,
            shared=shared.astype(np.int64),
            shared_gradients=slices[shared],
            state_delta=NOTHING if is_told else state_delta,
            **answer,
        )
        return Found(told, self.layout.join_dense(slices), state_delta if is_told else NOTHING)


def told_numbers(numbers: Sequence[int]) -> str:
    """Return rising numbers as words: `2, 4 to 9 or 12`, at most `RANGES_TOLD` ranges of them."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    told = [str(first) if first == last else f"{first} to {last}" for first, last in ranges]
    told = told if len(told) <= RANGES_TOLD else [*told[: RANGES_TOLD - 1], f"others up to {numbers[-1]}"]
    return " or ".join(filter(None, (", ".join(told[:-1]), told[-1])))


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
