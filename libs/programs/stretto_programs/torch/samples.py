"""Preparations that are data sets of PyTorch, and the module that lanes run for them (`lanes.protocol.Framework`).

A data set and its collate function go to lanes by cloudpickle, which takes definitions of the script itself by value: a
lane does not run the script. Lanes answer with arrays (`trees`); home unpickles nothing.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import os
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from stretto_pipeline.arrays import Arrays, Parts
from stretto_pipeline.errors import ArraysRefused, PipelineError

from ..errors import ProgramRefused
from ..lanes.protocol import Prepares
from . import trees
from .purity import Watch

FRAMEWORK = __name__
CODE_BYTES_MAX = 1 << 30
"""Largest data set that is sent to lanes, each of which keeps a copy (taste)."""
INLINE_BYTES = 1 << 14
"""Buffers below this size stay in the pickle: a part of the message for each would cost more (taste)."""
INTEGERS, SCALARS, ONE = "integers", "scalars", "one"
"""Forms of a batch's indices: Python integers, NumPy scalars, or the single integer of a loader without batches."""


def settings() -> dict[str, Any]:
    """Return home's settings of PyTorch, and its module path, for `begin`."""
    import torch

    return {
        "between": torch.get_num_interop_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "paths": [os.path.abspath(each) for each in sys.path],
    }


def load() -> None:
    """Import PyTorch and the modules that its loaders need."""
    for name in ("cloudpickle", "torch.utils.data"):
        importlib.import_module(name)


def begin(settings: Mapping[str, Any]) -> None:
    """Configure a lane like home: the same module path and settings, but no GPU."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    sys.path[:] = settings["paths"]
    sys.dont_write_bytecode = True
    sys.addaudithook(_refuse_effects)
    import torch

    torch.set_num_interop_threads(settings["between"])
    torch.use_deterministic_algorithms(settings["deterministic"])


# --- home -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Code:
    """A data set and a collate function, pickled. buffers: contents of large arrays, shared with the program."""

    head: Mapping[str, Any]
    stream: bytes
    buffers: tuple[memoryview, ...]
    memory: tuple[tuple[int, int], ...]
    """Ranges of addresses of all arrays and tensors in it."""
    digest: str

    @property
    def size_bytes(self) -> int:
        """The number of bytes that are sent."""
        return len(self.stream) + sum(each.nbytes for each in self.buffers)


def code_of(dataset: Any, collate: Any) -> Code:
    """Pickle a data set and a collate function as they are now. Raises ProgramRefused."""
    import torch

    found: list[memoryview] = []
    memory: list[tuple[int, int]] = []
    stream = _Bounded()

    def inline(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes:
            address = np.frombuffer(view, np.uint8).ctypes.data
            memory.append((address, address + view.nbytes))
        if view.nbytes < INLINE_BYTES:
            return True
        found.append(view)
        stream.check(sum(each.nbytes for each in found))
        return False

    try:
        _pickler()(stream, protocol=5, buffer_callback=inline).dump((dataset, collate))
    except ProgramRefused:
        raise
    except Exception as error:  # pickling runs code of the program
        raise ProgramRefused(f"its data set does not pickle: {type(error).__name__}: {error}") from None
    head = {
        "folder": os.getcwd(),
        "threads": torch.get_num_threads(),
        "dtype": trees.name_of(torch.get_default_dtype()),
    }
    digest = hashlib.blake2b(json.dumps(head).encode())
    for part in (stream.getbuffer(), *found):
        digest.update(part)
    return Code(head, stream.getvalue(), tuple(found), tuple(memory), digest.hexdigest())


@dataclass(frozen=True)
class SamplePreparation:
    """A data set's preparation: from indices to a batch.

    tuples: types of named tuples in batches, by name. live: returns the numbers of all preparations that lanes must
    keep.
    """

    number: int
    code: Code
    tuples: Mapping[str, type]
    batch_bytes: int
    live: Callable[[], list[int]]

    def parts(self) -> Parts:
        """Return the preparation as parts of a message."""
        head = {**self.code.head, "number": self.number, "live": self.live()}
        return [json.dumps(head).encode(), self.code.stream, *self.code.buffers]

    def arrays_of(self, values: Sequence[Any]) -> Arrays:
        """Return a batch as arrays; a batch that cannot be sent becomes an array named by the reason."""
        try:
            return trees.packed(values[0])
        except ArraysRefused as error:
            return {str(error): np.zeros(0, np.uint8)}

    def size_of(self, values: Sequence[Any]) -> int:
        """Return the bytes of the batch that was measured: all batches are assumed to be like it."""
        del values
        return self.batch_bytes

    def values_of(self, arrays: Arrays) -> list[Any]:
        """Return the batch of a lane's answer. Raises ArraysRefused."""
        return [trees.unpacked(arrays, self.tuples)]


def indices_of(given: Any) -> Arrays | None:
    """Return the indices of a batch as arrays; None if they are not integers."""
    if type(given) is int and abs(given) < 2**63:
        return {ONE: np.array(given, np.int64)}
    if type(given) is not list or not given:
        return None
    items = cast("list[Any]", given)
    kinds = {type(each) for each in items}
    if kinds == {int} and max(map(abs, items)) < 2**63:
        return {INTEGERS: np.array(items, np.int64)}
    if len(kinds) == 1 and issubclass(kinds.pop(), np.integer):
        return {SCALARS: np.array(items)}
    return None


# --- lanes ----------------------------------------------------------------------------------------------------------


class _Samples:
    """A data set in a lane, and the function that prepares its batches."""

    def __init__(self, head: Mapping[str, Any], dataset: Any, collate: Any) -> None:
        from torch.utils.data._utils.fetch import _MapDatasetFetcher

        self._head = head
        self._roots: tuple[Any, ...] = (dataset, collate)
        self._fetch: Any = _MapDatasetFetcher(dataset, True, collate, False).fetch
        self._fetch_one: Any = _MapDatasetFetcher(dataset, False, collate, False).fetch

    def __call__(self, raw: Arrays) -> Arrays:
        """Return a batch. Raises PipelineError: its items are not pure functions of their indices."""
        _settle(self._head)
        [(name, array)] = raw.items()
        indices: Any = [*array] if name == SCALARS else array.tolist()
        fetch = self._fetch_one if name == ONE else self._fetch
        told = io.StringIO()
        _EFFECTS.is_refused = True
        try:
            with redirect_stdout(told):
                watch = Watch(self._roots)
                batch = fetch(indices)
                reason = watch.reason()
        except (StopIteration, KeyboardInterrupt, SystemExit) as error:
            raise PipelineError(f"its items raise {type(error).__name__}") from None
        finally:
            _EFFECTS.is_refused = False
        if told.getvalue():
            reason = "its items write to standard output"
        if reason:
            raise PipelineError(reason)
        return trees.packed(batch)

    def forget(self) -> None:
        """Drop the data set: home will not ask for it again."""
        self._roots, self._fetch, self._fetch_one = (), None, None


_TAUGHT: dict[int, _Samples] = {}


def taught(parts: Sequence[memoryview]) -> Prepares:
    """Return the function of a data set. Its pickle comes from home, which the plane has authenticated."""
    head = json.loads(bytes(parts[0]))
    os.dup2(sys.stderr.fileno(), sys.__stdout__.fileno() if sys.__stdout__ else 1)  # home has read its only line
    for number in [each for each in _TAUGHT if each not in head["live"]]:
        _TAUGHT.pop(number).forget()
    _settle(head)
    dataset, collate = pickle.loads(parts[1], buffers=parts[2:])
    _TAUGHT[head["number"]] = samples = _Samples(head, dataset, collate)
    return samples


def _settle(head: Mapping[str, Any]) -> None:
    import torch

    os.chdir(head["folder"])
    if torch.get_num_threads() != head["threads"]:
        torch.set_num_threads(head["threads"])
    torch.set_default_dtype(getattr(torch, head["dtype"]))


class _Effects:
    """A switch: while it is on, effects of the program's code on files and processes are refused."""

    is_refused = False


_EFFECTS = _Effects()
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
REFUSED_EVENTS = frozenset(
    {"os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.system", "os.fork"}
    | {"os.posix_spawn", "os.exec", "subprocess.Popen", "os.putenv", "os.unsetenv", "os.chmod", "os.utime"}
)


def _refuse_effects(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse effects of items: what they write at home must be written once, at its step."""
    if not _EFFECTS.is_refused:
        return
    is_writing = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING
    if is_writing or event in REFUSED_EVENTS:
        raise PipelineError(f"its items have effects: {event} {arguments[:1]}")


# --- pickling -------------------------------------------------------------------------------------------------------


class _Bounded(io.BytesIO):
    """A buffer for a pickle, which raises an error once the pickle is too large."""

    buffers_bytes = 0

    def check(self, buffers_bytes: int) -> None:
        self.buffers_bytes = buffers_bytes
        if self.tell() + buffers_bytes > CODE_BYTES_MAX:
            raise ProgramRefused(
                f"its data set is larger than {CODE_BYTES_MAX >> 20} MiB, of which each lane has a copy"
            )

    def write(self, content: Any) -> int:
        written = super().write(content)
        self.check(self.buffers_bytes)
        return written


@cache
def _pickler() -> Any:
    """Return the class of picklers. Raises ProgramRefused: cloudpickle is not installed."""
    import torch

    try:
        import cloudpickle
    except ImportError:
        raise ProgramRefused("cloudpickle is not installed here: pip install stretto-programs[torch]") from None

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, torch.Tensor):
                return _reduced_tensor(obj)
            if isinstance(obj, np.memmap) and (reduced := _reduced_memmap(obj)):
                return reduced
            if isinstance(obj, np.ndarray) and obj.nbytes > CODE_BYTES_MAX:
                raise ProgramRefused(
                    f"its data set has an array of {obj.nbytes >> 20} MiB, of which each lane has a copy"
                )
            return super().reducer_override(obj)

    return Pickler


def _reduced_tensor(tensor: Any) -> Any:
    refusal = trees.refusal_of(tensor)
    if tensor.requires_grad or tensor.device.type != "cpu":
        raise ProgramRefused(f"its data set refers to {refusal}")
    if refusal or not tensor.numel():
        return NotImplemented
    begin, width = tensor.storage_offset(), tensor.element_size()
    content: Any = trees.bytes_of(tensor.untyped_storage(), begin * width, trees.end_of(tensor) * width)
    view = trees.View(trees.name_of(tensor.dtype), 0, tuple(tensor.shape), tuple(tensor.stride()))
    return _tensor, (pickle.PickleBuffer(content), view)


def _tensor(content: Any, view: trees.View) -> Any:
    import torch

    array = np.frombuffer(content, np.uint8)
    return view.on(torch.from_numpy(array if array.flags.writeable else array.copy()).untyped_storage())


def _reduced_memmap(array: Any) -> Any:
    """Return how a lane maps the same file, for an array that only reads a file; None for other arrays."""
    if array.mode != "r" or type(array.base).__name__ != "mmap" or array.filename is None:
        return None
    state = os.stat(array.filename)
    order = "C" if array.flags.c_contiguous else "F"
    place = (str(array.filename), array.dtype, array.offset, array.shape, order)
    return _memmap, (*place, state.st_mtime_ns, state.st_size)


def _memmap(path: str, dtype: Any, offset: int, shape: Any, order: Any, *_: int) -> NDArray[Any]:
    return np.memmap(path, dtype, "r", offset, shape, order)
