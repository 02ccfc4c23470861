"""A Keras model as its user wrote it, with its embedding tables on the parameter servers.

The graph of the model is not rewritten. Each `Embedding` layer gets the class of a remote lookup, and each layer that
prepares data (StringLookup, Hashing, …) one that can be answered for. The model is then called in two ways:

1. In a *recording* call, which makes the keys, lookups note their ids, and preparing layers their results. It runs
   where batches are read.
2. In a *feeding* call, which is the step, lookups return the rows that were pulled, and noted values come from outside.
   A value that the outputs do not depend on, such as a text, is not computed or sent.

The modes are bound to the thread by a context variable: a step and a batch's keys are computed at the same time.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from math import sqrt
from typing import Any, Protocol, cast

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from stretto_parameters.keys import restore as keys_of_stored

from .engine.layout import F32, KeyBatch
from .errors import DataError, ModelRefused
from .keys import VALUE_BITS
from .model import LARGEST_EMBEDDING, EmbeddingRows, Rows
from .samples import Leaf

__all__ = ["AdaptedModel", "Explicit", "adapt", "has_tables", "restore"]

_PREPARING = (
    keras.layers.StringLookup,
    keras.layers.IntegerLookup,
    keras.layers.Hashing,
    keras.layers.HashedCrossing,
    keras.layers.TextVectorization,
    keras.layers.Discretization,
    keras.layers.CategoryEncoding,
)
_COMPARED_FLOATS = 2**26
"""Floats of a table up to which its values are compared with those of its initialiser, drawn again."""
_FIELDS_MAX = 2**15


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


@contextlib.contextmanager
def _calling(mode: Mode) -> Generator[None]:
    token = _MODE.set(mode)
    try:
        yield
    finally:
        _MODE.reset(token)


def _refused(text: str) -> ModelRefused:
    """Return an error that Keras passes on as it is, without the arguments of the call."""
    error = ModelRefused(text)
    error._keras_call_info_injected = True  # pyright: ignore[reportAttributeAccessIssue]
    return error


def _mode(layer: Any) -> Mode:
    mode = _MODE.get()
    if mode is None:
        raise _refused(
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
        call = cast("Callable[..., Any]", super().__call__)  # pyright: ignore[reportAttributeAccessIssue]
        mode = _MODE.get()
        return call(*args, **options) if mode is None else mode.prepare(self, lambda: call(*args, **options))


@dataclass(frozen=True, slots=True)
class _Original:
    """The state of a layer before it was changed."""

    kind: type[Any]
    path: str = ""
    regularizer: Any = None


_ORIGINAL = "_stretto_original"


def _original(layer: Any) -> _Original | None:
    return layer.__dict__.get(_ORIGINAL)


def _change(layer: Any, to: type[Any], original: _Original) -> None:
    # past the bookkeeping of Keras, which takes every attribute for a part of the model
    object.__setattr__(layer, _ORIGINAL, original)
    layer.__class__ = to


def _change_back(layer: Any) -> None:
    original = _original(layer)
    if original is not None:
        if isinstance(layer, Lookup):
            layer._embeddings.regularizer = original.regularizer
        layer.__class__ = original.kind
        del layer.__dict__[_ORIGINAL]


def _lookup_class(kind: type[Any]) -> type[Any]:
    return Lookup if kind is keras.layers.Embedding else type(kind.__name__, (kind, Lookup), {})


# --- the public functions -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Explicit:
    """A model that is to be adapted: `build` may return it in the place of the model."""

    model: Any


def adapt(model: Any) -> Explicit:
    """Let all embedding layers of a Keras model live on the parameter servers, whatever its inputs are called.

    A model with embedding layers and no input `rows` is adapted without this. Raises ModelRefused for a layer that
    cannot be.
    """
    _check_is_keras(model)
    for layer in _embeddings(model):
        _check_layer(layer)
    return Explicit(model)


def restore(model: Any, tables: Mapping[str, F32]) -> None:
    """Give the embedding layers of an adapted model back, with their weights [ids, dimension] by the layer's path.

    Afterwards the model is the user's own again: it can be called and saved. Raises ModelRefused for a layer without
    weights.
    """
    for layer in model._flatten_layers():  # pyright: ignore[reportPrivateUsage]
        original = _original(layer)
        if original is None:
            continue
        if isinstance(layer, Lookup):
            found = tables.get(original.path)
            wanted = (layer.input_dim, layer.output_dim)
            if found is None or found.shape != wanted:
                told = "no weights" if found is None else f"weights of shape {found.shape}"
                raise ModelRefused(f"layer {original.path}: {told}; give float32 {wanted}")
            variable = layer._embeddings
            variable._value = tf.Variable(found, dtype=variable.dtype, trainable=True, name=variable.name)
        _change_back(layer)


def has_tables(model: Any) -> bool:
    """Return whether a Keras model has embedding layers."""
    return bool(_embeddings(model))


def _embeddings(model: Any) -> list[Any]:
    layers: list[Any] = model._flatten_layers()  # pyright: ignore[reportPrivateUsage]
    return [layer for layer in layers if isinstance(layer, keras.layers.Embedding)]


def _check_is_keras(model: Any) -> None:
    if not isinstance(model, keras.Model):
        raise ModelRefused(f"stretto.adapt takes a keras.Model of Keras 3, this is {type(model).__name__}")


def _check_layer(layer: Any) -> None:
    """Raise ModelRefused for an embedding layer whose rows cannot be trained one by one."""
    if layer.embeddings_constraint is not None:
        raise ModelRefused(
            f"layer {layer.name}: embeddings_constraint is applied to the whole table after each update, which the "
            "parameter servers do not do; leave it out, or use an embeddings_regularizer"
        )
    if layer.lora_rank or layer.lora_enabled:
        raise ModelRefused(f"layer {layer.name}: LoRA keeps the table fixed; leave lora_rank out")
    if layer.quantization_mode:
        raise ModelRefused(
            f"layer {layer.name}: a quantized table cannot be trained; adapt the model before quantize()"
        )
    if layer.variable_dtype != "float32":
        raise ModelRefused(
            f"layer {layer.name}: its table has type {layer.variable_dtype}; parameters are float32 here"
        )


# --- one recording, and feeding it back --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Event:
    """A call of a layer. value: ids that a lookup was called with (`enter`), ids that it looked up (`rows`), or the
    result of a preparing layer (`prepare`)."""

    kind: str
    layer: Any
    value: Any


@dataclass(slots=True)
class _Recording:
    """Notes ids and prepared data, in the order of the calls."""

    events: list[Event] = field(default_factory=list[Event])
    read_whole: list[Any] = field(default_factory=list[Any])
    """Lookups whose whole table was used."""
    marks: dict[str, str] = field(default_factory=dict[str, str])
    """By the name of an operation: what its result is, which no key may depend on."""
    _depth: int = 0

    def mark(self, value: Any, told: str) -> Any:
        marked = tf.identity(value)
        self.marks[marked.op.name] = told
        return marked

    def enter(self, layer: Any, ids: Any) -> Any:
        ids = _tensor(ids)
        self.events.append(Event("enter", layer, ids))
        return ids

    def rows(self, layer: Any, ids: Any) -> Any:
        ids = _integers(ids)
        flat = ids.flat_values if isinstance(ids, tf.RaggedTensor) else ids
        self.events.append(Event("rows", layer, flat))
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
            self.events.append(Event("prepare", layer, result))
        return result

    def table(self, layer: Any, read: Callable[[], Any]) -> Any:
        self.read_whole.append(layer)
        return read()


@dataclass(slots=True)
class _Feeding:
    """Answers with rows and with values from outside. values: by the number of the event; None is to be computed."""

    events: Sequence[Event]
    values: Mapping[int, Any]
    looked_up: Mapping[int, Any]
    _next: int = 0
    _depth: int = 0

    def _number(self, kind: str, layer: Any) -> int:
        number = self._next
        self._next += 1
        if number < len(self.events) and self.events[number].kind == kind and self.events[number].layer is layer:
            return number
        raise _refused(
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
        raise _refused(f"layer {layer.name}: its whole table is used in training, which no worker has")


@dataclass(slots=True)
class _Direct:
    """Looks up in tables at hand: of `layer` the noted ids, of all others those that they are called with."""

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


def _tensor(value: Any) -> Any:
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        return value
    return tf.identity(keras.ops.convert_to_tensor(value))


def _integers(ids: Any) -> Any:
    """Return ids as Keras takes them: numbers with a fraction are cut to int32; missing ones of a sparse tensor are 0."""
    if isinstance(ids, tf.SparseTensor):
        ids = tf.sparse.to_dense(ids)
    if not isinstance(ids, tf.RaggedTensor):
        ids = tf.identity(keras.ops.convert_to_tensor(ids))
    if ids.dtype not in (tf.int32, tf.int64):
        ids = tf.cast(ids, tf.int32)
    return tf.cast(ids, tf.int64)


def _components(value: Any) -> list[Any]:
    return tf.nest.flatten(value, expand_composites=True)


def _is_fed(value: Any) -> bool:
    """Return whether a noted value is one tensor, dense, ragged or sparse."""
    return isinstance(value, (tf.Tensor, tf.RaggedTensor, tf.SparseTensor))


def sources(results: Any, also: Iterable[Any] = ()) -> set[str]:
    """Return the names of the operations of a graph that the results depend on. also: further operations."""
    seen: set[str] = set()
    stack: list[Any] = [each.op for each in _components(results) if tf.is_symbolic_tensor(each)]
    stack.extend(also)
    while stack:
        operation = stack.pop()
        if operation.name in seen:
            continue
        seen.add(operation.name)
        stack.extend(each.op for each in operation.inputs)
        stack.extend(operation.control_inputs)
    return seen


def _cast_input(value: Any, inputs: Mapping[str, int]) -> tuple[int, tuple[str, ...]] | None:
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


def _spec(value: Any) -> Any:
    """Return the type of a value in a graph, with its static shape."""
    return tf.TensorSpec(value.shape, value.dtype) if isinstance(value, tf.Tensor) else tf.type_spec_from_value(value)


def _placeholder(spec: Any) -> Any:
    """Return a value that nothing depends on in the end."""
    parts = [tf.compat.v1.placeholder(each.dtype, each.shape) for each in _components(spec)]
    return tf.nest.pack_sequence_as(spec, parts, expand_composites=True)


# --- tables -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Start:
    """The initial weights of a table: `values` (None: zeros) and a uniform part in +-scale."""

    scale: float
    values: F32 | None = None


def _start(layer: Any, weights: F32) -> _Start:
    """Return how rows of a layer begin: by the servers' own uniform distribution where the layer's is one."""
    bounds = _uniform_bounds(layer.embeddings_initializer, weights.shape)
    if bounds is not None and _is_fresh(layer.embeddings_initializer, weights, bounds):
        middle, half = (bounds[0] + bounds[1]) / 2, (bounds[1] - bounds[0]) / 2
        return _Start(float(np.float32(half)), _constant(middle, weights.shape) if middle else None)
    first = float(weights.flat[0])
    if weights[0, 0] == weights[-1, -1] and (weights == first).all():
        return _Start(0.0, _constant(first, weights.shape) if first else None)
    return _Start(0.0, weights)


def _constant(value: float, shape: tuple[int, ...]) -> F32:
    return np.broadcast_to(np.float32(value), shape)


def _uniform_bounds(initializer: Any, shape: tuple[int, ...]) -> tuple[float, float] | None:
    kind = type(initializer)
    if kind is keras.initializers.RandomUniform:
        return float(initializer.minval), float(initializer.maxval)
    if isinstance(initializer, keras.initializers.VarianceScaling) and initializer.distribution == "uniform":
        fan_in, fan_out = shape
        fan = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[initializer.mode]
        limit = sqrt(3.0 * initializer.scale / max(1.0, fan))
        return -limit, limit
    return None


def _is_fresh(initializer: Any, weights: F32, bounds: tuple[float, float]) -> bool:
    """Return whether the weights are those of the initialiser, which draws the same ones again."""
    if not isinstance(initializer.seed, int):
        return False
    if weights.size <= _COMPARED_FLOATS:
        return np.array_equal(np.asarray(initializer(weights.shape, dtype="float32")), weights)
    # too large to be drawn again beside the table: by its range and its variance
    low, high = bounds
    part = weights.reshape(-1)[: _COMPARED_FLOATS // 4]
    spread = abs(float(part.std()) / ((high - low) / sqrt(12.0)) - 1) < 0.01
    return low <= float(weights.min()) and float(weights.max()) <= high and spread


@dataclass(frozen=True, slots=True)
class _Penalty:
    """The regularisation of a table's rows: l1 · sum |w| + l2 · sum w^2."""

    l1: float = 0.0
    l2: float = 0.0

    def of(self, rows: Any) -> Any:
        return self.l1 * tf.reduce_sum(tf.abs(rows)) + self.l2 * tf.reduce_sum(tf.square(rows))


def _penalty(layer: Any, given: Any) -> _Penalty:
    if given is None:
        return _Penalty()
    if type(given) not in (keras.regularizers.L1, keras.regularizers.L2, keras.regularizers.L1L2):
        raise ModelRefused(
            f"layer {layer.name}: embeddings_regularizer {type(given).__name__} is no sum over rows, and a worker has "
            "those of a batch only; use L1, L2 or L1L2"
        )
    return _Penalty(float(getattr(given, "l1", 0.0)), float(getattr(given, "l2", 0.0)))


@dataclass(frozen=True, slots=True)
class _TableLayer:
    """An embedding layer on the parameter servers."""

    layer: Any
    path: str
    start: _Start
    penalty: _Penalty

    @property
    def kind(self) -> tuple[Any, ...]:
        """Layers with the same one share a table of the store, and with it one gather of a step."""
        return (self.layer.output_dim, self.start.scale, self.penalty)


@dataclass(frozen=True, slots=True)
class _Call:
    """A lookup of a table: the number of its event. shape: that of a sample's ids, None where it is not always the
    same."""

    event: int
    field: int
    ids_max: int
    shape: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class _Part:
    """Lookups that are gathered together, one after the other: those of a known number of ids a sample, or a single
    one."""

    calls: tuple[_Call, ...]
    widths: tuple[int, ...]
    """Ids a sample of each lookup; none for the single one."""

    @staticmethod
    def of(calls: Sequence[_Call], *, are_fixed: bool) -> _Part:
        widths = tuple(int(np.prod(call.shape or (), dtype=np.int64)) for call in calls) if are_fixed else ()
        return _Part(tuple(calls), widths)

    def keys(self, ids: Mapping[int, NDArray[Any]]) -> NDArray[np.int64] | None:
        """Return the keys of the lookups: flat, or of the single one in the shape of its ids; None if an id is outside
        its table."""
        found: list[NDArray[np.int64]] = [ids[call.event] for call in self.calls]
        for call, each in zip(self.calls, found, strict=True):
            # a negative id is a very large one
            if each.size and int(each.view(np.uint64).max()) >= call.ids_max:
                return None
        if not self.widths:
            return found[0] | np.int64(self.calls[0].field << VALUE_BITS)
        flat = np.concatenate([each.reshape(-1) for each in found])
        position = 0
        for call, each in zip(self.calls, found, strict=True):
            flat[position : position + each.size] |= call.field << VALUE_BITS
            position += each.size
        return flat


@dataclass(frozen=True, slots=True)
class _Group:
    """A table of the store. layers: by the number that is part of their keys."""

    name: str
    layers: tuple[_TableLayer, ...]
    parts: tuple[_Part, ...]

    @property
    def dimension(self) -> int:
        return self.layers[0].layer.output_dim

    @property
    def penalty(self) -> _Penalty:
        return self.layers[0].penalty

    @property
    def is_difference(self) -> bool:
        """True if rows are kept as differences to initial values."""
        return any(each.start.values is not None for each in self.layers)

    def initial(self, keys: NDArray[np.int64]) -> F32 | None:
        """Return what the rows of keys are added to; None if that is 0."""
        if not self.is_difference:
            return None
        fields, ids = keys >> VALUE_BITS, keys & ((1 << VALUE_BITS) - 1)
        found = np.zeros((len(keys), self.dimension), np.float32)
        for number, layer in enumerate(self.layers):
            if layer.start.values is not None:
                at = fields == number
                found[at] = layer.start.values[ids[at]]
        return found


@dataclass(frozen=True, slots=True)
class Candidate:
    """A value that a step may need: an input of the model (`leaf`), or a noted one (`event`)."""

    leaf: int = -1
    event: int = -1


# --- the adapted model --------------------------------------------------------------------------------------


class AdaptedModel:
    """A model whose embedding layers are remote lookups.

    Its life: `record` (what is looked up), `divide` (into tables of the store), `narrow` (what a step is fed),
    `release` (the memory of the tables). Larger than 250 lines would be two classes that know each other's fields.
    """

    def __init__(self, model: Any, leaves: Sequence[Leaf], pack: Callable[[Sequence[Any]], Any]) -> None:
        """leaves: the inputs; pack: makes of their tensors what the model is called with. The model must be built.

        Raises ModelRefused.
        """
        self.model = model
        self._leaves = [tf.TensorSpec((None, *leaf.shape), leaf.dtype, name=_identifier(leaf.name)) for leaf in leaves]
        self._pack = pack
        self._lookups: list[Any] = []
        self._prepared: list[Any] = []
        self._frozen: list[Any] = []
        self._weights: dict[int, F32] = {}
        self._change()

    def _change(self) -> None:
        for layer in _embeddings(self.model):
            if _original(layer) is not None:
                raise ModelRefused(f"layer {layer.name} is adapted already: build() must make a new model")
            if not layer.built:
                continue
            _check_layer(layer)
            if not layer._embeddings.trainable:
                self._frozen.append(layer)  # it never changes: each worker has it, as build() made it
                continue
            self._weights[id(layer)] = layer._embeddings.numpy()
            self._lookups.append(layer)
        for layer, path in zip(self._lookups, _paths(self._lookups), strict=True):
            original = _Original(type(layer), path, layer._embeddings.regularizer)
            layer._embeddings.regularizer = None  # else Keras would add the penalty of the whole table
            _change(layer, _lookup_class(type(layer)), original)
        for layer in self.model._flatten_layers():  # pyright: ignore[reportPrivateUsage]
            if isinstance(layer, _PREPARING):
                self._prepared.append(layer)
                _change(layer, type(type(layer).__name__, (Preparing, type(layer)), {}), _Original(type(layer)))

    def change_back(self) -> None:
        """Give the user's layers back. Only before `release`."""
        for layer in [*self._lookups, *self._prepared]:
            _change_back(layer)

    @property
    def separate_variables(self) -> set[int]:
        """The ids of the variables that are no dense parameters: tables of the servers, and those that never change."""
        return {id(layer._embeddings) for layer in [*self._lookups, *self._frozen]}

    def call(self, leaves: Sequence[Any], training: bool) -> Any:
        """Call the model as model.fit does."""
        inputs = self._pack(leaves)
        has_training = self.model._call_has_training_arg  # pyright: ignore[reportPrivateUsage]
        return self.model(inputs, training=training) if has_training else self.model(inputs)

    # --- what is looked up --------------------------------------------------------------------------------

    def record(self, sample: Sequence[NDArray[Any]]) -> None:
        """Trace the function that makes keys, and see for which layers it can. sample: the inputs of a real batch."""
        recording, self._noted = self._trace(lambda events: [each.value for each in events if _is_fed(each.value)])
        self._positions = [number for number, event in enumerate(recording.events) if _is_fed(event.value)]
        self._direct: dict[int, tuple[int, tuple[str, ...]]] = {}
        self.events = list(recording.events)
        self._leads = self._led_by_samples(sample)
        self._keep_dense(recording.read_whole)
        self._check_independent(recording.marks)

    def _trace(self, chosen: Callable[[Sequence[Event]], list[Any]]) -> tuple[_Recording, Any]:
        """Record a call; return it with the function that computes the chosen values of its events."""
        recording = _Recording()
        separate = self.separate_variables
        dense = [each for each in self.model.trainable_variables if id(each) not in separate]

        def noted(*leaves: Any) -> list[Any]:
            mapping = [(each, recording.mark(each.value, f"the parameter {each.path}")) for each in dense]
            with keras.StatelessScope(state_mapping=mapping), _calling(recording):
                self.call(leaves, training=False)
            return chosen(recording.events)

        return recording, tf.function(noted, autograph=False).get_concrete_function(*self._leaves)

    def _led_by_samples(self, sample: Sequence[NDArray[Any]]) -> set[int]:
        """Return the lookups whose ids have the samples as their first dimension; those of positions have not."""
        n = len(sample[0])
        whole = self.noted(sample)
        less = self.noted([each[: n - 1] for each in sample]) if n > 1 else whole
        lookups = [number for number, event in enumerate(self.events) if event.kind == "rows"]
        return {
            number
            for number in lookups
            if whole[number].shape[:1] == (n,) and less[number].shape[:1] == (max(1, n - 1),)
        }

    def _keep_dense(self, read_whole: Sequence[Any]) -> None:
        """Leave small tables among the dense parameters where rows are no gain; refuse what must be whole and is not
        small."""
        for layer in list(self._lookups):
            mine = [number for number, event in enumerate(self.events) if event.layer is layer]
            looked_up = [number for number in mine if self.events[number].kind == "rows"]
            must_be_whole = any(layer is each for each in read_whole) or (bool(mine) and not looked_up)
            is_small = layer.input_dim * layer.output_dim <= LARGEST_EMBEDDING
            if must_be_whole and not is_small:
                raise ModelRefused(
                    f"layer {layer.name}: the model uses its whole table of {layer.input_dim} x {layer.output_dim} "
                    "floats (tied weights, or a call of its own), and a worker has the rows of a batch only; look rows "
                    "up by calling the layer"
                )
            is_by_position = bool(looked_up) and not self._leads.intersection(looked_up)
            if must_be_whole or (is_small and is_by_position):
                self._lookups.remove(layer)
                _change_back(layer)
        changed = {id(layer) for layer in [*self._lookups, *self._prepared]}
        kept = [number for number, event in enumerate(self.events) if id(event.layer) in changed]
        new = {old: number for number, old in enumerate(kept)}
        self._kept = kept
        self.events = [self.events[old] for old in kept]
        self._positions = [new.get(old, -1) for old in self._positions]
        self._leads = {new[old] for old in self._leads if old in new}

    def _check_independent(self, marks: Mapping[str, str]) -> None:
        """Raise ModelRefused if ids depend on rows or parameters. Data prepared from these are left to the step."""
        for number, event in enumerate(self.events):
            found = sources(event.value)
            told = next((told for name, told in marks.items() if name in found), None)
            if told is None and _is_fed(event.value):
                continue
            if event.kind == "rows":
                raise ModelRefused(
                    f"layer {event.layer.name}: its ids depend on {told}, which is not known when the rows of a batch "
                    "are requested; ids must follow from the inputs"
                )
            self.events[number] = Event(event.kind, event.layer, None)

    def shorten(self) -> None:
        """Let a batch compute only what its keys are made of and what a step is fed with.

        A value that is an input, but for its type, is taken from there: TensorFlow's call costs more than all the rest.
        """
        fed = {candidate.event for candidate in self.fed}
        needed = [number for number, event in enumerate(self.events) if event.kind == "rows" or number in fed]
        inputs = {tensor.op.name: number for number, tensor in enumerate(self._noted.inputs)}
        for number in needed:
            found = _cast_input(self.events[number].value, inputs)
            if found is not None:
                self._direct[number] = found
        self._positions = [number for number in needed if number not in self._direct]
        wanted = [self._kept[number] for number in self._positions]
        if wanted:
            self._noted = self._trace(lambda events: [events[number].value for number in wanted])[1]

    def noted(self, leaves: Sequence[Any]) -> dict[int, Any]:
        """Return the noted values of a batch by event: arrays, or TensorFlow's ragged and sparse tensors."""
        values: dict[int, Any] = {}
        for number, (leaf, types_) in self._direct.items():
            value = leaves[leaf]
            for kind in types_:
                value = value.astype(kind, copy=False)
            values[number] = value
        if not self._positions:
            return values
        tensors = (tf.convert_to_tensor(each, spec.dtype) for each, spec in zip(leaves, self._leaves, strict=True))
        for number, value in zip(self._positions, self._noted(*tensors), strict=True):
            if number >= 0:
                values[number] = value.numpy() if isinstance(value, tf.Tensor) else value
        return values

    # --- tables of the store ------------------------------------------------------------------------------

    def divide(self) -> None:
        """Decide which layers share a table, and in which form their rows are gathered."""
        layers: list[_TableLayer] = []
        for layer in self._lookups:
            original = cast("_Original", _original(layer))
            penalty = _penalty(layer, original.regularizer)
            layers.append(_TableLayer(layer, original.path, _start(layer, self._weights[id(layer)]), penalty))
        groups: list[_Group] = []
        for kind in dict.fromkeys(each.kind for each in layers):
            members = tuple(each for each in layers if each.kind == kind)
            if len(members) >= _FIELDS_MAX:
                raise ModelRefused(f"{len(members)} embedding layers of one width: at most {_FIELDS_MAX - 1}")
            groups.append(_Group(f"rows_{len(groups)}", members, self._parts(members)))
        self.groups = tuple(groups)
        self.embeddings = tuple(
            EmbeddingRows(each.path, table, number, each.layer.input_dim, group.dimension, each.start.values)
            for table, group in enumerate(self.groups)
            for number, each in enumerate(group.layers)
        )

    def _parts(self, members: Sequence[_TableLayer]) -> tuple[_Part, ...]:
        numbers = {id(member.layer): number for number, member in enumerate(members)}
        calls: list[_Call] = []
        for number, event in enumerate(self.events):
            if event.kind != "rows" or id(event.layer) not in numbers:
                continue
            shape = event.value.shape
            is_fixed = number in self._leads and shape.rank and None not in shape[1:]
            lengths = tuple(int(length) for length in shape[1:]) if is_fixed else None
            calls.append(_Call(number, numbers[id(event.layer)], event.layer.input_dim, lengths))
        fixed = [call for call in calls if call.shape is not None]
        parts = [_Part.of(fixed, are_fixed=True)] if fixed else []
        return (*parts, *(_Part.of([call], are_fixed=False) for call in calls if call.shape is None))

    @property
    def tables(self) -> dict[str, Rows]:
        """The tables of the store by name."""
        return {
            group.name: Rows(None, group.dimension, group.layers[0].start.scale, is_difference=group.is_difference)
            for group in self.groups
        }

    # --- batches ------------------------------------------------------------------------------------------

    def prepare(self, leaves: Sequence[Any], start: int) -> dict[str, Any]:
        """Return the keys of a batch and what a step is fed with, by name. Raises DataError for an id that no table has.

        start: the number of the batch's first sample.
        """
        found = self.noted(leaves)
        batch: dict[str, Any] = {}
        for number, group in enumerate(self.groups):
            for place, part in enumerate(group.parts):
                keys = part.keys(found)
                if keys is None:
                    raise self._outside(group, part, found, start)
                batch[f"keys {number}.{place}"] = keys
        for number, each in enumerate(self.fed):
            batch[f"fed {number}"] = leaves[each.leaf] if each.leaf >= 0 else found[each.event]
        return batch

    def _outside(self, group: _Group, part: _Part, found: Mapping[int, Any], start: int) -> DataError:
        for call in part.calls:
            ids = found[call.event]
            bad = np.argwhere((ids < 0) | (ids >= call.ids_max))
            if len(bad):
                layer = group.layers[call.field]
                where = f"sample {start + int(bad[0, 0])}" if call.event in self._leads else "a batch"
                return DataError(
                    f"{where}: layer {layer.path} has no row {int(ids[tuple(bad[0])])}: its ids are 0 to "
                    f"{call.ids_max - 1}; raise its input_dim, or map the values into it (keras.layers.Hashing)"
                )
        raise AssertionError("some id is outside its table")

    def ids(self, batch: Mapping[str, Any]) -> list[NDArray[np.int64]]:
        """Return the keys of a batch in each table, in the form that `inverse` takes apart."""
        found: list[NDArray[np.int64]] = []
        for number, group in enumerate(self.groups):
            parts = [batch[f"keys {number}.{place}"] for place in range(len(group.parts))]
            flat = [part.reshape(-1) for part in parts]
            found.append(parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.int64), *flat]))
        return found

    def no_ids(self) -> list[NDArray[np.int64]]:
        """Return the keys of a batch without samples."""
        return [np.zeros(0, np.int64) for _ in self.groups]

    def inverse(self, keys: KeyBatch, batch: Mapping[str, Any]) -> list[Any]:
        """Return for each part of each table the places of its rows among the unique ones."""
        found: list[Any] = []
        for number, (group, table) in enumerate(zip(self.groups, keys.tables, strict=True)):
            if len(group.parts) == 1:
                found.append(table.inverse)
                continue
            position = 0
            for place in range(len(group.parts)):
                shape = batch[f"keys {number}.{place}"].shape
                end = position + int(np.prod(shape, dtype=np.int64))
                found.append(table.inverse[position:end].reshape(shape))
                position = end
        return found

    def whole_rows(self, rows: Sequence[F32], keys: KeyBatch) -> list[F32]:
        """Return the weights of rows, some of which are kept as differences to the initial ones."""
        found: list[F32] = []
        for group, table, values in zip(self.groups, keys.tables, rows, strict=True):
            initial = group.initial(keys_of_stored(table.stored))
            found.append(values if initial is None else values + initial)
        return found

    def original_rows(self, keys: KeyBatch) -> list[F32]:
        """Return the rows of keys in the model as `build` made it, as differences where they are kept so."""
        found: list[F32] = []
        for group, table in zip(self.groups, keys.tables, strict=True):
            numbers = keys_of_stored(table.stored)
            fields, ids = numbers >> VALUE_BITS, numbers & ((1 << VALUE_BITS) - 1)
            values = np.zeros((len(numbers), group.dimension), np.float32)
            for number, each in enumerate(group.layers):
                at = fields == number
                values[at] = self._weights[id(each.layer)][ids[at]]
            initial = group.initial(numbers)
            found.append(values if initial is None else values - initial)
        return found

    # --- the step -----------------------------------------------------------------------------------------

    @property
    def inverse_specs(self) -> list[Any]:
        return [
            tf.TensorSpec(
                (None,) if part.widths else self.events[part.calls[0].event].value.shape, tf.int64
            )
            for group in self.groups
            for part in group.parts
        ]

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """All values that a step could be fed with."""
        leaves = [Candidate(leaf=number) for number in range(len(self._leaves))]
        noted = [n for n, event in enumerate(self.events) if event.kind != "rows" and event.value is not None]
        return (*leaves, *(Candidate(event=number) for number in noted))

    def fed_specs(self, of: Sequence[Candidate]) -> list[Any]:
        return [self._leaves[c.leaf] if c.leaf >= 0 else _spec(self.events[c.event].value) for c in of]

    def narrow(self, graph: Any, given: Sequence[Any]) -> None:
        """Let a step be fed only with what its results depend on. graph: that of a step which is given all candidates."""
        reached = sources(graph.outputs, graph.control_outputs)
        self.fed = tuple(
            candidate
            for candidate, value in zip(self.candidates, given, strict=True)
            if any(each.op.name in reached for each in _components(value))
        )

    def feed(
        self, rows: Sequence[Any], inverse: Sequence[Any], of: Sequence[Candidate], fed: Sequence[Any], training: bool
    ) -> Any:
        """Call the model with rows and the values `fed`, which are those `of` the candidates."""
        values = {candidate.event: value for candidate, value in zip(of, fed, strict=True) if candidate.event >= 0}
        for candidate in self.candidates:
            if candidate.event >= 0 and candidate.event not in values:
                values[candidate.event] = _placeholder(_spec(self.events[candidate.event].value))
        mode = _Feeding(self.events, values, self._gathered(rows, inverse))
        with _calling(mode):
            return self.call(self.fed_leaves(of, fed), training)

    def fed_leaves(self, of: Sequence[Candidate], fed: Sequence[Any]) -> list[Any]:
        """Return all inputs; those that are not fed are values that nothing depends on in the end."""
        leaves = {candidate.leaf: value for candidate, value in zip(of, fed, strict=True) if candidate.leaf >= 0}
        return [leaves[n] if n in leaves else _placeholder(spec) for n, spec in enumerate(self._leaves)]

    def _gathered(self, rows: Sequence[Any], inverse: Sequence[Any]) -> dict[int, Any]:
        """Return the rows of each lookup by its event."""
        found: dict[int, Any] = {}
        places = iter(inverse)
        for group, values in zip(self.groups, rows, strict=True):
            for part in group.parts:
                place = next(places)
                gathered = tf.gather(values, place)
                if not part.widths:
                    found[part.calls[0].event] = gathered
                    continue
                # along the first dimension, so that pieces are views and no copies
                sizes = tf.constant(part.widths) * (tf.shape(place)[0] // sum(part.widths))
                pieces = tf.split(gathered, sizes, num=len(part.widths)) if len(part.widths) > 1 else [gathered]
                for call, piece in zip(part.calls, pieces, strict=True):
                    found[call.event] = tf.reshape(piece, (-1, *(call.shape or ()), group.dimension))
        return found

    def penalties(self, rows: Sequence[Any]) -> list[Any]:
        """Return the regularisation of the batch's rows, by table."""
        return [g.penalty.of(values) for g, values in zip(self.groups, rows, strict=True) if g.penalty != _Penalty()]

    # --- the original -------------------------------------------------------------------------------------

    def release(self) -> None:
        """Free the memory of the tables on the servers, which the model cannot read any more."""
        for layer in self._lookups:
            variable = layer._embeddings
            variable._value = tf.Variable(tf.zeros((0, layer.output_dim)), name=variable.name)
        self._weights.clear()

    def differing(
        self, leaves: Sequence[Any], expected: Sequence[F32], is_close: Callable[[Any, Any], bool]
    ) -> list[str]:
        """Return the layers with which the model gives other outputs when their ids are those of the keys."""
        found: list[str] = []
        noted = self.noted(leaves)
        for layer in self._lookups:
            mine = [n for n, event in enumerate(self.events) if event.kind == "rows" and event.layer is layer]
            mode = _Direct(layer, [noted[number] for number in mine], self._weights)
            with _calling(mode):
                output = self.call([tf.convert_to_tensor(each) for each in leaves], training=False)
            values = [each.numpy() for each in keras.tree.flatten(output)]
            if not all(is_close(value, wanted) for value, wanted in zip(values, expected, strict=True)):
                found.append(cast("_Original", _original(layer)).path)
        return found


def _paths(layers: Sequence[Any]) -> list[str]:
    """Return a name of each layer within the model that no other one has."""
    seen: dict[str, int] = {}
    names: list[str] = []
    for layer in layers:
        name = layer.path or layer.name
        seen[name] = seen.get(name, 0) + 1
        names.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return names


def _identifier(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name) or "input"


class _Callable(types.ModuleType):
    """The module, which is the attribute `stretto.adapt` once it is imported, and can be called as the function."""

    def __call__(self, model: Any) -> Explicit:
        return adapt(model)


sys.modules[__name__].__class__ = _Callable
