"""Images of a parameter server: raw blocks and a manifest. The caller says where the bytes go.

Each bucket is copied under the push mutex together with its progress. A checkpoint therefore freezes nothing and
rejects nothing: a push waits for one memcpy. The columns of one image are copied at slightly different instants, and
so are the images of a job. The result is exact all the same: each column carries its own progress, and a restored job
replays from the smallest offset while the other columns skip what they have.

An export hands over bucket by bucket and keeps none, so it needs memory for the rows of one bucket, however large the
image is.

Invariant: the ledger state that is restored with the images was taken *before* the first of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import CheckpointError
from .client import FINISHED
from .control import Control, RawBucket, RawSlices, Snapshot, in_use
from .layout import F32, I64, Layout, block_checksum
from .memory import aligned_zeros
from .ownership import Own

VERSION = 4
_ALIGN = 64
_MARGIN = 1.1
"""Allowance for the rows that are added while the image is taken."""
_MARGIN_BYTES = 2**20
"""Allowance for the manifest and the padding."""

Append = Callable[[memoryview], object]
"""Receives the next bytes of an image. The view is not valid after the call."""


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of an export.

    pause_seconds: the longest that a push waited for it (pulls never wait).
    manifest (JSON-able): version, server, layout, columns, bytes, blocks {name: offset, bytes, checksum, dtype, shape}.
    """

    manifest: dict[str, Any]
    pause_seconds: float


@dataclass(frozen=True, slots=True)
class PsImage:
    """A manifest and its blocks by name (NumPy arrays)."""

    manifest: dict[str, Any]
    blocks: Mapping[str, np.ndarray]

    @property
    def columns(self) -> list[int]:
        return list(self.manifest["columns"])


def image_bytes(control: Control) -> int:
    """Return an upper bound for an image taken soon: rows in use, keys of tables that may double, slices, progress."""
    layout = control.layout
    tables = 4 * layout.row_floats * control.categories() + 2 * 8 * control.slots()
    return int(_MARGIN * (tables + control.dense_bytes() + control.progress_bytes())) + _MARGIN_BYTES


class _Blocks:
    """Hands over blocks, each at an offset that is a multiple of 64, and collects their descriptions."""

    def __init__(self, append: Append) -> None:
        self._append = append
        self.entries: dict[str, Any] = {}
        self.offset = 0

    def add(self, name: str, block: np.ndarray) -> None:
        whole = np.ascontiguousarray(block)
        raw = whole.reshape(-1).view(np.uint8).data
        self.entries[name] = {
            "offset": self.offset,
            "bytes": block.nbytes,
            "checksum": block_checksum(raw),
            "dtype": block.dtype.str,
            "shape": list(block.shape),
        }
        self._append(raw)
        self._append(memoryview(bytes(-block.nbytes % _ALIGN)))
        self.offset += -(-block.nbytes // _ALIGN) * _ALIGN


def export_image(control: Control, append: Append) -> Exported:
    """Export everything that a server owns, while workers go on pushing. Runs in the server's process only.

    Raises CheckpointError if ownership changes meanwhile.
    """
    layout = control.layout
    columns = control.columns()
    blocks = _Blocks(append)
    progress = _Progress(layout)
    pause_s = 0.0
    buckets = [c for c in columns if c < layout.buckets]
    slices: I64 = np.array([c - layout.buckets for c in columns if c >= layout.buckets], np.int64)
    if len(slices):
        pause_s = _export_slices(control, slices, blocks, progress)
    copy = _Copy(control, buckets)
    for bucket in buckets:
        pause_s = max(pause_s, _export_bucket(control, bucket, copy, blocks, progress))
    if control.columns() != columns:
        raise CheckpointError(
            f"ps-{control.server}: columns changed their owner during the export; repeat it after the move"
        )
    for name, block in progress.blocks().items():
        blocks.add(name, block)
    manifest = {
        "version": VERSION,
        "server": control.server,
        "layout": layout.to_dict(),
        "columns": columns,
        "bytes": blocks.offset,
        "blocks": blocks.entries,
    }
    return Exported(manifest, pause_s)


def _export_slices(control: Control, ids: I64, blocks: _Blocks, progress: _Progress) -> float:
    snapshot = control.snapshot_slices(ids, progress.known_finished)
    assert snapshot.slices is not None
    blocks.add("slices/ids", ids)
    for i, part in enumerate(snapshot.slices.values):
        blocks.add(f"slices/{i}", part)
    blocks.add("slices/seeded", snapshot.slices.seeded)
    blocks.add("slices/state", snapshot.slices.state)
    progress.add([int(s) + control.layout.buckets for s in ids], snapshot)
    return snapshot.held_seconds


def _export_bucket(control: Control, bucket: int, copy: _Copy, blocks: _Blocks, progress: _Progress) -> float:
    snapshot = control.snapshot_bucket(bucket, copy.take, progress.known_finished)
    blocks.add(f"bucket{bucket}/keys", copy.keys)
    blocks.add(f"bucket{bucket}/rows", copy.rows)
    progress.add([bucket], snapshot)
    return snapshot.held_seconds


class _Copy:
    """Memory into which each bucket is copied in turn. It is touched beforehand, or pushes would wait for that."""

    def __init__(self, control: Control, buckets: Sequence[int]) -> None:
        slots = int(control.raw_slots()[buckets].max(initial=0))
        rows = int(_MARGIN * control.raw_sizes()[buckets].max(initial=0))
        self.keys: I64 = aligned_zeros((slots, 1), np.int64)[:, 0]
        self.rows: F32 = aligned_zeros((rows, control.layout.row_floats), np.float32)
        self._keys = self.keys
        self._rows = self.rows

    def take(self, keys: I64, rows: F32) -> None:
        """Copy all keys, which record the slot of each row, and the rows in use."""
        live = np.flatnonzero(in_use(keys))
        if len(self._keys) < len(keys):  # the table doubled meanwhile
            self.keys = self._keys = np.zeros(len(keys), np.int64)
        if len(self._rows) < len(live):
            self.rows = self._rows = np.zeros((int(_MARGIN * len(live)), rows.shape[1]), np.float32)
        self.keys = self._keys[: len(keys)]
        self.rows = self._rows[: len(live)]
        self.keys[:] = keys[:, 0]
        np.take(rows, live, axis=0, out=self.rows, mode="clip")  # any other mode copies twice


class _Progress:
    """Offsets per shard and column, each column as it was when it was copied.

    A shard that was finished at the first copy is finished in every column: its id is enough. A shard that finished
    later has a row, because a column that was copied before may lack its end.
    """

    def __init__(self, layout: Layout) -> None:
        self._columns = layout.columns
        self._first_slice = layout.buckets
        self._offsets: dict[int, I64] = {}
        self._first: I64 | None = None  # finished at the first copy
        self._later: I64 = np.zeros(0, np.int64)  # finished since
        self._dense_samples: dict[int, int] = {}
        self._samples = np.zeros(layout.columns, np.int64)
        self._fingerprints = np.zeros(layout.columns, np.int64)

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
        elif len(at.finished):  # else none has finished since the last copy
            self._later = np.setdiff1d(at.finished, self._first)
        for shard in self._later.tolist():
            self._row(shard)[columns] = FINISHED
        self._samples[columns] = at.samples[columns]
        self._fingerprints[columns] = at.fingerprints[columns]

    def blocks(self) -> dict[str, np.ndarray]:
        shards = sorted(self._offsets)
        offsets = [self._offsets[s] for s in shards] or [np.zeros(self._columns, np.int64)][:0]
        return {
            "progress/finished": np.zeros(0, np.int64) if self._first is None else self._first,
            "progress/shards": np.array(shards, np.int64),
            "progress/offsets": np.array(offsets, np.int64).reshape(len(shards), self._columns),
            "progress/dense_samples": np.array([self._dense_samples.get(s, 0) for s in shards], np.int64),
            "progress/samples": self._samples,
            "progress/fingerprints": self._fingerprints,
        }


def load_image(control: Control, images: Sequence[PsImage], columns: Iterable[int]) -> None:
    """Make an empty server own `columns`, from the images of all servers of the checkpoint (any number of servers).

    Attempts start again from zero, because the ledger that is restored with it counts them anew. A shard whose records
    were deleted in every column stays finished. A shard whose records were deleted in some columns only is skipped
    there and replayed elsewhere.
    Raises CheckpointError if the images do not fit the layout or do not hold each column exactly once.
    """
    layout = control.layout
    wanted = sorted(set(columns))
    holder = _holders(layout, images)
    for bucket in (c for c in wanted if c < layout.buckets):
        blocks = holder[bucket].blocks
        raw = RawBucket.spread(blocks[f"bucket{bucket}/keys"], blocks[f"bucket{bucket}/rows"])
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
    samples = np.zeros(layout.columns, np.int64)
    fingerprints = np.zeros(layout.columns, np.int64)
    for column, image in enumerate(holder):
        samples[column] = image.blocks["progress/samples"][column]
        fingerprints[column] = image.blocks["progress/fingerprints"][column]
    control.merge_columns(wanted, shards[~finished], records[~finished], samples, fingerprints)
    control.finish([*everywhere.tolist(), *shards[finished].tolist()])
    control.set_own(wanted, Own.MINE)


def _holders(layout: Layout, images: Sequence[PsImage]) -> list[PsImage]:
    """Return the image that holds each column: [columns]."""
    holder: dict[int, PsImage] = {}
    for image in images:
        if image.manifest.get("version") != VERSION:
            raise CheckpointError(
                f"image of ps-{image.manifest.get('server')} has version {image.manifest.get('version')!r}; this "
                f"release reads {VERSION}: restore it with the release that wrote it, or use another checkpoint"
            )
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
    """Join the progress of all images, each column from the image that holds it.

    Returns (shards finished in all images, other shards [n], their offsets [n, columns], samples of the first
    slice [n]).
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
