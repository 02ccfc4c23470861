"""Criteo's format: one sample a line, tab-separated: label, 13 integers, 26 categories in hexadecimal; empty = missing.

A text file has no random access of its own. The offset of every 256th line is found once (about 1 GB/s) and kept
beside the file if the folder can be written.
"""

from __future__ import annotations

import io
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv as pa_csv

from ..errors import DataError
from . import Batch, check_range, log_counts
from .columns import array_of

INTEGERS = tuple(f"I{n}" for n in range(1, 14))
CATEGORIES = tuple(f"C{n}" for n in range(1, 27))
COLUMNS = ("label", *INTEGERS, *CATEGORIES)

_STRIDE = 256
_CHUNK = 16 * 2**20
_INDEX_VERSION = 1


class Criteo:
    """Random access to an uncompressed file in Criteo's format. ``size``: samples in it."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            with open(path, "rb") as file:
                head = file.read(4)
        except OSError as error:
            raise DataError(
                f"data = {path!r} cannot be read ({error.strerror}); name a file in Criteo's format"
            ) from error
        if head[:2] == b"\x1f\x8b" or head == b"\x28\xb5\x2f\xfd":
            raise DataError(f"{path} is compressed: workers read shards in any order, so decompress it first")
        self.size, self._offsets = _line_index(path)

    def read(self, start: int, length: int) -> Batch:
        """Return samples [start, start + length): ``label``, ``numeric``, ``categorical``. Errors name the line."""
        check_range(start, length, self.size, self.path)
        if not length:
            return _batch(np.zeros(0, np.int64), np.zeros((0, 13), np.int64), np.zeros((0, 26), np.int64))
        data = self._lines(start, length)
        try:
            table = pa_csv.read_csv(
                io.BytesIO(data),
                read_options=pa_csv.ReadOptions(
                    column_names=list(COLUMNS), use_threads=False, block_size=len(data) + 1
                ),
                parse_options=pa_csv.ParseOptions(delimiter="\t", quote_char=False, ignore_empty_lines=False),
                convert_options=_CONVERT,
            )
            label = _column(table, "label")
            integers = np.stack([_column(table, name) for name in INTEGERS], axis=1)
            codes = np.stack([_hexadecimal(table.column(name)) for name in CATEGORIES], axis=1)
        except (pa.ArrowInvalid, ValueError) as error:
            raise DataError(_first_malformed(data, self.path, start) or f"{self.path}: {error}") from error
        if table.num_rows != length or not np.isin(label, (0, 1)).all():
            raise DataError(
                _first_malformed(data, self.path, start) or f"{self.path}: {table.num_rows} of {length} lines"
            )
        return _batch(label, integers, codes)

    def _lines(self, start: int, length: int) -> bytes:
        """Return the bytes of these lines, the last newline included."""
        first = start // _STRIDE
        last = -(-(start + length) // _STRIDE)
        begin = int(self._offsets[first])
        end = int(self._offsets[min(last, len(self._offsets) - 1)])
        with open(self.path, "rb") as file:
            file.seek(begin)
            block = file.read(end - begin)
        breaks = np.flatnonzero(np.frombuffer(block, np.uint8) == 0x0A)
        skip = start - first * _STRIDE
        low = int(breaks[skip - 1]) + 1 if skip else 0
        high = int(breaks[skip + length - 1]) + 1 if skip + length <= len(breaks) else len(block)
        return block[low:high]


_CONVERT = pa_csv.ConvertOptions(
    column_types={**dict.fromkeys(("label", *INTEGERS), pa.int64()), **dict.fromkeys(CATEGORIES, pa.binary())},
    null_values=[""],
    strings_can_be_null=True,
)

_MISSING = np.iinfo(np.int64).min
_DIGITS = np.full(256, 255, np.uint8)
for _digits in (b"0123456789abcdef", b"0123456789ABCDEF"):
    _DIGITS[np.frombuffer(_digits, np.uint8)] = np.arange(16)


def _batch(label: NDArray[np.int64], integers: NDArray[np.int64], codes: NDArray[np.int64]) -> Batch:
    return {
        "label": label.astype(np.float32),
        "numeric": log_counts(integers, integers == _MISSING),
        "categorical": codes,
    }


def _column(table: Any, name: str) -> NDArray[np.int64]:
    column = table.column(name).combine_chunks()
    if name == "label" and column.null_count:
        raise ValueError("a label is missing")
    return array_of(column, int(_MISSING))


def _hexadecimal(column: Any) -> NDArray[np.int64]:
    """Convert hexadecimal strings of up to 8 digits to value + 1, missing ones to 0."""
    array = column.combine_chunks()
    if array.null_count == len(array):
        return np.zeros(len(array), np.int64)
    _, offsets_buffer, data_buffer = array.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    digits = _DIGITS[np.frombuffer(data_buffer, np.uint8)]
    lengths = np.diff(offsets)
    present = lengths > 0
    if int(lengths.max()) > 8 or (digits[offsets[0] : offsets[-1]] == 255).any():
        raise ValueError("a category is not hexadecimal")
    values = np.zeros(len(array), np.int64)
    for place in range(8):
        has = lengths > place
        values[has] = (values[has] << 4) | digits[offsets[:-1][has] + place]
    return np.where(present, values + 1, 0)


def _first_malformed(data: bytes, path: str, start: int) -> str | None:
    """Describe the first line that is not in Criteo's format. Lines are counted from 1."""
    for number, line in enumerate(data.decode("latin-1").removesuffix("\n").split("\n"), start + 1):
        cells = line.rstrip("\r").split("\t")
        if len(cells) != len(COLUMNS):
            return f"{path}, line {number}: {len(cells)} columns, expected {len(COLUMNS)} separated by tabs"
        for name, cell in zip(COLUMNS, cells, strict=True):
            if name == "label":
                good = cell in ("0", "1")
                expected = "0 or 1"
            elif name in INTEGERS:
                good = not cell or cell.removeprefix("-").isdigit()
                expected = "an integer or nothing"
            else:
                good = len(cell) <= 8 and all(digit in "0123456789abcdefABCDEF" for digit in cell)
                expected = "at most 8 hexadecimal digits or nothing"
            if not good:
                return f"{path}, line {number}: {name} = {cell[:40]!r}, expected {expected}"
    return None


def _line_index(path: str) -> tuple[int, NDArray[np.int64]]:
    """Return the number of lines, and the offsets of line 0, 256, 512, … and of the end."""
    stat = os.stat(path)
    stamp = np.array([_INDEX_VERSION, stat.st_size, stat.st_mtime_ns], np.int64)
    kept = Path(f"{path}.index.npy")
    try:
        saved = np.load(kept)
        if saved.dtype == np.int64 and (saved[:3] == stamp).all():
            return int(saved[3]), saved[4:]
    except (OSError, ValueError, IndexError):
        pass  # no index yet, or a truncated one: it is made again
    lines, offsets = _scan(path)
    _keep(kept, np.concatenate([stamp, [lines], offsets]))
    return lines, offsets


def _scan(path: str) -> tuple[int, NDArray[np.int64]]:
    found: list[NDArray[np.int64]] = [np.zeros(1, np.int64)]
    lines = 0
    position = 0
    last = b"\n"
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            breaks = np.flatnonzero(np.frombuffer(chunk, np.uint8) == 0x0A)
            # line k starts behind break k - 1
            first = (-(lines + 1)) % _STRIDE
            found.append(breaks[first::_STRIDE] + position + 1)
            lines += len(breaks)
            position += len(chunk)
            last = chunk[-1:]
    if last != b"\n":
        lines += 1
    offsets = np.concatenate(found)[: -(-lines // _STRIDE)]
    return lines, np.append(offsets, position)


def _keep(path: Path, index: NDArray[np.int64]) -> None:
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".npy", delete=False) as file:
            np.save(file, index)
        os.replace(file.name, path)
    except OSError:
        pass  # a read-only folder: every process scans the file
