"""Images of a parameter server: raw blocks and a manifest. The caller says where the bytes go.

Each bucket is copied under the lock together with its progress. A checkpoint therefore freezes nothing and rejects
nothing: a push waits for one memcpy. The columns of one image are copied at slightly different instants, and so are the
images of a job. The result is exact all the same: each column carries its own progress, and a restored job replays from
the smallest offset while the other columns skip what they have.

A bucket is copied straight to where the image is written, with its checksum; an export needs no memory of its own.

An image is full, or a difference: of the rows, only those that changed since the image that it names as its base, of
the same server. An image ends an epoch before its first copy. Rows that change after the copy of their bucket then have
a later epoch, and the next difference has them; some that changed before it are in both. Whatever has lost rows
since the base (a bucket that left and came back) is whole again. Slices and progress always are.

Invariant: the ledger state that is restored with the images was taken *before* the first of them.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from stretto_messages.values import BUCKETS, SLICES
from stretto_parameters import EVERY_KEY, InputRefused, Own, Progress, RawBucket, RawSlices, StoreFull
from stretto_parameters.checksums import of_block
from stretto_parameters.parts import INDEX_BYTES_MAX
from stretto_parameters.policy.expiry import Expiry
from stretto_parameters.tiers import Filling, fill

from ..errors import CheckpointError
from .client import FINISHED
from .layout import I64, U64, UNKNOWN, Layout
from .locked_store import LockedStore

VERSION = 5
COLUMNS = BUCKETS + SLICES
_MARGIN = 1.03
"""Allowance for the rows that are added until the image is taken. What is reserved in vain is touched all the same."""
_DIFFERENCE_MARGIN = 1.5
"""The same for a difference, which is small and grows with every push."""
_MARGIN_BYTES = 2**20
"""Allowance for the manifest and the padding."""

Bytes = NDArray[np.uint8]


class Image(Protocol):
    """A place that an image is written to, from its beginning to its end."""

    def room(self, size_bytes: int) -> Bytes:
        """Return the memory of the next block, to be filled before `settle`. Raises OSError."""
        ...

    def settle(self) -> None:
        """Write the blocks so far to where they stay: no `room` before the next call waits for a disk."""
        ...

    @property
    def offset(self) -> int:
        """Bytes of the blocks so far, padding included: where the next block begins."""
        ...


class Blocks(Mapping[str, np.ndarray], ABC):
    """The blocks of an image. Whatever is returned has been compared with its checksum."""

    @abstractmethod
    def copied(self, name: str, copy: Callable[[Bytes], tuple[int, Any]]) -> Any:
        """Read a block by `copy`, which returns the checksum of what it read and a result; return that result."""


@dataclass(frozen=True, slots=True)
class Base:
    """An earlier image of a server, for a difference: its digest, the epoch that it ended, its layout and columns."""

    digest: str
    epoch: int
    layout: Layout
    columns: frozenset[int]


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of an export.

    pause_seconds: the longest that a push or pull waited for the export. epoch: the epoch that it ended.
    manifest (JSON-able): version, server, layout, columns, base (digest, "" for a full image), whole (buckets that need
    no base), bytes, blocks {name: offset, bytes, checksum, dtype, shape}.
    """

    manifest: dict[str, Any]
    pause_seconds: float
    epoch: int

    def as_base(self, digest: str) -> Base:
        """Return what a difference needs to know of this image."""
        layout = Layout.from_dict(self.manifest["layout"])
        return Base(digest, self.epoch, layout, frozenset(self.manifest["columns"]))


@dataclass(frozen=True, slots=True)
class PsImage:
    """A manifest and its blocks by name (NumPy arrays). base: the image that a difference adds to."""

    manifest: dict[str, Any]
    blocks: Blocks
    base: PsImage | None = None

    @property
    def columns(self) -> list[int]:
        return list(self.manifest["columns"])

    def links(self, bucket: int) -> list[PsImage]:
        """Return the images that have rows of a bucket, from the image that has it whole to this image."""
        links: list[PsImage] = []
        image: PsImage | None = self
        while image is not None:
            links.append(image)
            if bucket in image.manifest["whole"]:
                return links[::-1]
            image = image.base
        raise CheckpointError(f"the images of ps-{self.manifest['server']} do not begin with a whole bucket {bucket}")

    @property
    def layout(self) -> Layout:
        return Layout.from_dict(self.manifest["layout"])


def image_bytes(store: LockedStore, base: Base | None = None) -> int:
    """Return an upper bound for an image taken soon: rows and keys, slices, progress. base: of a difference to it."""
    if base is None:
        return int(_MARGIN * store.image_bytes()) + _MARGIN_BYTES
    return int(_DIFFERENCE_MARGIN * store.image_bytes(base.epoch)) + _MARGIN_BYTES


class _Blocks:
    """Collects the descriptions of blocks as they are written."""

    def __init__(self, image: Image) -> None:
        self._image = image
        self.entries: dict[str, Any] = {}

    def room(self, name: str, size_bytes: int, dtype: str, shape: Sequence[int]) -> Bytes:
        offset = self._image.offset
        room = self._image.room(size_bytes)
        self.entries[name] = {"offset": offset, "bytes": size_bytes, "dtype": dtype, "shape": list(shape)}
        return room

    def settle(self) -> None:
        self._image.settle()

    def add(self, name: str, block: np.ndarray) -> None:
        raw = np.ascontiguousarray(block).reshape(-1).view(np.uint8)
        self.room(name, block.nbytes, block.dtype.str, block.shape)[:] = raw
        self.entries[name]["checksum"] = of_block(raw)


def export_image(store: LockedStore, image: Image, base: Base | None = None) -> Exported:
    """Export everything that a server owns, while workers go on pushing. Runs in the server's process only.

    base: an earlier image of this process, for a difference to it. The result is a full image if no bucket gains by it.
    Raises CheckpointError if ownership changes meanwhile, and what `image` raises.
    """
    columns = store.columns()
    layout = store.layout
    blocks = _Blocks(image)
    progress = _Progress()
    pause_s = 0.0
    if base is not None and base.layout != layout:
        base = None
    with store.turn.alone():
        epoch = store.unlocked.next_epoch()
    slices: I64 = np.array([c - BUCKETS for c in columns if c >= BUCKETS], np.int64)
    if len(slices):
        pause_s = _export_slices(store, slices, blocks, progress)
    whole: list[int] = []
    for bucket in (c for c in columns if c < BUCKETS):
        since = base.epoch if base is not None and bucket in base.columns else None
        held_s, is_whole = _export_bucket(store, bucket, since, blocks, progress)
        pause_s = max(pause_s, held_s)
        whole += [bucket] * is_whole
    if store.columns() != columns or store.layout != layout:
        raise CheckpointError(
            f"ps-{store.server}: columns changed their owner during the export; repeat it after the move"
        )
    for name, block in progress.blocks().items():
        blocks.add(name, block)
    manifest = {
        "version": VERSION,
        "server": store.server,
        "layout": layout.to_dict(),
        "columns": columns,
        "base": "" if base is None or set(whole) == {c for c in columns if c < BUCKETS} else base.digest,
        "whole": whole,
        "bytes": image.offset,
        "blocks": blocks.entries,
    }
    return Exported(manifest, pause_s, epoch)


def _export_slices(store: LockedStore, ids: I64, blocks: _Blocks, progress: _Progress) -> float:
    with store.turn.shared():
        begun = time.perf_counter()
        raw, at = store.unlocked.export_slices(ids), store.unlocked.records.progress(progress.known_finished)
        held_s = time.perf_counter() - begun
    for name, block in (("ids", ids), ("rows", raw.rows), ("seeded", raw.seeded), ("state", raw.state)):
        blocks.add(f"slices/{name}", block)
    progress.add((ids + BUCKETS).tolist(), at)
    return held_s


def _export_bucket(
    store: LockedStore, bucket: int, since: int | None, blocks: _Blocks, progress: _Progress
) -> tuple[float, bool]:
    """Copy a bucket, or its rows that changed after the epoch `since`.

    Return (seconds under the lock, True if it is whole).
    """
    blocks.settle()
    lacking: list[tuple[str, Bytes, Filling]] = []
    with ExitStack() as holds:
        with store.turn.shared():
            begun = time.perf_counter()
            raw = store.unlocked
            is_whole = since is None or raw.emptied_epoch(bucket) > since
            for table, (count, row_bytes) in enumerate(raw.table_sizes(bucket)):
                chosen = None if is_whole or since is None else raw.changed_rows(bucket, table, since)
                rows = count if chosen is None else len(chosen)
                of_keys, of_rows = _names(bucket, table)
                to = blocks.room(of_keys, 8 * rows, "<u8", (rows,))
                blocks.entries[of_keys]["checksum"] = raw.copy_keys(bucket, table, to, chosen)
                to = blocks.room(of_rows, rows * row_bytes, "<f4", (rows, row_bytes // 4))
                copied = raw.copy_rows(bucket, table, to, chosen)
                if isinstance(copied, Filling):
                    holds.callback(copied.let_go)
                    lacking.append((of_rows, to, copied))
                else:
                    blocks.entries[of_rows]["checksum"] = copied
                if raw.layout.rows.expire_samples:
                    blocks.add(_stamps(bucket, table), raw.copy_stamps(bucket, table, chosen))
            if raw.layout.rows != EVERY_KEY:
                blocks.add(_policy(bucket), raw.export_policy(bucket))
            at = raw.records.progress(progress.known_finished)
            held_s = time.perf_counter() - begun
        fill([filling for *_, filling in lacking])  # no push waits for the disk
        for name, to, _ in lacking:
            blocks.entries[name]["checksum"] = of_block(to)
    progress.add([bucket], at)
    return held_s, is_whole


def _names(bucket: int, table: int) -> tuple[str, str]:
    return f"bucket{bucket}/{table}/keys", f"bucket{bucket}/{table}/rows"


def _stamps(bucket: int, table: int) -> str:
    return f"bucket{bucket}/{table}/stamps"


def _policy(bucket: int) -> str:
    return f"bucket{bucket}/policy"


class _Progress:
    """Offsets per shard and column, each column as it was when it was copied.

    A shard that was finished at the first copy is finished in every column: its id is enough. A shard that finished
    later has a row, because a column that was copied before may lack its end.
    """

    def __init__(self) -> None:
        self._offsets: dict[int, I64] = {}
        self._first: I64 | None = None  # finished at the first copy
        self._later: I64 = np.zeros(0, np.int64)  # finished since
        self._dense_samples: dict[int, int] = {}
        self._samples = np.zeros(COLUMNS, np.int64)
        self._fingerprints = np.zeros(COLUMNS, np.int64)

    @property
    def known_finished(self) -> int:
        return (0 if self._first is None else len(self._first)) + len(self._later)

    def _row(self, shard: int) -> I64:
        return self._offsets.setdefault(shard, np.zeros(COLUMNS, np.int64))

    def add(self, columns: list[int], at: Progress) -> None:
        for shard, record in zip(at.shards.tolist(), at.records, strict=True):
            self._row(shard)[columns] = record[columns]
            if BUCKETS in columns:
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
        offsets = [self._offsets[s] for s in shards] or [np.zeros(COLUMNS, np.int64)][:0]
        return {
            "progress/finished": np.zeros(0, np.int64) if self._first is None else self._first,
            "progress/shards": np.array(shards, np.int64),
            "progress/offsets": np.array(offsets, np.int64).reshape(len(shards), COLUMNS),
            "progress/dense_samples": np.array([self._dense_samples.get(s, 0) for s in shards], np.int64),
            "progress/samples": self._samples,
            "progress/fingerprints": self._fingerprints,
        }


def loaded_bytes(images: Sequence[PsImage], columns: Iterable[int]) -> int:
    """Return an upper bound of the memory that `columns` of a checkpoint take once they are loaded.

    A row that changed is counted in each image that has it.
    """
    known = [image for image in images if image.layout != UNKNOWN]
    if not known:
        return 0
    layout, rows = known[0].layout, _loaded_rows(known, columns)
    of_rows = sum(count * (layout.row_bytes(table) + INDEX_BYTES_MAX) for table, count in enumerate(rows))
    counted = (
        link.manifest["blocks"].get(_policy(bucket), {"bytes": 0})["bytes"]
        for image in known
        for bucket in {*columns}.intersection(c for c in image.columns if c < BUCKETS)
        for link in image.links(bucket)
    )
    return int(of_rows + sum(counted))


def _loaded_rows(images: Sequence[PsImage], columns: Iterable[int]) -> list[int]:
    """Return the rows of `columns` by table; a row that changed is counted in each image that has it."""
    wanted, rows = set(columns), np.zeros(max((len(image.layout.tables) for image in images), default=0), np.int64)
    for image in images:
        for bucket in wanted.intersection(c for c in image.columns if c < BUCKETS):
            for table in range(len(image.layout.tables)):
                rows[table] += count_rows(image, bucket, table)
    return rows.tolist()


def load_image(store: LockedStore, images: Sequence[PsImage], columns: Iterable[int]) -> None:
    """Make a server own more `columns`, from the images of all servers of the checkpoint (any number of servers).

    Attempts start again from zero, as in the ledger that is restored with the images. A shard whose records were
    deleted in every column stays finished. A shard whose records were deleted in some columns only is skipped
    there and replayed elsewhere.
    Raises CheckpointError if the images do not fit the layout or do not hold each column exactly once.
    """
    wanted = sorted(set(columns))
    holder = holders(images)
    _adopt(store, images)
    with store.turn.alone():
        store.unlocked.clear(wanted)  # a column that was here once left its slice and its progress behind
    if store.unlocked.tiers is not None:
        store.unlocked.tiers.loading.expect(_loaded_rows(images, wanted))
    try:
        _load_columns(store, images, holder, wanted)
    except (InputRefused, StoreFull) as error:
        raise CheckpointError(f"the checkpoint does not fit into ps-{store.server}: {error}") from error
    finally:
        if store.unlocked.tiers is not None:
            store.unlocked.tiers.loading.expect([])
    everywhere, shards, offsets, dense_samples = _join_progress(holder)
    finished = (offsets == FINISHED).all(axis=1)
    records = np.zeros((len(shards), COLUMNS + 2), np.int64)
    records[:, wanted] = offsets[:, wanted]
    records[:, -1] = dense_samples
    samples = np.array([image.blocks["progress/samples"][c] for c, image in enumerate(holder)], np.int64)
    fingerprints = np.array([image.blocks["progress/fingerprints"][c] for c, image in enumerate(holder)], np.int64)
    marks = np.concatenate([everywhere, shards[finished]])
    store.merge_columns(wanted, Progress(shards[~finished], records[~finished], marks, samples, fingerprints))
    store.set_own(wanted, Own.MINE)


def _load_columns(
    store: LockedStore, images: Sequence[PsImage], holder: Sequence[PsImage], wanted: Sequence[int]
) -> None:
    for image in images:
        layout, mine = image.layout, [c for c in wanted if holder[c] is image]
        buckets, slices = [c for c in mine if c < BUCKETS], [c - BUCKETS for c in mine if c >= BUCKETS]
        if layout == UNKNOWN:
            for bucket in buckets:
                store.drop_bucket(bucket)
            continue
        for bucket in buckets:
            _load_bucket(store, bucket, len(layout.tables), image.links(bucket))
        if slices:
            store.import_slices(_slices(image, np.array(slices, np.int64)))


def _load_bucket(store: LockedStore, bucket: int, tables: int, links: Sequence[PsImage]) -> None:
    """Load a bucket from the image that has it whole, then the rows that changed after it.

    Rows of an image that expired until the next image are dropped before its rows come.
    """
    whole = links[0]
    try:
        for table in range(tables):
            of_keys, of_rows = _names(bucket, table)
            load = partial(
                _load_rows, store, bucket, table, whole.blocks[of_keys], whole.blocks.get(_stamps(bucket, table))
            )
            whole.blocks.copied(of_rows, load)
        for earlier, difference in pairwise(links):
            store.expire(bucket, samples_of(earlier, bucket), samples_of(difference, bucket))
            store.import_bucket(bucket, _changed(difference, bucket, tables), replace=False)
        if (policy := links[-1].blocks.get(_policy(bucket))) is not None:
            store.import_policy(bucket, policy)
    except BaseException:
        store.drop_bucket(bucket)  # what is damaged, or there in part, takes no memory
        raise


def bucket_rows(image: PsImage, bucket: int, table: int, skip: int = 0) -> Iterator[RawBucket]:
    """Yield a table's rows of a bucket, from the image that has it whole to `image`.

    A row of a later image replaces the same row of an earlier one; rows that expired since their image are left out.
    skip: how many images to leave out at the beginning. Raises CheckpointError.
    """
    life = image.layout.rows.expire_samples
    for link in image.links(bucket)[skip:]:
        raw = _rows_of(link, bucket, table)
        if life and raw.stamps is not None:
            moments = samples_of(link, bucket), samples_of(image, bucket)
            kept = ~Expiry(life, BUCKETS).expired(bucket, raw.stamps, *moments)
            raw = RawBucket(raw.keys[kept], raw.rows[kept], raw.stamps[kept])
        yield raw


def samples_of(image: PsImage, bucket: int) -> int:
    """Return the samples that a bucket had counted when an image copied it."""
    return int(image.blocks["progress/samples"][bucket])


def _rows_of(image: PsImage, bucket: int, table: int) -> RawBucket:
    of_keys, of_rows = _names(bucket, table)
    return RawBucket(image.blocks[of_keys], image.blocks[of_rows], image.blocks.get(_stamps(bucket, table)))


def count_rows(image: PsImage, bucket: int, table: int) -> int:
    """Return how many rows `bucket_rows` has; a row that changed is counted in each image that has it."""
    of_keys, _ = _names(bucket, table)
    return sum(link.manifest["blocks"][of_keys]["shape"][0] for link in image.links(bucket))


def _changed(image: PsImage, bucket: int, tables: int) -> list[RawBucket]:
    """Return the rows of a bucket that a difference has, by table, after their checksums were compared."""
    return [_rows_of(image, bucket, table) for table in range(tables)]


def _load_rows(
    store: LockedStore, bucket: int, table: int, keys: U64, stamps: Bytes | None, rows: Bytes
) -> tuple[int, None]:
    try:
        with store.turn.alone():
            return store.unlocked.load_bucket(bucket, table, keys, rows, stamps), None
    except OSError as error:  # of this disk: another copy of the image would do no better
        raise StoreFull(str(error)) from error


def holders(images: Sequence[PsImage]) -> list[PsImage]:
    """Return the image that holds each column: [columns]. Raises CheckpointError unless each has exactly one."""
    holder: dict[int, PsImage] = {}
    for image in images:
        if image.manifest.get("version") != VERSION:
            raise CheckpointError(
                f"image of ps-{image.manifest.get('server')} has version {image.manifest.get('version')!r}; this "
                f"release reads {VERSION}: restore it with the release that wrote it, or use another checkpoint"
            )
        for column in image.columns:
            if column in holder:
                raise CheckpointError(f"column {column} is in two images: they are not of one checkpoint")
            holder[column] = image
    missing = sorted(set(range(COLUMNS)) - set(holder))
    if missing:
        raise CheckpointError(
            f"columns {missing[:8]} ({len(missing)} in all) are in no image: pass those of all servers"
        )
    return [holder[c] for c in range(COLUMNS)]


def _adopt(store: LockedStore, images: Sequence[PsImage]) -> None:
    """Let the server take the layout of the images."""
    for image in images:
        try:
            if image.layout != UNKNOWN:  # of a server that no worker had told the layout before the checkpoint
                store.adopt(image.layout)
        except InputRefused as error:
            raise CheckpointError(
                f"image of ps-{image.manifest['server']} was saved with another layout; the model, its optimiser or "
                f"the job's `rows` changed: {error}"
            ) from error


def _slices(image: PsImage, ids: I64) -> RawSlices:
    position = {int(s): i for i, s in enumerate(image.blocks["slices/ids"])}
    at = [position[int(s)] for s in ids]
    blocks = image.blocks
    state = np.array(blocks["slices/state"])
    return RawSlices(ids, np.array(blocks["slices/rows"][at]), np.array(blocks["slices/seeded"][at]), state)


def _join_progress(holder: Sequence[PsImage]) -> tuple[I64, I64, I64, I64]:
    """Join the progress of all images, each column from the image that holds it.

    Returns (shards finished in all images, other shards [n], their offsets [n, columns], samples of the first
    slice [n]).
    """
    images = list({id(image): image for image in holder}.values())
    everywhere: I64 = images[0].blocks["progress/finished"]
    for image in images[1:]:
        everywhere = np.intersect1d(everywhere, image.blocks["progress/finished"], assume_unique=True)
    named = [i.blocks[f"progress/{name}"] for i in images for name in ("shards", "finished")]
    # not np.unique, whose first use imports numpy.ma: a twentieth of a restoration
    shards = np.array(sorted({*np.concatenate(named).tolist()}.difference(everywhere.tolist())), np.int64)
    offsets = np.zeros((len(shards), COLUMNS), np.int64)
    dense_samples = np.zeros(len(shards), np.int64)
    for image in images:
        cols = np.array(image.columns)
        done = np.setdiff1d(image.blocks["progress/finished"], everywhere, assume_unique=True)
        offsets[np.ix_(np.searchsorted(shards, done), cols)] = FINISHED
        at = np.searchsorted(shards, image.blocks["progress/shards"])
        offsets[np.ix_(at, cols)] = image.blocks["progress/offsets"][:, cols]
        if BUCKETS in image.columns:
            dense_samples[at] = image.blocks["progress/dense_samples"]
    return everywhere, shards, offsets, dense_samples
