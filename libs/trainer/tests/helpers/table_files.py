"""Rows of a table, and files with them in every format that the readers take."""

from __future__ import annotations

import csv
import random
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from stretto.readers import Batch

FORMATS = ("parquet", "arrow", "csv", "tsv", "tfrecord")
COLUMNS: dict[str, Any] = {
    "label": "clicked", "dense": ["age", "price"], "categorical": ["user", "city"], "lists": {"tags": 3}, "weight": "w"
}  # fmt: skip


COLUMNS_OF = ("clicked", "age", "price", "user", "city", "tags", "w")


def rows_of(count: int, seed: int = 0) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    return [
        {
            "clicked": draw.randint(0, 1),
            "age": draw.choice([None, draw.randint(0, 90)]),
            "price": round(draw.uniform(-5, 5), 3),
            "user": draw.choice([None, draw.randint(0, 10**6), -draw.randint(1, 9), 2**60 + draw.randint(0, 9)]),
            "city": draw.choice([None, "Ulm", 'New "York", NY', "two\nlines", "Ærø", "x" * 200]),
            "tags": [draw.choice(["red", "green", "blue"]) for _ in range(draw.randint(0, 5))],
            "w": draw.choice([0.5, 1.0, 2.0]),
        }
        for _ in range(count)
    ]


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def example(row: dict[str, Any]) -> bytes:
    """Encode a tf.train.Example by hand: its parser is compared with TensorFlow's own writer elsewhere."""
    entries = b""
    for name, value in row.items():
        values = value if isinstance(value, list) else [] if value is None else [value]
        if value is None:
            continue
        if all(isinstance(each, int) for each in values) and not isinstance(value, list):
            feature = field(3, field(1, b"".join(varint(each) for each in values)))
        elif all(isinstance(each, float) for each in values) and not isinstance(value, list):
            feature = field(2, field(1, b"".join(struct.pack("<f", each) for each in values)))
        else:
            feature = field(1, b"".join(field(1, each.encode()) for each in values))
        entries += field(1, field(1, name.encode()) + field(2, feature))
    return field(1, entries)


def record(data: bytes) -> bytes:
    checksum = struct.pack("<I", zlib.crc32(data))  # TFRecord's own is a masked CRC-32C; readers here take no notice
    return struct.pack("<Q", len(data)) + checksum + data + checksum


def write(path: Path, kind: str, rows: list[dict[str, Any]], piece: int = 100) -> None:
    """Write rows as a file of this format, cut into pieces where the format has them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind in ("parquet", "arrow"):
        types = {
            "clicked": pa.int8(), "age": pa.int32(), "price": pa.float64(), "user": pa.int64(), "city": pa.string(),
            "tags": pa.list_(pa.string()), "w": pa.float32(),
        }  # fmt: skip
        table = pa.Table.from_pylist(rows, schema=pa.schema([(name, types[name]) for name in types]))
        if kind == "parquet":
            pq.write_table(table, path, row_group_size=piece)
            return
        with pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table, max_chunksize=piece)
    elif kind == "tfrecord":
        path.write_bytes(b"".join(record(example(row)) for row in rows))
    else:
        names = list(COLUMNS_OF)
        with open(path, "w", newline="") as file:
            if kind == "csv":
                writer_csv = csv.writer(file, lineterminator=random.Random(len(rows)).choice(["\n", "\r\n"]))
            else:
                writer_csv = csv.writer(
                    file, delimiter="\t", quoting=csv.QUOTE_NONE, quotechar=None, lineterminator="\n"
                )
            writer_csv.writerow(names)
            for row in rows:
                cells = {**row, "tags": " ".join(row["tags"])}
                if kind == "tsv" and row["city"]:
                    cells["city"] = row["city"].replace("\n", " ")
                writer_csv.writerow(["" if cells[name] is None else cells[name] for name in names])


def plain(rows: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """The rows as a format can state them: TSV has no newline within a cell."""
    if kind != "tsv":
        return rows
    return [{**row, "city": row["city"] and row["city"].replace("\n", " ")} for row in rows]


def same(a: Batch, b: Batch) -> bool:
    return a.keys() == b.keys() and all(a[k].dtype == b[k].dtype and np.array_equal(a[k], b[k]) for k in a)


def part(batch: Batch, start: int, length: int) -> Batch:
    return {name: values[start : start + length] for name, values in batch.items()}
