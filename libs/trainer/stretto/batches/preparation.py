"""Prepared batches on the plane: a lane's requests, answers and count, and what both sides must have in common."""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from stretto_parameters.keys import KeyBatch, TableKeys
from stretto_pipeline.arrays import Arrays, size_bytes
from stretto_pipeline.errors import ArraysRefused
from stretto_pipeline.feeding import SampleRange
from stretto_plane import Message

from ..model.reading import Prepared

REQUEST_BYTES_MAX = 1024 * 1024
"""Bytes of a request: a model of thousands of inputs names them all."""
LEAVE_S = 5.0
"""Seconds that a lane which leaves gives trainers to take what they asked for (taste: longer than a batch takes)."""
_ARRAY = "batch "
_KEYS = ("stored", "inverse", "counts")


class Kind(IntEnum):
    """Requests to a lane, and to a data worker, which names its lanes."""

    HELLO = 1
    """Greets a lane: no part; the answer's part is the lane's fingerprint, JSON."""
    PREPARE = 2
    """Asks for a batch: start and length, int64, then the partition's name; the answer has the prepared batch."""
    LANES = 3
    """Asks a data worker for its lanes: the part says how they are to read batches, JSON of `Reading` or null; the
    answer's part is a JSON list of their addresses."""


@dataclass(frozen=True, slots=True)
class BatchesPrepared:
    """Batches that lanes prepared so far, and the time that they spent on them, summed over lanes."""

    batches: int = 0
    busy_s: float = 0.0

    def __add__(self, other: BatchesPrepared) -> BatchesPrepared:
        return BatchesPrepared(self.batches + other.batches, self.busy_s + other.busy_s)

    def since(self, before: BatchesPrepared) -> BatchesPrepared:
        """Return the work since ``before``. Sums over lanes in another order may differ in their last bits."""
        return BatchesPrepared(self.batches - before.batches, max(0.0, self.busy_s - before.busy_s))


def arrays_of(prepared: Prepared) -> Arrays:
    """Return a prepared batch as named arrays, in an order of their own."""
    arrays = {f"{_ARRAY}{name}": np.asarray(prepared.batch[name]) for name in sorted(prepared.batch)}
    for number, table in enumerate(prepared.keys.tables):
        arrays |= {f"{name} {number}": getattr(table, name) for name in _KEYS}
    return arrays


def prepared_of(arrays: Arrays) -> Prepared:
    """Return the batch that ``arrays_of`` was given. Raises ArraysRefused."""
    batch = {name.removeprefix(_ARRAY): array for name, array in arrays.items() if name.startswith(_ARRAY)}
    tables: list[TableKeys] = []
    try:
        while f"{_KEYS[0]} {len(tables)}" in arrays:
            tables.append(TableKeys(*(arrays[f"{name} {len(tables)}"] for name in _KEYS)))
    except KeyError as error:
        raise ArraysRefused(f"a prepared batch has no array {error}") from None
    return Prepared(batch, KeyBatch(tuple(tables)))


def bytes_of(prepared: Prepared) -> int:
    """Return the size of a prepared batch."""
    return size_bytes(arrays_of(prepared))


def request_of(wanted: SampleRange) -> list[Any]:
    """Return the parts of a request for a batch."""
    return [np.array([wanted.start, wanted.length], np.int64), wanted.partition.encode()]


def range_of(message: Message) -> SampleRange:
    """Return the batch that a request is for. Raises ArraysRefused."""
    try:
        places, partition = message.parts
        start, length = np.frombuffer(places, np.int64).tolist()
        return SampleRange(bytes(partition).decode(), start, length)
    except ValueError as error:
        raise ArraysRefused(f"a request for a batch is refused as damaged: {error}") from None


Fingerprint = Mapping[str, str]
"""Everything that determines a prepared batch. A data worker is used only if its fingerprint equals the trainer's."""


def fingerprint_of(spec: Mapping[str, Any], task: object) -> Fingerprint:
    """Return the fingerprint of this process: versions, the job's model and data, and the source of the user's code.

    spec: the job's specification as it travels, for a lane parses no more of it.
    """
    module = inspect.getmodule(type(task))
    try:
        source = inspect.getsource(module) if module is not None else ""
    except (OSError, TypeError):
        source = ""
    job = json.dumps([spec["model"], spec["dataset"]], sort_keys=True)
    return {
        "python": sys.version.split()[0],
        "numpy": np.__version__,
        **{name: importlib.metadata.version(name) for name in ("pyarrow", "stretto")},
        "job": hashlib.sha256(job.encode()).hexdigest()[:16],
        f"source of {type(task).__module__}": hashlib.sha256(source.encode()).hexdigest()[:16],
    }


def difference_of(ours: Fingerprint, theirs: Fingerprint) -> str:
    """Return where two fingerprints differ, in words; "" if nowhere."""
    names = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
    return ", ".join(f"{name}: {ours.get(name, 'none')} here, {theirs.get(name, 'none')} there" for name in names)
