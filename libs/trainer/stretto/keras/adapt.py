"""A Keras model as its user wrote it, with its embedding tables on the parameter servers.

The graph of the model is not rewritten. Each `Embedding` layer gets the class of a remote lookup, and each layer that
prepares data (StringLookup, Hashing, …) one whose result can come from outside (lookups.py). The model is called once
to make the keys, where batches are read, and once with the rows, which is the step. A value that the outputs do not
depend on, such as a text, is not computed or sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, cast

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ..engine.layout import F32, KeyBatch
from ..errors import ModelRefused
from ..model.example_batch import Leaf
from ..model.program import LARGEST_EMBEDDING, distinct, size_of
from ..model.tables import Call, Fed, Lookups, Part, TableLayer, Tables, cast_leaves
from .lookups import (
    PREPARING,
    Direct,
    Feeding,
    LayerCall,
    Lookup,
    Original,
    Preparing,
    Recording,
    calling,
    cast_input,
    change,
    change_back,
    components,
    current_mode,
    is_fed,
    lookup_class,
    original_of,
    placeholder,
    sources,
    spec_of,
)
from .private import layers_of, replace_value, table_of, takes_training
from .tables import Penalty, penalty_of, start_of

__all__ = ["AdaptedModel", "Explicit", "adapt", "restore"]


# --- the public functions -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Explicit:
    """A model that is to be adapted: `build` may return it in the place of the model."""

    model: Any


def adapt(model: Any) -> Explicit:
    """Let all embedding layers of a Keras model live on the parameter servers, whatever its inputs are called.

    A model without an input `rows` is adapted without this. Raises ModelRefused for a layer that
    cannot be.
    """
    _check_is_keras(model)
    for layer in embedding_layers(model):
        check_layer(layer)
    return Explicit(model)


def restore(model: Any, tables: Mapping[str, F32]) -> None:
    """Give the embedding layers of an adapted model back, with their weights [ids, dimension] by the layer's path.

    Afterwards the model is the user's own again: it can be called and saved. Raises ModelRefused for a layer without
    weights.
    """
    for layer in layers_of(model):
        original = original_of(layer)
        if original is None:
            continue
        if isinstance(layer, Lookup):
            found = tables.get(original.path)
            wanted = (layer.input_dim, layer.output_dim)
            if found is None or found.shape != wanted:
                told = "no weights" if found is None else f"weights of shape {found.shape}"
                raise ModelRefused(f"layer {original.path}: {told}; give float32 {wanted}")
            variable = table_of(layer)
            value = tf.Variable(tf.constant(found), dtype=variable.dtype, trainable=True, name=variable.name)
            replace_value(variable, value)
        change_back(layer)


adapt.restore = restore  # pyrefly: ignore[missing-attribute]


def embedding_layers(model: Any) -> list[Any]:
    return [layer for layer in layers_of(model) if isinstance(layer, keras.layers.Embedding)]


def _check_is_keras(model: Any) -> None:
    if not isinstance(model, keras.Model):
        raise ModelRefused(f"stretto.adapt takes a keras.Model of Keras 3, this is {type(model).__name__}")


def check_layer(layer: Any) -> None:
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


@dataclass(frozen=True, slots=True)
class Candidate:
    """A value that a step may need: an input of the model (`leaf`), or a noted one (`event`)."""

    leaf: int = -1
    event: int = -1


# --- the adapted model --------------------------------------------------------------------------------------


class AdaptedModel:
    """A model whose embedding layers are remote lookups.

    Its life: `record` (what is looked up), `divide` (into tables of the store), `narrow` (what a step is fed),
    `release` (the memory of the tables). Larger than 250 lines: calls, tables and batches share one list of events.
    """

    def __init__(
        self,
        model: Any,
        leaves: Sequence[Leaf],
        pack: Callable[[Sequence[Any]], Any],
        targets: Sequence[Leaf] = (),
        loss: Callable[[Any, Sequence[Any], Any], Any] | None = None,
    ) -> None:
        """Change the layers of a built model into lookups. Raises ModelRefused.

        leaves: the inputs; pack: makes of their tensors what the model is called with; loss: a function of inputs,
        targets and outputs that may look up rows, too.
        """
        self.model = model
        self._loss = loss
        self._targets = [tf.TensorSpec((None, *leaf.shape), leaf.dtype) for leaf in targets] if loss else []
        self._leaves = [tf.TensorSpec((None, *leaf.shape), leaf.dtype, name=_identifier(leaf.name)) for leaf in leaves]
        self._pack = pack
        self._noted: Any = None
        self._lookups: list[Any] = []
        self._prepared: list[Any] = []
        self._frozen: list[Any] = []
        self._weights: dict[int, F32] = {}
        self._change()

    def _change(self) -> None:
        for layer in embedding_layers(self.model):
            if original_of(layer) is not None:
                raise ModelRefused(f"layer {layer.name} is adapted already: build() must make a new model")
            if not layer.built:
                continue
            check_layer(layer)
            if not table_of(layer).trainable:
                self._frozen.append(layer)  # it never changes: each worker has it, as build() made it
                continue
            self._weights[id(layer)] = table_of(layer).numpy()
            self._lookups.append(layer)
        paths = distinct([layer.path or layer.name for layer in self._lookups])
        for layer, path in zip(self._lookups, paths, strict=True):
            original = Original(type(layer), path, table_of(layer).regularizer)
            table_of(layer).regularizer = None  # else Keras would add the penalty of the whole table
            change(layer, lookup_class(type(layer)), original)
        for layer in layers_of(self.model):
            if isinstance(layer, PREPARING):
                self._prepared.append(layer)
                change(layer, type(type(layer).__name__, (Preparing, type(layer)), {}), Original(type(layer)))

    def change_back(self) -> None:
        """Give the user's layers back. Only before `release`."""
        for layer in [*self._lookups, *self._prepared]:
            change_back(layer)

    @property
    def separate_variables(self) -> set[int]:
        """The ids of variables that are no dense parameters: tables of the servers, and tables that never change."""
        return {id(table_of(layer)) for layer in [*self._lookups, *self._frozen]}

    def call(self, leaves: Sequence[Any], training: bool) -> Any:
        """Call the model as model.fit does."""
        inputs = self._pack(leaves)
        return self.model(inputs, training=training) if takes_training(self.model) else self.model(inputs)

    # --- what is looked up --------------------------------------------------------------------------------

    def record(self, sample: Sequence[NDArray[Any]]) -> None:
        """Trace the function that makes keys, and see for which layers it can. sample: a real batch."""
        recording, self._noted = self._trace(
            lambda events: [each.value for each in events if is_fed(each.value)], is_marked=True
        )
        self._positions = [number for number, event in enumerate(recording.events) if is_fed(event.value)]
        self._direct: dict[int, tuple[int, tuple[str, ...]]] = {}
        self.events = list(recording.events)
        self._leads = self._led_by_samples(sample)
        reached = sources(recording.results)
        tables = {recording.table_marks[name] for name in recording.table_marks if name in reached}
        self._keep_dense(tables)
        self._check_independent(recording.marks)

    def _trace(
        self, chosen: Callable[[Sequence[LayerCall]], list[Any]], is_marked: bool = False
    ) -> tuple[Recording, Any]:
        """Record a call; return it with the function that computes the chosen values of its events.

        is_marked: note what depends on parameters. Such a function holds the memory of the tables.
        """
        recording = Recording()
        separate = self.separate_variables
        dense = [each for each in self.model.trainable_variables if id(each) not in separate]

        def noted(*leaves: Any) -> list[Any]:
            mapping: list[tuple[Any, Any]] = []
            if is_marked:
                mapping += [(each, recording.mark(each.value, f"the parameter {each.path}")) for each in dense]
                mapping += [(table_of(layer), recording.mark_table(layer)) for layer in self._lookups]
            with keras.StatelessScope(state_mapping=mapping, collect_losses=True), calling(recording):
                inputs = leaves[: len(self._leaves)]
                output = self.call(inputs, training=False)
                recording.results.append(output)
                if self._loss is not None:
                    recording.results.append(self._loss(self._pack(inputs), leaves[len(self._leaves) :], output))
            return chosen(recording.events)

        signature = [*self._leaves, *self._targets]
        return recording, tf.function(noted, autograph=False).get_concrete_function(*signature)

    def _led_by_samples(self, sample: Sequence[NDArray[Any]]) -> set[int]:
        """Return the lookups whose ids have the samples as their first dimension; lookups of positions have not."""
        n = len(sample[0])
        whole = self.noted(sample)
        less = self.noted([each[: n - 1] for each in sample]) if n > 1 else whole
        lookups = [number for number, event in enumerate(self.events) if event.kind == "rows"]
        return {
            number
            for number in lookups
            if whole[number].shape[:1] == (n,) and less[number].shape[:1] == (max(1, n - 1),)
        }

    def _keep_dense(self, read_whole: AbstractSet[int]) -> None:
        """Leave small tables among the dense parameters where rows are no gain; refuse what must be whole and is not
        small."""
        for layer in list(self._lookups):
            mine = [number for number, event in enumerate(self.events) if event.layer is layer]
            looked_up = [number for number in mine if self.events[number].kind == "rows"]
            must_be_whole = id(layer) in read_whole or (bool(mine) and not looked_up)
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
                change_back(layer)
        changed = {id(layer) for layer in [*self._lookups, *self._prepared]}
        kept = [number for number, event in enumerate(self.events) if id(event.layer) in changed]
        new = {old: number for number, old in enumerate(kept)}
        self.events = [self.events[old] for old in kept]
        self._positions = [new.get(old, -1) for old in self._positions]
        self._leads = {new[old] for old in self._leads if old in new}

    def _check_independent(self, marks: Mapping[str, str]) -> None:
        """Raise ModelRefused if ids depend on rows or parameters. Data prepared from these are left to the step."""
        for number, event in enumerate(self.events):
            found = sources(event.value)
            told = next((told for name, told in marks.items() if name in found), None)
            if told is None and is_fed(event.value):
                continue
            if event.kind == "rows":
                raise ModelRefused(
                    f"layer {event.layer.name}: its ids depend on {told}, which is not known when the rows of a batch "
                    "are requested; ids must follow from the inputs"
                )
            self.events[number] = LayerCall(event.kind, event.layer, None)

    def shorten(self) -> None:
        """Let a batch compute only what its keys are made of and what a step is fed with.

        A value that is an input, but for its type, is taken from there: TensorFlow's call costs more than all the rest.
        """
        fed = {candidate.event for candidate in self.fed}
        needed = [number for number, event in enumerate(self.events) if event.kind == "rows" or number in fed]
        count = len(self._leaves) + len(self._targets)
        inputs = {tensor.op.name: number for number, tensor in enumerate(self._noted.inputs[:count])}
        for number in needed:
            found = cast_input(self.events[number].value, inputs)
            if found is not None:
                self._direct[number] = found
        self._positions = [number for number in needed if number not in self._direct]
        wanted = self._positions  # layers that were given back since the first call are not noted in this one
        self._noted = self._trace(lambda events: [events[number].value for number in wanted])[1] if wanted else None
        # not the values themselves: their graph holds the memory of the tables
        self.events = [LayerCall(e.kind, e.layer, None if e.value is None else spec_of(e.value)) for e in self.events]
        groups = self.tables.groups
        paths = tuple(tuple(layer.path for layer in group.layers) for group in groups)
        lookups = Lookups(tuple(group.parts for group in groups), paths, frozenset(self._leads))
        self.feeding = Fed(lookups, tuple((each.leaf, each.event) for each in self.fed), dict(self._direct))

    @property
    def is_direct(self) -> bool:
        """True if a batch is made of its inputs without the model."""
        return not self._positions

    def noted(self, leaves: Sequence[Any]) -> dict[int, Any]:
        """Return the noted values of a batch by event: arrays, or TensorFlow's ragged and sparse tensors."""
        values = cast_leaves(self._direct, leaves)
        if not self._positions:
            return values
        specs = [*self._leaves, *self._targets]
        tensors = (tf.convert_to_tensor(each, spec.dtype) for each, spec in zip(leaves, specs, strict=False))
        for number, value in zip(self._positions, self._noted(*tensors), strict=True):
            if number >= 0:
                values[number] = value.numpy() if isinstance(value, tf.Tensor) else value
        return values

    def looked_up(self, leaves: Sequence[Any]) -> list[tuple[Any, NDArray[np.int64]]]:
        """Return the lookups of a batch in their order: layer and ids."""
        found = self.noted(leaves)
        return [(event.layer, found[number]) for number, event in enumerate(self.events) if event.kind == "rows"]

    # --- tables of the store ------------------------------------------------------------------------------

    @property
    def paths(self) -> list[str]:
        """The paths of the layers whose rows are on the servers."""
        return [cast("Original", original_of(layer)).path for layer in self._lookups]

    def divide(self, rule_of: Callable[[str], int], *, is_restored: bool = False) -> None:
        """Decide which layers share a table, and in which form their rows are gathered.

        rule_of: returns the number of a layer's update rule by its path. is_restored: the weights of the model come
        from an earlier one.
        """
        layers: list[TableLayer] = []
        for layer in self._lookups:
            original = cast("Original", original_of(layer))
            penalty = penalty_of(layer, original.regularizer)
            start = start_of(layer, self._weights[id(layer)], is_restored=is_restored)
            shape, rule = (layer.input_dim, layer.output_dim), rule_of(original.path)
            layers.append(TableLayer(layer, original.path, *shape, start, penalty, rule=rule))
        self.tables = Tables(layers, self._parts)

    def _parts(self, members: Sequence[TableLayer]) -> tuple[Part, ...]:
        numbers = {id(member.owner): number for number, member in enumerate(members)}
        calls: list[Call] = []
        for number, event in enumerate(self.events):
            if event.kind != "rows" or id(event.layer) not in numbers:
                continue
            shape = event.value.shape
            is_fixed = number in self._leads and shape.rank and None not in shape[1:]
            lengths = tuple(int(length) for length in shape[1:]) if is_fixed else None
            calls.append(Call(number, numbers[id(event.layer)], event.layer.input_dim, lengths))
        fixed = [call for call in calls if call.shape is not None]
        parts = [Part.of(fixed)] if fixed else []
        return (*parts, *(Part.of([call]) for call in calls if call.shape is None))

    # --- batches ------------------------------------------------------------------------------------------

    def inverse(self, keys: KeyBatch, batch: Mapping[str, Any]) -> list[Any]:
        """Return for each part of each table the places of its rows among the unique ones."""
        found: list[Any] = []
        for number, (group, table) in enumerate(zip(self.tables.groups, keys.tables, strict=True)):
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

    def original_weights(self, layer: Any) -> F32:
        """Return the weights of a layer in the model as `build` made it: [ids, dimension]."""
        return self._weights[id(layer)]

    # --- the step -----------------------------------------------------------------------------------------

    @property
    def inverse_specs(self) -> list[Any]:
        return [
            tf.TensorSpec((None,) if part.is_fixed else self.events[part.calls[0].event].value.shape, tf.int64)
            for group in self.tables.groups
            for part in group.parts
        ]

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """All values that a step could be fed with."""
        leaves = [Candidate(leaf=number) for number in range(len(self._leaves))]
        noted = [n for n, event in enumerate(self.events) if event.kind != "rows" and event.value is not None]
        return (*leaves, *(Candidate(event=number) for number in noted))

    def fed_specs(self, of: Sequence[Candidate]) -> list[Any]:
        return [self._leaves[c.leaf] if c.leaf >= 0 else spec_of(self.events[c.event].value) for c in of]

    def narrow(self, graph: Any, given: Sequence[Any]) -> None:
        """Feed a step only with values that its results depend on. graph: of a step that is fed with all candidates."""
        reached = sources(graph.outputs, graph.control_outputs)
        self.fed = tuple(
            candidate
            for candidate, value in zip(self.candidates, given, strict=True)
            if any(each.op.name in reached for each in components(value))
        )

    def feed(
        self, rows: Sequence[Any], inverse: Sequence[Any], of: Sequence[Candidate], fed: Sequence[Any], training: bool
    ) -> Any:
        """Call the model in a feeding mode, with rows and the values `fed`, which are those `of` the candidates."""
        values = {candidate.event: value for candidate, value in zip(of, fed, strict=True) if candidate.event >= 0}
        for candidate in self.candidates:
            if candidate.event >= 0 and candidate.event not in values:
                values[candidate.event] = placeholder(spec_of(self.events[candidate.event].value))
        mode = cast("Feeding", current_mode())
        mode.events, mode.values, mode.looked_up = self.events, values, self._gathered(rows, inverse)
        return self.call(self.fed_leaves(of, fed), training)

    def fed_leaves(self, of: Sequence[Candidate], fed: Sequence[Any]) -> list[Any]:
        """Return a value for every input. Inputs not listed in `of` get a placeholder; no output depends on them."""
        leaves = {candidate.leaf: value for candidate, value in zip(of, fed, strict=True) if candidate.leaf >= 0}
        return [leaves[n] if n in leaves else placeholder(spec) for n, spec in enumerate(self._leaves)]

    def _gathered(self, rows: Sequence[Any], inverse: Sequence[Any]) -> dict[int, Any]:
        """Return the rows of each lookup by its event."""
        found: dict[int, Any] = {}
        places = iter(inverse)
        for group, values in zip(self.tables.groups, rows, strict=True):
            for part in group.parts:
                place = next(places)
                gathered = tf.gather(values, place)
                if not part.is_fixed:
                    found[part.calls[0].event] = gathered
                    continue
                # along the first dimension, so that pieces are views and no copies
                runs = part.runs()
                widths = [len(calls) * size_of(shape) for shape, calls in runs]
                sizes = tf.constant(widths) * (tf.shape(place)[0] // sum(widths))
                pieces = tf.split(gathered, sizes, num=len(runs)) if len(runs) > 1 else [gathered]
                for (shape, calls), piece in zip(runs, pieces, strict=True):
                    rows_of_calls = tf.unstack(tf.reshape(piece, (len(calls), -1, *shape, group.dimension)), len(calls))
                    found.update((call.event, each) for call, each in zip(calls, rows_of_calls, strict=True))
        return found

    def penalties(self, rows: Sequence[Any]) -> list[Any]:
        """Return the regularisation of the batch's rows, by table."""
        of_groups = [(group.penalty, values) for group, values in zip(self.tables.groups, rows, strict=True)]
        return [penalty.of(values) for penalty, values in of_groups if penalty and penalty != Penalty()]

    # --- the original -------------------------------------------------------------------------------------

    def release(self) -> None:
        """Free the memory of the tables that are on the servers: from now on the model cannot read them."""
        for layer in self._lookups:
            variable = table_of(layer)
            replace_value(variable, tf.Variable(tf.zeros((0, layer.output_dim)), name=variable.name))
        self._weights.clear()

    def differing(
        self, leaves: Sequence[Any], expected: Sequence[Any], is_close: Callable[[Any, Any], bool]
    ) -> list[str]:
        """Return the layers that change the outputs of the model when they look up the ids that keys were made of."""
        found: list[str] = []
        noted = self.noted(leaves)
        for layer in self._lookups:
            mine = [n for n, event in enumerate(self.events) if event.kind == "rows" and event.layer is layer]
            mode = Direct(layer, [noted[number] for number in mine], self._weights)
            with calling(mode):
                inputs = [tf.convert_to_tensor(each) for each in leaves[: len(self._leaves)]]
                output = self.call(inputs, training=False)
            values = [each.numpy() for each in keras.tree.flatten(output)]
            if not all(is_close(value, wanted) for value, wanted in zip(values, expected, strict=True)):
                found.append(cast("Original", original_of(layer)).path)
        return found


def _identifier(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name) or "input"
