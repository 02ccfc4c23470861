"""Tasks of the benchmarks of feeding: an expensive reader as users have them, one that notes what it reads, one of wide
samples."""

from __future__ import annotations

import os
import time
import zlib
from functools import lru_cache
from typing import Any

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from stretto.examples.wide_deep import WideDeep
from stretto.readers import Batch
from stretto.readers.criteo import CATEGORIES


class Crosses(WideDeep):
    """Wide & Deep whose ids are crosses of texts: of each column with the ``neighbours`` next ones, the smallest hash.

    data: one file of Parquet.
    """

    def __init__(self, *, data: str, categories: int, neighbours: int, **arguments: Any) -> None:
        super().__init__(data=data, categories=categories, **arguments)
        self._neighbours = neighbours
        self._categories = categories
        self._file = pq.ParquetFile(data)
        self._group_rows = self._file.metadata.row_group(0).num_rows
        self._group = lru_cache(2)(lambda number: self._file.read_row_group(number, columns=list(CATEGORIES)))

    def read(self, start: int, length: int) -> Batch:
        ids = np.empty((length, len(CATEGORIES)), np.int64)
        texts = [column.to_pylist() for column in self._rows(start, length).columns]
        for place in range(len(texts)):
            one, *others = [*texts, *texts][place : place + self._neighbours + 1]
            for number, columns in enumerate(zip(one, *others, strict=True)):
                crosses = [f"{columns[0]}_x_{other}".lower().encode() for other in columns[1:]]
                ids[number, place] = min(map(zlib.crc32, crosses)) % self._categories
        return super().read(start, length) | {"categorical": ids}

    def _rows(self, start: int, length: int) -> pa.Table:
        """Return rows of one group, or of two that follow each other."""
        first, last = start // self._group_rows, (start + length - 1) // self._group_rows
        table = pa.concat_tables([self._group(number) for number in range(first, last + 1)])
        return table.slice(start - first * self._group_rows, length)


class Noted(WideDeep):
    """Wide & Deep that notes each batch that is read: its first sample, the process that reads it, and the time in ns.

    note: the file to which these three numbers are appended, int64 each, by all processes.
    """

    def __init__(self, *, note: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._note = os.open(note, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def read(self, start: int, length: int) -> Batch:
        os.write(self._note, np.array([start, os.getpid(), time.monotonic_ns()], np.int64).tobytes())
        return super().read(start, length)


class Wide(WideDeep):
    """Wide & Deep with ``width`` more numbers a sample, which cost little to read: a copy of rows in memory."""

    ROWS = 2048

    def __init__(self, *, width: int, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._width = width
        self._rows = np.random.default_rng(1).random((self.ROWS, width), np.float32)

    def build(self) -> keras.Model:
        inner = super().build()
        rows, numeric = inner.inputs
        wide = keras.Input((self._width,), name="wide")
        part = keras.layers.Dense(1)(keras.ops.mean(wide, axis=1, keepdims=True))
        return keras.Model([rows, numeric, wide], keras.layers.Add()([inner([rows, numeric]), part]))

    def read(self, start: int, length: int) -> Batch:
        first = start % (self.ROWS - length + 1)
        return super().read(start, length) | {"wide": self._rows[first : first + length].copy()}
