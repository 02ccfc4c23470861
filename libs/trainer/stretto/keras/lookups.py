"""Layers in the place of a user's embedding and preparing layers, and the modes in which they are called.

1. In a *recording* call, which makes the keys, lookups note their ids, and preparing layers their results.
2. In a *feeding* call, which is the step, lookups return the rows that were pulled, and noted values come from outside.

The mode is bound to the thread by a context variable: a step and the next batch's keys are computed at the same time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ..engine.layout import F32
from ..errors import ModelRefused
from ..model.one_step import OtherIds
from .private import pass_on, table_of

PREPARING = (
    keras.layers.StringLookup,
    keras.layers.IntegerLookup,
    keras.layers.Hashing,
    keras.layers.HashedCrossing,
    keras.layers.TextVectorization,
    keras.layers.Discretization,
    keras.layers.CategoryEncoding,
)

# --- the layers in the place of the user's -----------------------------------------------------------------


class Mode(Protocol):
    """Answers for the layers while the model is called."""

    def enter(self, layer: Any, ids: Any) -> Any:
        """Return the ids that a lookup is called with."""
        ...

    def rows(self, layer: Any, ids: Any) -> Any:
        """Return the rows of ids: their shape, and the dimension."""
        ...

    def prepare(self, layer: Any, compute: Callable[[], Any]) -> Any:
        """Return the result of a layer that prepares data."""
        ...

    def table(self, layer: Any, read: Callable[[], Any]) -> Any:
        """Return the whole table of a lookup."""
        ...


_MODE: ContextVar[Mode | None] = ContextVar("mode", default=None)


def current_mode() -> Mode | None:
    """Return the mode of this thread."""
    return _MODE.get()


@contextlib.contextmanager
def calling(mode: Mode) -> Generator[None]:
    token = _MODE.set(mode)
    try:
        yield
    finally:
        _MODE.reset(token)


def refused(text: str) -> ModelRefused:
    """Return an error that Keras passes on as it is, without the arguments of the call."""
    error = ModelRefused(text)
    pass_on(error)
    return error


def _mode(layer: Any) -> Mode:
    mode = _MODE.get()
    if mode is None:
        raise refused(
            f"layer {layer.name}: its rows are on the parameter servers, so the model cannot be called here; "
            "stretto.adapt.restore(model, tables) puts them back"
        )
    return mode


class Lookup(keras.layers.Embedding):
    """An embedding layer whose rows come from the parameter servers."""

    def __call__(self, inputs: Any, *args: Any, **options: Any) -> Any:
        # ids from outside at this point, too: masks and combiners are computed from them
        return super().__call__(_mode(self).enter(self, inputs), *args, **options)

    def call(self, inputs: Any) -> Any:
        return keras.ops.cast(_mode(self).rows(self, inputs), self.compute_dtype)

    @property
    def embeddings(self) -> Any:
        return _mode(self).table(self, lambda: super(Lookup, self).embeddings)


class Preparing:
    """A mix-in for a layer that prepares data: its result can come from outside."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        call = cast("Callable[..., Any]", super().__call__)  # pyrefly: ignore[missing-attribute]
        mode = _MODE.get()
        return call(*args, **options) if mode is None else mode.prepare(self, lambda: call(*args, **options))


@dataclass(frozen=True, slots=True)
class Original:
    """The state of a layer before it was changed."""

    kind: type[Any]
    path: str = ""
    regularizer: Any = None


_ORIGINAL = "_stretto_original"


def original_of(layer: Any) -> Original | None:
    return layer.__dict__.get(_ORIGINAL)


def change(layer: Any, to: type[Any], original: Original) -> None:
    # past the bookkeeping of Keras, which takes every attribute for a part of the model
    object.__setattr__(layer, _ORIGINAL, original)
    layer.__class__ = to


def change_back(layer: Any) -> None:
    original = original_of(layer)
    if original is not None:
        if isinstance(layer, Lookup):
            table_of(layer).regularizer = original.regularizer
        layer.__class__ = original.kind
        del layer.__dict__[_ORIGINAL]


def lookup_class(kind: type[Any]) -> type[Any]:
    return Lookup if kind is keras.layers.Embedding else type(kind.__name__, (kind, Lookup), {})


# --- modes ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LayerCall:
    """A call of a layer. value: ids that a lookup was called with (`enter`), ids that it looked up (`rows`), or the
    result of a preparing layer (`prepare`)."""

    kind: str
    layer: Any
    value: Any


@dataclass(slots=True)
class Recording:
    """Notes ids and prepared data, in the order of the calls."""

    events: list[LayerCall] = field(default_factory=list[LayerCall])
    results: list[Any] = field(default_factory=list[Any])
    """Outputs and loss of the call."""
    marks: dict[str, str] = field(default_factory=dict[str, str])
    """By the name of an operation: what its result is, which no key may depend on."""
    table_marks: dict[str, int] = field(default_factory=dict[str, int])
    """By the name of an operation: the id of the layer whose whole table is its result."""
    _depth: int = 0

    def mark(self, value: Any, told: str) -> Any:
        marked = tf.identity(value)
        self.marks[marked.op.name] = told
        return marked

    def mark_table(self, layer: Any) -> Any:
        marked = self.mark(table_of(layer).value, f"the table of layer {layer.name}")
        self.table_marks[marked.op.name] = id(layer)
        return marked

    def enter(self, layer: Any, ids: Any) -> Any:
        ids = _tensor(ids)
        self.events.append(LayerCall("enter", layer, ids))
        return ids

    def rows(self, layer: Any, ids: Any) -> Any:
        ids = _integers(ids)
        flat = ids.flat_values if isinstance(ids, tf.RaggedTensor) else ids
        self.events.append(LayerCall("rows", layer, flat))
        shape = tf.concat([tf.shape(flat), [layer.output_dim]], axis=0)
        zeros = self.mark(tf.zeros(shape), f"the rows of layer {layer.name}")
        zeros.set_shape([*flat.shape, layer.output_dim])
        return ids.with_flat_values(zeros) if isinstance(ids, tf.RaggedTensor) else zeros

    def prepare(self, layer: Any, compute: Callable[[], Any]) -> Any:
        self._depth += 1
        try:
            result = compute()
        finally:
            self._depth -= 1
        if not self._depth:  # the outermost one answers for those that it calls
            self.events.append(LayerCall("prepare", layer, result))
        return result

    def table(self, layer: Any, read: Callable[[], Any]) -> Any:
        return read()


@dataclass(slots=True)
class Feeding:
    """Answers with rows and with values from outside, by the number of the event. Other values are computed."""

    events: Sequence[LayerCall] = ()
    values: Mapping[int, Any] = field(default_factory=dict[int, Any])
    looked_up: Mapping[int, Any] = field(default_factory=dict[int, Any])
    _next: int = 0
    _depth: int = 0

    def _number(self, kind: str, layer: Any) -> int:
        number = self._next
        self._next += 1
        if number < len(self.events) and self.events[number].kind == kind and self.events[number].layer is layer:
            return number
        raise refused(
            f"layer {layer.name} is called in another order in training than in evaluation: the calls must not depend "
            "on `training`"
        )

    def enter(self, layer: Any, ids: Any) -> Any:
        number = self._number("enter", layer)
        return self.values.get(number, ids)

    def rows(self, layer: Any, ids: Any) -> Any:
        rows = self.looked_up[self._number("rows", layer)]
        return ids.with_flat_values(rows) if isinstance(ids, tf.RaggedTensor) else rows

    def prepare(self, layer: Any, compute: Callable[[], Any]) -> Any:
        if self._depth:
            return compute()
        number = self._number("prepare", layer)
        if number in self.values:
            return self.values[number]
        self._depth += 1
        try:
            return compute()
        finally:
            self._depth -= 1

    def table(self, layer: Any, read: Callable[[], Any]) -> Any:
        raise refused(f"layer {layer.name}: its whole table is used in training, which no worker has")


@dataclass(slots=True)
class Direct:
    """Looks up in tables at hand: `layer` its noted ids, every other layer the ids that it is called with."""

    layer: Any
    noted: list[Any]
    tables: Mapping[int, F32]

    def enter(self, layer: Any, ids: Any) -> Any:
        return ids

    def rows(self, layer: Any, ids: Any) -> Any:
        ids = self.noted.pop(0) if layer is self.layer else _integers(ids)
        return tf.gather(tf.convert_to_tensor(self.tables[id(layer)]), ids)

    def prepare(self, layer: Any, compute: Callable[[], Any]) -> Any:
        return compute()

    def table(self, layer: Any, read: Callable[[], Any]) -> Any:
        return read()


@dataclass(slots=True)
class Cut:
    """Looks up in tables that are cut to some rows, as Keras' own layer does. tables: by layer, ids and a variable."""

    tables: dict[int, tuple[NDArray[np.int64], Any]]
    seen: list[tuple[Any, NDArray[np.int64]]] = field(default_factory=list[tuple[Any, "NDArray[np.int64]"]])
    """The layers that looked up so far, with their ids."""

    def enter(self, layer: Any, ids: Any) -> Any:
        return ids

    def rows(self, layer: Any, ids: Any) -> Any:
        ids = _integers(ids)
        found = (ids.flat_values if isinstance(ids, tf.RaggedTensor) else ids).numpy()
        self.seen.append((layer, found))
        known, variable = self.tables[id(layer)]
        order = np.argsort(known)
        at = np.searchsorted(known[order], found)
        if not len(known) or (known[order][np.minimum(at, len(known) - 1)] != found).any():
            error = OtherIds(f"layer {layer.name} looks up other ids")
            pass_on(error)
            raise error
        rows = keras.ops.take(variable, order[at], axis=0)
        return ids.with_flat_values(rows) if isinstance(ids, tf.RaggedTensor) else rows

    def prepare(self, layer: Any, compute: Callable[[], Any]) -> Any:
        return compute()

    def table(self, layer: Any, read: Callable[[], Any]) -> Any:
        raise refused(f"layer {layer.name}: its whole table is used in training, which no worker has")


def _tensor(value: Any) -> Any:
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        return value
    return tf.identity(keras.ops.convert_to_tensor(value))


def _integers(ids: Any) -> Any:
    """Return ids as Keras takes them: fractions are cut to int32; missing ones of a sparse tensor are 0."""
    if isinstance(ids, tf.SparseTensor):
        ids = tf.sparse.to_dense(ids)
    if not isinstance(ids, tf.RaggedTensor):
        ids = tf.identity(keras.ops.convert_to_tensor(ids))
    if ids.dtype not in (tf.int32, tf.int64):
        ids = tf.cast(ids, tf.int32)
    return tf.cast(ids, tf.int64)


def components(value: Any) -> list[Any]:
    return tf.nest.flatten(value, expand_composites=True)


def is_fed(value: Any) -> bool:
    """Return whether a noted value is one tensor, dense, ragged or sparse."""
    return isinstance(value, (tf.Tensor, tf.RaggedTensor, tf.SparseTensor))


def sources(results: Any, also: Iterable[Any] = ()) -> set[str]:
    """Return the names of the operations of a graph that the results depend on. also: further operations."""
    seen: set[str] = set()
    stack: list[Any] = [each.op for each in components(results) if tf.is_symbolic_tensor(each)]
    stack.extend(also)
    while stack:
        operation = stack.pop()
        if operation.name in seen:
            continue
        seen.add(operation.name)
        stack.extend(each.op for each in operation.inputs)
        stack.extend(operation.control_inputs)
    return seen


def cast_input(value: Any, inputs: Mapping[str, int]) -> tuple[int, tuple[str, ...]] | None:
    """Return the number of the input that a value is, and the types that it is cast to; None if it is another."""
    if not isinstance(value, tf.Tensor):
        return None
    casts: list[str] = []
    operation = value.op
    while operation.name not in inputs:
        if operation.type == "Cast":
            casts.append(operation.outputs[0].dtype.name)
        elif operation.type != "Identity":
            return None
        operation = operation.inputs[0].op
    return inputs[operation.name], tuple(reversed(casts))


def spec_of(value: Any) -> Any:
    """Return the type of a value in a graph, with its static shape; of a type itself."""
    if isinstance(value, tf.TypeSpec):
        return value
    return tf.TensorSpec(value.shape, value.dtype) if isinstance(value, tf.Tensor) else tf.type_spec_from_value(value)


def placeholder(spec: Any) -> Any:
    """Return a value in the place of an input that no output depends on."""
    parts = [tf.compat.v1.placeholder(each.dtype, each.shape) for each in components(spec)]
    return tf.nest.pack_sequence_as(spec, parts, expand_composites=True)
