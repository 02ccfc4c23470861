"""The layout of a model's parameters: where a key, a row and a dense parameter live. Pure NumPy, no TensorFlow.

The state of a model is cut into *columns*: ``buckets`` embedding buckets (each one hash table) followed by
``slices`` dense slices. A column is the unit of ownership, of migration and of progress records.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from stretto_messages.values import BUCKETS, SLICES

from ..errors import LayoutError

I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]
F32 = NDArray[np.float32]
Bools = NDArray[np.bool_]

# 2^64 / golden ratio, odd: consecutive keys land far apart in the top bits (Knuth, TAOCP 6.4, Fibonacci hashing).
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_INVERSE = np.uint64(pow(0x9E3779B97F4A7C15, -1, 2**64))
_HALF = np.uint64(32)
_LESS = np.uint64(29)

# The two stored values that a DenseHashTable reserves for "empty" and "deleted".
EMPTY_STORED = np.int64(-(2**63))
DELETED_STORED = np.int64(-(2**63) + 1)


@dataclass(frozen=True, slots=True)
class Optimizer:
    """The update that parameter servers apply to rows and to dense slices.

    Adagrad (Duchi et al. 2011): a += g^2; w -= lr * g / (sqrt(a) + epsilon).
    Adam (Kingma & Ba 2015) as in Keras, its step count t kept per row and per dense slice.
    """

    kind: Literal["adagrad", "adam"] = "adagrad"
    learning_rate: float = 0.05
    initial_accumulator: float = 0.1
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7

    def __post_init__(self) -> None:
        if self.kind not in ("adagrad", "adam"):
            raise LayoutError(f"optimizer kind {self.kind!r} is not supported; use 'adagrad' or 'adam'")
        if not self.learning_rate > 0:
            raise LayoutError(f"learning_rate {self.learning_rate} must be positive")

    def row_floats(self, dimension: int) -> int:
        """Return the floats per embedding row, slots included: Adagrad [w|a], Adam [w|m|v|t]."""
        return 2 * dimension if self.kind == "adagrad" else 3 * dimension + 1


@dataclass(frozen=True, slots=True)
class KeyBatch:
    """The unique keys of one batch, in stored order (hence grouped by bucket).

    stored [n] int64: stored keys, ascending as unsigned. counts [buckets]: keys per bucket.
    inverse: shape of the ids given, so that rows[inverse] are the rows of the ids.
    """

    stored: I64
    inverse: I64
    counts: I64

    def __len__(self) -> int:
        return len(self.stored)


@dataclass(frozen=True, slots=True)
class Layout:
    """The shape of a model's parameters; the same value in every worker and parameter server of a job.

    dimension: floats per embedding row. dense_size: length of the flat trainable dense vector.
    state_size: length of the flat non-trainable one (BatchNorm moments), which travels with the first dense slice.
    initial_scale: rows start uniform in +-initial_scale.
    """

    dimension: int
    dense_size: int
    state_size: int = 0
    optimizer: Optimizer = field(default_factory=Optimizer)
    seed: int = 0
    initial_scale: float = 0.05
    buckets: int = BUCKETS
    slices: int = SLICES

    def __post_init__(self) -> None:
        if self.dimension < 1:
            raise LayoutError(f"dimension {self.dimension} must be at least 1")
        if self.dense_size < 0 or self.state_size < 0:
            raise LayoutError(f"dense_size {self.dense_size} and state_size {self.state_size} must not be negative")
        if not 2 <= self.buckets <= 4096 or self.buckets & (self.buckets - 1):
            raise LayoutError(f"buckets {self.buckets} must be a power of two between 2 and 4096")
        if self.slices < 1:
            raise LayoutError(f"slices {self.slices} must be at least 1: every push is accounted by a dense slice")

    # --- shapes -------------------------------------------------------------------------------------------

    @property
    def columns(self) -> int:
        return self.buckets + self.slices

    @property
    def row_floats(self) -> int:
        return self.optimizer.row_floats(self.dimension)

    @property
    def slice_length(self) -> int:
        """Floats per dense slice; the last slice is padded with zeros."""
        return max(1, -(-self.dense_size // self.slices))

    @property
    def row_bytes(self) -> int:
        """Bytes of one category: row and stored key, without the table's empty slots."""
        return 4 * self.row_floats + 8

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Layout:
        try:
            fields: dict[str, Any] = {**data, "optimizer": Optimizer(**data["optimizer"])}
            return Layout(**fields)
        except (TypeError, KeyError) as error:
            raise LayoutError(f"layout {data!r} is not one of this version: {error}") from error

    # --- keys ---------------------------------------------------------------------------------------------

    def store(self, keys: NDArray[np.integer[Any]]) -> U64:
        """Map keys to stored keys: a bijection of 64-bit integers whose top bits are the bucket.

        The tables probe by the low bits. Keys often carry a field number in their high bits, and a multiplication
        alone would never move it to the low ones: hence an xor-shift before and after it.
        """
        mixed = keys.astype(np.int64, copy=False).view(np.uint64)
        mixed = (mixed ^ (mixed >> _HALF)) * _MULTIPLIER
        return mixed ^ (mixed >> _LESS)

    def restore(self, stored: NDArray[Any]) -> I64:
        """Invert `store`."""
        unsigned = stored.view(np.uint64)
        mixed = (unsigned ^ (unsigned >> _LESS) ^ (unsigned >> (_LESS + _LESS))) * _INVERSE
        return (mixed ^ (mixed >> _HALF)).view(np.int64)

    def index(self, keys: NDArray[np.integer[Any]]) -> KeyBatch:
        """Return the unique stored keys of a batch of ids (any shape), grouped by bucket.

        Raises LayoutError for the two reserved keys (a hash table needs them as marks).
        """
        flat = np.ascontiguousarray(keys, dtype=np.int64).reshape(-1)
        unique, inverse = np.unique(self.store(flat), return_inverse=True)
        stored = unique.view(np.int64)
        reserved = np.isin(np.array([EMPTY_STORED, DELETED_STORED]), stored)
        if reserved.any():
            bad = self.restore(np.array([EMPTY_STORED, DELETED_STORED])[reserved])
            raise LayoutError(f"key {int(bad[0])} is reserved; map it to any other 64-bit value")
        counts = np.diff(np.append(np.searchsorted(unique, self._starts()), len(unique)))
        return KeyBatch(stored, inverse.reshape(np.shape(keys)), counts.astype(np.int64))

    def _starts(self) -> U64:
        shift = np.uint64(64 - (self.buckets.bit_length() - 1))
        return np.arange(self.buckets, dtype=np.uint64) << shift

    def initial_rows(self, stored: I64) -> F32:
        """Return the values of keys before their first update: [n, dimension], a function of key and seed only.

        SplitMix64 (Steele et al. 2014) of stored key + element number, top 24 bits as a uniform float.
        """
        steps = (np.arange(1, self.dimension + 1, dtype=np.uint64) + np.uint64(self.seed & 0xFFFFFFFF)) * _MULTIPLIER
        z = stored.view(np.uint64)[:, None] + steps[None, :]
        z = _split_mix(z) >> np.uint64(40)
        return z.astype(np.float32) * np.float32(2.0**-23 * self.initial_scale) - np.float32(self.initial_scale)

    # --- dense vector -------------------------------------------------------------------------------------

    def split_dense(self, dense: F32) -> F32:
        """Cut the dense vector [dense_size] into [slices, slice_length], padded with zeros."""
        if dense.shape != (self.dense_size,):
            raise LayoutError(f"dense vector has shape {dense.shape}, the layout wants ({self.dense_size},)")
        padded = np.empty(self.slices * self.slice_length, np.float32)
        padded[: self.dense_size] = dense
        padded[self.dense_size :] = 0.0
        return padded.reshape(self.slices, self.slice_length)

    def join_dense(self, parts: F32) -> F32:
        """Join slices [slices, slice_length] to the dense vector [dense_size]."""
        return parts.reshape(-1)[: self.dense_size]


def checksum(keys: I64, rows: F32) -> int:
    """Return an order-free checksum of (key, row) pairs: the sum modulo 2^64 of a hash of each pair.

    Two tables with the same pairs, in whatever slots or on whatever servers, have the same sum; sums of
    disjoint tables add up.
    """
    if not len(keys):
        return 0
    words = np.ascontiguousarray(rows, dtype=np.float32).view(np.uint32).astype(np.uint64)
    weights = np.arange(1, words.shape[1] + 1, dtype=np.uint64) * _MULTIPLIER
    with np.errstate(over="ignore"):
        mixed = (words * (weights | np.uint64(1))[None, :]).sum(axis=1, dtype=np.uint64)
        mixed ^= keys.view(np.uint64) * _INVERSE
        mixed ^= mixed >> np.uint64(31)
        mixed *= np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(29)
        return int(mixed.sum(dtype=np.uint64))


class BlockChecksum:
    """The 64-bit checksum of a block of a checkpoint: a multilinear hash of its words, as fast as memory is read.

    The pieces p = 1..n have PIECE_BYTES (the last one is filled up with zeros), words x and fixed odd weights w:
    h_p = h_{p-1} m + sum_i w_i x_i mod 2^64. The number of bytes is added last, as if it were a piece (Lemire and
    Kaser, "Strongly universal string hashing is fast", The Computer Journal 57, 2014). Because weights are odd, every
    change of a single word shows. Any other change, truncation and reordering included, passes with a probability of
    about 2^-64.
    """

    PIECE_BYTES = 2**17

    def __init__(self) -> None:
        self._hash = 0
        self._bytes = 0

    def update(self, data: memoryview | bytes) -> None:
        """Add the next bytes: whole pieces of PIECE_BYTES, except in the last call."""
        size = self.PIECE_BYTES
        whole = len(data) // size * size
        words = np.frombuffer(data, np.uint64, whole // 8)
        for begin in range(0, len(words), len(_WEIGHTS)):
            self._add(int(np.einsum("i,i->", words[begin : begin + len(_WEIGHTS)], _WEIGHTS)))
        if rest := bytes(data[whole:]):
            words = np.frombuffer(rest + bytes(-len(rest) % 8), np.uint64)
            self._add(int(np.einsum("i,i->", words, _WEIGHTS[: len(words)])))
        self._bytes += len(data)

    def _add(self, value: int) -> None:
        self._hash = (self._hash * int(_MULTIPLIER) + value) % 2**64

    def value(self) -> int:
        return (self._hash * int(_MULTIPLIER) + self._bytes) % 2**64


def _split_mix(z: U64) -> U64:
    """Mix in place, as SplitMix64 does (Steele et al. 2014)."""
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    return z


_WEIGHTS: U64 = np.uint64(1) | _split_mix(
    _MULTIPLIER * np.arange(1, BlockChecksum.PIECE_BYTES // 8 + 1, dtype=np.uint64)
)


def block_checksum(data: memoryview | bytes) -> int:
    """Return the BlockChecksum of raw bytes."""
    checksum = BlockChecksum()
    checksum.update(data)
    return checksum.value()
