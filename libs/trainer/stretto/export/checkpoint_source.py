"""A complete checkpoint, read bucket by bucket: the rows of its tables, and its dense parameters."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, field

import numpy as np
from stretto_messages.values import BUCKETS
from stretto_parameters import RawBucket
from stretto_parameters.keys import restore, store
from stretto_parameters.layout import RowFormat
from stretto_parameters.reference import Due, initial_weights, narrowed, read_weights, widened
from stretto_parameters.store import due_of

from ..engine import PsImage
from ..engine.images import bucket_rows, count_rows, holders
from ..engine.layout import F32, I64, UNKNOWN, Layout, Table
from ..errors import CheckpointError
from ..server.flash_checkpoint import read_manifest, stored_copies
from ..server.image_file import open_chain


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a table, not all. keys [n]: as the task's `keys` gave them, ascending. weights: [n, dimension]."""

    keys: I64
    weights: F32


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint; nothing of its buckets is kept in memory but the rows that were read last."""

    url: str
    id: str
    job: str
    samples: int
    """Samples that had been trained when it was taken."""
    layout: Layout
    digests: tuple[str, ...]
    """The SHA-256 of each image's description: they name the contents."""
    _holders: list[PsImage]
    _chains: dict[int, list[str]]
    """Digests of each image and of the images that it adds to, the full image first, by the image's `id`."""
    _last: dict[tuple[int, int], Rows] = field(default_factory=dict[tuple[int, int], Rows])

    def dense(self) -> tuple[F32, F32]:
        """Return the trained dense parameters [dense_size], and the state [state_size]. Raises CheckpointError."""
        layout = self.layout
        slices = np.zeros((layout.slices, layout.slice_length), np.float32)
        for image in {id(each): each for each in self._holders[BUCKETS:]}.values():
            if image.layout == UNKNOWN or not image.blocks["slices/seeded"].all():
                raise CheckpointError(
                    f"checkpoint {self.id} was taken before the first worker gave the parameters their initial values; "
                    "take a later one"
                )
            slices[image.blocks["slices/ids"]] = image.blocks["slices/rows"][:, : layout.slice_length]
        return layout.join_dense(slices), np.array(self._holders[BUCKETS].blocks["slices/state"])

    def rows(self, table: int, bucket: int) -> Rows:
        """Return the rows that a table has in a bucket. Raises CheckpointError."""
        at = table, bucket
        if at not in self._last:
            self._last.clear()
            image = self._holders[bucket]
            if image.layout == UNKNOWN:
                return Rows(np.zeros(0, np.int64), np.zeros((0, self.layout.tables[table].dimension), np.float32))
            self._last[at] = self._latest(table, bucket, 0)
        return self._last[at]

    def changed(self, table: int, bucket: int, since: Set[str]) -> Rows | None:
        """Return the rows that changed after an earlier checkpoint, whose digests are `since`.

        None if the images do not say it: the server wrote a full one since, the bucket has moved, the optimizer moves
        rows that no batch had, or rows expire.
        """
        image = self._holders[bucket]
        moves_late = self.layout.tables[table].optimizer.moves_rows_late
        if image.layout == UNKNOWN or moves_late or self.layout.rows.expire_samples:
            return None
        digests = self._chains[id(image)][-len(image.links(bucket)) :]
        known = [number for number, digest in enumerate(digests) if digest in since]
        if not known:
            return None
        return self._latest(table, bucket, known[-1] + 1)

    def _latest(self, table: int, bucket: int, first_link: int) -> Rows:
        image, optimizer = self._holders[bucket], self.layout.tables[table].optimizer
        samples = image.blocks["progress/samples"][[bucket]]
        due = due_of(optimizer, samples) if optimizer.moves_rows_late else None
        return _latest(self.layout.tables[table], bucket_rows(image, bucket, table, first_link), due)

    def count(self, table: int) -> int:
        """Return how many rows a table has at most."""
        images = enumerate(self._holders[:BUCKETS])
        return sum(count_rows(image, bucket, table) for bucket, image in images if image.layout != UNKNOWN)


def open_checkpoint(url: str) -> Checkpoint:
    """Open the checkpoint whose manifest is at `url`. Raises CheckpointError."""
    manifest = read_manifest(url)
    document, parts = manifest.document, manifest.parts
    images = [open_chain(part, lambda link: stored_copies(link, url)) for part in parts]
    holder = holders(images)
    layouts = [image.layout for image in images if image.layout != UNKNOWN]
    if not layouts:
        raise CheckpointError(f"checkpoint {url} was taken before the first worker began; take a later one")
    if any(each != layouts[0] for each in layouts):
        raise CheckpointError(f"the images of {url} are of several models: they are not of one checkpoint")
    try:
        name, job, samples = str(document["id"]), str(document["job"]), int(document["samples"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"manifest {url} does not say its {error}; name a complete checkpoint") from error
    chains = {
        id(image): [link.description_sha256 for link in part.as_base()]
        for image, part in zip(images, parts, strict=True)
    }
    digests = tuple(part.description_sha256 for part in parts)
    return Checkpoint(url, name, job, samples, layouts[0], digests, holder, chains)


def initial_rows(table: Table, keys: I64) -> F32:
    """Return the weights of keys that have no row: [n, dimension]."""
    form = RowFormat.of_table(table)
    weights = initial_weights(form, store(keys))
    return widened(narrowed(weights)) if form.half else weights


def _latest(table: Table, links: Iterable[RawBucket], due: Due | None) -> Rows:
    """Return each row as the last link has it, after the steps that it is due."""
    form = RowFormat.of_table(table)
    found = [
        (link.keys, read_weights(form, link.rows) if due is None else due.weights(form, link.rows, 0)) for link in links
    ]
    keys, weights = found[0] if len(found) == 1 else (np.zeros(0, np.uint64), np.zeros((0, form.width), np.float32))
    if len(found) > 1:
        keys, weights = (np.concatenate(each) for each in zip(*found, strict=True))
        del found
        _, last = np.unique(keys[::-1], return_index=True)
        keys, weights = keys[len(keys) - 1 - last], weights[len(keys) - 1 - last]
    plain = restore(keys)
    order = np.argsort(plain)
    return Rows(plain[order], weights[order])
