"""Tensors in the place of a PyTorch module's tables and parameters, so that its own forward finds ids and takes rows.

No module is changed. PyTorch asks a tensor of a class of its own what a function of it is (`__torch_function__`).
1. In a *recording* call, which makes the keys, a `Table` notes the ids that it is looked up with, and gives an
   `Unknown`, a value of which at most the shape is computed. Each parameter is one, too. So dense layers cost next to
   nothing, and an id that follows from rows or parameters is found to be one.
2. In a *feeding* call, which is the step, a `Table` gives the rows that were pulled.
"""

from __future__ import annotations

import copy
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import ModelRefused
from ..model.one_step import OtherIds
from .private import as_class, own_buffers, own_parameters, without_subclasses
from .tables import Source

_functional = torch.nn.functional
_KNOWN = frozenset(
    getattr(torch.Tensor, name).__get__
    for name in ("shape", "dtype", "ndim", "device", "requires_grad", "is_leaf", "is_sparse", "layout", "is_cuda")
) | {torch.Tensor.size, torch.Tensor.dim, torch.Tensor.numel, torch.Tensor.is_floating_point}  # fmt: skip
"""Attributes and methods that a table answers without its values."""
_DEVICE = torch.Tensor.device.__get__


# --- tensors ------------------------------------------------------------------------------------------------


class Unknown(torch.Tensor):
    """A tensor whose values follow from rows or parameters. Its shape is computed when it is asked for.

    For the most usual operations not even that is done before: PyTorch infers a shape in 0.1 ms or more.
    """

    origin: str
    shaped: Any
    """A tensor on the device `meta`, None until it is asked for."""
    made_by: tuple[Any, tuple[Any, ...], dict[str, Any]]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if Table in types:
            return NotImplemented  # the table answers
        options: dict[str, Any] = kwargs or {}
        if func in _OF_ONE_RESULT:
            # a list may grow before the shape is asked for
            args = tuple(list(cast("list[Any]", each)) if isinstance(each, list) else each for each in args)
            return _unknown(None, "", (func, args, options))
        if func == _DEVICE:
            return torch.device("cpu")
        result = _on_meta(func, args, options)
        origin = source_of((args, options))
        return _mapped(result, lambda each: _unknown(each, origin) if isinstance(each, torch.Tensor) else each)


_BLANK = torch.empty((), device="meta")
_DENSE = (
    "add", "sub", "subtract", "mul", "multiply", "div", "divide", "true_divide", "neg", "abs", "square", "sqrt",
    "rsqrt", "exp", "log", "log1p", "pow", "clamp", "reciprocal", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum",
    "linear", "bilinear", "outer", "dot", "softmax", "log_softmax", "sigmoid", "logsigmoid", "tanh", "relu", "relu_",
    "relu6", "gelu", "silu", "mish", "elu", "selu", "leaky_relu", "prelu", "softplus", "hardtanh", "hardsigmoid",
    "hardswish", "dropout", "layer_norm", "batch_norm", "group_norm", "instance_norm", "rms_norm", "normalize",
    "cosine_similarity", "cat", "concat", "stack", "hstack", "vstack", "flatten", "reshape", "view", "squeeze",
    "unsqueeze", "transpose", "permute", "expand", "contiguous", "sum", "mean", "where", "masked_fill",
    "index_select", "float", "__add__", "__radd__", "__iadd__", "__sub__", "__rsub__", "__isub__", "__mul__",
    "__rmul__", "__imul__", "__truediv__", "__rtruediv__", "__neg__", "__matmul__", "__rmatmul__", "__getitem__",
    "__pow__",
)  # fmt: skip
_OF_ONE_RESULT = frozenset(
    getattr(owner, name)
    for owner in (torch, torch.Tensor, torch.nn.functional)
    for name in _DENSE
    if hasattr(owner, name)
)
"""Operations that give one new tensor, whatever they are called with."""


def unknown(shape: Sequence[int], origin: str, dtype: Any = torch.float32) -> Any:
    """Return a tensor of this shape with no values. origin: what they would follow from."""
    return _unknown(None, origin, (torch.empty, (tuple(shape),), {"dtype": dtype, "device": "meta"}))


def _unknown(shaped: Any, origin: str, made_by: Any = None) -> Any:
    if isinstance(shaped, Unknown):
        return shaped
    found = as_class(Unknown, _BLANK)
    found.origin, found.shaped, found.made_by = origin, shaped, made_by
    return found


def source_of(values: Any) -> str:
    """Return from which rows or parameters values follow; "" if from none."""
    found: list[str] = []

    def look(value: Any) -> None:
        if isinstance(value, Unknown) and not found:
            origin = value.origin or source_of(value.made_by[1:])
            found.extend([origin] if origin else [])

    _mapped(values, look)
    return found[0] if found else ""


def _on_meta(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the result of a function on tensors without values."""

    def shaped(value: Any) -> Any:
        if isinstance(value, Unknown):
            if value.shaped is None:
                value.shaped = _on_meta(*value.made_by)
            return value.shaped
        if isinstance(value, torch.Tensor):
            return value.to("meta")
        return torch.device("meta") if isinstance(value, torch.device) else value

    with without_subclasses():
        return func(*_mapped(args, shaped), **_mapped(kwargs, shaped))


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a nest of tuples, lists and dicts with each value changed."""
    if isinstance(value, dict):
        return {name: _mapped(each, change) for name, each in cast("dict[Any, Any]", value).items()}
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        found = [_mapped(each, change) for each in cast("Sequence[Any]", value)]
        return type(value)(*found) if hasattr(value, "_make") else type(cast("Any", value))(found)
    return change(value)


class Table(torch.Tensor):
    """The table of an embedding layer in a `Copy`: a shape without values. The lookups of a call answer for it."""

    number: int
    copy: Copy

    @property
    def lookups(self) -> Lookups:
        """The lookups of the call that is running."""
        with without_subclasses():
            return self.copy.lookups

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options: dict[str, Any] = kwargs or {}
        if func in (_functional.embedding, _functional.embedding_bag) and isinstance(args[1], Table):
            _check_options(args[1].lookups.names[args[1].number], options)
        if func is _functional.embedding and isinstance(args[1], Table):
            table = args[1]
            return table.lookups.rows(table.number, _Call(args[0], options.get("padding_idx")))
        if func is _functional.embedding_bag and isinstance(args[1], Table):
            table, given = args[1], _Bag(args[0], *(options.get(name) for name in _OF_BAGS))
            return table.lookups.rows(table.number, given)
        with without_subclasses():
            if func == _DEVICE:
                return args[0].copy.device
            if func in _KNOWN:
                return func(*args, **options)
        found: list[Table] = []
        _mapped([args, options], lambda each: found.append(each) if isinstance(each, Table) else None)
        return found[0].lookups.whole(found[0], func, args, options)


_CORES = torch.device("cpu")


class Copy:
    """A copy of a module, with buffers of its own, whose tables ask the lookups of a call."""

    lookups: Lookups

    def __init__(
        self, model: Any, tables: Sequence[Source], instead: Mapping[int, Any] | None = None, device: Any = _CORES
    ) -> None:
        """Copy a module. tables: those whose rows are elsewhere. instead: replacements of other parameters, by id.

        The copy shares all other parameters with the module, or has copies of them on the device.
        """
        self.device = device
        self.module = copy.deepcopy(model, {id(each): each for each in model.parameters()})
        new = {id(each): _moved(each, device) for each in model.parameters()}  # one also where modules share it
        new |= instead or {}
        for number, source in enumerate(tables):
            found = cast("Table", torch.empty(source.shape, device="meta").as_subclass(Table))
            found.number, found.copy = number, self
            new[id(source.parameter)] = found
        for module in self.module.modules():
            parameters, buffers = own_parameters(module), own_buffers(module)
            for name, each in parameters.items():
                parameters[name] = None if each is None else new[id(each)]
            for name, each in buffers.items():
                buffers[name] = None if each is None else each.to(device)
            is_plain = type(module).__dict__.get("forward", type(module).forward) is torch.nn.Embedding.forward
            weight = parameters.get("weight")
            if is_plain and isinstance(weight, Table) and module.max_norm is None and not module.scale_grad_by_freq:
                # the same without PyTorch's search for who answers, which takes longer than the answer
                module.forward = functools.partial(self._looked_up, weight.number, module.padding_idx)

    def _looked_up(self, number: int, padding_idx: int | None, input: Any) -> Any:
        return self.lookups.rows(number, _Call(input, padding_idx))


def _moved(parameter: Any, device: Any) -> Any:
    if parameter.device == device:
        return parameter
    return torch.nn.Parameter(parameter.detach().to(device), parameter.requires_grad)


def _check_options(name: str, options: Mapping[str, Any]) -> None:
    """Raise ModelRefused for a lookup that changes the table, or counts ids beyond the batch's rows."""
    if options.get("max_norm") is not None:
        raise ModelRefused(
            f"layer {name}: max_norm changes the table whenever it is looked up, which the parameter servers do not "
            "do; leave it out, or divide the looked-up rows by their norm in forward"
        )
    if options.get("scale_grad_by_freq"):
        raise ModelRefused(
            f"layer {name}: scale_grad_by_freq divides gradients by how often an id is in the batch, which the "
            "parameter servers do not do; leave it out, and take Adagrad or Adam, which scale rows by their gradients"
        )


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of `embedding`."""

    ids: Any
    padding_idx: int | None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result without the width of a row."""
        return tuple(self.ids.shape)

    def result(self, rows: Any) -> Any:
        """Return the result. rows: of each id, [ids, width]."""
        return rows.reshape(*self.ids.shape, rows.shape[-1])


_OF_BAGS = ("offsets", "mode", "per_sample_weights", "include_last_offset", "padding_idx")


@dataclass(frozen=True, slots=True)
class _Bag:
    """A call of `embedding_bag`."""

    ids: Any
    offsets: Any
    mode: str | None
    per_sample_weights: Any
    include_last_offset: bool | None
    padding_idx: int | None

    @property
    def shape(self) -> tuple[int, ...]:
        if self.offsets is None:
            return (self.ids.shape[0],)
        return (self.offsets.shape[0] - bool(self.include_last_offset),)

    def result(self, rows: Any) -> Any:
        places, padding = torch.arange(len(rows), device=rows.device), None
        if self.padding_idx is not None:
            is_padding = self.ids.reshape(-1) == self.padding_idx
            if bool(is_padding.any()):  # every padded place stands for the first one of them
                padding = int(is_padding.to(torch.uint8).argmax())
                places = torch.where(is_padding, padding, places)
        options = {name: getattr(self, name) for name in _OF_BAGS} | {"padding_idx": padding}
        return _functional.embedding_bag(places.reshape(self.ids.shape), rows, **options)


# --- the modes of a call ------------------------------------------------------------------------------------


class Lookups(ABC):
    """Answers for the tables of a module during a call. names: of the tables."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    @abstractmethod
    def rows(self, number: int, call: _Call | _Bag) -> Any:
        """Return the result of a lookup in table `number`."""

    @abstractmethod
    def whole(self, of: Table, func: Any, args: Any, kwargs: Any) -> Any:
        """Return the result of a function that uses the whole table."""


class _Recorded(BaseException):
    """Ends a recording call: everything is noted. No `except Exception` of a module may take it."""


@dataclass(frozen=True, slots=True)
class Noted:
    """A lookup of a recording call: ids in any shape, int64."""

    table: int
    ids: NDArray[np.int64]
    padding: int | None


class Recording(Lookups):
    """Notes the lookups of a call, in their order."""

    def __init__(self, names: Sequence[str], widths: Sequence[int], *, has_values: bool, stop_after: int = 0) -> None:
        """Begin without a lookup. has_values: lookups give zeros and not an `Unknown`, for a forward that needs values.

        stop_after: the number of the lookup that ends the call; 0: none does.
        """
        super().__init__(names)
        self._widths = widths
        self._has_values = has_values
        self._stop_after = stop_after
        self.noted: list[Noted] = []
        self.used_whole: dict[int, str] = {}
        """By table: the function that used it as a whole."""

    def run(self, call: Callable[[], Any]) -> list[Noted]:
        """Call the module; return its lookups. Raises ModelRefused, and whatever the module raises."""
        try:
            with torch.no_grad():
                call()
        except _Recorded:
            pass
        return self.noted

    def rows(self, number: int, call: _Call | _Bag) -> Any:
        if isinstance(call.ids, Unknown):
            raise ModelRefused(
                f"layer {self.names[number]}: its ids depend on {source_of(call.ids)}, which is not known when the "
                "rows of a batch are requested; ids must follow from the inputs"
            )
        ids = call.ids.detach().cpu().numpy().astype(np.int64, copy=False)
        self.noted.append(Noted(number, ids, call.padding_idx))
        if len(self.noted) == self._stop_after:
            raise _Recorded
        shape = (*call.shape, self._widths[number])
        return torch.zeros(shape) if self._has_values else unknown(shape, f"the rows of layer {self.names[number]}")

    def whole(self, of: Table, func: Any, args: Any, kwargs: Any) -> Any:
        self.used_whole.setdefault(of.number, getattr(func, "__name__", str(func)))
        origin = f"the table of layer {self.names[of.number]}"

        def plain(value: Any) -> Any:
            if not isinstance(value, Table):
                return value
            return torch.zeros(tuple(value.shape)) if self._has_values else unknown(value.shape, origin)

        return func(*_mapped(args, plain), **_mapped(kwargs, plain))


class Feeding(Lookups):
    """Gives the rows of the lookups that were noted. rows: of each of them [ids, width]."""

    def __init__(self, names: Sequence[str], noted: Sequence[Noted], rows: Sequence[Any]) -> None:
        super().__init__(names)
        self._noted = noted
        self._rows = rows
        self._next = 0

    def rows(self, number: int, call: _Call | _Bag) -> Any:
        place = self._next
        self._next += 1
        if place >= len(self._noted) or self._noted[place].table != number:
            raise ModelRefused(
                f"layer {self.names[number]} is called more often or in another order than when the ids of the batch "
                "were found: calls must not depend on rows, on parameters or on `training`, nor be of another number "
                "in each batch; call the layer once with all ids"
            )
        if not _same(call.ids, self._noted[place].ids):
            raise ModelRefused(
                f"layer {self.names[number]}: its ids are others than those that were found in the batch: they depend "
                "on other rows, on parameters, on statistics or on `training`, or are drawn at random; ids must follow "
                "from the inputs, so draw them in read, seeded by the sample's number"
            )
        return call.result(self._rows[place])

    def whole(self, of: Table, func: Any, args: Any, kwargs: Any) -> Any:
        raise whole_refused(self.names[of.number], of.shape, getattr(func, "__name__", str(func)))


class Cut(Lookups):
    """Looks up in tables that are cut to some rows, as PyTorch does.

    tables: of each its ids, their rows, and the id whose row is not trained.
    """

    def __init__(self, names: Sequence[str], tables: Sequence[tuple[NDArray[np.int64], Any, int | None]]) -> None:
        super().__init__(names)
        self._tables = tables

    def rows(self, number: int, call: _Call | _Bag) -> Any:
        known, rows, padding = self._tables[number]
        ids, order = call.ids.detach().numpy(), np.argsort(known)
        at = np.searchsorted(known[order], ids)
        if not len(known) or (known[order][np.minimum(at, len(known) - 1)] != ids).any():
            raise OtherIds(f"layer {self.names[number]} looks up other ids")
        fixed = np.flatnonzero(known == padding)
        places = torch.from_numpy(order[at])
        padding_idx = int(fixed[0]) if len(fixed) else None
        return call.result(_functional.embedding(places.reshape(-1), rows, padding_idx))

    def whole(self, of: Table, func: Any, args: Any, kwargs: Any) -> Any:
        raise whole_refused(self.names[of.number], of.shape, getattr(func, "__name__", str(func)))


def whole_refused(name: str, shape: Sequence[int], function: str) -> ModelRefused:
    """Return the refusal of a table that is used as a whole. function: the name of the function that uses it."""
    return ModelRefused(
        f"layer {name}: {function} uses its whole table of {shape[0]} x {shape[1]} floats, and a worker has the rows "
        "of a batch only; look rows up by calling the layer"
    )


def _same(ids: Any, noted: NDArray[np.int64]) -> bool:
    """Return whether a call has the ids that were noted. Ids that are an input are in the same memory."""
    given = ids.detach().cpu().numpy()
    if given.shape != noted.shape:
        return False
    at_both = (given.__array_interface__["data"], noted.__array_interface__["data"])
    is_view = given.dtype == noted.dtype and given.strides == noted.strides and at_both[0] == at_both[1]
    return is_view or bool(np.array_equal(given, noted))
