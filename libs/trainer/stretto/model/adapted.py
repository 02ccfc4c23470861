"""The part of an adapted program in which no framework has a say: its batches, keys, predictions, and its trial."""

from __future__ import annotations

import functools
import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from ..engine.layout import F32, KeyBatch
from ..readers import Batch
from .entry_point import call_of
from .example_batch import LABEL
from .fidelity import differs, is_close, probability
from .form import SAMPLES, AdaptedBatches, DataForm, numbered
from .one_step import REPEATED, Trial
from .program import Judged, ProgramBase
from .tables import Tables

log = logging.getLogger("stretto.model")
Form = TypeVar("Form", bound=DataForm)


@dataclass(frozen=True, slots=True)
class Binary:
    """The output whose probabilities of label 1 an evaluation ranks. label: its number among the labels."""

    output: int
    label: int
    is_logit: bool


def name_of(loss: Any) -> str:
    """Return what a loss is, by the name that its author gave it."""
    while isinstance(loss, functools.partial):
        loss = cast("functools.partial[Any]", loss).func
    names = (getattr(loss, name, None) for name in ("name", "__name__"))
    return next((name for name in names if isinstance(name, str) and name), type(loss).__name__)


class AdaptedProgram(AdaptedBatches[Form], ProgramBase, Generic[Form]):
    """A model as its user wrote it, ready to train: its embedding tables are on the parameter servers."""

    _form: Form
    _tables: Tables
    _binary: Binary | None
    _loss_name: str

    # --- what a framework says ----------------------------------------------------------------------------

    @abstractmethod
    def _refusing(self, place: str = ...) -> AbstractContextManager[None]:
        """Turn errors of a block that runs the user's model into ModelRefused. place: what the block does."""

    @abstractmethod
    def _weights_of(self, owner: Any) -> F32:
        """Return the weights of a table as `build` made them: [ids, dimension]."""

    @abstractmethod
    def _arrays(self, rows: Sequence[F32], keys: KeyBatch, dense: F32, state: F32, batch: Batch) -> list[NDArray[Any]]:
        """Return the outputs of the model as it predicts."""

    @abstractmethod
    def _packed(self, arrays: Sequence[Any]) -> Any:
        """Return outputs nested as the model gives them."""

    @abstractmethod
    def _loss_and_outputs(
        self, rows: Sequence[F32], keys: KeyBatch, dense: F32, state: F32, batch: Batch
    ) -> tuple[float, Any]:
        """Return the mean loss of a batch as the model predicts, and its outputs, nested."""

    def _for_metrics(self, batch: Batch, outputs: Any) -> Mapping[str, Any]:
        """Return the fields of Judged that the metrics of the model are computed from."""
        return {}

    def _differing(self, expected: Sequence[NDArray[Any] | None]) -> list[str]:
        """Return the layers that make outputs differ from the expected ones, where that can be said."""
        return []

    # --- the trial ----------------------------------------------------------------------------------------

    def _expected(
        self, outputs: Sequence[NDArray[Any]], again: Sequence[NDArray[Any]], names: Sequence[str]
    ) -> list[NDArray[Any] | None]:
        """Return the outputs that the adapted model must give: None for an output that differs from call to call."""
        expected = [each if is_close(other, each) else None for other, each in zip(again, outputs, strict=True)]
        drawn = [name for name, each in zip(names, expected, strict=True) if each is None]
        if drawn:
            log.warning(
                "the model draws at random in its call, so its output %s is not compared with the original's",
                ", ".join(drawn),
            )
        return expected

    def _first_batch(self) -> Batch:
        return self._batch(self._form.first, self._form.first_targets, 0, self._form.first_samples)

    def _before_training(self, batch: Batch) -> tuple[list[F32], KeyBatch, F32, F32, Batch]:
        """Return what a step takes for a batch before any training."""
        keys = self.index(batch)
        return self._tables.kept(keys, self._weights_of), keys, self.initial_dense(), self.initial_state(), batch

    def _compare(self, expected: Sequence[NDArray[Any] | None]) -> None:
        """Raise ModelRefused if the adapted model gives other outputs than expected for the first samples."""
        with self._refusing():
            found = self._arrays(*self._before_training(self._first_batch()))
        if not all(is_close(a, b) for a, b in zip(found, expected, strict=True)):
            raise differs(found, expected, self._differing(expected))

    def trial(self) -> Trial:
        """Return the first samples, some of them twice where samples are independent of each other."""
        leaves, targets = self._form.first, self._form.first_targets
        count = self._form.first_samples
        whole, cut = [*leaves, *targets.values()], self._first_in_parts(count // 2)
        if all(np.array_equal(a, b) for a, b in zip(whole, cut, strict=True)):
            leaves = [np.concatenate([each, each[:REPEATED]]) for each in leaves]
            targets = {name: np.concatenate([each, each[:REPEATED]]) for name, each in targets.items()}
            count += min(REPEATED, count)
        with self._refusing():
            batch = self._batch(leaves, targets, 0, count)
            lookups, again = self._looked_up(leaves, targets), self._looked_up(leaves, targets)
        is_drawn = any(not np.array_equal(a, b) for (_, a), (_, b) in zip(lookups, again, strict=True))
        return Trial(self.index(batch), batch, (leaves, lookups), is_drawn)

    def _first_in_parts(self, length: int) -> list[NDArray[Any]]:
        """Return the first samples as two calls of `read` give them, the first one of this length: offsets of bags, for
        example, are others then."""
        count, partition = self.first_samples, self.first_partition
        both = [
            self._form.read(start, size, partition, call_of(start, size, partition))
            for start, size in ((0, length), (length, count - length))
            if size
        ]
        parts = zip(*([*leaves, *targets.values()] for leaves, targets in both), strict=True)
        return [np.concatenate(each) if len({e.shape[1:] for e in each}) == 1 else np.zeros(0) for each in parts]

    def _looked_up(self, leaves: Sequence[NDArray[Any]], targets: Batch) -> Sequence[tuple[Any, NDArray[np.int64]]]:
        """Return the lookups of a batch in their order, layer and ids; none where a step checks its ids itself."""
        return ()

    # --- batches ------------------------------------------------------------------------------------------

    def no_keys(self) -> KeyBatch:
        """Return a batch without samples, to pull the dense parameters alone."""
        return self.layout.index(*self._tables.no_ids())

    def _variables(self, keys: KeyBatch) -> Sequence[tuple[str, int, Any]]:
        places = zip(self.embeddings, self._tables.places(keys), strict=True)
        return [(f"the rows of layer {each.layer}", *place) for each, place in places]

    def named(self, rows: Sequence[F32], keys: KeyBatch, dense: F32, state: F32) -> dict[str, F32]:
        """Return the whole weights of rows, parameters and states by what they are."""
        return super().named(self._tables.whole(rows, keys), keys, dense, state)

    # --- computation --------------------------------------------------------------------------------------

    def predict(self, rows: Sequence[F32], keys: KeyBatch, dense: F32, state: F32, batch: Batch) -> Any:
        """Return the probabilities of label 1: [n]; all outputs, nested, of a model without one binary output."""
        arrays = self._arrays(rows, keys, dense, state, batch)
        if self._binary is not None and len(arrays) == 1:
            return probability(arrays[0], is_logit=self._binary.is_logit)
        return self._packed(arrays)

    def judge(self, rows: Sequence[F32], keys: KeyBatch, dense: F32, state: F32, batch: Batch) -> Judged:
        """Predict a batch and compare with its labels."""
        count, binary = int(batch[SAMPLES]), self._binary
        if binary is None:
            loss, outputs = self._loss_and_outputs(rows, keys, dense, state, batch)
            return Judged(count, None, None, loss, loss_name=self._loss_name, **self._for_metrics(batch, outputs))
        arrays = self._arrays(rows, keys, dense, state, batch)
        label = np.asarray(batch[numbered(LABEL, binary.label)], np.float32).reshape(-1)
        score = probability(arrays[binary.output], is_logit=binary.is_logit)
        return Judged(count, label, score, **self._for_metrics(batch, self._packed(arrays)))
