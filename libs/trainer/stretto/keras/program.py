"""A Keras model as a pure function of flat parameters, which a worker computes between pull and push."""

from __future__ import annotations

import contextlib
import os
from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, cast

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
import tensorflow as tf

from ..engine.layout import F32, KeyBatch
from ..errors import ModelRefused
from ..model.entry_point import Task
from ..model.one_step import REPEATED, Reference, Ruled, Trial
from ..model.program import (
    LARGEST_EMBEDDING,
    ROWS,
    Gradients,
    Inputs,
    Options,
    ProgramBase,
    Rows,
    Variables,
    check_inputs,
    distinct,
    flat,
    is_rows,
    pieces,
    size_of,
    state_refused,
    updates_of,
)
from ..model.reading import Feature
from ..optimizers import Clipping, Updates
from ..parts import ModelLayer, Part
from ..readers import Batch
from .objective import check_steps
from .optimizer import from_keras
from .parts import KerasPart, Whole
from .plain import PlainKeras, fresh, table
from .private import compiled_loss, layers_of, seeds_of, total_loss


class KerasProgram(ProgramBase):
    """A Keras model ready to train. What it is fed with and how it is called is the subclass's to say."""

    framework = "Keras"
    clips_values = True

    def __init__(
        self,
        task: Task,
        model: Any,
        options: Options,
        inputs: Inputs,
        updates: Updates,
        apart: AbstractSet[int] = frozenset(),
    ) -> None:
        """Take the variables of a model, except ids in `apart`: these have their rows elsewhere, or never change.

        Raises ModelRefused.
        """
        self.model = model
        self._trainable = [each for each in model.trainable_variables if id(each) not in apart]
        self._fixed = [each for each in model.non_trainable_variables if id(each) not in apart]
        self._is_state = [variable.dtype == "float32" for variable in self._fixed]
        self.is_rounded = any(layer.compute_dtype in ("float16", "bfloat16") for layer in layers_of(model))
        self._held = [each for each in model.variables if id(each) not in apart]
        for variable in self._trainable:
            if variable.dtype != "float32":
                raise ModelRefused(f"variable {variable.path} has type {variable.dtype}; parameters are float32 here")
            if (constraint := getattr(variable, "constraint", None)) is not None:
                raise ModelRefused(
                    f"variable {variable.path} has the constraint {type(constraint).__name__}, which Keras applies "
                    "after each update, and the servers do not: compute the weights that are used from free ones in "
                    "the layer's call, as by keras.ops.softplus, or leave it out"
                )
        variables = Variables(_shapes_of(self._trainable), _shapes_of(self._states()))
        super().__init__(task, options, inputs, variables, updates)
        # counters of random layers stay in this process: they are no parameters
        self._local = [tf.identity(v.value) for v, s in zip(self._fixed, self._is_state, strict=True) if not s]

    def _states(self) -> list[Any]:
        return [v for v, is_state in zip(self._fixed, self._is_state, strict=True) if is_state]

    def _signature(self, inverse: list[Any], fed: Any) -> tuple[Any, ...]:
        """Return the types of a graph's arguments. inverse, fed: the types of the arguments that a subclass adds."""
        return (
            [tf.TensorSpec((None, of.dimension), tf.float32) for of in self.tables.values()],
            inverse,
            tf.TensorSpec((self.layout.dense_size,), tf.float32),
            tf.TensorSpec((self.layout.state_size,), tf.float32),
            [tf.TensorSpec(value.shape, value.dtype) for value in self._local],
            fed,
        )

    def _trace(self, signature: tuple[Any, ...], labels: Any) -> None:
        """Make the graphs of a step and of a prediction, which are traced at their first call."""
        # without AutoGraph, which takes most of the time of tracing, and which Keras does without, too
        self._step = tf.function(self._step_graph, input_signature=(*signature, labels), autograph=False)
        self._predict = tf.function(self._predict_graph, input_signature=signature, autograph=False)

    # --- what a subclass says -----------------------------------------------------------------------------

    @abstractmethod
    def _run(self, rows: Sequence[Any], inverse: Sequence[Any], fed: Any, training: bool) -> Any:
        """Call the model in a stateless scope."""

    @abstractmethod
    def _loss_of(self, rows: Sequence[Any], fed: Any, labels: Any, output: Any) -> Any:
        """Return the mean loss with its penalties, in the scope of the call."""

    def _adds_squares(self) -> list[bool]:
        """Return for each table whether the squares of a row's occurrences in a batch are added up one by one."""
        return [False] * len(self.tables)

    @abstractmethod
    def _arguments(self, rows: Sequence[F32], keys: KeyBatch, batch: Batch) -> tuple[list[Any], list[Any], Any]:
        """Return rows, inverse and what else a graph is fed with."""

    @abstractmethod
    def _labels(self, batch: Batch) -> Any:
        """Return the labels as the step takes them."""

    @abstractmethod
    def warm(self) -> None:
        """Trace the step, so that the first real one is as fast as the others."""

    # --- parameters ---------------------------------------------------------------------------------------

    def initial_dense(self) -> F32:
        """Return the trainable variables as the user's initialisers made them: [dense_size]."""
        return flat([variable.numpy() for variable in self._trainable])

    def initial_state(self) -> F32:
        """Return the non-trainable variables, such as moving statistics: [state_size]."""
        return flat([variable.numpy() for variable in self._states()])

    def load_into_model(self, dense: F32, state: F32, steps: int = 0) -> None:
        """Set the Keras model's variables, to save or inspect it; no layer of Keras counts its steps."""
        for variable, value in zip(self._trainable, pieces(dense, self._shapes), strict=True):
            variable.assign(value)
        for variable, value in zip(self._states(), pieces(state, self._state_shapes), strict=True):
            variable.assign(value)

    # --- the comparison with Keras alone ------------------------------------------------------------------

    @abstractmethod
    def _plain_loss(self, tables: Sequence[Any], trial: Trial) -> Any:
        """Call the model as Keras does, and return its loss. tables: variables with the rows of the batch."""

    @contextlib.contextmanager
    def keeping(self) -> Generator[None]:
        """Leave the seeds of random layers as they were. Raises ModelRefused for a step that changes anything else
        which stays in this process."""
        local, seeds = self._local, seeds_of(self.model)
        kept = [v for v, is_state in zip(self._fixed, self._is_state, strict=True) if not is_state]
        try:
            yield
            for variable, before, now in zip(kept, local, self._local, strict=True):
                if id(variable) not in seeds and not np.array_equal(before, now):
                    raise state_refused(variable.path, variable.dtype)
            for operation in self._step.get_concrete_function().graph.get_operations():
                if operation.type.startswith("Assign") and operation.type.endswith("VariableOp"):
                    raise ModelRefused(
                        f"the model assigns a tf.Variable in its call ({operation.name}), which each worker would do "
                        "for itself, and no checkpoint, evaluation or export would have it: make it a weight of a "
                        "layer, by add_weight(trainable=False)"
                    )
        finally:
            self._local = local

    @contextlib.contextmanager
    def plain(self, trial: Trial, start: Mapping[str, F32]) -> Generator[PlainKeras]:
        """Return the user's model with these weights, states and this process's seeds; afterwards it is as it was."""
        names = list(start)
        tables = [table(start[told]) for told, _, _ in self._variables(trial.keys)]
        trained = dict(zip(names, [*tables, *self._trainable], strict=False))
        states = dict(zip(names[len(trained) :], self._states(), strict=True))
        seeds = [v for v, is_state in zip(self._fixed, self._is_state, strict=True) if not is_state]
        rules: list[Ruled] = []
        for number, ruled in self._ruled(trial.keys).items():
            rule = self.updates.rules[number]
            own = Reference(rule, self.batch_size, names[: len(tables)])
            rules.append(Ruled(own if rule.given is None else fresh(rule.given, rule.clipping), ruled))
        before = [(each, each.numpy()) for each in self._held]
        try:
            for name, variable in {**trained, **states}.items():
                variable.assign(start[name])
            for variable, value in zip(seeds, self._local, strict=True):
                variable.assign(value)
            inputs = [] if self.embeddings else names[: len(tables)]
            together = Clipping(global_norm=self.updates.global_norm)
            yield PlainKeras(lambda: self._plain_loss(tables, trial), trained, states, inputs, rules, together)
        finally:
            for variable, value in before:
                variable.assign(value)

    # --- computation --------------------------------------------------------------------------------------

    def _gradients(self, rows: Sequence[F32], keys: KeyBatch, dense: F32, state: F32, batch: Batch) -> Gradients:
        whole, inverse, fed = self._arguments(rows, keys, batch)
        loss, row_gradients, row_squares, dense_gradient, dense_squares, delta, self._local = self._step(
            whole, inverse, dense, state, self._local, fed, self._labels(batch)
        )
        of_rows = tuple(each.numpy() for each in row_gradients)
        squares = tuple(None if each is None else each.numpy() for each in row_squares)
        of_dense = None if dense_squares is None else dense_squares.numpy()
        return Gradients(float(loss), of_rows, dense_gradient.numpy(), delta.numpy(), squares, of_dense)

    def _outputs(self, rows: Sequence[F32], keys: KeyBatch, dense: F32, state: F32, batch: Batch) -> Any:
        """Return the outputs of the model, nested as it gives them."""
        whole, inverse, fed = self._arguments(rows, keys, batch)
        return self._predict(whole, inverse, dense, state, self._local, fed)

    @contextlib.contextmanager
    def _scope(self, variables: list[Any], state: Any, local: list[Any]) -> Generator[Any]:
        """Replace the model's variables by tensors."""
        states, locals_ = iter(cut(state, self._state_shapes)), iter(local)
        fixed = [next(states) if is_state else next(locals_) for is_state in self._is_state]
        mapping = [*zip(self._trainable, variables, strict=True), *zip(self._fixed, fixed, strict=True)]
        with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
            yield scope
            self._check_unassigned(scope, variables)

    def _step_graph(
        self, rows: list[Any], inverse: list[Any], dense: Any, state: Any, local: list[Any], fed: Any, labels: Any
    ) -> Any:
        with tf.GradientTape() as tape:
            # the pieces are watched and not the flat vector: the gradient of a slice has the length of the whole vector
            variables = cut(dense, self._shapes)
            tape.watch([*rows, *variables])
            with self._scope(variables, state, local) as scope:
                output = self._run(rows, inverse, fed, training=True)
                loss = self._loss_of(rows, fed, labels, output)
                fixed = [scope.get_current_value(variable) for variable in self._fixed]
        found = cast(
            "list[Any]", tape.gradient(loss, [*rows, *variables], unconnected_gradients=tf.UnconnectedGradients.ZERO)
        )
        of_tables = [of.rule for of in self.tables.values()]
        adds = [*self._adds_squares(), *[True] * len(variables)]
        numbers = [*of_tables, *[self.updates.of_dense] * len(variables)]
        found = [self._within(*each) for each in zip(found, numbers, adds, strict=True)]
        of_rows = [_of_unique(gradient, of) for gradient, of in zip(found, rows, strict=False)]
        added = [each and self._takes_squares(rule) for each, rule in zip(self._adds_squares(), of_tables, strict=True)]
        squares = [
            _of_unique(gradient, of, squared=True) if is_added else None
            for gradient, of, is_added in zip(found, rows, added, strict=False)
        ]
        of_pieces = found[len(rows) :]
        of_dense = tf.concat([tf.reshape(g, (-1,)) for g in of_pieces], axis=0) if of_pieces else tf.zeros_like(dense)
        takes = self._takes_squares(self.updates.of_dense)
        is_looked_up = any(isinstance(each, tf.IndexedSlices) for each in of_pieces) and takes
        squared = [_of_unique(g, of, squared=True) for g, of in zip(of_pieces, variables, strict=True)]
        dense_squares = tf.concat([tf.reshape(g, (-1,)) for g in squared], axis=0) if is_looked_up else None
        moved = [tf.reshape(v, (-1,)) for v, is_state in zip(fixed, self._is_state, strict=True) if is_state]
        delta = tf.concat(moved, axis=0) - state if moved else tf.zeros_like(state)
        local = [v for v, s in zip(fixed, self._is_state, strict=True) if not s]
        return loss, of_rows, squares, of_dense, dense_squares, delta, local

    def _within(self, gradient: Any, rule: int, is_sliced: bool) -> Any:
        """Return a gradient whose values are within the limit of its rule. is_sliced: each occurrence of a row is
        limited by itself, as Keras does."""
        limit = self.updates.rules[rule].clipping.value
        if limit is None:
            return gradient
        return tf.clip_by_value(gradient if is_sliced else tf.convert_to_tensor(gradient), -limit, limit)

    def _takes_squares(self, rule: int) -> bool:
        """Return whether the squares of occurrences count, in the update or in the norm that is limited."""
        limits = self.updates.limits_of(rule)
        is_limited = limits.norm is not None or limits.global_norm is not None
        return self.updates.rules[rule].optimizer.TAKES_SQUARES or is_limited

    def _check_unassigned(self, scope: Any, given: Sequence[Any]) -> None:
        """Raise ModelRefused for a trainable variable that the model's own code assigns in its call."""
        for variable, value in zip(self._trainable, given, strict=True):
            if scope.get_current_value(variable) is not value:
                raise ModelRefused(
                    f"the call of the model assigns the trainable variable {variable.path}, and the next step gets it "
                    "from the servers as it was: compute what is used from it, or make it trainable=False"
                )

    def _predict_graph(
        self, rows: list[Any], inverse: list[Any], dense: Any, state: Any, local: list[Any], fed: Any
    ) -> Any:
        with self._scope(cut(dense, self._shapes), state, local):
            return self._run(rows, inverse, fed, training=False)


class RowsProgram(KerasProgram):
    """A functional model with an input for the rows of each table, whose ids the task's `keys` returns."""

    def __init__(self, task: Task, model: Any, options: Options) -> None:
        _check(model)
        _check_layers(model)
        check_steps(model)
        self._names = input_names(model)
        inputs = Inputs(_tables(model), _features(model))
        check_inputs(
            inputs.tables,
            self._names,
            options,
            f"add keras.Input((fields, dimension), name={ROWS!r}), which receives the embedding rows of keys(batch)",
        )
        self._probability = _ends_in_sigmoid(model)
        own = _own_loss(task, model)
        self.has_own_loss = own is not None
        self._loss: Callable[[Any, Any], Any] = own or keras.losses.BinaryCrossentropy(
            from_logits=not self._probability
        )
        updates = keras_updates(task, model, options, [*inputs.tables])
        super().__init__(task, model, options, inputs.ruled(updates), updates)
        self._specs = {
            name: tf.TensorSpec(tensor.shape, tensor.dtype, name=name)
            for name, tensor in zip(self._names, model.inputs, strict=True)
            if name not in self.tables
        }
        places = [tf.TensorSpec((None, of.fields), tf.int64) for of in self.tables.values()]
        label = tf.TensorSpec(None, tf.float32)
        self._trace(self._signature(places, self._specs), label)

    def predict(self, rows: Sequence[F32], keys: KeyBatch, dense: F32, state: F32, batch: Batch) -> F32:
        """Return the probabilities of label 1: [n]."""
        return self._outputs(rows, keys, dense, state, batch).numpy()

    def warm(self) -> None:
        """Trace the step on two invented samples, so that the first real step is as fast as the others."""
        batch: Batch = {}
        for name, spec in self._specs.items():
            shape = (2, *(int(length or 1) for length in spec.shape[1:]))
            batch[name] = np.zeros(shape, spec.dtype.as_numpy_dtype)
        batch["label"] = np.array([0.0, 1.0], np.float32)
        fields = [of.fields or 1 for of in self.tables.values()]
        keys = self.layout.index(*(np.arange(2 * count).reshape(2, count) for count in fields))
        widths = (table.dimension for table in self.layout.tables)
        rows = [np.zeros((len(of), width), np.float32) for of, width in zip(keys.tables, widths, strict=True)]
        whole, inverse, fed = self._arguments(rows, keys, batch)
        self._step(whole, inverse, self.initial_dense(), self.initial_state(), self._local, fed, self._labels(batch))

    def _arguments(self, rows: Sequence[F32], keys: KeyBatch, batch: Batch) -> tuple[list[Any], list[Any], Any]:
        fed = {name: np.asarray(batch[name], spec.dtype.as_numpy_dtype) for name, spec in self._specs.items()}
        return [*rows], [table.inverse for table in keys.tables], fed

    def _labels(self, batch: Batch) -> Any:
        return np.asarray(batch["label"], np.float32)

    def _run(self, rows: Sequence[Any], inverse: Sequence[Any], fed: Any, training: bool) -> Any:
        gathered = [tf.gather(of, at) for of, at in zip(rows, inverse, strict=True)]
        values = {**fed, **dict(zip(self.tables, gathered, strict=True))}
        inputs = keras.tree.pack_sequence_as(self.model.input, [values[name] for name in self._names])
        return self.model.call(inputs, training=training)

    def _loss_of(self, rows: Sequence[Any], fed: Any, labels: Any, output: Any) -> Any:
        loss = self._mean_loss(labels, output)
        for penalty in self.model.losses:
            loss += tf.cast(penalty, tf.float32)
        return loss

    @property
    def _model_name(self) -> str:
        return self.model.name

    def _uncut(self) -> str:
        if self._takes_squares(self.updates.of_dense) and any(map(_is_lookup, layers_of(self.model))):
            return "the squares of the gradients of a layer's own table count, for which one process needs all layers"
        return ""

    def _cut_layers(self) -> Sequence[ModelLayer]:
        return self._whole().chain.layers

    def _part(self, first: int, until: int | None) -> Part:
        return KerasPart(self._whole(), first, until)

    def _whole(self) -> Whole:
        limits = {name: self.updates.rules[of.rule].clipping.value for name, of in self.tables.items()}
        variables = self._trainable, self._fixed, self._is_state
        limit = self.updates.rules[self.updates.of_dense].clipping.value
        return Whole(self.model, self._names, limits, *variables, self.layout, self._mean_loss, limit)

    def _mean_loss(self, labels: Any, output: Any) -> Any:
        return tf.reduce_mean(self._loss(_like(labels, output), output))

    def trial(self) -> Trial:
        """Return the first samples, some of them twice."""
        found = self.read(0, self.first_samples, self.first_partition)
        batch = {name: np.concatenate([np.asarray(each), each[:REPEATED]]) for name, each in found.items()}
        return Trial(self.index(batch), self.needed(batch), None)

    def _plain_loss(self, tables: Sequence[Any], trial: Trial) -> Any:
        _, inverse, fed = self._arguments((), trial.keys, trial.batch)
        values = {name: tf.convert_to_tensor(each) for name, each in fed.items()}
        values |= {n: tf.gather(v, at) for n, v, at in zip(self.tables, tables, inverse, strict=True)}
        inputs = keras.tree.pack_sequence_as(self.model.input, [values[name] for name in self._names])
        output, labels = self.model(inputs, training=True), self._labels(trial.batch)
        if compiled_loss(self.model) is None or callable(getattr(self.task, "loss", None)):
            return self._loss_of((), fed, labels, output)
        return total_loss(self.model, inputs, _like(labels, output), output, None)

    def _predict_graph(
        self, rows: list[Any], inverse: list[Any], dense: Any, state: Any, local: list[Any], fed: Any
    ) -> Any:
        output = tf.reshape(super()._predict_graph(rows, inverse, dense, state, local, fed), (-1,))
        return output if self._probability else tf.sigmoid(output)


# --- what can be trained ------------------------------------------------------------------------------------


def keras_updates(task: Task, model: Any, options: Options, tables: Sequence[str]) -> Updates:
    """Return the updates of a model with these tables: the task's, the compiled model's or the specification's."""
    given = getattr(task, "optimizer", None)
    given = getattr(model, "optimizer", None) if given is None else given
    return updates_of(task, options, given, lambda each: from_keras(each, options.batch_size), tables)


def _check(model: Any) -> None:
    """Raise ModelRefused for a model whose inputs or output cannot be fed or read."""
    if isinstance(model, keras.Sequential):
        raise ModelRefused(
            "build() gave a keras.Sequential with the input 'rows'; return the functional model of the same layers: "
            f"keras.Model(model.inputs, model.outputs), its input named {ROWS!r}"
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


def _is_lookup(layer: Any) -> bool:
    return isinstance(layer, keras.layers.Embedding)


def _check_layers(model: Any) -> None:
    for layer in layers_of(model):
        if _is_lookup(layer) and layer.input_dim * layer.output_dim > LARGEST_EMBEDDING:
            raise ModelRefused(
                f"layer {layer.name} holds {layer.input_dim} x {layer.output_dim} floats, which every worker would "
                f"pull in every step; take the rows from the input {ROWS!r} and return their ids from keys(batch)"
            )


def input_structure(model: Any) -> Any:
    """Return the symbolic inputs of a functional or sequential model, nested as it takes them."""
    return model.inputs[0] if isinstance(model, keras.Sequential) else model.input


def input_names(model: Any) -> list[str]:
    """Return the names of the inputs in the order in which Keras flattens them."""
    structure = input_structure(model)
    if isinstance(structure, dict):
        # Keras flattens a dict by its sorted keys
        return sorted(cast("dict[str, Any]", structure))
    return [tensor.name for tensor in keras.tree.flatten(structure)]


def _tables(model: Any) -> dict[str, Rows]:
    """Return each input that receives embedding rows: `rows`, or several `rows_…`, by name."""
    found: dict[str, Rows] = {}
    for name, tensor in sorted(zip(input_names(model), model.inputs, strict=True), key=lambda pair: pair[0]):
        if not is_rows(name):
            continue
        if len(tensor.shape) != 3 or None in tensor.shape[1:]:
            raise ModelRefused(f"the input {name!r} has shape {tensor.shape}; expected (None, fields, dimension)")
        found[name] = Rows(int(tensor.shape[1]), int(tensor.shape[2]))
    return found


def _features(model: Any) -> dict[str, Feature]:
    named = zip(input_names(model), model.inputs, strict=True)
    return {name: Feature(tuple(tensor.shape)) for name, tensor in named if not is_rows(name)}


def _ends_in_sigmoid(model: Any) -> bool:
    layer = model.layers[-1]
    return getattr(layer, "activation", None) is keras.activations.sigmoid


def _own_loss(task: Task, model: Any) -> Callable[[Any, Any], Any] | None:
    """Return the loss of the task or of the compiled model, or None."""
    own = getattr(task, "loss", None)
    if callable(own):
        return cast("Callable[[Any, Any], Any]", own)
    compiled = getattr(model, "loss", None)
    if isinstance(compiled, (str, keras.losses.Loss)) or callable(compiled):
        return cast("Callable[[Any, Any], Any]", keras.losses.get(compiled))
    return None


def _of_unique(gradient: Any, rows: Any, *, squared: bool = False) -> Any:
    """Return the gradient of unique rows: the sum over the places that gather a row. squared: the sum of squares."""
    if isinstance(gradient, tf.IndexedSlices):
        values = tf.square(gradient.values) if squared else gradient.values
        return tf.math.unsorted_segment_sum(values, gradient.indices, tf.shape(rows)[0])
    return tf.square(gradient) if squared else gradient


def _like(label: Any, output: Any) -> Any:
    return tf.reshape(label, (-1, 1)) if len(output.shape) == 2 else tf.reshape(label, (-1,))


def _shapes_of(variables: Sequence[Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of variables by their paths, with a number behind those that several have."""
    return {
        name: tuple(each.shape)
        for name, each in zip(distinct([each.path for each in variables]), variables, strict=True)
    }


def cut(vector: Any, shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    """Cut a tensor into pieces of these shapes."""
    sizes = [size_of(shape) for shape in shapes]
    parts = tf.split(vector, sizes) if sizes else []
    return [tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]
