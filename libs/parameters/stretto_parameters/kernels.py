"""The kernels: those of the built library, else the NumPy reference.

A kernel gets memory that its caller has checked and holds: `Parts`, and arrays of one length. It checks nothing but the
room of a part.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from . import checksums, compiling
from .layout import RowFormat
from .optimizers import Optimizer
from .parts import F32, I64, SIZE, U32, U64, TableParts
from .reference import U16, Bytes, Due, Reference, RowGradients

_POINTER, _INT = ctypes.c_void_p, ctypes.c_int64
QUEUED = 128
"""Pages that a queue reads at once, as in kernels.c."""
_BRIEF_ROWS, _ROW_WORDS = 4096, 64
"""Rows, and words of each, that a kernel is done with in some tenths of a millisecond."""
_ROW_STEPS = 16
"""Entries that the hand of eviction passes in the time of a row."""


class Queues:
    """Queues of reads that pass the system's cache, of a library. NumPy has none, and reads by the cache."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._open = _function(library.open_queue, ctypes.c_uint64)
        self._close = _function(library.close_queue, None, ctypes.c_uint64)
        self._fetch = _function(
            library.fetch_past, _INT, ctypes.c_uint64, ctypes.c_int, _INT, _POINTER, _INT, _INT, _POINTER, _POINTER
        )

    def open(self) -> int:
        """Return a queue for one thread at a time; 0 if the system gives none."""
        return self._open()

    def close(self, queue: int) -> None:
        self._close(queue)

    def fetch(self, queue: int, file: int, offsets: I64, record_bytes: int, pages: Bytes, out: Bytes) -> int:
        """Read records of ascending offsets [n], none across two pages; return how many came, up to one that did not.

        file: opened with O_DIRECT. pages: memory of QUEUED pages, which begins as they do.
        """
        what = len(offsets), _at(offsets), record_bytes, len(pages) // QUEUED
        return self._fetch(queue, file, *what, _at(pages), _at(out))


class Kernels(Protocol):
    """The kernels that the store asks for; `Reference` says how each behaves."""

    name: str

    @property
    def queues(self) -> Queues | None:
        """Queues of reads, where there are any."""
        ...

    def locate(self, parts: TableParts, keys: U64, places: U64) -> int: ...
    def insert(self, parts: TableParts, keys: U64, places: U64, epoch: int) -> None: ...
    def rebuild(self, parts: TableParts, part: int) -> None: ...
    def adopt(self, parts: TableParts, part: int, keys: U64, epoch: int) -> None: ...
    def gather(self, parts: TableParts, keys: U64, places: U64, out: F32, due: Due | None = None) -> None: ...
    def update(
        self,
        parts: TableParts,
        places: U64,
        by: RowGradients,
        rates: F32,
        clocks: F32,
        optimizer: Optimizer,
        epoch: int,
    ) -> None: ...
    def marks(self, parts: TableParts, places: U64, out: U32) -> None: ...
    def heat(self, parts: TableParts, places: U64) -> None: ...
    def keep(self, parts: TableParts, places: U64) -> None: ...
    def collect(self, parts: TableParts, places: U64, out: F32) -> None: ...
    def install(self, parts: TableParts, places: U64, words: F32) -> None: ...
    def choose(
        self, parts: TableParts, part: int, steps: int, hand: int, places: U64, *, deeper: bool = False
    ) -> tuple[int, int]: ...
    def release(self, parts: TableParts, places: U64, records: U64) -> None: ...
    def doze(self, parts: TableParts, places: U64, epoch: int) -> int: ...
    def rouse(self, parts: TableParts, places: U64) -> None: ...
    def seal(self, form: RowFormat, keys: U64, words: F32, out: Bytes) -> None: ...
    def unseal(self, form: RowFormat, keys: U64, records: Bytes, words: F32) -> int: ...
    def fetch(self, file: int, offsets: I64, record_bytes: int, out: Bytes) -> int: ...
    def copy(self, to: Bytes, source: Bytes) -> int: ...
    def widen(self, halves: U16) -> F32: ...
    def narrow(self, values: F32) -> U16: ...


class LibraryRefused(RuntimeError):
    """A library of kernels that is not built from the source beside it."""


class _Format(ctypes.Structure):
    """The struct ``format`` of kernels.c."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("width", "words", "half", "slots", "normal", "counters")),
        ("seed", ctypes.c_uint64),
        ("first", ctypes.c_void_p),
        ("factor", ctypes.c_float),
        ("low", ctypes.c_float),
    )


class Library:
    """The kernels of a library that was built from kernels.c. Calls for many rows let other threads of Python run."""

    name = "c"

    def __init__(self, path: Path) -> None:
        """Raises OSError (no such library) or LibraryRefused."""
        library = ctypes.CDLL(str(path))
        library.source_digest.restype = ctypes.c_uint64
        if library.source_digest() != compiling.source_digest():
            raise LibraryRefused(f"{path} is built from another kernels.c: run `make setup`, or delete it")
        libraries = library, ctypes.PyDLL(str(path))
        self._locate = _kernel(libraries, "locate", _INT, _POINTER, _INT, _INT, _POINTER, _POINTER)
        self._insert = _kernel(
            libraries, "insert", _INT, _POINTER, _POINTER, _INT, _INT, _POINTER, _POINTER, ctypes.c_uint32
        )
        self._rebuild = _function(library.rebuild, None, _POINTER)
        self._adopt = _function(library.adopt, None, _POINTER, _INT, _POINTER, ctypes.c_uint32)
        self._gather = _kernel(
            libraries, "gather", None, _POINTER, _POINTER, _INT, _INT, *[_POINTER] * 7, _INT, _POINTER
        )
        self._update = _kernel(
            libraries,
            "update",
            None,
            _POINTER,
            _POINTER,
            _INT,
            _INT,
            *[_POINTER] * 7,
            _INT,
            ctypes.c_uint32,
            _POINTER,
        )
        self._marks = _kernel(libraries, "marks", None, _POINTER, _INT, _POINTER, _POINTER)
        self._heat = _kernel(libraries, "heat", None, _POINTER, _INT, _POINTER)
        self._keep = _kernel(libraries, "keep", None, _POINTER, _INT, _POINTER)
        self._collect = _kernel(libraries, "collect", None, _POINTER, _POINTER, _INT, _POINTER, _POINTER)
        self._install = _kernel(libraries, "install", None, _POINTER, _POINTER, _INT, _POINTER, _POINTER)
        self._choose = _kernel(
            libraries, "choose", _INT, _POINTER, _INT, _INT, ctypes.POINTER(_INT), ctypes.c_uint64, _POINTER, _INT
        )
        self._release = _kernel(libraries, "release", None, _POINTER, _POINTER, _INT, _POINTER, _POINTER)
        self._doze = _kernel(libraries, "doze", _INT, _POINTER, _POINTER, _INT, _POINTER, ctypes.c_uint32)
        self._rouse = _kernel(libraries, "rouse", None, _POINTER, _POINTER, _INT, _POINTER)
        self._seal = _function(library.seal, None, _INT, _INT, _POINTER, _POINTER, _INT, _INT, _POINTER)
        self._unseal = _function(library.unseal, _INT, _INT, _INT, _POINTER, _POINTER, _POINTER)
        self._fetch = _function(library.fetch, _INT, ctypes.c_int, _INT, _POINTER, _INT, _POINTER)
        self.queues: Queues | None = Queues(library)
        self._copy = _function(library.copy, ctypes.c_uint64, _POINTER, _POINTER, _INT, _POINTER, _INT)
        self._widen = _function(library.widen, None, _INT, _POINTER, _POINTER)
        self._narrow = _function(library.narrow, None, _INT, _POINTER, _POINTER)
        self._reference = Reference()

    def locate(self, parts: TableParts, keys: U64, places: U64) -> int:
        return self._locate(len(keys), parts.heads_address, parts.shift, len(keys), _at(keys), _at(places))

    def insert(self, parts: TableParts, keys: U64, places: U64, epoch: int) -> None:
        form = _format(parts)
        without = self._insert(
            *(len(keys), parts.heads_address, ctypes.addressof(form), parts.shift),
            *(len(keys), _at(keys), _at(places), epoch),
        )
        assert without == 0, f"{without} keys found no room: grow the parts before"

    def rebuild(self, parts: TableParts, part: int) -> None:
        self._rebuild(self._head(parts, part))

    def adopt(self, parts: TableParts, part: int, keys: U64, epoch: int) -> None:
        self._adopt(self._head(parts, part), len(keys), _at(keys), epoch)

    @staticmethod
    def _head(parts: TableParts, part: int) -> int:
        return parts.heads_address + part * parts.heads.strides[0]

    def gather(self, parts: TableParts, keys: U64, places: U64, out: F32, due: Due | None = None) -> None:
        if due is not None and due.optimizer.KERNEL is None:
            self._reference.gather(parts, keys, places, out, due)
            return
        form, wide = _format(parts), np.empty(parts.form.words, np.float32)
        table = _rows(parts, places), parts.heads_address, ctypes.addressof(form)
        what = len(keys), _at(keys), _at(places), _at(out)
        if due is None:
            self._gather(*table, 0, *what, None, None, None, None, 0, _at(wide))
            return
        h, factors = due.optimizer.hyperparameters(), due.optimizer.factors()
        self._gather(
            *(*table, due.optimizer.KERNEL, *what),
            *(_at(due.rates), _at(due.clocks), _at(h), _at(factors), factors.shape[1] - 1, _at(wide)),
        )

    def update(
        self,
        parts: TableParts,
        places: U64,
        by: RowGradients,
        rates: F32,
        clocks: F32,
        optimizer: Optimizer,
        epoch: int,
    ) -> None:
        if optimizer.KERNEL is None:
            self._reference.update(parts, places, by, rates, clocks, optimizer, epoch)
            return
        form = _format(parts)
        h, factors = optimizer.hyperparameters(), optimizer.factors()
        wide = np.empty(parts.form.width if parts.form.half else 0, np.float32)
        self._update(
            *(_rows(parts, places), parts.heads_address, ctypes.addressof(form)),
            *(optimizer.KERNEL, len(places), _at(places)),
            *(_at(by.gradients), None if by.squares is None else _at(by.squares), _at(rates), _at(clocks)),
            *(_at(h), _at(factors), factors.shape[1] - 1, epoch, _at(wide)),
        )

    def marks(self, parts: TableParts, places: U64, out: U32) -> None:
        self._marks(len(places), parts.heads_address, len(places), _at(places), _at(out))

    def heat(self, parts: TableParts, places: U64) -> None:
        self._heat(len(places), parts.heads_address, len(places), _at(places))

    def keep(self, parts: TableParts, places: U64) -> None:
        self._keep(len(places), parts.heads_address, len(places), _at(places))

    def collect(self, parts: TableParts, places: U64, out: F32) -> None:
        form = _format(parts)
        self._collect(
            _rows(parts, places), parts.heads_address, ctypes.addressof(form), len(places), _at(places), _at(out)
        )

    def install(self, parts: TableParts, places: U64, words: F32) -> None:
        form = _format(parts)
        self._install(
            _rows(parts, places), parts.heads_address, ctypes.addressof(form), len(places), _at(places), _at(words)
        )

    def choose(
        self, parts: TableParts, part: int, steps: int, hand: int, places: U64, *, deeper: bool = False
    ) -> tuple[int, int]:
        at = _INT(hand)
        head = self._head(parts, part)
        found = self._choose(steps // _ROW_STEPS, head, len(places), steps, ctypes.byref(at), part, _at(places), deeper)
        return found, at.value

    def release(self, parts: TableParts, places: U64, records: U64) -> None:
        form = _format(parts)
        self._release(
            _rows(parts, places), parts.heads_address, ctypes.addressof(form), len(places), _at(places), _at(records)
        )

    def doze(self, parts: TableParts, places: U64, epoch: int) -> int:
        form = _format(parts)
        return self._doze(
            _rows(parts, places), parts.heads_address, ctypes.addressof(form), len(places), _at(places), epoch
        )

    def rouse(self, parts: TableParts, places: U64) -> None:
        form = _format(parts)
        self._rouse(_rows(parts, places), parts.heads_address, ctypes.addressof(form), len(places), _at(places))

    def seal(self, form: RowFormat, keys: U64, words: F32, out: Bytes) -> None:
        self._seal(form.words, len(keys), _at(keys), _at(words), form.records_per_page, form.page_bytes, _at(out))

    def unseal(self, form: RowFormat, keys: U64, records: Bytes, words: F32) -> int:
        return self._unseal(form.words, len(keys), _at(keys), _at(records), _at(words))

    def fetch(self, file: int, offsets: I64, record_bytes: int, out: Bytes) -> int:
        return self._fetch(file, len(offsets), _at(offsets), record_bytes, _at(out))

    def copy(self, to: Bytes, source: Bytes) -> int:
        return self._copy(_at(to), _at(source), len(source), _at(checksums.WEIGHTS), checksums.PIECE_BYTES)

    def widen(self, halves: U16) -> F32:
        source, values = np.require(halves, requirements=("C", "A")), np.empty(halves.shape, np.float32)
        self._widen(source.size, _at(source), _at(values))
        return values

    def narrow(self, values: F32) -> U16:
        source, halves = np.require(values, requirements=("C", "A")), np.empty(values.shape, np.uint16)
        self._narrow(source.size, _at(source), _at(halves))
        return halves


def load() -> Kernels:
    """Return the kernels of the library beside this file, else the reference. Raises LibraryRefused."""
    return Library(compiling.LIBRARY) if compiling.LIBRARY.is_file() else Reference()


def grow(kernels: Kernels, parts: TableParts, rows: I64, hot: I64) -> None:
    """Make room for as many rows more in each part [parts], and as many hot ones. Raises StoreFull."""
    rows, hot = rows + parts.heads[:, SIZE], hot + parts.hots
    for part in parts.lacking(rows, hot).tolist():
        if parts.grow(part, int(rows[part]), int(hot[part])):
            kernels.rebuild(parts, part)


def _kernel(
    libraries: tuple[ctypes.CDLL, ctypes.PyDLL], name: str, result: type | None, *arguments: type
) -> Callable[..., Any]:
    """Return a kernel that is given the number of its rows before its own arguments.

    For few rows a call lets no other thread of Python run. That one would run for 5 ms, and the caller would have the
    lock of the store all the while, for which others wait.
    """
    letting, brief = (_function(getattr(library, name), result, *arguments) for library in libraries)

    def call(rows: int, *given: Any) -> Any:
        return (brief if rows <= _BRIEF_ROWS else letting)(*given)

    return call


def _rows(parts: TableParts, places: U64) -> int:
    """Return the number of rows; a wide one counts as several, since a kernel takes as long."""
    return len(places) * -(-parts.form.words // _ROW_WORDS)


def _function(function: Any, result: type | None, *arguments: type) -> Any:
    function.restype, function.argtypes = result, arguments
    return function


def _at(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def _format(parts: TableParts) -> _Format:
    form = parts.form
    return _Format(
        *(form.width, form.words, form.half, len(form.slots), form.is_normal, form.counters),
        *(form.seed, _at(form.slots), form.initial_factor, form.initial_scale),
    )
