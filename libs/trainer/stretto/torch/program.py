"""A PyTorch module as a pure function of flat parameters, which a worker computes between pull and push."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import itertools
import math
import threading
from abc import abstractmethod
from collections.abc import Generator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..engine.layout import F32, KeyBatch
from ..errors import DataError, ModelRefused
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
    flat,
    is_rows,
    pieces,
    state_of,
    state_refused,
    updates_of,
)
from ..model.reading import Feature
from ..optimizers import Clipping, Updates
from ..parts import ModelLayer, Part
from ..readers import Batch
from .objective import own_loss
from .optimizer import divided, from_torch
from .parts import Dense, Places, TorchPart, Traced
from .plain import PlainTorch, same_draws
from .private import has_hooks


class TorchBase(ProgramBase):
    """A module ready to train. Its parameters live on the servers, and its buffers of floats there too, as the state.

    Buffers of other types stay in this process, and parameters that need no gradient stay as `build` made them. It is
    computed by a GPU if the job gives this process devices and PyTorch finds one, else by the cores; rows, parameters
    and gradients come and go in the memory of the machine either way.
    """

    framework = "PyTorch"

    def __init__(
        self,
        task: Task,
        model: Any,
        options: Options,
        inputs: Inputs,
        updates: Updates,
        apart: AbstractSet[int] = frozenset(),
    ) -> None:
        """Take the parameters of a module, but not those whose id is in `apart`: their rows are on the servers.

        Raises ModelRefused.
        """
        self.model = model
        self._device = device_of(options)
        self._trained: dict[str, Any] = {
            name: parameter
            for name, parameter in model.named_parameters()
            if parameter.requires_grad and id(parameter) not in apart
        }
        _check_hooks(model)
        buffers: dict[str, Any] = dict(model.named_buffers())
        self._states = {name: buffer for name, buffer in buffers.items() if buffer.is_floating_point()}
        _check_types({**self._trained, **self._states})
        variables = Variables(_shapes_of(self._trained), _shapes_of(self._states))
        super().__init__(task, options, inputs, variables, updates)

    # --- parameters ---------------------------------------------------------------------------------------

    def initial_dense(self) -> F32:
        """Return the parameters as the module's initialisers made them: [dense_size]."""
        return flat([parameter.detach().cpu().numpy() for parameter in self._trained.values()])

    def initial_state(self) -> F32:
        """Return the buffers, such as running statistics: [state_size]."""
        return flat([buffer.cpu().numpy() for buffer in self._states.values()])

    def load_into_model(self, dense: F32, state: F32, steps: int = 0) -> None:
        """Set the module's parameters and buffers, to save or inspect it, and put it into evaluation mode.

        steps: batches that it was trained on, which normalisations count, each on a worker of its own.
        """
        with torch.no_grad():
            for parameter, value in zip(self._trained.values(), pieces(dense, self._shapes), strict=True):
                parameter.copy_(tensor_of(value))
            for buffer, value in zip(self._states.values(), pieces(state, self._state_shapes), strict=True):
                buffer.copy_(tensor_of(value))
            for module in self.model.train().modules():
                if module.training and getattr(module, "num_batches_tracked", None) is not None:
                    module.num_batches_tracked.fill_(steps)
        self.model.eval()

    def warm(self) -> None:
        """Do nothing: a module is traced by no step."""

    # --- the comparison with PyTorch alone ----------------------------------------------------------------

    @abstractmethod
    def _plain_module(self, trained: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return a copy of the user's module with these parameters, and what `_plain_loss` calls."""

    @abstractmethod
    def _plain_loss(self, called: Any, tables: Sequence[Any], trial: Trial) -> Any:
        """Call a copy of the module as PyTorch does; return its loss. tables: the rows of the batch."""

    @abstractmethod
    def _stepping(self) -> Any:
        """Return the module that steps are computed with, whose other buffers they change."""

    @contextlib.contextmanager
    def keeping(self) -> Generator[None]:
        """Draw as `plain` does, and leave buffers of this process and random generators as they were."""
        before = [(name, each, each.clone()) for name, each in self._stepping().named_buffers()]
        with same_draws():
            try:
                yield
                for name, buffer, value in before:  # BatchNorm counts its batches, and reads that for no momentum alone
                    is_counted = name in self._states or name.endswith("num_batches_tracked")
                    if not is_counted and not torch.equal(buffer, value):
                        raise state_refused(name, buffer.dtype)
            finally:
                for _, buffer, value in before:
                    buffer.copy_(value)

    @contextlib.contextmanager
    def plain(self, trial: Trial, start: Mapping[str, F32]) -> Generator[PlainTorch]:
        """Return a copy of the user's module with these weights and states."""
        rows = {
            told: torch.nn.Parameter(torch.from_numpy(start[told].copy())) for told, _, _ in self._variables(trial.keys)
        }
        names = list(start)[len(rows) :]
        dense = {
            name: torch.nn.Parameter(torch.from_numpy(start[name].copy()))
            for name in names[: len(self._parameter_names)]
        }
        module, called = self._plain_module(dict(zip(self._parameter_names, dense.values(), strict=True)))
        module.train()
        for buffer, value in zip(module.buffers(), self._stepping().buffers(), strict=True):
            buffer.copy_(value)
        found = dict(module.named_buffers())
        for name in self._state_names:
            found[name].copy_(torch.from_numpy(start[state_of(name)]))
        trained = {**rows, **dense}
        rules: list[Ruled] = []
        for number, ruled in self._ruled(trial.keys).items():
            rule = self.updates.rules[number]
            own = Reference(rule, self.batch_size, rows)
            its = own if rule.given is None else rule.given([trained[name] for name in ruled])
            rules.append(Ruled(its, ruled, rule.clipping))
        with same_draws():
            yield PlainTorch(
                lambda: self._plain_loss(called, [*rows.values()], trial),
                trained,
                lambda: {state_of(name): dict(module.named_buffers())[name] for name in self._state_names},
                rules,
                Clipping(global_norm=self.updates.global_norm),
            )

    # --- tensors ------------------------------------------------------------------------------------------

    def _given(self, array: NDArray[Any]) -> Any:
        """Return an array as a tensor where the module is computed."""
        return tensor_of(array).to(self._device)

    def _parameters(self, dense: F32) -> list[Any]:
        """Return the parameters as tensors: views of the vector."""
        return pieces(self._given(dense), self._shapes)

    def _buffers(self, state: F32) -> dict[str, Any]:
        """Return the buffers by name: copies, since a module changes them in place."""
        return dict(
            zip(self._states, pieces(torch.tensor(state, device=self._device), self._state_shapes), strict=True)
        )

    def _functional(
        self,
        model: Any,
        parameters: Sequence[Any],
        buffers: dict[str, Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Call a copy of the module with these values of its parameters; `buffers` then has the new ones."""
        values = buffers | dict(zip(self._trained, parameters, strict=True))
        output = torch.func.functional_call(model, values, args, dict(kwargs))
        buffers.update((name, values[name]) for name in buffers)
        return output

    def _check_kept(self, parameters: Sequence[Any], given: F32) -> None:
        """Raise ModelRefused for a parameter that a call has changed in place. given: the parameters before it."""
        for name, now, before in zip(self._trained, parameters, pieces(given, self._shapes), strict=True):
            if not np.array_equal(now.detach().cpu().numpy(), before, equal_nan=True):
                raise ModelRefused(
                    f"forward changes the parameter {name} in place, and the next step gets it from the servers as it "
                    "was: compute what is used from it, as in self.weight.clamp(min=0) or torch.nn.utils.parametrize"
                )

    def _state_delta(self, buffers: Mapping[str, Any], state: F32) -> F32:
        """Return what a step adds to the state: [state_size]; 0 for an infinite number that stays, as in masks."""
        new = flat([buffer.cpu().numpy() for buffer in buffers.values()])
        return np.subtract(new, state, out=np.zeros_like(state), where=new != state)


class TorchProgram(TorchBase):
    """A module whose forward takes rows."""

    def __init__(self, task: Task, model: Any, options: Options) -> None:
        inputs = _inputs(task, model, options)
        _check_tables(model)
        check_modules(model)
        self._loss = own_loss(task, device_of(options))
        self.has_own_loss = self._loss is not None
        updates = torch_updates(task, model, options, [*inputs.tables])
        super().__init__(task, model, options, inputs.ruled(updates), updates)
        model.to(self._device).train()
        # a call puts other tensors into the module, so that one that predicts while another trains needs its own
        self._predictor = copy.deepcopy(model).eval()
        self._predicting = threading.Lock()
        self._is_kept = False

    def trial(self) -> Trial:
        """Return the first samples, some of them twice."""
        found = self.read(0, self.first_samples, self.first_partition)
        batch = {name: np.concatenate([np.asarray(each), each[:REPEATED]]) for name, each in found.items()}
        return Trial(self.index(batch), self.needed(batch), None)

    def _plain_module(self, trained: Mapping[str, Any]) -> tuple[Any, Any]:
        made = copy.deepcopy(self.model, {id(self._trained[name]): each for name, each in trained.items()})
        return made, made

    def _stepping(self) -> Any:
        return self.model

    def _plain_loss(self, called: Any, tables: Sequence[Any], trial: Trial) -> Any:
        arguments = {name: self._given(np.asarray(trial.batch[name])) for name in self._features if name in trial.batch}
        for name, rows, of in zip(self.tables, tables, trial.keys.tables, strict=True):
            arguments[name] = torch.nn.functional.embedding(self._given(of.inverse), rows)
        output = called(**arguments)
        return self._loss_of(self._given(np.asarray(trial.batch["label"], np.float32)).reshape(output.shape), output)

    def _gradients(self, rows: Sequence[F32], keys: KeyBatch, dense: F32, state: F32, batch: Batch) -> Gradients:
        gathered = [each.requires_grad_() for each in self._gathered(rows, keys)]
        parameters = [each.requires_grad_() for each in self._parameters(dense)]
        buffers = self._buffers(state)
        before = None if self._is_kept else dense.copy()
        output = self._called(self.model, gathered, parameters, buffers, batch)
        if before is not None:
            self._check_kept(parameters, before)
            self._is_kept = True
        try:
            loss = self._labelled(batch["label"], output)
            found: Any = torch.autograd.grad(loss, [*gathered, *parameters], allow_unused=True, materialize_grads=True)
        except Exception as error:
            raise ModelRefused(f"the loss cannot be differentiated: {type(error).__name__}: {error}") from error
        of_dense = flat([each.cpu().numpy() for each in found[len(rows) :]])
        return Gradients(float(loss.detach()), _summed(keys, found), of_dense, self._state_delta(buffers, state))

    # --- parts --------------------------------------------------------------------------------------------

    def _uncut(self) -> str:
        return self._traced if isinstance(self._traced, str) else ""

    def _cut_layers(self) -> Sequence[ModelLayer]:
        return self._whole().chain.layers

    def _part(self, first: int, until: int | None) -> Part:
        return TorchPart(self._whole(), first, until)

    def _whole(self) -> Traced:
        assert isinstance(self._traced, Traced), "else the model is not cut"
        return self._traced

    @functools.cached_property
    def _traced(self) -> Traced | str:
        """The module, traced so that it can be cut between its layers, or why it cannot."""
        trial = self.trial()
        widths = [each.dimension for each in self.layout.tables]
        rows = [np.zeros((len(of), width), np.float32) for of, width in zip(trial.keys.tables, widths, strict=True)]
        gathered = [each.requires_grad_() for each in self._gathered(rows, trial.keys)]
        features = {name: self._given(np.asarray(trial.batch[name])) for name in self._features if name in trial.batch}
        updates = self.updates
        dense = Dense(
            self.layout,
            _places(self._trained),
            _places(self._states),
            self._given,
            lambda given: self._gathered(given.rows, given.keys),
            self._labelled,
            lambda given, found: tuple(
                updates.within(of.rule, each)
                for of, each in zip(self.tables.values(), _summed(given.keys, found), strict=True)
            ),
            lambda found: updates.within(updates.of_dense, found),
        )
        example = dict(zip(self.tables, gathered, strict=True)) | features
        try:
            return Traced(self.model, [*self.tables], example, dense)
        except ModelRefused as refused:
            return str(refused)

    def predict(self, rows: Sequence[F32], keys: KeyBatch, dense: F32, state: F32, batch: Batch) -> F32:
        """Return the probabilities of label 1: [n]."""
        with self._predicting, torch.no_grad():
            parameters, buffers = self._parameters(dense), self._buffers(state)
            output = self._called(self._predictor, self._gathered(rows, keys), parameters, buffers, batch)
            return torch.sigmoid(output).reshape(-1).cpu().numpy()

    def _gathered(self, rows: Sequence[F32], keys: KeyBatch) -> list[Any]:
        """Return the rows of each table as [n, fields, dimension]."""
        pairs = zip(rows, keys.tables, strict=True)
        return [torch.nn.functional.embedding(self._given(of.inverse), self._given(each)) for each, of in pairs]

    def _called(
        self, model: Any, gathered: list[Any], parameters: list[Any], buffers: dict[str, Any], batch: Batch
    ) -> Any:
        """Call the module with these values of its parameters; `buffers` then has the new ones. Return the logits."""
        arguments = {name: self._given(np.asarray(batch[name])) for name in self._features if name in batch}
        arguments |= dict(zip(self.tables, gathered, strict=True))
        try:
            output = self._functional(model, parameters, buffers, (), arguments)
        except Exception as error:
            shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in arguments.items())
            raise ModelRefused(
                f"forward({shapes}) failed: {type(error).__name__}: {error}; rows have model.embedding_dim floats, or "
                "those that embedding_dim or tables of the task say"
            ) from error
        samples = len(batch["label"])
        if not isinstance(output, torch.Tensor) or tuple(output.shape) not in ((samples,), (samples, 1)):
            given = list(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
            raise ModelRefused(
                f"forward gave {given}; expected one logit of each sample: [{samples}] or [{samples}, 1]"
            )
        return output

    def _labelled(self, label: Any, output: Any) -> Any:
        return self._loss_of(self._given(np.asarray(label, np.float32)).reshape(output.shape), output)

    def _loss_of(self, label: Any, output: Any) -> Any:
        if self._loss is None:
            return torch.nn.functional.binary_cross_entropy_with_logits(output, label)
        return torch.as_tensor(self._loss(label, output)).mean()


def _shapes_of(tensors: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(each.shape) for name, each in tensors.items()}


def device_of(options: Options) -> Any:
    """Return where a module is computed: on a GPU that the job gives this process, else on the cores."""
    return torch.device("cuda" if options.has_devices and torch.cuda.is_available() else "cpu")


# --- what can be trained ------------------------------------------------------------------------------------


def torch_updates(
    task: Task, model: Any, options: Options, tables: Sequence[str], parameters: Mapping[int, str] | None = None
) -> Updates:
    """Return the updates of a module with these tables. parameters: the names of tables by the ids of parameters."""
    given = divided(getattr(task, "optimizer", None), model, parameters or {})
    return updates_of(task, options, given, lambda each: from_torch(each, options.learning_rate), tables)


def _inputs(task: Task, model: Any, options: Options) -> Inputs:
    """Return the arguments of `forward`. Raises ModelRefused for an argument that nothing could fill."""
    parameters = inspect.signature(model.forward).parameters
    for parameter in parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ModelRefused(
                f"forward takes {parameter}, but its arguments are filled by name: give each input a name of its own"
            )
    names = sorted(filter(is_rows, parameters))
    one = {ROWS: getattr(task, "embedding_dim", options.embedding_dim)} if names == [ROWS] else {}
    widths: Mapping[str, int] = getattr(task, "tables", None) or one
    if set(widths) != set(names) and names:
        raise ModelRefused(
            f"forward takes {names}, and `tables` of the task has {sorted(widths)}: give the floats per row of each, "
            f"as in tables = {dict.fromkeys(names, options.embedding_dim)}"
        )
    tables = {name: Rows(None, widths[name]) for name in names}
    remedy = f"forward(self, {ROWS}, …) receives the embedding rows of keys(batch), [n, fields, dimension]"
    check_inputs(tables, [*parameters], options, remedy)
    features = {
        name: Feature(is_needed=parameter.default is parameter.empty)
        for name, parameter in parameters.items()
        if name not in tables
    }
    return Inputs(tables, features)


def check_modules(model: Any) -> None:
    """Raise ModelRefused for a module whose parameters or statistics would not be what they seem."""
    nn = torch.nn
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.lazy.LazyModuleMixin) and module.has_uninitialized_params():
            raise ModelRefused(
                f"module {name} is {type(module).__name__}, without parameters until it runs: give sizes"
            )
        if getattr(module, "track_running_stats", False) and getattr(module, "momentum", 0.1) is None:
            raise ModelRefused(
                f"module {name} has momentum=None, a mean over the batches of one process; give a number, as in 0.1"
            )


def _check_hooks(model: Any) -> None:
    """Raise ModelRefused for a parameter whose gradient the user's code changes or sees."""
    for name, parameter in model.named_parameters():
        if has_hooks(parameter):
            raise ModelRefused(
                f"the parameter {name} has a hook on its gradient, which no step of a worker calls: freeze it by "
                "requires_grad_(False), or compute with what changes the gradient in forward, as detach() does"
            )


def _check_tables(model: Any) -> None:
    """Raise ModelRefused for a table in a module that takes its rows as an argument."""
    for name, module in model.named_modules():
        is_table = isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and module.weight.requires_grad
        if is_table and module.weight.numel() > LARGEST_EMBEDDING:
            raise ModelRefused(
                f"module {name} holds {module.num_embeddings} x {module.embedding_dim} floats, which every worker "
                f"would pull in each step; take the rows from the argument {ROWS!r} and give their ids in keys(batch), "
                f"or have no argument {ROWS!r}: then all tables of the module are adapted"
            )


def _check_types(tensors: Mapping[str, Any]) -> None:
    """Raise ModelRefused for what is not float32 on the CPU."""
    for name, tensor in tensors.items():
        if tensor.dtype is not torch.float32 or tensor.device.type != "cpu":
            raise ModelRefused(
                f"{name} has type {tensor.dtype} on {tensor.device}; parameters and buffers are float32 on the CPU here"
            )


def _places(tensors: Mapping[str, Any]) -> Places:
    """Return where each of these is in the vector of all."""
    shapes = [tuple(each.shape) for each in tensors.values()]
    ends = itertools.accumulate((math.prod(shape) for shape in shapes), initial=0)
    places = itertools.starmap(slice, itertools.pairwise(ends))
    return dict(zip(tensors, zip(places, shapes, strict=True), strict=True))


# --- tensors ------------------------------------------------------------------------------------------------


def tensor_of(array: NDArray[Any]) -> Any:
    """Return an array as a tensor: floats as float32, integers as int64. It is copied where it may not be written."""
    dtype = {"f": np.float32, "i": np.int64, "u": np.int64, "b": np.bool_}.get(array.dtype.kind)
    if dtype is None:
        raise DataError(f"an array of {array.dtype} cannot be given to the model: expected numbers")
    return torch.from_numpy(np.require(array, dtype, ("C", "W")))


def _summed(keys: KeyBatch, gradients: Sequence[Any]) -> tuple[F32, ...]:
    """Return the gradients of the rows of each table: [rows, dimension]."""
    return tuple(summed(each, of.inverse, len(of)) for of, each in zip(keys.tables, gradients, strict=False))


def summed(gradient: Any, inverse: NDArray[np.int64], rows: int) -> F32:
    """Add the gradients [n, fields, dimension] of the same row: [rows, dimension]."""
    flat_gradient = gradient.reshape(-1, gradient.shape[-1])
    total = torch.zeros(rows, gradient.shape[-1], device=gradient.device)
    return total.index_add_(0, tensor_of(inverse).reshape(-1).to(gradient.device), flat_gradient).cpu().numpy()
