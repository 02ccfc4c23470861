"""Parquet, Arrow IPC, CSV and TFRecord: each is cut into pieces, and any piece is read alone as an Arrow table.

A piece is a row group, a record batch, or about 1 MiB of whole lines or records.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import csv as pa_csv

from ..errors import DataError
from .places import File

_PIECE_BYTES = 2**20
_CHUNK_BYTES = 8 * 2**20
_MARK_BYTES = 2**18
"""How near the ends of lines lie that may end a piece."""
_NAMES = (
    (re.compile(r"\.(parquet|pq|parq)$", re.IGNORECASE), "parquet"),
    (re.compile(r"\.(arrow|feather|ipc)$", re.IGNORECASE), "arrow"),
    (re.compile(r"\.csv$", re.IGNORECASE), "csv"),
    (re.compile(r"\.(tsv|tab)$", re.IGNORECASE), "tsv"),
    (re.compile(r"\.tfrecords?(-\d+-of-\d+)?$", re.IGNORECASE), "tfrecord"),
)
_ENOUGH_RECORDS = 100
"""Number of records: a feature that none of them has is taken for a wrong name (taste)."""
FORMATS = ("parquet", "arrow", "csv", "tsv", "tfrecord")
_COMPRESSED = re.compile(r"\.(gz|bz2|zst|xz|zip|lz4)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Pieces:
    """How a file is cut. rows: of each piece. offsets: byte where each piece begins, and the end; for text, records."""

    rows: NDArray[np.int64]
    offsets: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TextOptions:
    """The form of CSV files. column_names: None takes them from each file's first line."""

    delimiter: str | None = None
    column_names: tuple[str, ...] | None = None
    missing: tuple[str, ...] = ("",)


@dataclass(slots=True)
class Loaded:
    """A run of pieces. malformed: row -> what is wrong with it; such a row has nulls in the table."""

    table: Any
    malformed: dict[int, str] = field(default_factory=dict)


class Format(Protocol):
    """An open file of the data."""

    is_text: bool
    """Numbers are text if true: then a cell, not a column, may be of the wrong type."""
    names: Sequence[str] | None
    """Names of the file's columns; None if only its records know them."""

    def found_names(self, pieces: Pieces) -> Sequence[str] | None:
        """Return the columns; where only records know them, those of the first piece, or None if it is short."""
        ...

    def pieces(self) -> Pieces:
        """Cut the file; text and records are read through once for that."""
        ...

    def load(self, first: int, last: int, pieces: Pieces, columns: Sequence[str]) -> Loaded:
        """Read pieces [first, last), of them these columns only."""
        ...


def format_of(file: File, stated: str | None) -> str:
    """Return the format of a file, by name or by its first bytes. Raises DataError."""
    if stated is not None:
        if stated not in FORMATS:
            raise DataError(f"format = {stated!r}: expected one of {', '.join(FORMATS)}")
        return stated
    if _COMPRESSED.search(file.path):
        raise DataError(f"{file.name} is compressed: workers read shards in any order, so decompress it first")
    for pattern, known in _NAMES:
        if pattern.search(file.path):
            return known
    head = file.store.ask(file.name, lambda: bytes(file.store.open(file.path).read_at(6, 0)))
    if head.startswith(b"PAR1"):
        return "parquet"
    if head == b"ARROW1":
        return "arrow"
    raise DataError(
        f"{file.name} is neither a Parquet nor an Arrow IPC file, and its name states no other format; "
        f"give format= as one of {', '.join(FORMATS)}"
    )


def open_format(file: File, kind: str, options: TextOptions) -> Format:
    """Open a file. Raises DataError if it is not the file that was found, or is damaged."""
    source = file.store.open(file.path)
    size, changed_s = file.store.now(file.path, source)
    if (size, changed_s) != (file.size, file.changed_s):
        raise DataError(
            f"{file.name} has changed since its rows were counted ({file.size} bytes then, {size} now); samples are "
            "numbered by what was there: write new data to new files, or submit the job anew"
        )
    try:
        return file.store.ask(file.name, lambda: _FORMATS[kind](source, file, kind, options))
    except (pa.ArrowInvalid, struct.error) as error:
        wanted = {"parquet": "a Parquet file", "arrow": "an Arrow IPC file"}.get(kind, f"a {kind} file")
        other = "neither a Parquet nor an Arrow IPC file" if kind in ("parquet", "arrow") else f"not {wanted}"
        raise DataError(f"{file.name} is {other} (or cut off): {error}") from error


class _Named:
    """A format whose files state their columns."""

    names: Sequence[str]

    def found_names(self, pieces: Pieces) -> Sequence[str]:
        return self.names


class _Parquet(_Named):
    is_text = False

    def __init__(self, source: Any, file: File, kind: str, options: TextOptions) -> None:
        self._source = source
        # of a store the last 64 KiB are read at once; the footer is kept, and every load below uses it again
        self._metadata = pq.ParquetFile(source, pre_buffer=not file.store.is_local).metadata
        self._pre_buffer = not file.store.is_local
        self.names = self._metadata.schema.to_arrow_schema().names

    def pieces(self) -> Pieces:
        groups = range(self._metadata.num_row_groups)
        rows = np.array([self._metadata.row_group(group).num_rows for group in groups], np.int64)
        return Pieces(rows, np.zeros(0, np.int64))

    def load(self, first: int, last: int, pieces: Pieces, columns: Sequence[str]) -> Loaded:
        file = pq.ParquetFile(self._source, metadata=self._metadata, pre_buffer=self._pre_buffer)
        return Loaded(file.read_row_groups(range(first, last), columns=list(columns), use_threads=False))


class _Ipc(_Named):
    is_text = False

    def __init__(self, source: Any, file: File, kind: str, options: TextOptions) -> None:
        self._source = source
        opened = pa.ipc.open_file(source)
        self.names = opened.schema.names
        self._batches = opened.num_record_batches

    def pieces(self) -> Pieces:
        # one column is enough for the number of rows
        opened = pa.ipc.open_file(self._source, options=pa.ipc.IpcReadOptions(included_fields=[0], use_threads=False))
        rows = np.array([opened.get_batch(batch).num_rows for batch in range(self._batches)], np.int64)
        return Pieces(rows, np.zeros(0, np.int64))

    def load(self, first: int, last: int, pieces: Pieces, columns: Sequence[str]) -> Loaded:
        fields = sorted({self.names.index(name) for name in columns})
        options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
        opened = pa.ipc.open_file(self._source, options=options)
        batches = [opened.get_batch(batch) for batch in range(first, last)]
        return Loaded(pa.Table.from_batches(batches, opened.schema if not batches else None).select(list(columns)))


class _Csv(_Named):
    is_text = True

    def __init__(self, source: Any, file: File, kind: str, options: TextOptions) -> None:
        self._source = source
        self._size = file.size
        self._delimiter = options.delimiter or ("\t" if kind == "tsv" else ",")
        self._quote = kind != "tsv"
        self._missing = list(options.missing)
        self._begin = 0
        if options.column_names is None:
            head = _line(source, self._size)
            self._begin = len(head)
            names = self._parsed(head, None, None).table.column_names
        else:
            names = list(options.column_names)
        self.names = names

    def pieces(self) -> Pieces:
        ends = _line_ends(self._source, self._begin, self._size, self._quote)
        return _cut(ends, self._begin, self._size)

    def load(self, first: int, last: int, pieces: Pieces, columns: Sequence[str]) -> Loaded:
        begin, end = int(pieces.offsets[first]), int(pieces.offsets[last])
        data = self._source.read_at(end - begin, begin)
        rows = int(pieces.rows[first:last].sum())
        loaded = self._parsed(data, self.names, columns)
        found = loaded.table.num_rows + len(loaded.malformed)
        if found != rows:
            raise DataError(f"{found} rows between bytes {begin} and {end}, expected {rows}: quotes are not balanced")
        if loaded.malformed:  # rows that could not be split into cells: nulls stand in for them
            sound = np.ones(rows, np.bool_)
            sound[list(loaded.malformed)] = False
            places = np.where(sound, np.cumsum(sound) - 1, 0)
            loaded.table = loaded.table.take(pa.array(places, mask=~sound))
        return loaded

    def _parsed(self, data: bytes, names: Sequence[str] | None, columns: Sequence[str] | None) -> Loaded:
        malformed: dict[int, str] = {}

        def note(row: Any) -> str:
            cells = f"{row.actual_columns} cells, expected {row.expected_columns} as in {str(row.text)[:80]!r}"
            malformed[row.number - 1 if row.number else 0] = cells
            return "skip"

        table = pa_csv.read_csv(
            pa.BufferReader(data),
            read_options=pa_csv.ReadOptions(
                column_names=None if names is None else list(names), use_threads=False, block_size=max(len(data), 1) + 1
            ),
            parse_options=pa_csv.ParseOptions(
                delimiter=self._delimiter,
                quote_char='"' if self._quote else False,
                newlines_in_values=self._quote,
                invalid_row_handler=note,
            ),
            convert_options=pa_csv.ConvertOptions(
                column_types=dict.fromkeys(columns or (), pa.string()),
                include_columns=None if columns is None else list(columns),
                null_values=self._missing,
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        return Loaded(table, malformed)


def _cut(ends: Iterable[tuple[int, int]], begin: int, size: int) -> Pieces:
    """Cut the bytes from begin to size into pieces. ends: where rows end, and how many end since the end before."""
    rows: list[int] = []
    offsets = [begin]
    count = 0
    for end, more in ends:
        count += more
        if end - offsets[-1] >= _PIECE_BYTES or end == size:
            rows.append(count)
            offsets.append(end)
            count = 0
    return Pieces(np.array(rows, np.int64), np.array(offsets, np.int64))


class _TfRecord:
    is_text = False

    def __init__(self, source: Any, file: File, kind: str, options: TextOptions) -> None:
        self._source = source
        self._size = file.size
        self.names: Sequence[str] | None = None

    def found_names(self, pieces: Pieces) -> Sequence[str] | None:
        if not len(pieces.rows) or pieces.rows[0] < _ENOUGH_RECORDS:
            return None  # a column may be missing in all of them
        found: set[str] = set()
        for _, data in _records(self._source.read_at(int(pieces.offsets[1]), 0)):
            found.update(_example().FromString(data).features.feature)
        return sorted(found)

    def pieces(self) -> Pieces:
        return _cut(((end, 1) for end in self._record_ends()), 0, self._size)

    def load(self, first: int, last: int, pieces: Pieces, columns: Sequence[str]) -> Loaded:
        begin, end = int(pieces.offsets[first]), int(pieces.offsets[last])
        values: dict[str, list[Any]] = {name: [] for name in columns}
        malformed: dict[int, str] = {}
        parse = _example().FromString
        for row, data in _records(self._source.read_at(end - begin, begin)):
            try:
                features = parse(data).features.feature
                cells = [_values(features[name]) if name in features else None for name in columns]
            except Exception as error:  # protobuf's DecodeError is no class that its stubs know
                malformed[row] = f"no tf.train.Example: {error}"
                cells = [None] * len(columns)
            for name, cell in zip(columns, cells, strict=True):
                values[name].append(cell)
        return Loaded(pa.table({name: _column(name, cells) for name, cells in values.items()}), malformed)

    def _record_ends(self) -> Iterator[int]:
        """Yield the end of each record: 8 bytes of length, 4 of checksum, the data, 4 of checksum."""
        position = 0
        chunk, begin = b"", 0
        while position < self._size:
            if position + 8 > begin + len(chunk):
                chunk, begin = self._source.read_at(min(_CHUNK_BYTES, self._size - position), position), position
            if len(chunk) < 8:
                break
            (length,) = _LENGTH.unpack_from(chunk, position - begin)
            position += length + 16
            if position > self._size:
                break
            yield position
        if position != self._size:
            raise DataError(
                f"no TFRecord ends at its end, byte {self._size}: it is cut off, compressed or of another format"
            )


_FORMATS: Mapping[str, Any] = {"parquet": _Parquet, "arrow": _Ipc, "csv": _Csv, "tsv": _Csv, "tfrecord": _TfRecord}
_LENGTH = struct.Struct("<Q")


def _line(source: Any, size: int) -> bytes:
    """Return the first line of a file, with its end."""
    length = 2**16
    while True:
        head = bytes(source.read_at(min(length, size), 0))
        end = head.find(b"\n") + 1
        if end or len(head) == size:
            return head[:end] if end else head
        length *= 4


def _line_ends(source: Any, begin: int, size: int, quoted: bool) -> Iterator[tuple[int, int]]:
    """Yield places behind line ends, with the number of lines that end since the last of them."""
    position = begin
    is_open = False  # within quotes, where a newline ends no line
    blank = True  # nothing yet on the line that the last chunk left unfinished
    while position < size:
        block = bytes(source.read_at(min(_CHUNK_BYTES, size - position), position))
        data = np.frombuffer(block, np.uint8)
        breaks = np.flatnonzero(data == 0x0A)
        if quoted and (is_open or b'"' in block):
            quotes = np.cumsum(data == 0x22) + is_open
            breaks = breaks[quotes[breaks] % 2 == 0]
            is_open = bool(quotes[-1] % 2)
        # the parser passes over empty lines, and so does the count
        lengths = np.diff(breaks, prepend=-1) - 1
        carriage = (lengths == 1) & (data[np.maximum(breaks - 1, 0)] == 0x0D)
        counted = (lengths > 0) & ~carriage
        if len(breaks):
            counted[0] = counted[0] or not blank
            blank = breaks[-1] + 1 == len(data)
        else:
            blank = blank and not len(data)
        total = np.cumsum(counted)
        marks = np.unique(
            np.searchsorted(breaks, np.arange(_MARK_BYTES, len(data) + _MARK_BYTES, _MARK_BYTES), side="right") - 1
        )
        before = 0
        last_end = 0
        for mark in marks[marks >= 0]:
            last_end = int(breaks[mark]) + 1
            yield position + last_end, int(total[mark]) - before
            before = int(total[mark])
        position += len(data)
        if position == size and last_end < len(data):  # the last line has no newline
            yield size, int(not blank)


def _records(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the records of a run of them, with their numbers."""
    position = row = 0
    while position < len(data):
        (length,) = _LENGTH.unpack_from(data, position)
        yield row, data[position + 12 : position + 12 + length]
        position += length + 16
        row += 1


@cache
def _example() -> Any:
    """Return the message class of tf.train.Example, made from its definition: TensorFlow is not needed to parse it."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    proto = descriptor_pb2.FileDescriptorProto(name="stretto_example.proto", package="stretto_example", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, kind in (("Bytes", kinds.TYPE_BYTES), ("Float", kinds.TYPE_FLOAT), ("Int64", kinds.TYPE_INT64)):
        message = proto.message_type.add(name=f"{name}List")
        message.field.add(name="value", number=1, type=kind, label=kinds.LABEL_REPEATED)
    one = kinds.LABEL_OPTIONAL
    feature = proto.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, name in enumerate(("Bytes", "Float", "Int64"), 1):
        of = f".stretto_example.{name}List"
        feature.field.add(name=name.lower(), number=number, type=11, type_name=of, label=one, oneof_index=0)
    features = proto.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=kinds.TYPE_STRING, label=one)
    entry.field.add(name="value", number=2, type=11, type_name=".stretto_example.Feature", label=one)
    of = ".stretto_example.Features.FeatureEntry"
    features.field.add(name="feature", number=1, type=11, type_name=of, label=kinds.LABEL_REPEATED)
    example = proto.message_type.add(name="Example")
    example.field.add(name="features", number=1, type=11, type_name=".stretto_example.Features", label=one)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(proto)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("stretto_example.Example"))


def _values(feature: Any) -> list[Any] | None:
    kind = feature.WhichOneof("kind")
    return None if kind is None else list(getattr(feature, kind).value)


def _column(name: str, cells: list[list[Any] | None]) -> Any:
    """Return a column of lists, or of plain values if no list is longer than one."""
    try:
        if all(cell is None or len(cell) <= 1 for cell in cells):
            return pa.array([cell[0] if cell else None for cell in cells])
        return pa.array(cells)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError(f"feature {name!r} is of several kinds, expected one of int64, float and bytes") from error
