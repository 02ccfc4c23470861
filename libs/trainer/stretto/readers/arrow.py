"""Tables with random access: Parquet and Arrow IPC, in local folders, object stores and on the web.

A read finds its pieces by the index (index.py), loads blocks of pieces (formats.py), and turns each into arrays once
(columns.py); the blocks that follow are loaded meanwhile (ahead.py).
"""

from __future__ import annotations

import difflib
import threading
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from os import PathLike
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import DataError
from . import Batch, check_range
from .ahead import Ahead
from .columns import Columns, moment, moments, repeated, rows_of, to_batch
from .criteo import CATEGORIES, INTEGERS
from .formats import Format, open_format
from .index import Entry, Settings, index_of
from .places import File, find

_BLOCK_BYTES = 4 * 2**20
"""Pieces are loaded together up to this size of a batch: fewer requests, and little is read in vain (taste)."""
_OPEN_FILES = 128
_THREADS_LOCAL = 1
_THREADS_REMOTE = 4
"""Loads at a time. Measured with 20 ms per request (tests/bench/feeding/readers.py)."""
_AHEAD_BLOCKS = 8
_RUNS = 2
"""Sequences of reads that are followed at a time: training and evaluation."""


@dataclass(frozen=True, slots=True)
class _Block:
    """Consecutive pieces of one file. start: sample. part: 0 trains, 1 evaluates."""

    start: int
    rows: int
    entry: int
    first: int
    last: int
    part: int


@dataclass(frozen=True, slots=True)
class _Content:
    """A block in memory. bad: row -> the message; another row of the block stands there, if it has a good one."""

    batch: Batch
    bad: dict[int, str]
    is_usable: bool


@dataclass(frozen=True, slots=True)
class _Split:
    """A split by time. Rows of neither side are left out."""

    column: str
    train_before: Any
    evaluate_from: Any

    def sides(self, column: Any) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return which rows train, and which evaluate."""
        times = moments(column, self.column, self.train_before)
        before = moment(self.train_before, "train_before")
        return times < before, times >= moment(self.evaluate_from, "evaluate_from")


class Arrow:
    """Random access to the rows of files. ``size``: samples in them; ``train_samples``: those before the split.

    paths: a file, a folder, a glob, or a list of them; local paths or URLs (s3, gs, abfs, abfss, http, https).
    Samples are in the order of the list; within a folder or glob in the order of path names, then of rows.
    Folders such as ``day=3`` are a column of text.

    label: the column of the label: 0 or 1, or any finite number with ``is_binary=False``. dense: numeric columns
    (missing: 0), compressed to log(1 + x) with ``log_dense``. categorical: integers or strings (missing: 0). lists:
    column -> width: lists of categories, of which the first ``width`` are taken, 0 behind them. weight: the column of
    the samples' weights. others: columns that a batch has under their own name.

    timestamp, train_before, evaluate_from: rows before ``train_before`` are numbered first, then rows from
    ``evaluate_from`` on (default: the same time); other rows are left out.

    bad_rows_max: number of bad rows that are replaced, each by the good row before it in its block (weight 0); at the
    next bad row a process refuses the data. index: file that keeps the index; see the README. memory_bytes: for blocks.
    """

    def __init__(
        self,
        paths: str | PathLike[str] | Sequence[str],
        *,
        label: str = "label",
        dense: Sequence[str] = INTEGERS,
        categorical: Sequence[str] = CATEGORIES,
        lists: Mapping[str, int] | None = None,
        weight: str | None = None,
        others: Sequence[str] = (),
        log_dense: bool = False,
        is_binary: bool = True,
        timestamp: str | None = None,
        train_before: str | date | float | None = None,
        evaluate_from: str | date | float | None = None,
        bad_rows_max: int = 0,
        index: str | None = None,
        filesystem: Any = None,
        memory_bytes: int = 256 * 2**20,
    ) -> None:
        for argument, names in (("dense", dense), ("categorical", categorical), ("others", others)):
            if isinstance(names, str):
                raise DataError(f"{argument} = {names!r}: expected a list of columns, as in [{names!r}]")
        self._columns = Columns(
            label, tuple(dense), tuple(categorical), dict(lists or {}), weight, tuple(others), log_dense, is_binary
        )
        self._split = _split(timestamp, train_before, evaluate_from)
        self._bad_rows_max = bad_rows_max
        self._bad_rows: set[int] = set()
        self._open_files: OrderedDict[str, Future[Format]] = OrderedDict()
        self._forms: dict[str, tuple[str, str]] = {}  # column -> its form, and the file that has it
        self._lock = threading.Lock()
        self._runs = _Runs()

        files = find(paths, filesystem)
        settings = Settings(repr(self._split) if self._split else "", index, filesystem)
        self._entries = index_of(files, settings, self._open, self._count)
        self._where = f"{files[0].name}{f' and {len(files) - 1} more' if len(files) > 1 else ''}"
        self._blocks, self.train_samples, self.size = _blocks(self._entries, self._columns.row_bytes())
        self._starts = np.array([block.start for block in self._blocks], np.int64)
        self._open(self._entries[0].file, self._entries[0].kind)  # a column that it lacks is refused now
        is_local = all(file.store.is_local for file in files)
        self._ahead: Ahead[_Content] = Ahead(
            self._load,
            lambda block: self._blocks[block].rows * self._columns.row_bytes(),
            memory_bytes,
            _THREADS_LOCAL if is_local else _THREADS_REMOTE,
        )

    def read(self, start: int, length: int) -> Batch:
        """Return samples [start, start + length): label, numeric, categorical, lists, weight and others."""
        check_range(start, length, self.size, self._where)
        stop = start + length
        until = self._runs.follow(start, stop) if length else start
        parts: list[Batch] = []
        number = max(0, int(np.searchsorted(self._starts, start, side="right")) - 1)
        while length and number < len(self._blocks) and self._blocks[number].start < stop:
            block = self._blocks[number]
            content = self._ahead.get(number, self._following(number, max(until, stop)))
            low, high = max(start - block.start, 0), min(stop - block.start, block.rows)
            if content.bad:
                self._check_bad(content, block.start, low, high)
            parts.append({name: values[low:high] for name, values in content.batch.items()})
            number += 1
        if not parts:
            return self._columns.empty()
        for name, first in parts[0].items():
            if any(part[name].shape[1:] != first.shape[1:] for part in parts):
                raise DataError(f"{self._where}: column {name!r} has vectors of several lengths; write one length")
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _following(self, number: int, until: int) -> Iterator[int]:
        for block in range(number + 1, min(number + 1 + _AHEAD_BLOCKS, len(self._blocks))):
            if self._blocks[block].start >= until:
                return
            yield block

    def _check_bad(self, content: _Content, begin: int, low: int, high: int) -> None:
        """Count the bad rows of a read; raise DataError at the first that is one too many."""
        for row in sorted(row for row in content.bad if low <= row < high):
            with self._lock:
                self._bad_rows.add(begin + row)
                count = len(self._bad_rows)
            if count > self._bad_rows_max or not content.is_usable:
                remedy = f"it is bad row number {count} of this process, and bad_rows_max = {self._bad_rows_max}"
                if content.is_usable and not self._bad_rows_max:
                    remedy = "mend the data, or let bad_rows_max=N rows be replaced by the row before them"
                elif not content.is_usable:
                    remedy = "no row of its block is good: the columns' names or types may be wrong"
                raise DataError(f"{content.bad[row]}; {remedy}")

    def _load(self, number: int) -> _Content:
        """Read a block and make its arrays."""
        block = self._blocks[number]
        entry = self._entries[block.entry]
        file = entry.file
        wanted = self._columns.names() + ([self._split.column] if self._split else [])
        opened = self._open(entry.file, entry.kind)
        try:
            table = self._table(opened, file, block.first, block.last, entry.rows, wanted)
            rows = np.arange(table.num_rows)
            if self._split:
                rows = np.flatnonzero(self._split.sides(table.column(self._split.column))[block.part])
                table = rows_of(table, rows)
            batch, bad = to_batch(table, self._columns, dict(file.keys))
        except DataError as error:
            raise error if file.name in str(error) else DataError(f"{file.name}: {error}") from error
        if len(rows) != block.rows:
            raise DataError(f"{file.name}: {len(rows)} rows, {block.rows} when it was indexed; it has changed")
        before = int(entry.rows[: block.first].sum())
        told = {row: f"{file.name}, row {before + int(rows[row])}: {each}" for row, each in bad.items()}
        return _Content(*_replaced(batch, told))

    def _table(
        self, opened: Format, file: File, first: int, last: int, rows: NDArray[np.int64], wanted: Sequence[str]
    ) -> Any:
        """Return pieces as a table, the folders' columns among them as text."""
        keys = dict(file.keys)
        names = list(dict.fromkeys(wanted))
        own = [name for name in names if name not in keys]
        try:
            table = file.store.ask(file.name, lambda: opened.load(first, last, own))
        except (pa.ArrowException, KeyError) as error:
            raise DataError(f"{file.name} cannot be read: {error}; it is damaged: write it anew") from error
        for name in own:
            try:
                table.column(name).validate(full=True)  # of a damaged file, lengths and text may be anything
            except pa.ArrowException as error:
                remedy = "the file is damaged, or what it calls text is none: write it anew, or the column as binary"
                raise DataError(f"{file.name}: column {name!r}: {str(error).strip()}; {remedy}") from error
        for name in names:
            if name in keys:
                table = table.append_column(name, repeated(keys[name], int(rows[first:last].sum())))
        return table

    def _open(self, file: File, kind: str) -> Format:
        """Return the open file. It must not have changed since it was found; the last 128 files stay open."""
        with self._lock:
            future = self._open_files.get(file.path)
            if is_first := future is None:
                future = self._open_files[file.path] = Future()
            self._open_files.move_to_end(file.path)
            while len(self._open_files) > _OPEN_FILES:
                self._open_files.popitem(last=False)
        if is_first:
            try:
                opened = open_format(file, kind)
                self._check_columns(file, opened.schema)
                future.set_result(opened)
            except BaseException as error:
                with self._lock:
                    self._open_files.pop(file.path, None)
                future.set_exception(error)
        return future.result()

    def _check_columns(self, file: File, schema: Any) -> None:
        """Raise DataError for a column that the file lacks, or that another file has in a form of other values."""
        known = [*schema.names, *(name for name, _ in file.keys)]
        wanted = self._columns.names() + ([self._split.column] if self._split else [])
        for name in wanted:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise DataError(
                    f"{file.name} has no column {name!r}{hint}; it has {sorted(known)[:20]}; the arguments dense, "
                    "categorical, label, weight and split of Arrow name the columns"
                )
        for name, form in self._columns.forms(schema).items():
            if name in dict(file.keys):
                continue
            with self._lock:
                other, where = self._forms.setdefault(name, (form, file.name))
            if form != other:
                raise DataError(
                    f"{file.name}: column {name!r} has {form}, and {other} in {where}; the same value would be read as "
                    "another one: write one type in all files"
                )

    def _count(
        self, file: File, opened: Format, rows: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return how many rows of each piece train and evaluate."""
        if self._split is None:
            return rows, np.zeros(len(rows), np.int64)
        counts = np.zeros((2, len(rows)), np.int64)
        for piece in range(len(rows)):
            table = self._table(opened, file, piece, piece + 1, rows, [self._split.column])
            counts[:, piece] = [side.sum() for side in self._split.sides(table.column(self._split.column))]
        return counts[0], counts[1]


class _Runs:
    """Where sequences of reads began, and how long they were: a shard is read in order, and the next lies elsewhere."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begins: OrderedDict[int, int] = OrderedDict()  # end of a sequence -> its begin
        self._lengths: deque[int] = deque(maxlen=4)

    def follow(self, start: int, stop: int) -> int:
        """Take note of a read, and return the sample at which its sequence is likely to end."""
        with self._lock:
            begin = self._begins.pop(start, start)
            self._begins[stop] = begin
            while len(self._begins) > _RUNS:
                end, begun = self._begins.popitem(last=False)
                self._lengths.append(end - begun)
            return begin + max(self._lengths) if self._lengths else 2**62


def _split(timestamp: str | None, train_before: Any, evaluate_from: Any) -> _Split | None:
    if timestamp is None and train_before is None and evaluate_from is None:
        return None
    if timestamp is None or (train_before is None and evaluate_from is None):
        raise DataError(
            f"timestamp = {timestamp!r}, train_before = {train_before!r}, evaluate_from = {evaluate_from!r}: "
            "a split by time needs the column and at least one time"
        )
    before = evaluate_from if train_before is None else train_before
    after = before if evaluate_from is None else evaluate_from
    if isinstance(before, str | date) != isinstance(after, str | date):
        raise DataError(f"train_before = {before!r} and evaluate_from = {after!r} do not compare")
    if moment(after, "evaluate_from") < moment(before, "train_before"):
        raise DataError(f"evaluate_from = {after!r} is before train_before = {before!r}: rows would be in both")
    return _Split(timestamp, before, after)


def _blocks(entries: Sequence[Entry], row_bytes: int) -> tuple[list[_Block], int, int]:
    """Return the blocks in the order of samples, the number of samples that train, and the number of all samples."""
    most = max(1, _BLOCK_BYTES // max(1, row_bytes))
    blocks: list[_Block] = []
    start = train = 0
    for part in (0, 1):
        for number, entry in enumerate(entries):
            counts = entry.train if part == 0 else entry.evaluate
            before = np.cumsum(entry.rows) - entry.rows
            cuts = np.flatnonzero(np.diff(before // most, prepend=-1))
            for first, last in pairwise([*cuts.tolist(), len(counts)]):
                rows = int(counts[first:last].sum())
                if rows:
                    blocks.append(_Block(start, rows, number, first, last, part))
                    start += rows
        train = start if part == 0 else train
    return blocks, train, start


def _replaced(batch: Batch, bad: dict[int, str]) -> tuple[Batch, dict[int, str], bool]:
    """Put in the place of each bad row the good one before it, or else the first good one, with weight 0."""
    if not bad:
        return batch, bad, True
    sound = np.ones(len(batch["label"]), np.bool_)
    rows = np.array(sorted(bad))
    sound[rows] = False
    good = np.flatnonzero(sound)
    if not len(good):
        return batch, bad, False
    sources = good[np.maximum(np.searchsorted(good, rows) - 1, 0)]
    for values in batch.values():
        values[rows] = values[sources]
    if "weight" in batch:
        batch["weight"][rows] = 0.0
    return batch, bad, True
