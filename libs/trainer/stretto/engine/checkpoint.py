"""Images of a parameter server: raw blocks and a manifest; where the bytes go is for others to say.

Each bucket is copied under the push mutex together with its progress, so that a checkpoint neither freezes nor
rejects anything: a push waits for one memcpy. Columns of one image are of slightly different instants, and so are
the images of a job; that is exact all the same, because each column carries its own progress, and a restored job
replays from the smallest offset while the other columns skip what they have.

What must hold: the ledger's state that is restored with the images was taken *before* the first of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import CheckpointError
from .client import FINISHED
from .control import Control, RawBucket, RawSlices, Snapshot
from .layout import I64, Layout, block_checksum
from .placement import Own

VERSION = 2
_ALIGN = 64


@dataclass(frozen=True, slots=True)
class PsImage:
    """Blocks by name (NumPy arrays, C-contiguous) and what describes them.

    manifest (JSON-able): version, server, layout, columns, bytes, blocks {name: offset, bytes, crc32, dtype, shape}.
    """

    manifest: dict[str, Any]
    blocks: Mapping[str, np.ndarray]

    @property
    def nbytes(self) -> int:
        return int(self.manifest["bytes"])

    @property
    def columns(self) -> list[int]:
        return list(self.manifest["columns"])

    def write(self, buffer: memoryview) -> None:
        """Copy the blocks into a buffer of at least nbytes (shared memory, a mapped file)."""
        for name, entry in self.manifest["blocks"].items():
            begin = entry["offset"]
            buffer[begin : begin + entry["bytes"]] = _raw(self.blocks[name])

    def to_bytes(self) -> bytearray:
        data = bytearray(self.nbytes)
        self.write(memoryview(data))
        return data

    @staticmethod
    def read(manifest: dict[str, Any], buffer: memoryview | bytes | bytearray, verify: bool = True) -> PsImage:
        """Views of the buffer, no copy. Raises CheckpointError for a damaged or truncated one."""
        if manifest.get("version") != VERSION:
            raise CheckpointError(f"image version {manifest.get('version')!r} is unknown; this release reads {VERSION}")
        view = memoryview(buffer).cast("B")
        if len(view) < manifest["bytes"]:
            raise CheckpointError(f"image has {len(view)} bytes, its manifest says {manifest['bytes']}: truncated")
        blocks: dict[str, np.ndarray] = {}
        for name, entry in manifest["blocks"].items():
            raw = view[entry["offset"] : entry["offset"] + entry["bytes"]]
            if verify and block_checksum(raw) != entry["crc32"]:
                raise CheckpointError(f"block {name}: checksum differs from the manifest; use another checkpoint")
            blocks[name] = np.frombuffer(raw, entry["dtype"]).reshape(entry["shape"])
        return PsImage(manifest, blocks)


def _raw(block: np.ndarray) -> memoryview:
    return block.reshape(-1).view(np.uint8).data


def _pack(blocks: dict[str, np.ndarray], layout: Layout, server: int, columns: list[int]) -> PsImage:
    entries: dict[str, Any] = {}
    offset = 0
    for name, block in blocks.items():
        entries[name] = {
            "offset": offset,
            "bytes": block.nbytes,
            "crc32": block_checksum(_raw(block)),
            "dtype": block.dtype.str,
            "shape": list(block.shape),
        }
        offset += -(-block.nbytes // _ALIGN) * _ALIGN
    manifest = {
        "version": VERSION,
        "server": server,
        "layout": layout.to_dict(),
        "columns": columns,
        "bytes": offset,
        "blocks": entries,
    }
    return PsImage(manifest, blocks)


def export_image(control: Control) -> PsImage:
    """Everything a server owns, while workers go on. Raises CheckpointError if ownership changes meanwhile."""
    layout = control.layout
    columns = control.columns()
    blocks: dict[str, np.ndarray] = {}
    progress = _Progress(layout)
    slices: I64 = np.array([c - layout.buckets for c in columns if c >= layout.buckets], np.int64)
    if len(slices):
        snapshot = control.snapshot_slices(slices, progress.known_finished)
        assert snapshot.slices is not None
        blocks["slices/ids"] = slices
        for i, part in enumerate(snapshot.slices.values):
            blocks[f"slices/{i}"] = np.ascontiguousarray(part)
        blocks["slices/seeded"] = snapshot.slices.seeded
        blocks["slices/state"] = snapshot.slices.state
        progress.add([int(s) + layout.buckets for s in slices], snapshot)
    for bucket in (c for c in columns if c < layout.buckets):
        snapshot = control.snapshot_bucket(bucket, progress.known_finished)
        assert snapshot.bucket is not None
        blocks[f"bucket{bucket}/keys"] = np.ascontiguousarray(snapshot.bucket.keys)
        blocks[f"bucket{bucket}/rows"] = np.ascontiguousarray(snapshot.bucket.rows)
        progress.add([bucket], snapshot)
    if control.columns() != columns:
        raise CheckpointError(
            f"ps-{control.server}: columns changed their owner during the export; repeat it after the move"
        )
    blocks |= progress.blocks()
    return _pack(blocks, layout, control.server, columns)


class _Progress:
    """Offsets per shard and column, each column from its own instant.

    A shard that was finished at the first instant is so in every column: its id is enough. One that finished later
    has a row, since a column of before may lack the end of it.
    """

    def __init__(self, layout: Layout) -> None:
        self._columns = layout.columns
        self._first_slice = layout.buckets
        self._offsets: dict[int, I64] = {}
        self._first: I64 | None = None  # finished at the first instant
        self._later: I64 = np.zeros(0, np.int64)  # finished since
        self._dense_samples: dict[int, int] = {}
        self._samples = np.zeros(layout.columns, np.int64)
        self._pushes = np.zeros(layout.columns, np.int64)

    @property
    def known_finished(self) -> int:
        return (0 if self._first is None else len(self._first)) + len(self._later)

    def _row(self, shard: int) -> I64:
        return self._offsets.setdefault(shard, np.zeros(self._columns, np.int64))

    def add(self, columns: list[int], at: Snapshot) -> None:
        for shard, record in zip(at.shards.tolist(), at.records, strict=True):
            self._row(shard)[columns] = record[columns]
            if self._first_slice in columns:
                self._dense_samples[shard] = int(record[-1])
        if self._first is None:
            self._first = np.sort(at.finished)
        elif len(at.finished):  # else none has finished since the last instant
            self._later = np.setdiff1d(at.finished, self._first)
        for shard in self._later.tolist():
            self._row(shard)[columns] = FINISHED
        self._samples[columns] = at.samples[columns]
        self._pushes[columns] = at.pushes[columns]

    def blocks(self) -> dict[str, np.ndarray]:
        shards = sorted(self._offsets)
        offsets = [self._offsets[s] for s in shards] or [np.zeros(self._columns, np.int64)][:0]
        return {
            "progress/finished": np.zeros(0, np.int64) if self._first is None else self._first,
            "progress/shards": np.array(shards, np.int64),
            "progress/offsets": np.array(offsets, np.int64).reshape(len(shards), self._columns),
            "progress/dense_samples": np.array([self._dense_samples.get(s, 0) for s in shards], np.int64),
            "progress/samples": self._samples,
            "progress/pushes": self._pushes,
        }


def load_image(control: Control, images: Sequence[PsImage], columns: Iterable[int]) -> None:
    """Make an empty server own `columns`, from the images of all servers of the checkpoint (any number of them).

    Attempts start again from zero, because the ledger restored beside it counts them anew. A shard whose records
    were gone in every column stays finished; one that was gone only in some skips there and replays elsewhere.
    Raises CheckpointError if the images do not fit the layout or do not hold each column exactly once.
    """
    layout, wanted = control.layout, sorted(set(columns))
    holder = _holders(layout, images)
    for bucket in (c for c in wanted if c < layout.buckets):
        blocks = holder[bucket].blocks
        # copied: the table goes on living in the arrays it is given
        raw = RawBucket(np.array(blocks[f"bucket{bucket}/keys"]), np.array(blocks[f"bucket{bucket}/rows"]))
        control.import_bucket(bucket, raw)
    for image in images:
        mine = [c - layout.buckets for c in image.columns if c >= layout.buckets and c in wanted]
        if mine:
            control.import_slices(_slices(image, np.array(mine, np.int64)))
    everywhere, shards, offsets, dense_samples = _join_progress(layout, holder)
    finished = (offsets == FINISHED).all(axis=1)
    records = np.zeros((len(shards), layout.columns + 2), np.int64)
    records[:, wanted] = offsets[:, wanted]
    records[:, -1] = dense_samples
    samples, pushes = np.zeros(layout.columns, np.int64), np.zeros(layout.columns, np.int64)
    for column, image in enumerate(holder):
        samples[column] = image.blocks["progress/samples"][column]
        pushes[column] = image.blocks["progress/pushes"][column]
    control.merge_columns(wanted, shards[~finished], records[~finished], samples, pushes)
    control.finish([*everywhere.tolist(), *shards[finished].tolist()])
    control.set_own(wanted, Own.MINE)


def _holders(layout: Layout, images: Sequence[PsImage]) -> list[PsImage]:
    """[columns] the image that has each column."""
    holder: dict[int, PsImage] = {}
    for image in images:
        if Layout.from_dict(image.manifest["layout"]) != layout:
            raise CheckpointError(
                f"image of ps-{image.manifest['server']} was saved with layout {image.manifest['layout']}, "
                f"this job has {layout.to_dict()}; the model or its optimiser changed"
            )
        for column in image.columns:
            if column in holder:
                raise CheckpointError(f"column {column} is in two images: they are not of one checkpoint")
            holder[column] = image
    missing = sorted(set(range(layout.columns)) - set(holder))
    if missing:
        raise CheckpointError(
            f"columns {missing[:8]} ({len(missing)} in all) are in no image: pass those of all servers"
        )
    return [holder[c] for c in range(layout.columns)]


def _slices(image: PsImage, ids: I64) -> RawSlices:
    position = {int(s): i for i, s in enumerate(image.blocks["slices/ids"])}
    at = [position[int(s)] for s in ids]
    parts = sorted(n for n in image.blocks if n.startswith("slices/") and n.rpartition("/")[2].isdigit())
    values = [np.array(image.blocks[name][at]) for name in parts]
    return RawSlices(ids, values, np.array(image.blocks["slices/seeded"][at]), np.array(image.blocks["slices/state"]))


def _join_progress(layout: Layout, holder: Sequence[PsImage]) -> tuple[I64, I64, I64, I64]:
    """(shards finished in all images, other shards [n], their offsets [n, columns], samples of the first slice [n]).

    Each column from the image that has it.
    """
    images = list({id(image): image for image in holder}.values())
    everywhere: I64 = images[0].blocks["progress/finished"]
    for image in images[1:]:
        everywhere = np.intersect1d(everywhere, image.blocks["progress/finished"])
    named = [i.blocks[f"progress/{name}"] for i in images for name in ("shards", "finished")]
    shards = np.setdiff1d(np.concatenate(named), everywhere)
    offsets = np.zeros((len(shards), layout.columns), np.int64)
    dense_samples = np.zeros(len(shards), np.int64)
    for image in images:
        cols = np.array(image.columns)
        done = np.setdiff1d(image.blocks["progress/finished"], everywhere)
        offsets[np.ix_(np.searchsorted(shards, done), cols)] = FINISHED
        at = np.searchsorted(shards, image.blocks["progress/shards"])
        offsets[np.ix_(at, cols)] = image.blocks["progress/offsets"][:, cols]
        if layout.buckets in image.columns:
            dense_samples[at] = image.blocks["progress/dense_samples"]
    return everywhere, shards, offsets, dense_samples
