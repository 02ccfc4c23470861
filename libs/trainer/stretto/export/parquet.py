"""Tables as Parquet: a file for each bucket, so that no more than a bucket of a table is in memory.

Columns: `key` or `id` (int64), and `embedding` (a list of floats). In an export of changes, an embedding that is null
says that the key has lost its row.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from stretto_wire.stores.filesystems import OBJECT_STORES

from ..errors import ExportRefused
from .checkpoint_source import Checkpoint, Rows
from .tables import Change
from .target import DOCUMENT, place_of

_ROWS_IN_A_GROUP = 2**18


def file_of(table: str, bucket: int) -> str:
    """Return the name of a bucket's file in an export."""
    return f"tables/{table}/bucket-{bucket:02d}.parquet"


def write(file: BinaryIO, key: str, change: Change) -> None:
    """Write rows, and the keys that have lost their rows, to one file."""
    rows, gone = change.rows, len(change.gone)
    count, dimension = rows.weights.shape
    ends = np.arange(count + 1, dtype=np.int32 if count * dimension < 2**31 else np.int64) * dimension
    offsets = pa.array(np.concatenate([ends, np.full(gone, ends[-1])]), mask=None)
    kind = pa.ListArray if ends.dtype == np.int32 else pa.LargeListArray
    mask = pa.array(np.arange(count + gone) >= count) if gone else None
    values = kind.from_arrays(offsets, pa.array(rows.weights.reshape(-1)), mask=mask)
    columns = {key: pa.array(np.concatenate([rows.keys, change.gone])), "embedding": values}
    pq.write_table(pa.table(columns), file, row_group_size=_ROWS_IN_A_GROUP, use_dictionary=False)


@dataclass(frozen=True, slots=True)
class Earlier:
    """An earlier export of the same job, with the exports that it adds to."""

    url: str
    document: dict[str, Any]
    digest: str
    """SHA-256 of its export.json."""
    base: Earlier | None

    @property
    def reference(self) -> dict[str, str]:
        """The entry `since` of an export that adds to this one."""
        return {"url": self.url, "sha256": self.digest, "checkpoint": self.document["checkpoint"]["id"]}

    @property
    def images(self) -> frozenset[str]:
        return frozenset(self.document["checkpoint"]["images"])

    def rows(self, table: str, key: str, dimension: int, bucket: int) -> Rows:
        """Return a table's rows of a bucket as they were then. Raises ExportRefused."""
        before = Rows(np.zeros(0, np.int64), np.zeros((0, dimension), np.float32))
        if self.base is not None:
            before = self.base.rows(table, key, dimension, bucket)
        name = file_of(table, bucket)
        if name not in self.document["files"]:
            return before
        found = self._read(name)
        keys, is_gone = found[key].to_numpy(), found["embedding"].is_null().to_numpy(zero_copy_only=False)
        weights = found["embedding"].combine_chunks().flatten().to_numpy().reshape(-1, dimension)
        return applied(before, Change(Rows(keys[~is_gone], weights), keys[is_gone]))

    def _read(self, name: str) -> pa.Table:
        store, path = place_of(f"{self.url}/{name}")
        try:
            with store.open(path, "rb") as file:
                return pq.read_table(file)
        except Exception as error:  # whatever a file system or pyarrow raises
            raise ExportRefused(
                f"since = {self.url}: {name} cannot be read ({type(error).__name__}: {error}); export in full"
            ) from error


def applied(before: Rows, change: Change) -> Rows:
    """Return rows after a change, by ascending keys."""
    dropped = np.isin(before.keys, np.concatenate([change.rows.keys, change.gone]), assume_unique=True)
    keys = np.concatenate([before.keys[~dropped], change.rows.keys])
    order = np.argsort(keys)
    return Rows(keys[order], np.concatenate([before.weights[~dropped], change.rows.weights])[order])


def open_earlier(url: str, checkpoint: Checkpoint) -> Earlier:
    """Open an earlier export, to write what changed since. Raises ExportRefused."""
    found = _open(url.rstrip("/"), None)
    document = found.document
    if document["job"] != checkpoint.job:
        raise ExportRefused(f"since = {url} is an export of job {document['job']}, not of {checkpoint.job}")
    if document["format"] != "parquet":
        raise ExportRefused(
            f"since = {url} has format {document['format']}; only exports with --format parquet can be added to"
        )
    return found


def _open(url: str, digest: str | None) -> Earlier:
    store, path = place_of(url)
    try:
        text = store.cat_file(f"{path.rstrip('/')}/{DOCUMENT}")
        document = json.loads(text)
        since: Mapping[str, str] | None = document["since"]
        _ = document["job"], document["format"], document["files"], document["checkpoint"]["images"]
    except Exception as error:  # whatever a file system raises
        raise ExportRefused(
            f"since = {url} is no complete export ({type(error).__name__}: {error}); name a folder with {DOCUMENT}"
        ) from error
    own = hashlib.sha256(text).hexdigest()
    if digest not in (None, own):
        raise ExportRefused(f"since = {url} is another export than the later one adds to; export in full")
    place = url if url.partition("://")[0] in OBJECT_STORES else store.unstrip_protocol(path)
    return Earlier(place, document, own, _open(since["url"], since["sha256"]) if since else None)
