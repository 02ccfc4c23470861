"""Batches of PyTorch as arrays, and back: tensors, NumPy arrays and plain values, nested in containers.

The structure is sent as JSON. Tensors are sent as the bytes of their storages, so a lane's tensors have the same
strides, and share memory where home's do. Nothing is unpickled.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from stretto_pipeline.arrays import KINDS, Arrays
from stretto_pipeline.errors import ArraysRefused

TREE = "tree"
NAMES = (
    "bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float16", "bfloat16", "float32",
    "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip
"""Types of tensors that can be sent, by torch's names."""
CONTAINERS: dict[type, str] = {list: "list", tuple: "tuple", dict: "dict", OrderedDict: "ordered"}


def packed(batch: Any) -> Arrays:
    """Return a batch as named arrays. Raises ArraysRefused: a part of it cannot be sent."""
    writing = _Writing()
    try:
        root = writing.node(batch)
        arrays = writing.arrays()
        tree = json.dumps(root, separators=(",", ":")).encode()
    except RecursionError:
        raise ArraysRefused("a batch does not travel: it is nested too deeply") from None
    return {TREE: np.frombuffer(tree, np.uint8), **arrays}


def unpacked(arrays: Mapping[str, NDArray[Any]], tuples: Mapping[str, type]) -> Any:
    """Return the batch that arrays describe. tuples: types of named tuples, by name. Raises ArraysRefused."""
    try:
        return _Reading(arrays, tuples).value(json.loads(arrays[TREE].tobytes()))
    except (ValueError, TypeError, KeyError, IndexError, RuntimeError, OverflowError) as error:
        raise ArraysRefused(f"arrays are no batch: {type(error).__name__}: {error}") from None


def memory_of(batch: Any) -> list[tuple[int, int]]:
    """Return the ranges of addresses that a batch uses. Raises ArraysRefused."""
    writing = _Writing()
    writing.node(batch)
    return writing.ranges()


def named_tuples(batch: Any) -> dict[str, type]:
    """Return the types of all named tuples in a batch, by name."""
    found: dict[str, type] = {}
    waiting: list[Any] = [batch]
    while waiting:
        each = waiting.pop()
        if _is_named_tuple(each):
            found[_name_of(type(each))] = type(each)
        if isinstance(each, list | tuple):
            waiting += cast("list[Any]", each)
        elif isinstance(each, dict):
            waiting += cast("dict[Any, Any]", each).values()
    return found


def refusal_of(tensor: Any) -> str:
    """Return why a tensor cannot be sent, "" if it can."""
    import torch

    if type(tensor) is not torch.Tensor:
        return f"a {type(tensor).__name__}"
    if tensor.device.type != "cpu":
        return f"a tensor on {tensor.device}"
    if tensor.layout is not torch.strided:
        return f"a tensor of layout {tensor.layout}"
    if tensor.is_quantized or name_of(tensor.dtype) not in NAMES:
        return f"a tensor of type {tensor.dtype}"
    if tensor.requires_grad:
        return "a tensor that requires a gradient"
    if tensor.is_conj() or tensor.is_neg():
        return "a tensor that is conjugated or negated lazily"
    return ""


def name_of(dtype: Any) -> str:
    """Return torch's name of a type of tensors."""
    return str(dtype)[len("torch.") :]


def end_of(tensor: Any) -> int:
    """Return the end of a tensor in its storage: the number of the element behind its last."""
    if not tensor.numel():
        return tensor.storage_offset()
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.storage_offset() + 1 + sum((size - 1) * step for size, step in steps)


def bytes_of(storage: Any, begin: int, end: int) -> NDArray[np.uint8]:
    """Return a range of bytes of a storage, as a view."""
    import torch

    return torch.empty(0, dtype=torch.uint8).set_(storage, begin, (end - begin,), (1,)).numpy()


@dataclass(frozen=True, slots=True)
class View:
    """A tensor as a view of a storage. offset, strides: in elements."""

    dtype: str
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    def on(self, storage: Any) -> Any:
        """Return the tensor on a storage. Raises ValueError, RuntimeError: it does not fit."""
        import torch

        if self.dtype not in NAMES or min([self.offset, *self.sizes, *self.strides]) < 0:
            raise ValueError(f"{self} is no tensor")
        return torch.empty(0, dtype=getattr(torch, self.dtype)).set_(storage, self.offset, self.sizes, self.strides)


@dataclass
class _Used:
    """The range of a storage that the tensors of a batch use."""

    storage: Any
    begin: int
    end: int
    number: int
    width: int
    """Bytes of the widest element."""
    views: list[tuple[View, int, list[Any]]] = field(default_factory=list[tuple[View, int, list[Any]]])
    """Tensors with the bytes of an element, and the JSON node whose offset is still to be set."""

    def content(self) -> NDArray[np.uint8]:
        """Return the bytes, and set the offsets of all nodes. Bytes that no tensor uses are 0."""
        import torch

        self.begin -= self.begin % self.width
        for view, width, node in self.views:
            node[3] = view.offset - self.begin // width
        found = bytes_of(self.storage, self.begin, self.end)
        distinct = {view: (width, node) for view, width, node in self.views}
        if sum(math.prod(view.sizes) * width for view, (width, _) in distinct.items()) == self.end - self.begin:
            return found
        clean = torch.zeros(self.end - self.begin, dtype=torch.uint8)
        for view, (_, node) in distinct.items():
            there = View(view.dtype, node[3], view.sizes, view.strides).on(clean.untyped_storage())
            if 0 in view.strides:  # overlapping elements cannot be the target of a copy
                return found
            there.copy_(view.on(self.storage))
        return clean.numpy()


class _Writing:
    """The conversion of a batch to JSON and arrays."""

    def __init__(self) -> None:
        self._used: dict[int, _Used] = {}
        """Used ranges, by the address of their storage."""
        self._values: list[NDArray[Any]] = []
        self._containers: dict[int, Any] = {}
        """Lists and dicts met so far, by identity."""

    def node(self, value: Any) -> list[Any]:
        """Return a value as a JSON node that refers to arrays. Raises ArraysRefused."""
        import torch

        kind = type(value)
        if value is None or kind in (bool, int, str):
            return ["value", value]
        if kind is float:
            return ["float", value.hex()]
        if kind is bytes:
            return ["bytes", value.hex()]
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, np.ndarray | np.generic):
            return self._array(value)
        if kind not in CONTAINERS and not _is_named_tuple(value):
            raise ArraysRefused(f"a batch does not travel: it has a {kind.__qualname__}")
        if not isinstance(value, tuple):
            if id(value) in self._containers:
                raise ArraysRefused("a batch does not travel: a list or dict stands in it twice")
            self._containers[id(value)] = value
        if isinstance(value, dict):
            pairs = cast("dict[Any, Any]", value)
            return [CONTAINERS[kind], [[self.node(key), self.node(each)] for key, each in pairs.items()]]
        items = [self.node(each) for each in value]
        return [CONTAINERS[kind], items] if kind in CONTAINERS else ["named", _name_of(kind), items]

    def arrays(self) -> Arrays:
        """Return the arrays that nodes refer to, and set the nodes' offsets. Raises ArraysRefused."""
        ranges = sorted(self.ranges())
        if any(one[1] > other[0] for one, other in itertools.pairwise(ranges)):
            raise ArraysRefused("a batch does not travel: arrays in it share memory")
        storages = {f"storage {used.number}": used.content() for used in self._used.values()}
        return storages | {f"array {number}": value for number, value in enumerate(self._values)}

    def ranges(self) -> list[tuple[int, int]]:
        """Return the ranges of addresses that tensors and arrays use."""
        used = [(place + each.begin, place + each.end) for place, each in self._used.items()]
        return used + [(each.ctypes.data, each.ctypes.data + each.nbytes) for each in self._values if each.ndim]

    def _tensor(self, tensor: Any) -> list[Any]:
        if refusal := refusal_of(tensor):
            raise ArraysRefused(f"a batch does not travel: it has {refusal}")
        width, offset = tensor.element_size(), tensor.storage_offset()
        view = View(name_of(tensor.dtype), offset, tuple(tensor.shape), tuple(tensor.stride()))
        if not tensor.numel():
            return ["tensor", -1, view.dtype, 0, view.sizes, view.strides]
        storage = tensor.untyped_storage()
        begin, end, place = offset * width, end_of(tensor) * width, storage.data_ptr()
        used = self._used.setdefault(place, _Used(storage, begin, end, len(self._used), width))
        if storage.nbytes() > used.storage.nbytes():
            used.storage = storage
        used.begin, used.end, used.width = min(used.begin, begin), max(used.end, end), max(used.width, width)
        node = ["tensor", used.number, view.dtype, 0, view.sizes, view.strides]
        used.views.append((view, width, node))
        return node

    def _array(self, value: Any) -> list[Any]:
        if type(value) is not np.ndarray and not isinstance(value, np.generic):
            raise ArraysRefused(f"a batch does not travel: it has a {type(value).__qualname__}")
        if value.dtype.kind not in KINDS or not value.flags.c_contiguous:
            raise ArraysRefused(f"a batch does not travel: it has an array of type {value.dtype}, or not contiguous")
        self._values.append(np.asarray(value))
        return ["array" if isinstance(value, np.ndarray) else "scalar", len(self._values) - 1]


class _Reading:
    """The conversion of JSON and arrays to a batch.

    Raises ValueError, TypeError, KeyError, RuntimeError: they do not fit.
    """

    def __init__(self, arrays: Mapping[str, NDArray[Any]], tuples: Mapping[str, type]) -> None:
        self._arrays, self._tuples = arrays, tuples
        self._storages: dict[int, Any] = {}

    def value(self, node: Any) -> Any:
        match node:
            case ["value", None | bool() | int() | str() as value]:
                return value
            case ["float", str() as text]:
                return float.fromhex(text)
            case ["bytes", str() as text]:
                return bytes.fromhex(text)
            case ["tensor", int() as number, str() as dtype, int() as offset, list() as sizes, list() as strides]:
                return View(dtype, offset, tuple(sizes), tuple(strides)).on(self._storage(number))
            case ["array", int() as number]:
                return self._arrays[f"array {number}"]
            case ["scalar", int() as number]:
                return self._arrays[f"array {number}"][()]
            case ["list", list() as items]:
                return [self.value(each) for each in items]
            case ["tuple", list() as items]:
                return tuple(self.value(each) for each in items)
            case ["named", str() as name, list() as items]:
                return self._tuples[name](*(self.value(each) for each in items))
            case ["dict", list() as pairs]:
                return {self.value(key): self.value(each) for key, each in pairs}
            case ["ordered", list() as pairs]:
                return OrderedDict((self.value(key), self.value(each)) for key, each in pairs)
            case _:
                raise ValueError("a node of no known kind")

    def _storage(self, number: int) -> Any:
        import torch

        if number < 0:
            return torch.empty(0).untyped_storage()
        if number not in self._storages:
            content = self._arrays[f"storage {number}"]
            if content.dtype != np.uint8 or content.ndim != 1:
                raise ValueError(f"storage {number} is no bytes")
            self._storages[number] = torch.from_numpy(content).untyped_storage()
        return self._storages[number]


def _is_named_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and type(value) is not tuple and hasattr(type(value), "_fields")


def _name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
