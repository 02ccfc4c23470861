"""Consecutive layers of a PyTorch module, computed by themselves: what crosses their cuts, and their step.

The layers are the calls of modules and functions in the order in which `forward` makes them, as `torch.fx` traces it. A
cut is crossed by each tensor that was computed before it and is taken behind it. Autograd adds up the gradients of a
tensor that several layers take from the last one on, so the parts compute what the whole module does, to the bit.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.fx
from numpy.typing import NDArray

from ..engine.layout import F32, KeyBatch, Layout
from ..errors import ModelRefused
from ..model.example_batch import LABEL
from ..model.fidelity import refusing
from ..model.program import check_loss
from ..parts import FIRST_LAYER, NOTHING, Chain, Found, Given, Rest, Returned, Uncrossed, Variable
from .plain import same_draws

_CALLS = frozenset({"call_module", "call_function", "call_method"})
Places = Mapping[str, tuple[slice, tuple[int, ...]]]
"""Where a parameter or a buffer is in its vector, and its shape, by its name in the module."""


class Dense(NamedTuple):
    """How a module's program gives and takes values: parameters and states in their vectors, tensors on the device, the
    rows of a batch, the loss of label and output, and the gradients within their limits."""

    layout: Layout
    trained: Places
    states: Places
    tensor: Callable[[NDArray[Any]], Any]
    gathered: Callable[[Given], list[Any]]
    loss: Callable[[NDArray[Any], Any], Any]
    of_rows: Callable[[Given, Sequence[Any]], tuple[F32, ...]]
    within: Callable[[F32], F32]


class Traced:
    """A module that is cut. names: of its inputs, those with rows first."""

    def __init__(self, model: Any, names: Sequence[str], example: Mapping[str, Any], dense: Dense) -> None:
        """Trace the module. example: tensors of its inputs. Raises ModelRefused if torch.fx cannot trace the module."""
        self.model, self.names, self.dense = copy.deepcopy(model).train(), names, dense
        try:
            graph = torch.fx.Tracer().trace(self.model)
            self._given = [node for node in graph.nodes if node.op == "placeholder" and node.target in example]
            (self._output,) = [node.args[0] for node in graph.nodes if node.op == "output"]
            self._seen = _Looking(self.model, graph).seen_with(example)
        except Exception as error:
            raise _untraced(f"{type(error).__name__}: {error}") from error
        self.nodes = [node for node in graph.nodes if node.op in _CALLS]
        if not isinstance(self._output, torch.fx.Node) or not self.nodes:
            raise _untraced("forward gives no tensor of its own")
        self._check_values(example)
        layers = [str(node.target if node.op == "call_module" else node.name) for node in self.nodes]
        self.chain = Chain(type(model).__name__, layers, dense.layout, self._variables(), self._kept())

    def _check_values(self, example: Mapping[str, Any]) -> None:
        """Raise ModelRefused if what was traced gives other values than forward, as where that looks at its inputs."""
        with torch.no_grad(), same_draws():
            wanted = copy.deepcopy(self.model)(**example)
        if not torch.equal(self._seen[self._output].value, wanted):
            raise _untraced("the traced forward gives other values than the module")

    def _kept(self) -> list[Uncrossed]:
        """Return the values that are no tensors."""
        made = {**dict.fromkeys(self._given, 0), **{node: at for at, node in enumerate(self.nodes, FIRST_LAYER)}}
        last = {each: at for at, node in enumerate(self.nodes, FIRST_LAYER) for each in node.all_input_nodes}
        return [
            Uncrossed(at, last[node], f"{node.name}, which layer {last[node]} takes, is no tensor, and crosses no cut")
            for node, at in made.items()
            if node in last and not isinstance(self._seen[node].value, torch.Tensor)
        ]

    def _variables(self) -> list[Variable]:
        named = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        names = {id(each): name for name, each in named.items()}
        layers: dict[str, list[int]] = {name: [] for name in named}
        for layer, node in enumerate(self.nodes, FIRST_LAYER):
            for tensor in {id(each): each for each in self._tensors_of(node)}.values():
                layers[names[id(tensor)]].append(layer)
        trained = [Variable(name, layers[name], place) for name, (place, _) in self.dense.trained.items()]
        return trained + [Variable(name, its) for name, its in layers.items() if name not in self.dense.trained]

    def _tensors_of(self, node: Any) -> list[Any]:
        """Return the parameters and the buffers that a layer takes."""
        owners = [self.model.get_submodule(node.target)] if node.op == "call_module" else []
        found = [each for owner in owners for each in (*owner.parameters(), *owner.buffers())]
        known = {id(each) for each in (*self.model.parameters(), *self.model.buffers())}
        taken = [_attribute(self.model, each.target) for each in node.all_input_nodes if each.op == "get_attr"]
        return found + [each for each in taken if id(each) in known]

    def crossing(self, layer: int) -> list[Any]:
        """Return the nodes whose tensors cross the cut before a layer."""
        behind = self.nodes[layer - FIRST_LAYER :]
        taken = {each for node in behind for each in node.all_input_nodes} | {self._output}
        return [each for each in (*self._given, *self.nodes[: layer - FIRST_LAYER]) if each in taken]

    def has_gradient(self, node: Any) -> bool:
        """Return whether the gradient of a node's tensor comes back over a cut."""
        return self._seen[node].has_gradient

    def like(self, node: Any) -> Any:
        """Return the tensor of a node for the example."""
        return self._seen[node].value

    def module(self, first: int, end: int) -> tuple[Any, list[Any], list[Any]]:
        """Return layers as a module of its own, with the nodes that come in and those that go out."""
        nodes = self.nodes[first - FIRST_LAYER : end - FIRST_LAYER]
        coming = self._given if first == FIRST_LAYER else self.crossing(first)
        going = [self._output] if end == self.chain.end else self.crossing(end)
        graph = torch.fx.Graph()
        known = {node: graph.placeholder(node.name) for node in coming}
        for node in nodes:
            for each in node.all_input_nodes:
                if each.op == "get_attr" and each not in known:
                    known[each] = graph.node_copy(each)
            known[node] = graph.node_copy(node, lambda each: known[each] if each in known else _default(each))
        graph.output(tuple(known[node] for node in going))
        return copy.deepcopy(torch.fx.GraphModule(self.model, graph)), coming, going


class _Seen(NamedTuple):
    """The value of a node for the example, and whether it has a gradient."""

    value: Any
    has_gradient: bool


class _Looking(torch.fx.Interpreter):
    """Notes what each node of a traced module gives."""

    def __init__(self, model: Any, graph: Any) -> None:
        super().__init__(torch.fx.GraphModule(copy.deepcopy(model), graph), garbage_collect_values=False)
        self._seen: dict[Any, _Seen] = {}

    def seen_with(self, example: Mapping[str, Any]) -> dict[Any, _Seen]:
        """Return what each node gives for inputs by their names; those that have none there get their default."""
        graph: Any = self.module.graph
        inputs = [example.get(node.target, _default(node)) for node in graph.nodes if node.op == "placeholder"]
        with same_draws():
            self.run(*inputs)
        return self._seen

    def run_node(self, n: Any) -> Any:
        """Compute a node, and note its value."""
        value = super().run_node(n)
        self._seen[n] = _Seen(value, isinstance(value, torch.Tensor) and value.requires_grad)
        return value


class TorchPart:
    """The layers of a module from one behind the rows up to another one, or to the end (None)."""

    def __init__(self, whole: Traced, first: int, until: int | None) -> None:
        """Raises ModelRefused for a module that cannot be cut there."""
        end = whole.chain.check(first, until)
        self._whole, self._is_first, self._is_last = whole, first == FIRST_LAYER, until is None
        self._module, self._coming, going = whole.module(first, end)
        self._comes_back = [whole.has_gradient(node) for node in self._coming]
        self._goes_back = [whole.has_gradient(node) for node in going]
        self.pulled, self.pushed = whole.chain.slices_between(first, end)
        held = dict(self._module.named_parameters()) | dict(self._module.named_buffers())
        self._trained = {name: place for name, place in whole.dense.trained.items() if name in held}
        self._states = {name: place for name, place in whole.dense.states.items() if name in held}

    def step(self, given: Given, dense: F32, state: F32, rest: Rest, turn: AbstractContextManager[Any]) -> Found:
        """Compute a step. Raises ModelRefused, and what the rest raises."""
        with turn:
            inputs = self._inputs(given)
            wanted = [each for each, comes_back in zip(inputs, self._comes_back, strict=True) if comes_back]
            parameters = {n: each.requires_grad_() for n, each in self._tensors(self._trained, dense).items()}
            states = self._tensors(self._states, state.copy())
            with refusing("forward failed"):
                going = torch.func.functional_call(self._module, parameters | states, self._taken(inputs))
            state_delta = self._moved(state, states)
            watched = [*wanted, *parameters.values()]
            if self._is_last:
                with refusing("the loss cannot be differentiated"):
                    loss = self._whole.dense.loss(given.batch[LABEL], going[0])
                    gradients = _gradients([loss], [None], watched)
                check_loss(told := float(loss.detach()))
                return self._found(given, gradients, Returned(told), state_delta)
            crossing = tuple(np.ascontiguousarray(each.detach().cpu().numpy()) for each in going)
        behind = rest(Given((), KeyBatch(()), {LABEL: given.batch[LABEL]}, crossing))
        check_loss(behind.loss)
        with turn:
            back = zip(going, self._goes_back, behind.live, strict=True)
            pairs = [(each, self._whole.dense.tensor(by).reshape(each.shape)) for each, is_back, by in back if is_back]
            gradients = _gradients([each for each, _ in pairs], [by for _, by in pairs], watched)
        return self._found(given, gradients, behind, state_delta)

    def _inputs(self, given: Given) -> list[Any]:
        dense = self._whole.dense
        if not self._is_first:
            pairs = zip(given.live, self._comes_back, strict=True)
            return [dense.tensor(each).requires_grad_(comes_back) for each, comes_back in pairs]
        gathered = dict(zip(self._whole.names, dense.gathered(given), strict=False))
        found = {name: each.requires_grad_() for name, each in gathered.items()}
        names = [node.target for node in self._coming]
        return [found[n] if n in found else dense.tensor(np.asarray(given.batch[n])) for n in names]

    def _taken(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Return what the layers take: copies of tensors that gradients are wanted of, as a layer may change its input
        in place."""
        likes = (self._whole.like(node) for node in self._coming)
        return tuple(
            each if self._is_first and not each.requires_grad else _laid_out(each, like)
            for each, like in zip(inputs, likes, strict=True)
        )

    def _tensors(self, places: Places, vector: F32) -> dict[str, Any]:
        whole = self._whole.dense.tensor(vector)
        return {name: whole[place].reshape(shape) for name, (place, shape) in places.items()}

    def _moved(self, state: F32, now: Mapping[str, Any]) -> F32:
        """Return what these layers add to the state; 0 for an infinite number that stays, as in masks."""
        moved = np.zeros_like(state)
        for name, (place, _) in self._states.items():
            value, before = now[name].detach().cpu().numpy().reshape(-1), state[place]
            np.subtract(value, before, out=moved[place], where=value != before)
        return moved

    def _found(self, given: Given, gradients: Sequence[Any], behind: Returned, state_delta: F32) -> Found:
        """Return the outcome of a step. gradients: of what came in, then of the parameters."""
        dense = self._whole.dense
        count = len(gradients) - len(self._trained)
        vector = np.zeros(dense.layout.dense_size, np.float32)
        for (place, _), gradient in zip(self._trained.values(), gradients[count:], strict=True):
            vector[place] = gradient.cpu().numpy().reshape(-1)
        came, rows, live = gradients[:count], (), ()
        if self._is_first:
            rows = dense.of_rows(given, came)
        else:
            found = iter(came)
            live = tuple(next(found).cpu().numpy() if comes_back else NOTHING for comes_back in self._comes_back)
        return self._whole.chain.found(
            self.pulled,
            self.pushed,
            dense.within(vector),
            behind,
            state_delta,
            rows=rows,
            row_squares=(None,) * len(rows),
            live=live,
        )

    def warm(self) -> None:
        """Do nothing: a module is traced by no step."""


def _gradients(outputs: Sequence[Any], by: Sequence[Any], watched: Sequence[Any]) -> Sequence[Any]:
    """Return the gradients of what is watched; zeros for what the outputs do not follow from."""
    if not watched or not outputs:
        return [torch.zeros_like(each) for each in watched]
    found: Any = torch.autograd.grad(outputs, watched, by, allow_unused=True, materialize_grads=True)
    return found


def _laid_out(tensor: Any, like: Any) -> Any:
    """Return a copy of a tensor of samples, its values laid out in memory as ``like`` lays out its own.

    A sum adds values up in an order that depends on that.
    """
    strides: tuple[int, ...] = like.stride()
    reach = sum(step * (length - 1) for step, length in zip(strides[1:], like.shape[1:], strict=True))
    if not strides or tensor.shape[1:] != like.shape[1:] or strides[0] <= reach:
        return tensor.clone()
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _attribute(model: Any, path: str) -> Any:
    for name in path.split("."):
        model = getattr(model, name)
    return model


def _default(placeholder: Any) -> Any:
    return placeholder.args[0] if placeholder.args else None


def _untraced(why: str) -> ModelRefused:
    return ModelRefused(f"torch.fx does not trace its forward, which may not branch on values ({why})")
