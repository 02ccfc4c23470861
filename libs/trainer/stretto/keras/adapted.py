"""The program of an adapted Keras model: its own batches, its own embedding layers, any outputs and labels."""

from __future__ import annotations

import contextlib
import logging
import random
import re
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ..engine.layout import F32, KeyBatch
from ..errors import ModelRefused
from ..model.adapted import AdaptedProgram
from ..model.entry_point import Task
from ..model.evaluate import check_metrics
from ..model.fidelity import check_numbers, check_updates, is_close, refusing
from ..model.form import INPUT, DirectReading, numbered
from ..model.one_step import Trial
from ..model.program import Inputs, Judged, Metrics, Options
from ..model.start_weights import take_weights
from ..readers import Batch
from .adapt import AdaptedModel, Candidate, restore
from .form import KerasForm
from .lookups import Feeding, calling
from .objective import CompiledMetrics, ComputedMetrics, Objective, Output, ends_in_sigmoid
from .plain import loss_of_lookups
from .private import compiled_loss, compiled_metrics, takes_training, total_loss
from .program import KerasProgram, cut, keras_updates

log = logging.getLogger("stretto.keras")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
ROWLESS = re.compile(r"indices\[[^]]*\] = (-?\d+) is not in \[0, (\d+)\)")
"""TensorFlow's words for an id without a row, and the number of rows."""


class AdaptedKerasBatches(AdaptedProgram[KerasForm]):
    """The batches of a Keras model as it is."""

    _adapted: AdaptedModel
    _computes_metrics: bool

    def _batch(self, leaves: Sequence[NDArray[Any]], targets: Batch, start: int, length: int) -> Batch:
        found = self._adapted.noted([*leaves, *targets.values()])
        return self._made().batch(leaves, targets, found, start, length)

    def _ids(self, batch: Batch) -> Sequence[NDArray[np.int64]]:
        return self._adapted.feeding.lookups.ids(batch)

    @property
    def reading(self) -> DirectReading | None:
        """All that another process needs to prepare the same batches; None if it needs the model."""
        return self._made() if self._adapted.is_direct else None

    def _made(self) -> DirectReading:
        return DirectReading(self._form.leaves, self._adapted.feeding, self.has_own_loss, self._computes_metrics)


class AdaptedKerasProgram(AdaptedKerasBatches, KerasProgram):
    """A Keras model as it is, ready to train."""

    _objective: Objective

    def __init__(self, task: Task, model: Any, options: Options) -> None:
        begun = time.monotonic()
        self.task = task
        self.model = model
        self._form = form = KerasForm(task, model, options)
        self._computes_metrics = type(model).compute_metrics is not keras.Model.compute_metrics
        random.seed(options.seed)  # layers that are built by the first call draw their seeds from it
        was_built = model.built
        outputs = self._original_outputs()
        if options.restore_from and not was_built:
            take_weights(model, options.restore_from)
            outputs = self._original_outputs()
        example = "GlobalAveragePooling1D divides by the length of a list"
        check_numbers(outputs, self._output_names, form.first_samples, example)
        expected = self._expected(outputs, self._original_outputs(), self._output_names)
        own = type(model).compute_loss is not keras.Model.compute_loss and not callable(getattr(task, "loss", None))
        self._build_loss(outputs, own)
        targets = [*form.labels, *form.weights]
        self._adapted = AdaptedModel(model, form.inputs, form.pack, targets, self._own_loss if own else None)
        try:
            with self._refusing():
                self._adapted.record([*form.first, *form.targets(form.first_targets)])
                updates = keras_updates(task, model, options, self._adapted.paths)
                self._adapted.divide(updates.rule_of, is_restored=bool(options.restore_from))
            inputs = Inputs(self._adapted.tables.rows, {})
            super().__init__(task, model, options, inputs, updates, self._adapted.separate_variables)
            self._tables = self._adapted.tables
            self.embeddings = self._tables.embeddings
            check_updates(self.embeddings, updates, "use a uniform embeddings_initializer")
            self._decide(outputs)
            self._compare(expected)
        except BaseException:
            self._adapted.change_back()
            raise
        self._adapted.release()
        self._check_metrics(outputs)
        counts = [len(each) for each in (self.embeddings, self.tables, self._adapted.fed, self._adapted.candidates)]
        told = "adapted in %.2f s: %d embedding layers in %d tables, %d of %d values fed"
        log.info(told, time.monotonic() - begun, *counts)

    @property
    def input_signature(self) -> Any:
        """The types of the inputs, nested as the model is called with them."""
        form = self._form
        return form.pack([tf.TensorSpec((None, *leaf.shape), leaf.dtype, leaf.name) for leaf in form.inputs])

    def _refusing(self, place: str = "the model") -> AbstractContextManager[None]:
        told = f"{place} {type(self.model).__name__} {self.model.name!r} failed on the first samples"
        return refusing(told, _reason)

    # --- what is computed ---------------------------------------------------------------------------------

    def _original_outputs(self) -> list[NDArray[Any]]:
        """Call the model as it is, which also builds a subclassed model; return its outputs."""
        with self._refusing():
            inputs = self._form.first_tensors[0]
            output = self.model(inputs, training=False) if takes_training(self.model) else self.model(inputs)
            arrays = [np.asarray(keras.ops.convert_to_numpy(each)) for each in keras.tree.flatten(output)]
        self._output_structure = keras.tree.map_structure(lambda _: 0, output)
        self._output_names = _output_names(self.model, output)
        return arrays

    def _decide(self, outputs: Sequence[NDArray[Any]]) -> None:
        """Find what a step is fed with, which loss it has, and which output is binary."""
        widths = [1 if each.ndim == 1 else each.shape[1] if each.ndim == 2 else None for each in outputs]
        adapted = self._adapted
        everything = adapted.candidates
        forward = self._signature(adapted.inverse_specs, adapted.fed_specs(everything))
        seen: dict[str, Any] = {}

        def trial(rows: Any, inverse: Any, dense: Any, state: Any, local: Any, fed: Any, labels: Any) -> Any:
            seen["fed"] = fed
            results: list[Any] = []
            for training in (False, True):
                with self._scope(cut(dense, self._shapes), state, local) as scope:
                    output = adapted.feed(rows, inverse, everything, fed, training)
                    if not training:
                        flat = keras.tree.flatten(output)
                        ends = [ends_in_sigmoid(each) for each in flat]
                        told = zip(self._output_names, widths, ends, strict=True)
                        self._objective = Objective(
                            self.task, self.model, [Output(*each) for each in told], bool(self._form.labels)
                        )
                    else:
                        results.append(self._total(rows, fed, everything, labels, output))
                        results.extend(scope.get_current_value(each) for each in self._fixed)
                    results.extend(keras.tree.flatten(output))
            return results

        with self._refusing():
            graph = tf.function(trial, autograph=False).get_concrete_function(*forward, self._form.target_specs).graph
        adapted.narrow(graph, seen["fed"])
        adapted.shorten()
        self.has_own_loss = not self._objective.is_default
        labels = self._form.targets(self._form.first_targets)
        self._loss_name = self._objective.name
        self._binary = self._objective.binary(labels, self._form.labels_of(self._output_names))
        signature = self._signature(adapted.inverse_specs, adapted.fed_specs(adapted.fed))
        self._trace(signature, self._form.target_specs)
        whole = (*signature, self._form.target_specs)
        self._judge = tf.function(self._judge_graph, input_signature=whole, autograph=False)

    def _build_loss(self, outputs: Sequence[NDArray[Any]], has_own_loss: bool) -> None:
        """Let a compiled loss make its variables, which no graph can; see that it and the metrics take the labels."""
        first = self._first_judged(outputs)
        with self._refusing("the loss of"):
            if callable(getattr(self.task, "loss", None)):
                pass
            elif has_own_loss:
                self._own_loss(first.inputs, self._form.targets(self._form.first_targets), first.outputs)
            elif (compiled := compiled_loss(self.model)) is not None:
                compiled(first.labels, first.outputs, first.weights)
        self._try_metrics(first)  # now, and not when all samples are trained

    def _first_judged(self, outputs: Sequence[NDArray[Any]]) -> Judged:
        inputs, labels, weights = self._form.first_tensors
        output = self._packed([tf.convert_to_tensor(each) for each in outputs])
        return Judged(self._form.first_samples, None, None, 0.0, labels, output, weights, inputs)

    def _try_metrics(self, judged: Judged) -> None:
        metrics = self.metrics()
        if metrics is not None:
            try:
                metrics.add(judged)
                check_metrics(metrics.results())
            finally:
                metrics.close()

    def _check_metrics(self, outputs: Sequence[NDArray[Any]]) -> None:
        """See whether compute_metrics does without the tables that are on the servers; it is left out otherwise."""
        if not self._computes_metrics:
            return
        try:
            self._try_metrics(self._first_judged(outputs))
        except ModelRefused as error:
            self._computes_metrics = False
            log.warning("evaluations have the compiled metrics alone: %s", error)

    def _differing(self, expected: Sequence[NDArray[Any] | None]) -> list[str]:
        first = [*self._form.first, *self._form.targets(self._form.first_targets)]
        return self._adapted.differing(first, expected, is_close)

    def _weights_of(self, owner: Any) -> F32:
        return self._adapted.original_weights(owner)

    def _plain_loss(self, tables: Sequence[Any], trial: Trial) -> Any:
        return loss_of_lookups(self._adapted, self._form, self._objective, tables, trial, self._variables(trial.keys))

    def _looked_up(self, leaves: Sequence[NDArray[Any]], targets: Batch) -> Sequence[tuple[Any, NDArray[np.int64]]]:
        return self._adapted.looked_up([*leaves, *self._form.targets(targets)])

    # --- computation --------------------------------------------------------------------------------------

    def _arrays(self, rows: Sequence[F32], keys: KeyBatch, dense: F32, state: F32, batch: Batch) -> list[NDArray[Any]]:
        found = self._outputs(rows, keys, dense, state, batch)
        return [each.numpy() for each in keras.tree.flatten(found)]

    def _packed(self, arrays: Sequence[Any]) -> Any:
        return keras.tree.pack_sequence_as(self._output_structure, list(arrays))

    def _loss_and_outputs(
        self, rows: Sequence[F32], keys: KeyBatch, dense: F32, state: F32, batch: Batch
    ) -> tuple[float, Any]:
        whole, inverse, fed = self._arguments(rows, keys, batch)
        output, loss = self._judge(whole, inverse, dense, state, self._local, fed, self._labels(batch))
        return float(loss), output

    def _for_metrics(self, batch: Batch, outputs: Any) -> Mapping[str, Any]:
        labels, weights = self._form.split([tf.convert_to_tensor(each) for each in self._labels(batch)])
        inputs = None
        if self._computes_metrics:
            leaves = [batch[numbered(INPUT, number)] for number in range(len(self._form.inputs))]
            inputs = self._form.pack([tf.convert_to_tensor(each) for each in leaves])
        return {"labels": labels, "outputs": outputs, "weights": weights, "inputs": inputs}

    def restore(self, tables: Mapping[str, F32]) -> None:
        """Give the embedding layers their weights back: the model is the user's own again."""
        restore(self.model, tables)

    def metrics(self) -> Metrics | None:
        """Return the model's metrics, without a sample; None if there are none."""
        if self._computes_metrics:
            return ComputedMetrics(self.model)
        return None if compiled_metrics(self.model) is None else CompiledMetrics(self.model)

    def warm(self) -> None:
        """Trace the step on the first samples, so that the first real step is as fast as the others."""
        batch = self._first_batch()
        keys = self.index(batch)
        widths = (table.dimension for table in self.layout.tables)
        rows = [np.zeros((len(of), width), np.float32) for of, width in zip(keys.tables, widths, strict=True)]
        local = self._local
        with self._refusing():
            self._gradients(rows, keys, self.initial_dense(), self.initial_state(), batch)
        self._local = local  # the first real step drops what that of Keras does

    def _arguments(self, rows: Sequence[F32], keys: KeyBatch, batch: Batch) -> tuple[list[Any], list[Any], Any]:
        fed: list[Any] = [batch[f"fed {number}"] for number in range(len(self._adapted.fed))]
        return self._tables.whole(rows, keys), self._adapted.inverse(keys, batch), fed

    def _labels(self, batch: Batch) -> list[Any]:
        return self._form.targets(batch)

    def _own_loss(self, inputs: Any, targets: Sequence[Any], output: Any) -> Any:
        """Return the loss of a model that overrides compute_loss."""
        labels, weights = self._form.split(targets)
        return total_loss(self.model, inputs, labels, output, weights)

    @contextlib.contextmanager
    def _scope(self, variables: list[Any], state: Any, local: list[Any]) -> Generator[Any]:
        with super()._scope(variables, state, local) as scope, calling(Feeding()):
            yield scope

    def _judge_graph(
        self, rows: list[Any], inverse: list[Any], dense: Any, state: Any, local: list[Any], fed: Any, labels: Any
    ) -> Any:
        with self._scope(cut(dense, self._shapes), state, local):
            output = self._run(rows, inverse, fed, training=False)
            return output, self._loss_of(rows, fed, labels, output)

    def _adds_squares(self) -> list[bool]:
        """Return True for tables without a regulariser: with one, Keras has a gradient of the whole table."""
        return [group.penalty is None for group in self._tables.groups]

    def _run(self, rows: Sequence[Any], inverse: Sequence[Any], fed: Any, training: bool) -> Any:
        return self._adapted.feed(rows, inverse, self._adapted.fed, fed, training)

    def _loss_of(self, rows: Sequence[Any], fed: Any, labels: Any, output: Any) -> Any:
        return self._total(rows, fed, self._adapted.fed, labels, output)

    def _total(self, rows: Sequence[Any], fed: Any, of: Sequence[Candidate], labels: Any, output: Any) -> Any:
        inputs = self._form.pack(self._adapted.fed_leaves(of, fed)) if self._objective.needs_inputs else None
        expected, weights = self._form.split(labels)
        return self._objective.loss(inputs, expected, output, weights, self._adapted.penalties(rows))


# --- pure parts ---------------------------------------------------------------------------------------------


def _reason(error: Exception) -> str:
    """Return the message of an error, with a remedy for an id without a row.

    A message of TensorFlow goes without its stack and colours, but with the innermost place.
    """
    whole = COLOURS.sub("", str(error))
    if outside := ROWLESS.search(whole):
        rows = int(outside[2])
        return (
            f"an embedding has no row {outside[1]}: its ids are 0 to {rows - 1}; raise its input_dim, or map the "
            "values into it (keras.layers.Hashing); a text of the reader's categorical=, which is hashed, rather comes "
            "by others= to a keras.layers.StringLookup"
        )
    lines = [line.strip() for line in whole.splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith(("Graph execution", "Detected at", "File ", "[[{{node"))]
    if not isinstance(error, tf.errors.OpError) or not said:
        return whole
    places = [line for line in lines if line.startswith("File ")]
    return f"{' '.join(said)}{''.join(f' ({place})' for place in places[-1:])}"


def _output_names(model: Any, output: Any) -> list[str]:
    if isinstance(output, dict):
        return sorted(cast("dict[str, Any]", output))
    count = len(keras.tree.flatten(output))
    names: list[str] = list(getattr(model, "output_names", None) or ())
    return names if len(names) == count else [f"output_{number}" for number in range(count)]
