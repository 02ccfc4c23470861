"""The shape of a job's parameters: tables of embedding rows, and one dense vector.

It is cut into *columns*: `buckets` embedding buckets, each with a part of every table, then `slices` dense slices. A
column is the unit of ownership, of moves, of checkpoints and of progress records.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from math import sqrt
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from . import keys, optimizers
from .errors import InputRefused
from .keys import KeyBatch
from .optimizers import Adagrad, Optimizer

F32 = NDArray[np.float32]

ENTRY_BYTES = 16
"""Bytes of a row's entry (parts.py)."""
PAGE_BYTES = 4096
"""Bytes that a disk reads at once."""
_RECORD_BYTES = 12
ADMIT_MAX = 100
"""Sights up to which an admission may wait: a cell of its sketch is a byte."""
_BUCKETS_MAX = 4096
_WIDTH_MAX = 2**28
_EIGHT_SD = sqrt(8 * (2.0**32 - 1) / 12)
"""Standard deviation of a sum of eight whole numbers, each uniform in [0, 2^16): their variances add up."""


@dataclass(frozen=True, slots=True)
class Table:
    """An embedding table: rows of `dimension` weights.

    Before their first update these are uniform in +-initial_scale, or with the distribution "normal" have this standard
    deviation: sums of eight uniform numbers, none beyond 4.9 of it.
    `weights`: as they are stored; bfloat16 is rounded to nearest, ties to even, after each update (slots are float32).
    `base`: the digest of the values that workers add rows to; empty if there are none, or it is not known.
    """

    dimension: int
    optimizer: Optimizer = field(default_factory=Adagrad)
    seed: int = 0
    initial_scale: float = 0.05
    weights: Literal["float32", "bfloat16"] = "float32"
    base: str = ""
    distribution: Literal["uniform", "normal"] = "uniform"

    def __post_init__(self) -> None:
        if not 1 <= self.dimension <= _WIDTH_MAX:
            raise InputRefused(f"dimension = {self.dimension} of a table must be between 1 and {_WIDTH_MAX}")
        if not np.isfinite(self.initial_scale) or self.initial_scale < 0:
            raise InputRefused(f"initial_scale = {self.initial_scale} of a table must not be negative")
        if self.weights not in ("float32", "bfloat16"):
            raise InputRefused(f"weights = {self.weights!r} of a table: use 'float32' or 'bfloat16'")
        if self.distribution not in ("uniform", "normal"):
            raise InputRefused(f"distribution = {self.distribution!r} of a table: use 'uniform' or 'normal'")


@dataclass(frozen=True, slots=True)
class RowPolicy:
    """The keys that have a row: by default each key that was pushed, for ever.

    admit: the sight (a push with the key, applied) at which a key gets its row; earlier gradients are dropped.
    expire_samples: samples of its bucket without a change after which a row is dropped for good; 0: never.
    """

    admit: int = 1
    expire_samples: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.admit <= ADMIT_MAX:
            raise InputRefused(f"admit = {self.admit} of rows must be between 1 and {ADMIT_MAX}")
        if not 0 <= self.expire_samples < 2**48:
            raise InputRefused(f"expire_samples = {self.expire_samples} of rows must be between 0 and 2^48 - 1")


EVERY_KEY = RowPolicy()
"""The policy of a layout that states none."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The same value in every worker and parameter server of a job.

    `optimizer` is that of the dense vector. `state_size` is the length of what is not trained (BatchNorm moments); it
    travels with the first slice.
    """

    tables: tuple[Table, ...]
    dense_size: int
    buckets: int
    slices: int
    state_size: int = 0
    optimizer: Optimizer = field(default_factory=Adagrad)
    rows: RowPolicy = EVERY_KEY

    def __post_init__(self) -> None:
        if self.dense_size < 0 or self.state_size < 0:
            raise InputRefused(f"dense_size = {self.dense_size}, state_size = {self.state_size}: neither is negative")
        if not 2 <= self.buckets <= _BUCKETS_MAX or self.buckets & (self.buckets - 1):
            raise InputRefused(f"buckets = {self.buckets} must be a power of two between 2 and {_BUCKETS_MAX}")
        if not 1 <= self.slices <= _BUCKETS_MAX:
            raise InputRefused(
                f"slices = {self.slices} must be between 1 and {_BUCKETS_MAX}: the first one accounts every push"
            )

    @property
    def columns(self) -> int:
        return self.buckets + self.slices

    @property
    def slice_length(self) -> int:
        """Floats of a dense slice; the last one is padded with zeros."""
        return max(1, -(-self.dense_size // self.slices))

    @property
    def shift(self) -> int:
        """Bits that a stored key is shifted by to give its bucket: the top ones are the bucket."""
        return 64 - (self.buckets.bit_length() - 1)

    def index(self, *ids: NDArray[np.integer[Any]]) -> KeyBatch:
        """Return the unique keys of a batch: one array of ids, in any shape, for each table. Raises InputRefused."""
        if len(ids) != len(self.tables):
            raise InputRefused(f"ids of {len(ids)} tables were given, the layout has {len(self.tables)}")
        return keys.index(ids, self.buckets)

    def split_dense(self, dense: F32) -> F32:
        """Cut the dense vector [dense_size] into [slices, slice_length], padded with zeros. Raises InputRefused."""
        if dense.shape != (self.dense_size,):
            raise InputRefused(f"dense vector has shape {dense.shape}, the layout wants ({self.dense_size},)")
        padded = np.zeros(self.slices * self.slice_length, np.float32)
        padded[: self.dense_size] = dense
        return padded.reshape(self.slices, self.slice_length)

    def join_dense(self, parts: F32) -> F32:
        """Join slices [slices, slice_length] to the dense vector [dense_size]."""
        return parts.reshape(-1)[: self.dense_size]

    def row_bytes(self, table: int = 0) -> int:
        """Return the bytes that a row of a table takes with its entry, without its share of the index."""
        return RowFormat.of_table(self.tables[table]).row_bytes + ENTRY_BYTES

    def agrees(self, other: Layout) -> bool:
        """Return whether the other one is the same, but for digests that one of them lacks, as old images do."""
        tables = zip(self.tables, other.tables, strict=False)
        are_known = all(mine.base == its.base or not mine.base or not its.base for mine, its in tables)
        return are_known and self._without_bases() == other._without_bases()

    def _without_bases(self) -> Layout:
        return replace(self, tables=tuple(replace(each, base="") for each in self.tables))

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able values."""
        names = ("dense_size", "buckets", "slices", "state_size")
        tables = [
            {
                **{name: getattr(each, name) for name in ("dimension", "seed", "initial_scale", "weights")},
                "optimizer": optimizers.to_dict(each.optimizer),
                **({"base": each.base} if each.base else {}),
                **({"distribution": each.distribution} if each.distribution != "uniform" else {}),
            }
            for each in self.tables
        ]
        plain = {name: getattr(self, name) for name in names}
        rows = {} if self.rows == EVERY_KEY else {"rows": asdict(self.rows)}
        return {**plain, "tables": tables, "optimizer": optimizers.to_dict(self.optimizer), **rows}

    @staticmethod
    def from_dict(given: dict[str, Any]) -> Layout:
        """Invert `to_dict`. Raises InputRefused."""
        try:
            tables: list[Table] = []
            for each in given["tables"]:
                fields: dict[str, Any] = {**each, "optimizer": optimizers.from_dict(each["optimizer"])}
                tables.append(Table(**fields))
            whole: dict[str, Any] = {**given, "tables": tuple(tables)}
            whole["optimizer"] = optimizers.from_dict(given["optimizer"])
            whole["rows"] = RowPolicy(**given.get("rows", {}))
            return Layout(**whole)
        except (TypeError, KeyError) as error:
            raise InputRefused(f"layout {given!r} is not one of this version: {error!r}") from error


@dataclass(frozen=True, slots=True)
class RowFormat:
    """The words (4 bytes) of a row: weights, then slots. `slots`: their first values."""

    width: int
    half: bool
    slots: NDArray[np.float32]
    seed: int = 0
    initial_scale: float = 0.0
    is_normal: bool = False
    counters: int = 0
    """Words at the end that count steps."""

    @staticmethod
    def of_table(table: Table) -> RowFormat:
        slots = table.optimizer.first_slots(table.dimension)
        seed = table.seed & 0xFFFFFFFF
        is_normal = table.distribution == "normal"
        return RowFormat(
            *(table.dimension, table.weights == "bfloat16", slots, seed, table.initial_scale, is_normal),
            counters=table.optimizer.counters,
        )

    @staticmethod
    def of_slices(layout: Layout) -> RowFormat:
        return RowFormat(layout.slice_length, False, layout.optimizer.dense.first_slots(layout.slice_length))

    @property
    def initial_factor(self) -> float:
        """The factor of the whole number that an initial weight is drawn as: of 24 bits, or a sum of eight of 16."""
        return self.initial_scale / (_EIGHT_SD if self.is_normal else 2.0**23)

    @property
    def weight_words(self) -> int:
        return (self.width + 1) // 2 if self.half else self.width

    @property
    def words(self) -> int:
        return self.weight_words + len(self.slots)

    @property
    def row_bytes(self) -> int:
        return 4 * self.words

    @property
    def rounded(self) -> slice:
        """The words that a warm row has as bfloat16: all float32 but counters, which could not go on from 257."""
        return slice(self.weight_words if self.half else 0, self.words - self.counters)

    @property
    def warm_bytes(self) -> int:
        """Bytes of a warm row."""
        return self.row_bytes - 2 * (self.rounded.stop - self.rounded.start)

    @property
    def record_bytes(self) -> int:
        """Bytes of a row's record in the log: key, words, checksum."""
        return self.row_bytes + _RECORD_BYTES

    @property
    def records_per_page(self) -> int:
        """Records of a page: none lies across two, so that each is one read."""
        return max(1, PAGE_BYTES // self.record_bytes)

    @property
    def page_bytes(self) -> int:
        """Bytes of a page of records."""
        return -(-self.record_bytes // PAGE_BYTES) * PAGE_BYTES

    def record_offsets(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where records of these numbers begin: [n]."""
        pages, within = np.divmod(numbers, self.records_per_page)
        return pages * self.page_bytes + within * self.record_bytes
