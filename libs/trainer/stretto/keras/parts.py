"""Consecutive layers of a functional Keras model, computed by themselves: what crosses their cuts, and their step.

The layers are the calls of the model's layers and operations, in the order in which Keras computes them. A cut is
crossed by each tensor that was computed before it and is taken behind it; so one that skips a part crosses both of its
cuts. The parts of a model compute what its step computes (`program.py`).

The gradients of a tensor that several layers take are added up from the last of these layers on, as they come back over
a cut, in every part (`_forked`); TensorFlow adds them up in an order that depends on the rest of the graph. So it
matters little where the cuts are. A step that is never cut may differ in its last bits: TensorFlow rewrites forward and
backward pass as one graph there.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from stretto_parameters.keys import KeyBatch

from ..engine.layout import F32, Layout
from ..errors import ModelRefused
from ..model.example_batch import LABEL
from ..model.program import check_loss, size_of
from ..parts import FIRST_LAYER, NOTHING, Chain, Found, Given, Rest, Returned, Uncrossed, Variable
from .private import computed, has_mask, keep_mask, nodes_of


class Whole:
    """A model that is cut, as its program has it.

    names: of its inputs. tables: of those that receive rows, with the limits of the values of their gradients; limit:
    that of dense gradients. trainable, fixed: its variables in the order of the layout; is_state: of each fixed one,
    whether it is a state on the servers. loss: the mean one of labels and output.
    """

    def __init__(
        self,
        model: Any,
        names: Sequence[str],
        tables: Mapping[str, float | None],
        trainable: Sequence[Any],
        fixed: Sequence[Any],
        is_state: Sequence[bool],
        layout: Layout,
        loss: Callable[[Any, Any], Any],
        limit: float | None,
    ) -> None:
        self.model, self.tables, self.layout = model, tables, layout
        self.trainable, self.fixed, self.is_state = trainable, fixed, is_state
        self.loss, self.limit = loss, limit
        self.nodes = nodes_of(model)
        self.inputs: dict[str, Any] = dict(zip(names, model.inputs, strict=True))
        self.features = [name for name in names if name not in tables]
        self.places = _places([size_of(each.shape) for each in trainable])
        """Where each trained variable is in the dense vector."""
        self.state_places = _places([size_of(v.shape) if s else 0 for v, s in zip(fixed, is_state, strict=True)])
        calls: dict[int, list[int]] = {}
        for layer, node in enumerate(self.nodes, FIRST_LAYER):
            for variable in _variables_of(node):
                calls.setdefault(id(variable), []).append(layer)
        trained = zip(trainable, self.places, strict=True)
        variables = [Variable(each.path, calls.get(id(each), []), place) for each, place in trained]
        variables += [Variable(each.path, calls.get(id(each), [])) for each in fixed]
        names = [node.operation.name for node in self.nodes]
        self.chain = Chain(model.name, names, layout, variables, self._masked())

    def _masked(self) -> list[Uncrossed]:
        """Return the tensors with a mask, which stays in the process that makes it."""
        made = {id(each): 0 for each in self.model.inputs}
        last = {id(each): len(self.nodes) for each in self.model.outputs}
        masked: dict[int, Any] = {}
        for layer, node in enumerate(self.nodes, FIRST_LAYER):
            for each in node.input_tensors:
                last[id(each)] = max(last.get(id(each), 0), layer)
            for each in node.outputs:
                made[id(each)] = layer
                if has_mask(each):
                    masked[id(each)] = each
        return [
            Uncrossed(made[key], last[key], f"the mask of {each.name}, which layer {last[key]} takes, crosses no cut")
            for key, each in masked.items()
            if key in last
        ]

    def crossing(self, layer: int) -> list[Crossing]:
        """Return the tensors that cross the cut before a layer."""
        before, behind = self.nodes[: layer - FIRST_LAYER], self.nodes[layer - FIRST_LAYER :]
        taken = {id(each) for node in behind for each in node.input_tensors} | {id(each) for each in self.model.outputs}
        trained = {id(self.inputs[name]) for name in self.tables}
        made = [*self.model.inputs]
        of_model = {id(each) for each in self.trainable}
        for node in before:
            made.extend(node.outputs)
            is_trained = any(id(each) in trained for each in node.input_tensors)
            if is_trained or any(id(each) in of_model for each in _variables_of(node)):
                trained.update(map(id, node.outputs))
        return [Crossing(each, id(each) in trained and "float" in each.dtype) for each in made if id(each) in taken]


class Crossing(NamedTuple):
    """A tensor that crosses a cut. has_gradient: whether its gradient comes back."""

    tensor: Any
    has_gradient: bool


class KerasPart:
    """The layers of a model from one behind the rows up to another one, or to the end (None)."""

    def __init__(self, whole: Whole, first: int, until: int | None) -> None:
        """Raises ModelRefused for a model that cannot be cut there."""
        end = whole.chain.check(first, until)
        self._whole, self._is_first, self._is_last = whole, first == FIRST_LAYER, until is None
        self._nodes = whole.nodes[first - FIRST_LAYER : end - FIRST_LAYER]
        self._inputs = [] if self._is_first else whole.crossing(first)
        self._outputs = [] if self._is_last else whole.crossing(end)
        own = {id(variable) for node in self._nodes for variable in _variables_of(node)}
        self._trained = [i for i, each in enumerate(whole.trainable) if id(each) in own]
        self._fixed = [i for i, each in enumerate(whole.fixed) if id(each) in own]
        self._local = [tf.identity(whole.fixed[i].value) for i in self._fixed if not whole.is_state[i]]
        self.pulled, self.pushed = whole.chain.slices_between(first, end)
        outputs = self._outputs or [Crossing(whole.model.outputs[0], True)]
        self._taken = Counter(id(each) for node in self._nodes for each in _distinct(node.input_tensors))
        self._taken.update(id(each.tensor) for each in outputs)
        graph = self._both_graph if self._is_last else self._forward_graph
        self._traced = tf.function(graph, input_signature=self._signature(), autograph=False)

    # --- the graph ----------------------------------------------------------------------------------------

    def _signature(self) -> tuple[Any, ...]:
        whole = self._whole
        of_rows = [whole.inputs[name] for name in whole.tables] if self._is_first else []
        given = [each.tensor for each in self._inputs] or [whole.inputs[name] for name in whole.features]
        return (
            [tf.TensorSpec((None, each.shape[-1]), tf.float32) for each in of_rows],
            [tf.TensorSpec(each.shape[:-1], tf.int64) for each in of_rows],
            [tf.TensorSpec((None, *each.shape[1:]), each.dtype) for each in given],
            [tf.TensorSpec(whole.trainable[i].shape, tf.float32) for i in self._trained],
            [tf.TensorSpec(whole.fixed[i].shape, whole.fixed[i].dtype) for i in self._fixed],
            [tf.TensorSpec(None, tf.float32)] if self._is_last else [],
        )

    def _forward_graph(
        self, rows: list[Any], places: list[Any], given: list[Any], variables: list[Any], fixed: list[Any], labels: Any
    ) -> tuple[list[Any], Any, list[Any]]:
        """Return the tensors that cross the next cut, a loss, and the new values of fixed variables.

        The loss has the penalties of these layers, and, if they are the last ones, the model's loss.
        """
        whole, values = self._whole, self._values(rows, places, given)
        own = [*(whole.trainable[i] for i in self._trained), *(whole.fixed[i] for i in self._fixed)]
        mapping = [*zip(own, [*variables, *fixed], strict=True)]
        with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
            left = self._taken.copy()
            for node in self._nodes:
                computed(node, values, _forked(node, values, left))
            loss = tf.constant(0.0)
            if self._is_last:
                output = values[id(whole.model.outputs[0])]
                loss = whole.loss(labels[0], output)
            for operation in {id(node.operation): node.operation for node in self._nodes}.values():
                for penalty in getattr(operation, "losses", ()):
                    loss += tf.cast(penalty, tf.float32)
            now = [scope.get_current_value(whole.fixed[i]) for i in self._fixed]
        return [values[id(each.tensor)] for each in self._outputs], loss, now

    def _both_graph(
        self, rows: list[Any], places: list[Any], given: list[Any], variables: list[Any], fixed: list[Any], labels: Any
    ) -> tuple[Any, list[Any], list[Any]]:
        """Return the loss of the last layers, the new values of fixed variables, and all gradients.

        Nothing is asked between both ways of the last layers: as one graph they cost half of what two calls do.
        """
        watched = self._watched(rows, given, variables)
        with tf.GradientTape() as tape:
            tape.watch(watched)
            _, loss, now = self._forward_graph(rows, places, given, variables, fixed, labels)
        found = tape.gradient(loss, watched, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return loss, now, [tf.convert_to_tensor(each) for each in found]

    def _watched(self, rows: list[Any], tensors: list[Any], variables: list[Any]) -> list[Any]:
        """Return what gradients are wanted of."""
        came = [tensor for tensor, of in zip(tensors, self._inputs, strict=False) if of.has_gradient]
        return [*rows, *came, *variables]

    @functools.cached_property
    def _graph(self) -> Any:
        """The graph, which its first call traces; TensorFlow binds and casts the arguments of a traced one once."""
        return self._traced.get_concrete_function()

    def _values(self, rows: list[Any], places: list[Any], given: list[Any]) -> dict[int, Any]:
        """Return the tensors that come in, by the ids of the symbolic ones."""
        if not self._is_first:
            return {id(each.tensor): value for each, value in zip(self._inputs, given, strict=True)}
        by_name = dict(
            zip((*self._whole.tables, *self._whole.features), (*map(tf.gather, rows, places), *given), strict=True)
        )
        return {id(tensor): by_name[name] for name, tensor in self._whole.inputs.items()}

    # --- a step -------------------------------------------------------------------------------------------

    def step(self, given: Given, dense: F32, state: F32, rest: Rest, turn: AbstractContextManager[Any]) -> Found:
        """Compute a step. Raises ModelRefused, and what the rest raises."""
        with turn:
            rows, places, tensors, labels = self._tensors(given)
            whole = self._whole
            variables = [_piece(dense, whole.places[i], whole.trainable[i]) for i in self._trained]
            fixed = self._fixed_values(state)
            if self._is_last:
                loss, now, gradients = self._graph(rows, places, tensors, variables, fixed, labels)
                check_loss(told := float(loss))
                return self._found([each.numpy() for each in gradients], Returned(told), self._moved(state, now))
            watched = self._watched(rows, tensors, variables)
            with tf.GradientTape() as tape:
                tape.watch(watched)
                live, loss, now = self._graph(rows, places, tensors, variables, fixed, labels)
            state_delta = self._moved(state, now)
            crossing = tuple(each.numpy() for each in live)
        behind = rest(Given((), KeyBatch(()), {LABEL: given.batch[LABEL]}, crossing))
        told = behind.loss + float(loss)
        check_loss(told)
        with turn:
            coming = [
                (tensor, tf.constant(gradient))
                for tensor, of, gradient in zip(live, self._outputs, behind.live, strict=True)
                if of.has_gradient
            ]
            targets = [loss, *(tensor for tensor, _ in coming)]
            by = [tf.constant(1.0), *(gradient for _, gradient in coming)]
            zero = tf.UnconnectedGradients.ZERO
            found = [tf.convert_to_tensor(each).numpy() for each in tape.gradient(targets, watched, by, zero)]
        return self._found(found, behind._replace(loss=told), state_delta)

    def _tensors(self, given: Given) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
        """Return rows, their places, other tensors and labels, as the graph takes them."""
        whole, batch = self._whole, given.batch
        labels = [tf.constant(np.asarray(batch[LABEL], np.float32))] if self._is_last else []
        if not self._is_first:
            return [], [], [tf.constant(each) for each in given.live], labels
        features = [tf.constant(np.asarray(batch[name], whole.inputs[name].dtype)) for name in whole.features]
        places = [tf.constant(table.inverse) for table in given.keys.tables]
        return [tf.constant(each) for each in given.rows], places, features, labels

    def _fixed_values(self, state: F32) -> list[Any]:
        local, whole = iter(self._local), self._whole
        return [
            _piece(state, whole.state_places[i], whole.fixed[i]) if whole.is_state[i] else next(local)
            for i in self._fixed
        ]

    def _moved(self, state: F32, now: Sequence[Any]) -> F32:
        """Return what these layers add to the state, and keep the new values of what stays in this process."""
        whole, local = self._whole, list[Any]()
        moved = np.zeros(whole.layout.state_size, np.float32)
        for i, value in zip(self._fixed, now, strict=True):
            if whole.is_state[i]:
                place = whole.state_places[i]
                moved[place] = value.numpy().reshape(-1) - state[place]
            else:
                local.append(value)
        self._local = local
        return moved

    def _found(self, gradients: Sequence[F32], behind: Returned, state_delta: F32) -> Found:
        """Return the outcome of a step. gradients: of rows or of the tensors that came in, then of the variables.
        behind: the answer of the layers behind these, whose parts of shared slices are pushed or passed on here."""
        whole, layout = self._whole, self._whole.layout
        count = len(gradients) - len(self._trained)
        came, of_variables = gradients[:count], gradients[count:]
        dense = np.zeros(layout.dense_size, np.float32)
        for i, gradient in zip(self._trained, of_variables, strict=True):
            dense[whole.places[i]] = _within(gradient.reshape(-1), whole.limit)
        rows, live = (came, ()) if self._is_first else ((), _spread(self._inputs, came))
        return whole.chain.found(
            self.pulled,
            self.pushed,
            dense,
            behind,
            state_delta,
            rows=tuple(_within(each, limit) for each, limit in zip(rows, whole.tables.values(), strict=False)),
            row_squares=(None,) * len(rows),
            live=live,
        )

    def warm(self) -> None:
        """Trace both ways of a step on invented samples."""
        whole = self._whole
        batch = {LABEL: np.array([0.0, 1.0], np.float32)}
        batch |= {name: _invented(whole.inputs[name]) for name in whole.features}
        fields = [whole.inputs[name].shape[1] for name in whole.tables]
        keys = whole.layout.index(*(np.arange(2 * count).reshape(2, count) for count in fields))
        widths = [table.dimension for table in whole.layout.tables]
        rows = tuple(np.zeros((len(of), width), np.float32) for of, width in zip(keys.tables, widths, strict=True))
        given = Given(rows, keys, batch, tuple(_invented(each.tensor) for each in self._inputs))
        live = tuple(_invented(each.tensor) for each in self._outputs)
        layout, kept = whole.layout, self._local
        nothing = np.zeros(layout.dense_size, np.float32), np.zeros(layout.state_size, np.float32)
        with contextlib.suppress(ModelRefused):  # the loss of what is invented may be infinite
            self.step(given, *nothing, lambda _: Returned(0.0, live=live), contextlib.nullcontext())
        self._local = kept


@tf.custom_gradient
def _fork(tensor: Any) -> Any:
    """Return a tensor twice: for a layer, and for what takes it later. The gradient of the latter is there first."""
    return (tf.identity(tensor), tf.identity(tensor)), lambda own, later: later + own


def _forked(node: Any, values: dict[int, Any], left: Counter[int]) -> dict[int, Any]:
    """Return the tensors that a layer takes. left: how often each is still to be taken, this time included."""
    taken = dict[int, Any]()
    for each in _distinct(node.input_tensors):
        taken[id(each)] = value = values[id(each)]
        left[id(each)] -= 1
        if left[id(each)] and value.dtype.is_floating:
            taken[id(each)], values[id(each)] = _fork(value)
            for made in (taken[id(each)], values[id(each)]):
                keep_mask(value, made)
    return taken


def _distinct(tensors: Sequence[Any]) -> list[Any]:
    return [*{id(each): each for each in tensors}.values()]


def _variables_of(node: Any) -> Sequence[Any]:
    return getattr(node.operation, "variables", ())


def _places(sizes: Sequence[int]) -> list[slice]:
    ends = np.cumsum([0, *sizes]).tolist()
    return [slice(begin, end) for begin, end in itertools.pairwise(ends)]


def _piece(vector: F32, place: slice, variable: Any) -> Any:
    return tf.constant(vector[place].reshape(variable.shape))


def _within(gradient: F32, limit: float | None) -> F32:
    return gradient if limit is None else np.clip(gradient, -np.float32(limit), np.float32(limit))


def _spread(inputs: Sequence[Crossing], gradients: Sequence[F32]) -> tuple[F32, ...]:
    """Return a gradient for each tensor that came in, empty for those that have none."""
    given = iter(gradients)
    return tuple(next(given) if each.has_gradient else NOTHING for each in inputs)


def _invented(tensor: Any) -> Any:
    """Return zeros for two samples."""
    return np.zeros((2, *(int(length or 1) for length in tensor.shape[1:])), tensor.dtype)
