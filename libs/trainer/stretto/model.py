"""The user's Keras model as a pure function of flat parameters, which a worker computes between pull and push."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from stretto_messages.values import BUCKETS, SLICES

from .engine.layout import F32, KeyBatch, Layout, Table
from .entry import Task, keys_of, read_of
from .errors import DataError, ModelRefused
from .optimizers import resolve
from .readers import Batch

ROWS = "rows"
_LARGEST_EMBEDDING = 1_000_000
_OLD_SEED = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Gradients:
    """Gradients of a batch's mean loss: rows [n, dimension] of each table, dense [dense_size]; state_delta [state_size]
    is added.
    """

    loss: float
    rows: tuple[F32, ...]
    dense: F32
    state_delta: F32


class Program:
    """A model ready to train. The same user code and seed give the same layout and initial values in every process."""

    def __init__(
        self,
        task: Task,
        *,
        optimizer: str = "adagrad",
        learning_rate: float = 0.05,
        embedding_dim: int | None = None,
        seed: int = 0,
    ) -> None:
        if keras.backend.backend() != "tensorflow":
            raise ModelRefused(f"KERAS_BACKEND = {keras.backend.backend()}: only 'tensorflow' can be trained; unset it")
        self.task = task
        keras.utils.set_random_seed(seed % _OLD_SEED)
        model = self.model = _build(task)
        _check_layers(model)
        self._names = _input_names(model)
        self.tables = _tables(model)
        if embedding_dim is not None and ROWS in self.tables and self.tables[ROWS][1] != embedding_dim:
            raise ModelRefused(
                f"model.embedding_dim = {embedding_dim}, but the input {ROWS!r} has {self.tables[ROWS][1]} floats per "
                "row; make them equal"
            )
        self._trainable = list(model.trainable_variables)
        self._fixed = list(model.non_trainable_variables)
        self._is_state = [variable.dtype == "float32" for variable in self._fixed]
        for variable in self._trainable:
            if variable.dtype != "float32":
                raise ModelRefused(f"variable {variable.path} has type {variable.dtype}; parameters are float32 here")
        self._probability = _ends_in_sigmoid(model)
        self._loss = _loss_of(task, model, self._probability)
        given = getattr(task, "optimizer", None)
        given = given if given is not None else getattr(model, "optimizer", None)
        update = resolve(given, optimizer, learning_rate)
        self.layout = Layout(
            tables=tuple(Table(width, update, seed + i) for i, (_, width) in enumerate(self.tables.values())),
            dense_size=sum(_size(variable) for variable in self._trainable),
            buckets=BUCKETS,
            slices=SLICES,
            state_size=sum(_size(v) for v, is_state in zip(self._fixed, self._is_state, strict=True) if is_state),
            optimizer=update,
        )
        # counters of random layers stay in this process: they are no parameters
        self._local = [tf.identity(v.value) for v, s in zip(self._fixed, self._is_state, strict=True) if not s]
        features = {
            name: tf.TensorSpec(tensor.shape, tensor.dtype, name=name)
            for name, tensor in zip(self._names, model.inputs, strict=True)
            if name not in self.tables
        }
        self._features = features
        shared = (
            [tf.TensorSpec((None, width), tf.float32) for _, width in self.tables.values()],
            [tf.TensorSpec((None, fields), tf.int64) for fields, _ in self.tables.values()],
            tf.TensorSpec((self.layout.dense_size,), tf.float32),
            tf.TensorSpec((self.layout.state_size,), tf.float32),
            [tf.TensorSpec(value.shape, value.dtype) for value in self._local],
            features,
        )
        label = tf.TensorSpec(tf.TensorShape(cast("Any", None)), tf.float32)
        # without AutoGraph, which takes most of the time of tracing: a functional model does not need it
        self._step = tf.function(self._step_graph, input_signature=(*shared, label), autograph=False)
        self._predict = tf.function(self._predict_graph, input_signature=shared, autograph=False)

    # --- data ---------------------------------------------------------------------------------------------

    def read(self, start: int, length: int, partition: str = "") -> Batch:
        """Call the user's ``read`` and check its batch. Raises DataError."""
        where = f"read({start}, {length}, {partition!r})" if partition else f"read({start}, {length})"
        try:
            batch = read_of(self.task, start, length, partition)
        except DataError:
            raise
        except Exception as error:
            raise DataError(f"{where} failed: {type(error).__name__}: {error}") from error
        if not isinstance(batch, dict) or "label" not in batch:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DataError(f"{where} gave {type(batch).__name__}; expected a dict of arrays with 'label' among them")
        for name in ("label", *self._features):
            if name not in batch:
                raise DataError(f"{where} gave {sorted(batch)}; the model's input {name!r} is missing")
            self._check_array(where, name, np.asarray(batch[name]), length)
        return batch

    def _check_array(self, where: str, name: str, array: NDArray[Any], length: int) -> None:
        if array.shape[:1] != (length,):
            raise DataError(f"{where}: {name!r} has shape {array.shape}, expected {length} samples")
        spec = self._features.get(name)
        if spec is not None and not spec.shape.is_compatible_with(array.shape):
            raise DataError(f"{where}: {name!r} has shape {array.shape}, the model wants {tuple(spec.shape)}")
        if array.dtype.kind not in "biuf":
            raise DataError(f"{where}: {name!r} has type {array.dtype}, expected numbers")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            row = int(np.flatnonzero(~np.isfinite(array).reshape(length, -1).all(axis=1))[0])
            raise DataError(f"sample {int(where[5 : where.index(',')]) + row}: {name!r} is not finite")

    def keys(self, batch: Batch) -> list[NDArray[np.int64]]:
        """Call the user's ``keys`` and check the result: [n, fields] of each table. Raises DataError."""
        try:
            given = keys_of(self.task, batch)
        except DataError:
            raise
        except Exception as error:
            raise DataError(f"keys(batch) failed: {type(error).__name__}: {error}") from error
        by_name = given if isinstance(given, dict) else dict.fromkeys([*self.tables][:1], given)
        if set(by_name) != set(self.tables):
            raise DataError(f"keys(batch) gave ids for {sorted(by_name)}; the model's tables are {[*self.tables]}")
        return [self._checked(name, by_name[name], len(batch["label"])) for name in self.tables]

    def _checked(self, name: str, given: Any, samples: int) -> NDArray[np.int64]:
        ids, fields = np.asarray(given), self.tables[name][0]
        if ids.dtype.kind not in "iu" or ids.shape != (samples, fields):
            raise DataError(
                f"keys(batch) gave {ids.dtype} {ids.shape}; expected int64 ({samples}, {fields}), one id for each row "
                f"of the input {name!r}"
            )
        return ids.astype(np.int64, copy=False)

    def index(self, batch: Batch) -> KeyBatch:
        """Return the unique keys of a batch. Raises DataError."""
        return self.layout.index(*self.keys(batch))

    def no_keys(self) -> KeyBatch:
        """Return a batch without samples, to pull the dense parameters alone."""
        return self.layout.index(*(np.zeros((0, fields), np.int64) for fields, _ in self.tables.values()))

    # --- parameters ---------------------------------------------------------------------------------------

    def initial_dense(self) -> F32:
        """Return the trainable variables as the user's initialisers made them: [dense_size]."""
        return _flat([variable.numpy() for variable in self._trainable])

    def initial_state(self) -> F32:
        """Return the non-trainable variables, such as moving statistics: [state_size]."""
        return _flat([v.numpy() for v, is_state in zip(self._fixed, self._is_state, strict=True) if is_state])

    def load_into_model(self, dense: F32, state: F32) -> None:
        """Set the Keras model's variables, to save or inspect it."""
        for variable, value in zip(self._trainable, _pieces(dense, self._trainable), strict=True):
            variable.assign(value)
        states = [v for v, is_state in zip(self._fixed, self._is_state, strict=True) if is_state]
        for variable, value in zip(states, _pieces(state, states), strict=True):
            variable.assign(value)

    # --- computation --------------------------------------------------------------------------------------

    def step(self, rows: Sequence[F32], keys: KeyBatch, dense: F32, state: F32, batch: Batch) -> Gradients:
        """Compute the gradients. rows: of each table, [n unique, dimension]. Raises ModelRefused for a loss that is not
        finite.
        """
        label = np.asarray(batch["label"], np.float32)
        loss, row_gradients, dense_gradient, delta, self._local = self._step(
            [*rows], _inverse(keys), dense, state, self._local, self._inputs(batch), label
        )
        value = float(loss)
        if not np.isfinite(value):
            raise ModelRefused(f"the loss is {value}: training diverged; lower model.learning_rate or check the loss")
        of_rows = tuple(each.numpy() for each in row_gradients)
        return Gradients(value, of_rows, dense_gradient.numpy(), delta.numpy())

    def predict(self, rows: Sequence[F32], keys: KeyBatch, dense: F32, state: F32, batch: Batch) -> F32:
        """Return the probabilities of label 1: [n]."""
        return self._predict([*rows], _inverse(keys), dense, state, self._local, self._inputs(batch)).numpy()

    def warm(self) -> None:
        """Trace the step on two invented samples, so that the first real step is as fast as the others."""
        batch: Batch = {}
        for name, spec in self._features.items():
            shape = (2, *(int(length or 1) for length in spec.shape[1:]))
            batch[name] = np.zeros(shape, spec.dtype.as_numpy_dtype)
        batch["label"] = np.array([0.0, 1.0], np.float32)
        keys = self.layout.index(*(np.arange(2 * fields).reshape(2, fields) for fields, _ in self.tables.values()))
        widths = (table.dimension for table in self.layout.tables)
        rows = [np.zeros((len(of), width), np.float32) for of, width in zip(keys.tables, widths, strict=True)]
        dense = self.initial_dense()
        state = self.initial_state()
        self._step(rows, _inverse(keys), dense, state, self._local, self._inputs(batch), batch["label"])

    def _inputs(self, batch: Batch) -> dict[str, Any]:
        return {name: np.asarray(batch[name], spec.dtype.as_numpy_dtype) for name, spec in self._features.items()}

    def _call(
        self, gathered: list[Any], pieces: list[Any], state: Any, local: list[Any], features: dict[str, Any], training: bool
    ) -> Any:
        states = iter(_pieces(state, [v for v, s in zip(self._fixed, self._is_state, strict=True) if s]))
        locals_ = iter(local)
        fixed = [next(states) if is_state else next(locals_) for is_state in self._is_state]
        values = {**features, **dict(zip(self.tables, gathered, strict=True))}
        inputs = keras.tree.pack_sequence_as(self.model.input, [values[name] for name in self._names])
        return self.model.stateless_call(pieces, fixed, inputs, training=training, return_losses=True)

    def _step_graph(
        self,
        rows: list[Any],
        inverse: list[Any],
        dense: Any,
        state: Any,
        local: list[Any],
        features: dict[str, Any],
        label: Any,
    ) -> Any:
        with tf.GradientTape() as tape:
            gathered = [tf.gather(of, at) for of, at in zip(rows, inverse, strict=True)]
            # the pieces are watched and not the flat vector: the gradient of a slice has the length of the whole vector
            pieces = _pieces(dense, self._trainable)
            tape.watch([*gathered, *pieces])
            output, fixed, penalties = self._call(gathered, pieces, state, local, features, training=True)
            loss = tf.reduce_mean(self._loss(_like(label, output), output))
            for penalty in penalties:
                loss += tf.cast(penalty, tf.float32)
        found = cast(
            "list[Any]",
            tape.gradient(loss, [*gathered, *pieces], unconnected_gradients=tf.UnconnectedGradients.ZERO),
        )
        of_gathered, of_pieces = found[: len(gathered)], found[len(gathered) :]
        of_dense = tf.concat([tf.reshape(g, (-1,)) for g in of_pieces], axis=0) if of_pieces else tf.zeros_like(dense)
        of_rows = [
            tf.math.unsorted_segment_sum(tf.reshape(gradient, (-1, of.shape[1])), tf.reshape(at, (-1,)), tf.shape(of)[0])
            for gradient, of, at in zip(of_gathered, rows, inverse, strict=True)
        ]
        moved = [tf.reshape(v, (-1,)) for v, is_state in zip(fixed, self._is_state, strict=True) if is_state]
        delta = tf.concat(moved, axis=0) - state if moved else tf.zeros_like(state)
        return loss, of_rows, of_dense, delta, [v for v, s in zip(fixed, self._is_state, strict=True) if not s]

    def _predict_graph(
        self, rows: list[Any], inverse: list[Any], dense: Any, state: Any, local: list[Any], features: dict[str, Any]
    ) -> Any:
        pieces = _pieces(dense, self._trainable)
        gathered = [tf.gather(of, at) for of, at in zip(rows, inverse, strict=True)]
        output = self._call(gathered, pieces, state, local, features, training=False)[0]
        output = tf.reshape(output, (-1,))
        return output if self._probability else tf.sigmoid(output)


# --- what can be trained ------------------------------------------------------------------------------------


def _build(task: Task) -> Any:
    try:
        model = task.build()
    except ModelRefused:
        raise
    except Exception as error:
        raise ModelRefused(f"build() failed: {type(error).__name__}: {error}") from error
    if not isinstance(model, keras.Model):
        raise ModelRefused(f"build() gave {type(model).__name__}; expected a functional keras.Model")
    if isinstance(model, keras.Sequential):
        raise ModelRefused(
            "build() gave a keras.Sequential, whose inputs have no names that read() could fill; return the functional "
            f"model of the same layers: keras.Model(model.inputs, model.outputs), its input named {ROWS!r}"
        )
    functional = type(model).__module__.startswith("keras.") and bool(getattr(model, "inputs", None))
    if not functional:
        raise ModelRefused(
            f"build() gave {type(model).__name__}, a subclassed model, whose variables and inputs are not known before "
            "it runs; return a functional one: keras.Model(inputs=[rows, …], outputs=output)"
        )
    for tensor in model.inputs:
        if tensor.dtype == "string":
            raise ModelRefused(
                f"the input {tensor.name!r} has type string; batches hold numbers: let keys(batch) return "
                f"stretto.hash_strings of these values, and take their rows from the input {ROWS!r}"
            )
    if len(model.outputs) != 1:
        raise ModelRefused(f"the model has {len(model.outputs)} outputs; expected one, of shape (None, 1)")
    if model.outputs[0].shape not in ((None, 1), (None,)):
        raise ModelRefused(
            f"the output has shape {model.outputs[0].shape}; expected (None, 1): one logit or probability"
        )
    return model


def _check_layers(model: Any) -> None:
    for layer in model._flatten_layers():  # pyright: ignore[reportPrivateUsage]
        if isinstance(layer, keras.layers.Embedding) and layer.input_dim * layer.output_dim > _LARGEST_EMBEDDING:
            raise ModelRefused(
                f"layer {layer.name} holds {layer.input_dim} x {layer.output_dim} floats, which every worker would "
                f"pull in every step; take the rows from the input {ROWS!r} and return their ids from keys(batch)"
            )


def _input_names(model: Any) -> list[str]:
    structure = model.input
    if isinstance(structure, dict):
        # Keras flattens a dict by its sorted keys
        return sorted(cast("dict[str, Any]", structure))
    return [tensor.name for tensor in keras.tree.flatten(structure)]


def _tables(model: Any) -> dict[str, tuple[int, int]]:
    """Return (fields, dimension) of each input that receives embedding rows: `rows`, or several `rows_…`, by name."""
    found: dict[str, tuple[int, int]] = {}
    for name, tensor in sorted(zip(_input_names(model), model.inputs, strict=True), key=lambda pair: pair[0]):
        if name != ROWS and not name.startswith(f"{ROWS}_"):
            continue
        if len(tensor.shape) != 3 or None in tensor.shape[1:]:
            raise ModelRefused(f"the input {name!r} has shape {tensor.shape}; expected (None, fields, dimension)")
        found[name] = int(tensor.shape[1]), int(tensor.shape[2])
    if not found:
        raise ModelRefused(
            f"the model has inputs {_input_names(model)}, none named {ROWS!r}; add "
            f"keras.Input((fields, dimension), name={ROWS!r}), which receives the embedding rows of keys(batch)"
        )
    return found


def _inverse(keys: KeyBatch) -> list[Any]:
    return [table.inverse for table in keys.tables]


def _ends_in_sigmoid(model: Any) -> bool:
    layer = model.layers[-1]
    return getattr(layer, "activation", None) is keras.activations.sigmoid


def _loss_of(task: Task, model: Any, probability: bool) -> Callable[[Any, Any], Any]:
    own = getattr(task, "loss", None)
    if callable(own):
        return cast("Callable[[Any, Any], Any]", own)
    compiled = getattr(model, "loss", None)
    if isinstance(compiled, (str, keras.losses.Loss)) or callable(compiled):
        return cast("Callable[[Any, Any], Any]", keras.losses.get(compiled))
    return keras.losses.BinaryCrossentropy(from_logits=not probability)


def _like(label: Any, output: Any) -> Any:
    return tf.reshape(label, (-1, 1)) if len(output.shape) == 2 else tf.reshape(label, (-1,))


# --- flat vectors -------------------------------------------------------------------------------------------


def _size(variable: Any) -> int:
    return int(np.prod(variable.shape, dtype=np.int64))


def _flat(values: list[Any]) -> F32:
    return np.concatenate([np.zeros(0, np.float32), *(np.asarray(v, np.float32).reshape(-1) for v in values)])


def _pieces(flat: Any, variables: list[Any]) -> list[Any]:
    """Cut a flat vector (NumPy or tensor) into pieces of the shapes of ``variables``."""
    pieces: list[Any] = []
    position = 0
    for variable in variables:
        size = _size(variable)
        piece = flat[position : position + size]
        shape = tuple(variable.shape)
        pieces.append(piece.reshape(shape) if isinstance(piece, np.ndarray) else tf.reshape(piece, shape))
        position += size
    return pieces
