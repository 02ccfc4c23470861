"""The program of an adapted Keras model: its own batches, its own embedding layers, any outputs and labels."""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections.abc import Generator, Mapping, Sequence
from typing import Any, cast

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ..engine.layout import F32, KeyBatch
from ..errors import DataError, ModelRefused
from ..model.entry_point import Task
from ..model.evaluate import check_metrics
from ..model.fidelity import check_numbers, check_update, differs, is_close, probability
from ..model.form import numbered
from ..model.program import Inputs, Judged, Metrics, Options, check_labels
from ..model.start_weights import take_weights
from ..readers import Batch
from .adapt import AdaptedModel, Candidate, restore
from .form import KerasForm
from .lookups import Feeding, calling
from .objective import Binary, CompiledMetrics, ComputedMetrics, Objective, Output, ends_in_sigmoid
from .private import compiled_loss, compiled_metrics, takes_training, total_loss
from .program import KerasProgram, cut

log = logging.getLogger("stretto.keras")

_SAMPLES, _INPUT = "samples", "input"
"""Names in a batch: of the number of its samples, as it may have no labels; of the inputs that metrics need."""


class AdaptedProgram(KerasProgram):
    """A Keras model as it is, ready to train.

    Larger than 250 lines: the trial of a model and its steps share the form of the data, the tables and the objective.
    """

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
        check_numbers(
            outputs, self._output_names, len(form.first[0]), "GlobalAveragePooling1D divides by the length of a list"
        )
        expected = self._expected(outputs)
        own = type(model).compute_loss is not keras.Model.compute_loss and not callable(getattr(task, "loss", None))
        self._build_loss(outputs, own)
        targets = [*form.labels, *form.weights]
        self._adapted = AdaptedModel(model, form.inputs, form.pack, targets, self._own_loss if own else None)
        try:
            with _as_refusal(model):
                self._adapted.record([*form.first, *form.targets(form.first_targets)])
                self._adapted.divide(is_restored=bool(options.restore_from))
            super().__init__(
                task, model, options, Inputs(self._adapted.tables.rows, {}), self._adapted.separate_variables
            )
            self.embeddings = self._adapted.tables.embeddings
            check_update(self.embeddings, self.update, "use a uniform embeddings_initializer")
            self._decide(outputs)
            self._compare(expected)
        except BaseException:
            self._adapted.change_back()
            raise
        self._adapted.release()
        self._check_metrics(outputs)
        log.info(
            "adapted in %.2f s: %d embedding layers in %d tables, %d of %d values fed",
            time.monotonic() - begun,
            len(self.embeddings),
            len(self.tables),
            len(self._adapted.fed),
            len(self._adapted.candidates),
        )

    @property
    def input_signature(self) -> Any:
        """The types of the inputs, nested as the model is called with them."""
        form = self._form
        return form.pack([tf.TensorSpec((None, *leaf.shape), leaf.dtype, leaf.name) for leaf in form.inputs])

    # --- what is computed ---------------------------------------------------------------------------------

    def _original_outputs(self) -> list[NDArray[Any]]:
        """Call the model as it is, which also builds one that is subclassed; return its outputs."""
        with _as_refusal(self.model):
            inputs = self._form.first_tensors[0]
            output = self.model(inputs, training=False) if takes_training(self.model) else self.model(inputs)
            arrays = [np.asarray(keras.ops.convert_to_numpy(each)) for each in keras.tree.flatten(output)]
        self._output_structure = keras.tree.map_structure(lambda _: 0, output)
        self._output_names = _output_names(self.model, output)
        return arrays

    def _expected(self, outputs: Sequence[NDArray[Any]]) -> list[NDArray[Any] | None]:
        """Return the outputs that the adapted model must give; None for one that differs from call to call."""
        again = self._original_outputs()
        expected = [each if is_close(a, each) else None for a, each in zip(again, outputs, strict=True)]
        drawn = [name for name, each in zip(self._output_names, expected, strict=True) if each is None]
        if drawn:
            log.warning(
                "the model draws at random in its call, so its output %s is not compared with the original's",
                ", ".join(drawn),
            )
        return expected

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

        with _as_refusal(self.model):
            graph = tf.function(trial, autograph=False).get_concrete_function(*forward, self._form.target_specs).graph
        adapted.narrow(graph, seen["fed"])
        adapted.shorten()
        self.has_own_loss = not self._objective.is_default
        labels = self._form.targets(self._form.first_targets)
        self._binary: Binary | None = self._objective.binary(labels, self._form.labels_of(self._output_names))
        signature = self._signature(adapted.inverse_specs, adapted.fed_specs(adapted.fed))
        self._trace(signature, self._form.target_specs)
        whole = (*signature, self._form.target_specs)
        self._judge = tf.function(self._judge_graph, input_signature=whole, autograph=False)

    def _build_loss(self, outputs: Sequence[NDArray[Any]], has_own_loss: bool) -> None:
        """Let a compiled loss make its variables, which no graph can; see that it and the metrics take the labels."""
        inputs, labels, weights = self._form.first_tensors
        output = keras.tree.pack_sequence_as(self._output_structure, [tf.convert_to_tensor(each) for each in outputs])
        with _as_refusal(self.model, "the loss of"):
            if callable(getattr(self.task, "loss", None)):
                pass
            elif has_own_loss:
                self._own_loss(inputs, self._form.targets(self._form.first_targets), output)
            elif (compiled := compiled_loss(self.model)) is not None:
                compiled(labels, output, weights)
        # now, and not when all samples are trained
        self._try_metrics(Judged(len(self._form.first[0]), None, None, 0.0, labels, output, weights, inputs))

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
        inputs, labels, weights = self._form.first_tensors
        output = keras.tree.pack_sequence_as(self._output_structure, [tf.convert_to_tensor(each) for each in outputs])
        try:
            self._try_metrics(Judged(len(self._form.first[0]), None, None, 0.0, labels, output, weights, inputs))
        except ModelRefused as error:
            self._computes_metrics = False
            log.warning("evaluations have the compiled metrics alone: %s", error)

    def _compare(self, expected: Sequence[NDArray[Any] | None]) -> None:
        """Raise ModelRefused if the adapted model gives other outputs than expected for the first samples."""
        batch = self._batch(self._form.first, self._form.first_targets, 0)
        keys = self.index(batch)
        rows = self._adapted.original_rows(keys)
        with _as_refusal(self.model):
            found = self._outputs(rows, keys, self.initial_dense(), self.initial_state(), batch)
        arrays = [each.numpy() for each in keras.tree.flatten(found)]
        if all(is_close(a, b) for a, b in zip(arrays, expected, strict=True)):
            return
        first = [*self._form.first, *self._form.targets(self._form.first_targets)]
        raise differs(arrays, expected, self._adapted.differing(first, expected, is_close))

    # --- batches ------------------------------------------------------------------------------------------

    def read(self, start: int, length: int, partition: str = "") -> Batch:
        """Call the user's ``read``, and compute the ids of its samples. Raises DataError."""
        where = f"read({start}, {length}, {partition!r})" if partition else f"read({start}, {length})"
        leaves, batch = self._form.read(start, length, partition, where)
        if self._objective.is_default:
            check_labels(batch["label"], start)
        try:
            return self._batch(leaves, batch, start)
        except DataError:
            raise
        except Exception as error:
            raise DataError(f"{where}: ids cannot be computed: {type(error).__name__}: {error}") from error

    def _batch(self, leaves: Sequence[NDArray[Any]], batch: Batch, start: int) -> Batch:
        prepared = self._adapted.prepare([*leaves, *self._form.targets(batch)], start)
        if self._computes_metrics:
            batch = {**batch, **{numbered(_INPUT, number): leaf for number, leaf in enumerate(leaves)}}
        return {**batch, _SAMPLES: np.array(len(leaves[0])), **prepared}

    def index(self, batch: Batch) -> KeyBatch:
        """Return the unique keys of a batch."""
        return self.layout.index(*self._adapted.ids(batch))

    def needed(self, batch: Batch) -> Batch:
        """Return the arrays that a step and its loss need: all that `read` left."""
        return batch

    def no_keys(self) -> KeyBatch:
        """Return a batch without samples, to pull the dense parameters alone."""
        return self.layout.index(*self._adapted.tables.no_ids())

    # --- computation --------------------------------------------------------------------------------------

    def predict(self, rows: Sequence[F32], keys: KeyBatch, dense: F32, state: F32, batch: Batch) -> Any:
        """Return the probabilities of label 1: [n]; of a model without one binary output all its outputs, nested as it
        gives them."""
        arrays = self._raw(rows, keys, dense, state, batch)
        if self._binary is not None and len(arrays) == 1:
            return probability(arrays[0], is_logit=self._binary.is_logit)
        return keras.tree.pack_sequence_as(self._output_structure, arrays)

    def _raw(self, rows: Sequence[F32], keys: KeyBatch, dense: F32, state: F32, batch: Batch) -> list[NDArray[Any]]:
        found = self._outputs(rows, keys, dense, state, batch)
        return [each.numpy() for each in keras.tree.flatten(found)]

    def judge(self, rows: Sequence[F32], keys: KeyBatch, dense: F32, state: F32, batch: Batch) -> Judged:
        """Predict a batch and compare with its labels."""
        given = self._labels(batch)
        labels, weights = self._form.split([tf.convert_to_tensor(each) for each in given])
        n = int(batch[_SAMPLES])
        if self._binary is None:
            whole, inverse, fed = self._arguments(rows, keys, batch)
            output, loss = self._judge(whole, inverse, dense, state, self._local, fed, given)
            return Judged(n, None, None, float(loss), labels, output, weights, self._inputs_for_metrics(batch))
        arrays = self._raw(rows, keys, dense, state, batch)
        nested = {
            "labels": labels,
            "outputs": keras.tree.pack_sequence_as(self._output_structure, arrays),
            "weights": weights,
            "inputs": self._inputs_for_metrics(batch),
        }
        label = np.asarray(batch[numbered("label", self._binary.label)], np.float32).reshape(-1)
        return Judged(n, label, probability(arrays[self._binary.output], is_logit=self._binary.is_logit), **nested)

    def _inputs_for_metrics(self, batch: Batch) -> Any:
        if not self._computes_metrics:
            return None
        leaves = [batch[numbered(_INPUT, number)] for number in range(len(self._form.inputs))]
        return self._form.pack([tf.convert_to_tensor(each) for each in leaves])

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
        batch = self._batch(self._form.first, self._form.first_targets, 0)
        keys = self.index(batch)
        widths = (table.dimension for table in self.layout.tables)
        rows = [np.zeros((len(of), width), np.float32) for of, width in zip(keys.tables, widths, strict=True)]
        local = self._local
        with _as_refusal(self.model):
            self._gradients(rows, keys, self.initial_dense(), self.initial_state(), batch)
        self._local = local  # the first real step drops what that of Keras does

    def _arguments(self, rows: Sequence[F32], keys: KeyBatch, batch: Batch) -> tuple[list[Any], list[Any], Any]:
        fed: list[Any] = [batch[f"fed {number}"] for number in range(len(self._adapted.fed))]
        return self._adapted.tables.whole(rows, keys), self._adapted.inverse(keys, batch), fed

    def _variables(self, keys: KeyBatch) -> Sequence[tuple[int, Any]]:
        return self._adapted.tables.places(keys)

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
        return [group.penalty is None for group in self._adapted.tables.groups]

    def _run(self, rows: Sequence[Any], inverse: Sequence[Any], fed: Any, training: bool) -> Any:
        return self._adapted.feed(rows, inverse, self._adapted.fed, fed, training)

    def _loss_of(self, rows: Sequence[Any], fed: Any, labels: Any, output: Any) -> Any:
        return self._total(rows, fed, self._adapted.fed, labels, output)

    def _total(self, rows: Sequence[Any], fed: Any, of: Sequence[Candidate], labels: Any, output: Any) -> Any:
        inputs = self._form.pack(self._adapted.fed_leaves(of, fed)) if self._objective.needs_inputs else None
        expected, weights = self._form.split(labels)
        return self._objective.loss(inputs, expected, output, weights, self._adapted.penalties(rows))


# --- pure parts ---------------------------------------------------------------------------------------------


class _as_refusal:
    """Turns what TensorFlow or Keras raises while it runs a user's model into ModelRefused."""

    def __init__(self, model: Any, place: str = "the model") -> None:
        self._told = f"{place} {type(model).__name__} {model.name!r}"

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, (ModelRefused, DataError)):
            reason = f"{type(error).__name__}: {_reason(error)}"
            raise ModelRefused(f"{self._told} failed on the first samples: {reason}") from error


def _reason(error: Exception) -> str:
    """Return the message of an error; that of TensorFlow without the stack in it, but with the innermost place."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith(("Graph execution", "Detected at", "File ", "[[{{node"))]
    if not isinstance(error, tf.errors.OpError) or not said:
        return str(error)
    places = [line for line in lines if line.startswith("File ")]
    return f"{' '.join(said)}{''.join(f' ({place})' for place in places[-1:])}"


def _output_names(model: Any, output: Any) -> list[str]:
    if isinstance(output, dict):
        return sorted(cast("dict[str, Any]", output))
    count = len(keras.tree.flatten(output))
    names: list[str] = list(getattr(model, "output_names", None) or ())
    return names if len(names) == count else [f"output_{number}" for number in range(count)]
