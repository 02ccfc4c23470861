"""Reading batches and indexing their keys, in which no framework has a say where the task's own `keys` names rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from stretto_messages.values import BUCKETS
from stretto_parameters.keys import KeyBatch, index

from ..errors import DataError
from ..readers import Batch
from .entry_point import Task, call_of, keys_of, read_of


@dataclass(frozen=True, slots=True)
class Prepared:
    """All that a step needs of its samples. batch: without arrays that only the user's ``keys`` needed."""

    batch: Batch
    keys: KeyBatch


@dataclass(frozen=True, slots=True)
class Feature:
    """An input that is an array of the batch. shape: lengths, samples first, None for any length; None: any shape."""

    shape: tuple[int | None, ...] | None = None
    is_needed: bool = True

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Return whether an array of this shape fits."""
        if self.shape is None:
            return True
        pairs = zip(self.shape, shape, strict=False)
        return len(self.shape) == len(shape) and all(wanted in (None, found) for wanted, found in pairs)


class Reading(Protocol):
    """All of a model that decides its batches: with it, another process prepares them without model and framework."""

    def reader(self, task: Task) -> BatchReader:
        """Return what prepares the batches of a task."""
        ...


@dataclass(frozen=True, slots=True)
class RowsReading:
    """The reading for a model with inputs `rows`."""

    fields: Mapping[str, int | None]
    """Ids of each sample, by the name of their table; None where any number is fine."""
    features: Mapping[str, Feature]
    has_own_loss: bool
    """False if labels have to be 0 or 1."""

    def reader(self, task: Task) -> BatchReader:
        """Return what prepares the batches of a task."""
        found = BatchReader(task, self.fields, self.features)
        found.has_own_loss = self.has_own_loss
        return found


class BatchReader:
    """Prepares the batches of a task."""

    task: Task
    has_own_loss: bool
    """True if the task or the compiled model has a loss; the default one is for labels of 0 and 1 alone."""

    def __init__(self, task: Task, fields: Mapping[str, int | None], features: Mapping[str, Feature]) -> None:
        self.task = task
        self._fields = fields
        self._features = features

    @property
    def reading(self) -> Reading | None:
        """All that another process needs to prepare the same batches; None if it needs the model."""
        return RowsReading(self._fields, self._features, self.has_own_loss)

    def read(self, start: int, length: int, partition: str = "") -> Batch:
        """Call the user's ``read`` and check its batch. Raises DataError."""
        where, batch = call_of(start, length, partition), read_of(self.task, start, length, partition)
        if not isinstance(batch, dict) or "label" not in batch:
            raise DataError(f"{where} gave {type(batch).__name__}; expected a dict of arrays with 'label' among them")
        for name in ("label", *self._features):
            if name in batch:
                self._check_array(where, name, np.asarray(batch[name]), start, length)
            elif name == "label" or self._features[name].is_needed:
                raise DataError(f"{where} gave {sorted(batch)}; the model's input {name!r} is missing")
        if not self.has_own_loss:
            check_labels(np.asarray(batch["label"]), start)
        return batch

    def _check_array(self, where: str, name: str, array: NDArray[Any], start: int, length: int) -> None:
        if array.shape[:1] != (length,):
            raise DataError(f"{where}: {name!r} has shape {array.shape}, expected {length} samples")
        feature = self._features.get(name)
        if feature is not None and not feature.takes(array.shape):
            raise DataError(f"{where}: {name!r} has shape {array.shape}, the model wants {feature.shape}")
        if array.dtype.kind not in "biuf":
            raise DataError(f"{where}: {name!r} has type {array.dtype}, expected numbers")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            row = int(np.flatnonzero(~np.isfinite(array).reshape(length, -1).all(axis=1))[0])
            raise DataError(f"sample {start + row}: {name!r} is not finite")

    def keys(self, batch: Batch) -> list[NDArray[np.int64]]:
        """Call the user's ``keys`` and check the result: [n, fields] of each table. Raises DataError."""
        try:
            given = keys_of(self.task, batch)
        except DataError:
            raise
        except Exception as error:
            raise DataError(f"keys(batch) failed: {type(error).__name__}: {error}") from error
        by_name = given if isinstance(given, dict) else dict.fromkeys([*self._fields][:1], given)
        if set(by_name) != set(self._fields):
            raise DataError(f"keys(batch) gave ids for {sorted(by_name)}; the model's tables are {[*self._fields]}")
        return [self._checked(name, by_name[name], len(batch["label"])) for name in self._fields]

    def _checked(self, name: str, given: Any, samples: int) -> NDArray[np.int64]:
        ids, fields = np.asarray(given), self._fields[name]
        fits = ids.ndim == 2 and len(ids) == samples and fields in (None, ids.shape[1])
        if ids.dtype.kind not in "iu" or not fits:
            wanted = "fields" if fields is None else fields
            raise DataError(
                f"keys(batch) gave {ids.dtype} {ids.shape}; expected int64 ({samples}, {wanted}), one id for each row "
                f"of the input {name!r}"
            )
        return ids.astype(np.int64, copy=False)

    def index(self, batch: Batch) -> KeyBatch:
        """Return the unique keys of a batch. Raises DataError."""
        return index(self.keys(batch), BUCKETS)

    def prepare(self, start: int, length: int, partition: str = "") -> Prepared:
        """Read samples and index their keys: a pure function of its arguments. Raises DataError."""
        return self.prepared(self.read(start, length, partition))

    def prepared(self, batch: Batch) -> Prepared:
        """Return what a step needs of a batch that `read` gave. Raises DataError."""
        return Prepared(self.needed(batch), self.index(batch))

    def needed(self, batch: Batch) -> Batch:
        """Return the arrays that a step and its loss need."""
        return {name: np.asarray(batch[name]) for name in ("label", *self._features) if name in batch}

    def no_keys(self) -> KeyBatch:
        """Return a batch without samples, to pull the dense parameters alone."""
        return index([np.zeros((0, each or 1), np.int64) for each in self._fields.values()], BUCKETS)


def check_labels(label: NDArray[Any], start: int) -> None:
    """Raise DataError for a label that binary cross-entropy is not defined for."""
    bad = np.argwhere((label != 0) & (label != 1))
    if len(bad):
        raise DataError(
            f"sample {start + int(bad[0, 0])}: 'label' = {label[tuple(bad[0])]:g}; "
            "give 0 or 1, or the task's own loss(label, output), or compile the Keras model with one"
        )
