"""Parquet and Arrow IPC: a file is cut into pieces, row groups or record batches, and any piece is read alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ..errors import DataError
from .places import File

_NAMES = (
    (re.compile(r"\.(parquet|pq|parq)$", re.IGNORECASE), "parquet"),
    (re.compile(r"\.(arrow|feather|ipc)$", re.IGNORECASE), "arrow"),
)


class Format(Protocol):
    """An open file of the data."""

    schema: Any
    """Names and types of the file's columns, as an Arrow schema."""

    def pieces(self) -> NDArray[np.int64]:
        """Return the rows of each piece."""
        ...

    def load(self, first: int, last: int, columns: Sequence[str]) -> Any:
        """Return pieces [first, last) as an Arrow table of these columns only."""
        ...


def kind_of(file: File) -> str:
    """Return the format of a file, by name or by its first bytes. Raises DataError."""
    for pattern, known in _NAMES:
        if pattern.search(file.path):
            return known
    head = file.store.ask(file.name, lambda: bytes(file.store.open(file.path).read_at(6, 0)))
    if head.startswith(b"PAR1"):
        return "parquet"
    if head == b"ARROW1":
        return "arrow"
    raise DataError(
        f"{file.name} is neither a Parquet nor an Arrow IPC file, so no sample of it can be read by its number; "
        f"convert text and TFRecord once: stretto data convert {file.name} --to FOLDER; where such files lie beside "
        "others, name those by a pattern, as in 'FOLDER/**/*.parquet'"
    )


def open_format(file: File, kind: str) -> Format:
    """Open a file. Raises DataError if it is not the file that was found, or is damaged."""
    source = file.store.open(file.path)
    size, changed_s = file.store.now(file.path, source)
    if (size, changed_s) != (file.size, file.changed_s):
        raise DataError(
            f"{file.name} has changed since its rows were counted ({file.size} bytes then, {size} now); samples are "
            "numbered by what was there: write new data to new files, or submit the job anew"
        )
    try:
        opened: Format = file.store.ask(file.name, lambda: _FORMATS[kind](source, file))
    except pa.ArrowInvalid as error:
        raise DataError(
            f"{file.name} is neither a Parquet nor an Arrow IPC file, or cut off, or encrypted: {error}; write it anew "
            "(Arrow as a file, not as a stream; Feather in version 2)"
        ) from error
    refuse_twins(file.name, opened.schema.names)
    return opened


def refuse_twins(name: str, columns: Sequence[str]) -> None:
    """Raise DataError if a file has two columns of one name, as after a join."""
    twins = sorted(column for column, count in Counter(columns).items() if count > 1)
    if twins:
        raise DataError(f"{name} has several columns {twins[0]!r}; rename or drop all but one of them")


class _Parquet:
    def __init__(self, source: Any, file: File) -> None:
        self._source = source
        # of a store the last 64 KiB are read at once; the footer is kept, and every load below uses it again
        self._metadata = pq.ParquetFile(source, pre_buffer=not file.store.is_local).metadata
        self._pre_buffer = not file.store.is_local
        self.schema = self._metadata.schema.to_arrow_schema()

    def pieces(self) -> NDArray[np.int64]:
        groups = range(self._metadata.num_row_groups)
        return np.array([self._metadata.row_group(group).num_rows for group in groups], np.int64)

    def load(self, first: int, last: int, columns: Sequence[str]) -> Any:
        file = pq.ParquetFile(
            self._source, metadata=self._metadata, pre_buffer=self._pre_buffer, page_checksum_verification=True
        )
        return file.read_row_groups(range(first, last), columns=list(columns), use_threads=False)


class _Ipc:
    def __init__(self, source: Any, file: File) -> None:
        self._source = source
        opened = pa.ipc.open_file(source)
        self.schema = opened.schema
        self._batches = opened.num_record_batches

    def pieces(self) -> NDArray[np.int64]:
        # one column is enough for the number of rows
        opened = pa.ipc.open_file(self._source, options=pa.ipc.IpcReadOptions(included_fields=[0], use_threads=False))
        return np.array([opened.get_batch(batch).num_rows for batch in range(self._batches)], np.int64)

    def load(self, first: int, last: int, columns: Sequence[str]) -> Any:
        fields = sorted({self.schema.names.index(name) for name in columns})
        options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
        opened = pa.ipc.open_file(self._source, options=options)
        batches = [opened.get_batch(batch) for batch in range(first, last)]
        return pa.Table.from_batches(batches, opened.schema if not batches else None).select(list(columns))


_FORMATS: dict[str, Any] = {"parquet": _Parquet, "arrow": _Ipc}
