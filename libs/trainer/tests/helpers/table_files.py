"""Rows of a table, and files with them in every format that the readers take."""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from stretto.readers import Batch

FORMATS = ("parquet", "arrow")
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


def write(path: Path, kind: str, rows: list[dict[str, Any]], piece: int = 100) -> None:
    """Write rows as a file of this format, cut into pieces where the format has them."""
    path.parent.mkdir(parents=True, exist_ok=True)
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


def write_text(path: Path, rows: list[dict[str, Any]], **form: Any) -> None:
    """Write rows as text with a line of names, as the ``csv`` module does in this form; lists as Python prints them."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else list(COLUMNS_OF), **form)
        writer.writeheader()
        writer.writerows({name: "" if cell is None else cell for name, cell in row.items()} for row in rows)


def same(a: Batch, b: Batch) -> bool:
    return a.keys() == b.keys() and all(a[k].dtype == b[k].dtype and np.array_equal(a[k], b[k]) for k in a)


def part(batch: Batch, start: int, length: int) -> Batch:
    return {name: values[start : start + length] for name, values in batch.items()}
