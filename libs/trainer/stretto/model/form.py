"""The form of a task's batches: how `read` gives inputs, labels and weights, whatever framework takes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from stretto_messages.values import BUCKETS
from stretto_parameters.keys import KeyBatch, index

from ..errors import DataError, ModelRefused
from ..readers import Batch
from .entry_point import Task, call_of, read_of
from .example_batch import (
    LABEL,
    WEIGHT,
    Leaf,
    Parts,
    array_of,
    check_samples,
    fill,
    leaves_of,
    named_inputs,
    parts_of,
    structure_of,
)
from .reading import BatchReader, Reading, RowsReading, check_labels
from .tables import Fed, cast_leaves

if TYPE_CHECKING:
    from .program import Options


SAMPLES, INPUT = "samples", "input"
"""Names in a batch: of the number of its samples, which labels need not tell; of the inputs of the model."""


@dataclass(frozen=True, slots=True)
class Leaves:
    """The arrays of every batch. names: of the inputs of a functional Keras model; None: inputs are nested as read."""

    inputs: tuple[Leaf, ...]
    labels: tuple[Leaf, ...]
    weights: tuple[Leaf, ...]
    names: tuple[str, ...] | None


class LeavesReader:
    """Reads the arrays of batches, and checks them."""

    task: Task
    inputs: Sequence[Leaf]
    labels: Sequence[Leaf]
    weights: Sequence[Leaf]
    names: Sequence[str] | None = None

    @staticmethod
    def of(task: Task, leaves: Leaves) -> LeavesReader:
        found = LeavesReader()
        found.task, found.names = task, leaves.names
        found.inputs, found.labels, found.weights = leaves.inputs, leaves.labels, leaves.weights
        return found

    @property
    def leaves(self) -> Leaves:
        """The arrays that are read."""
        names = None if self.names is None else tuple(self.names)
        return Leaves(tuple(self.inputs), tuple(self.labels), tuple(self.weights), names)

    def read(self, start: int, length: int, partition: str, where: str) -> tuple[list[NDArray[Any]], Batch]:
        """Return the inputs of samples, and their labels and weights by name. Raises DataError."""
        parts = self._parts(start, length, partition, where)
        return self._inputs_of(parts, where, start, length), self._targets_of(parts, where, start, length)

    def _parts(self, start: int, length: int, partition: str, where: str) -> Parts:
        return parts_of(read_of(self.task, start, length, partition), where)

    def _inputs_of(self, parts: Parts, where: str, start: int, length: int) -> list[NDArray[Any]]:
        """Return the inputs of samples in the order of the leaves, checked. Raises DataError."""
        if self.names is None:
            given = members(parts.inputs, self.inputs, where)
        else:
            given = named_inputs(parts.inputs, self.names, where)
        arrays = [array_of(value, leaf, where, start) for value, leaf in zip(given, self.inputs, strict=True)]
        for array, leaf in zip(arrays, self.inputs, strict=True):
            check_samples(array, leaf.name, where, start, length)
        return arrays

    def _targets_of(self, parts: Parts, where: str, start: int, length: int) -> Batch:
        batch: Batch = {}
        for kind, nested, leaves in ((LABEL, parts.labels, self.labels), (WEIGHT, parts.weights, self.weights)):
            values = members(nested, leaves, where)
            for number, (value, leaf) in enumerate(zip(values, leaves, strict=True)):
                array = array_of(value, leaf, where, start)
                check_samples(array, leaf.name or kind, where, start, length)
                batch[numbered(kind, number)] = array
        return batch

    def targets(self, batch: Batch) -> list[NDArray[Any]]:
        """Return the labels of a batch, then its weights."""
        labels = [batch[numbered(LABEL, number)] for number in range(len(self.labels))]
        return labels + [batch[numbered(WEIGHT, number)] for number in range(len(self.weights))]


AnyReader = TypeVar("AnyReader", bound=LeavesReader)


class AdaptedBatches(BatchReader, ABC, Generic[AnyReader]):
    """Prepares the batches of an adapted model."""

    _form: AnyReader

    @abstractmethod
    def _batch(self, leaves: Sequence[NDArray[Any]], targets: Batch, start: int, length: int) -> Batch:
        """Return a batch: its targets, the keys of its lookups, and what a step is fed with. Raises DataError."""

    @abstractmethod
    def _ids(self, batch: Batch) -> Sequence[NDArray[np.int64]]:
        """Return the keys of a batch in each table."""

    @property
    def reading(self) -> Reading | None:
        """Return None: the model itself says which rows a batch looks up."""
        return None

    def read(self, start: int, length: int, partition: str = "") -> Batch:
        """Call the user's ``read``, and find the ids of its samples. Raises DataError."""
        where = call_of(start, length, partition)
        leaves, targets = self._form.read(start, length, partition, where)
        if not self.has_own_loss:
            check_labels(targets[LABEL], start)
        try:
            return self._batch(leaves, targets, start, length)
        except (DataError, ModelRefused):
            raise
        except Exception as error:
            raise DataError(f"{where}: ids cannot be found: {type(error).__name__}: {error}") from error

    def index(self, batch: Batch) -> KeyBatch:
        """Return the unique keys of a batch."""
        return index(self._ids(batch), BUCKETS)

    def needed(self, batch: Batch) -> Batch:
        """Return the arrays that a step and its loss need: all that `read` left."""
        return batch


@dataclass(frozen=True, slots=True)
class DirectReading:
    """All of an adapted Keras model that decides its batches, where each id is an input but for its type.

    has_own_loss: False if labels have to be 0 or 1. keeps_inputs: metrics of the model need them.
    """

    leaves: Leaves
    fed: Fed
    has_own_loss: bool
    keeps_inputs: bool

    def reader(self, task: Task) -> BatchReader:
        """Return what prepares the batches of a task."""
        return _DirectReader(task, self)

    def batch(
        self, leaves: Sequence[NDArray[Any]], targets: Batch, found: Mapping[int, Any], start: int, length: int
    ) -> Batch:
        """Return a batch. found: values of events. Raises DataError."""
        fed = self.fed.batch([*leaves, *targets.values()], found, start)
        inputs = {numbered(INPUT, number): leaf for number, leaf in enumerate(leaves)} if self.keeps_inputs else {}
        return {**targets, **inputs, SAMPLES: np.array(length), **fed}


class _DirectReader(AdaptedBatches[LeavesReader]):
    def __init__(self, task: Task, reading: DirectReading) -> None:
        super().__init__(task, {}, {})
        self.has_own_loss = reading.has_own_loss
        self._form = LeavesReader.of(task, reading.leaves)
        self._reading = reading

    def _batch(self, leaves: Sequence[NDArray[Any]], targets: Batch, start: int, length: int) -> Batch:
        found = cast_leaves(self._reading.fed.direct, [*leaves, *targets.values()])
        return self._reading.batch(leaves, targets, found, start, length)

    def _ids(self, batch: Batch) -> Sequence[NDArray[np.int64]]:
        return self._reading.fed.lookups.ids(batch)


def reading_to_json(reading: Reading | None) -> bytes:
    """Return a reading as it travels to data workers; None for a model that has to be built for it."""
    return _readings().dump_json(reading)


def reading_of_json(text: bytes) -> Reading | None:
    """Return what `reading_to_json` was given. Raises DataError."""
    try:
        return _readings().validate_json(text)
    except ValueError as error:
        raise DataError(f"what batches are read for is refused as damaged: {error}") from None


def _readings() -> Any:
    from stretto_wire.codec import adapter_of  # lanes do without it

    return adapter_of(cast("Any", RowsReading | DirectReading | None))


class DataForm(LeavesReader, ABC):
    """Learned from the model and the first samples; the same for every batch.

    inputs: the leaves that the model is called with. first, first_targets: the first samples; first_samples: how many.
    """

    def __init__(self, task: Task, options: Options, *, takes_floats: bool) -> None:
        """Read the first samples. takes_floats: labels are converted to floats. Raises ModelRefused, DataError."""
        self.task = task
        self.first_samples = n = options.first_samples
        if n < 1:
            raise ModelRefused(
                "the dataset has no sample yet, and the model is adapted to the first ones; add a partition with "
                "samples before the job starts, or give the model an input 'rows'"
            )
        where = "the first samples"
        parts = self._parts(0, n, options.first_partition, where)
        self.inputs = self._learned(parts.inputs, where)
        if not self.inputs:
            raise DataError(f"{where} have no input beside the label")
        self._label_structure = structure_of(parts.labels)
        self.labels = [leaf_like(path, value, where) for path, value in leaves_of(parts.labels)]
        if takes_floats:
            self.labels = [_as_float(leaf) for leaf in self.labels]
        self._weight_structure = structure_of(parts.weights)
        self.weights = [_as_float(leaf_like(path, value, where)) for path, value in leaves_of(parts.weights)]
        self.first = self._inputs_of(parts, where, 0, n)
        self.first_targets = self._targets_of(parts, where, 0, n)

    @abstractmethod
    def _learned(self, inputs: Any, where: str) -> list[Leaf]:
        """Return the leaves of the inputs, by the model or by the first samples."""

    def split(self, targets: Sequence[Any]) -> tuple[Any, Any]:
        """Return labels and weights, nested as the user has them; weights None if there are none."""
        count = len(self.labels)
        labels = {leaf.path: value for leaf, value in zip(self.labels, targets[:count], strict=True)}
        if not self.weights:
            return fill(self._label_structure, labels), None
        weights = {leaf.path: value for leaf, value in zip(self.weights, targets[count:], strict=True)}
        return fill(self._label_structure, labels), fill(self._weight_structure, weights)

    def labels_of(self, outputs: Sequence[str]) -> list[int]:
        """Return for each output of a model, by its name, the number of its labels."""
        names = [str(leaf.path[-1]) if leaf.path else "" for leaf in self.labels]
        if set(names) == set(outputs):
            return [names.index(name) for name in outputs]
        return list(range(len(outputs))) if len(outputs) == len(names) else [0] * min(len(outputs), len(names))


def numbered(kind: str, number: int) -> str:
    """Return the name of a label or weight in a batch: `label`, `label 1`, …"""
    return kind if number == 0 else f"{kind} {number}"


def leaf_like(path: tuple[str | int, ...], value: Any, where: str) -> Leaf:
    """Return the leaf of a subclassed model's input, a label or a weight, by its first samples."""
    array = array_of(value, None, where)
    name = ".".join(map(str, path))
    is_ragged = hasattr(value, "to_tensor") or hasattr(value, "dense_shape") or isinstance(value, list)
    is_ragged = is_ragged or (getattr(value, "dtype", None) == np.dtype(object) and array.ndim > 1)
    kind = "string" if array.dtype == object else str(array.dtype)
    shape = tuple(None if is_ragged and array.ndim == 2 else length for length in array.shape[1:])
    return Leaf(name, path, kind, shape)


def _as_float(leaf: Leaf) -> Leaf:
    """Return the leaf as float32 if the first samples are whole numbers: later samples may have fractions."""
    is_whole = leaf.dtype != "string" and np.dtype(leaf.dtype).kind in "biu"
    return replace(leaf, dtype="float32") if is_whole else leaf


def members(nested: Any, leaves: Sequence[Leaf], where: str) -> list[Any]:
    """Return the values of the leaves, in their order. Raises DataError if a batch has other leaves."""
    found = dict(leaves_of(nested))
    paths = [leaf.path for leaf in leaves]
    if set(found) != set(paths):
        raise DataError(
            f"{where} gave {['.'.join(map(str, path)) for path in found]}, the first samples had "
            f"{[leaf.name for leaf in leaves]}; return the same in every batch"
        )
    return [found[path] for path in paths]
