"""The two checksums of parameters: of the bytes of a block, and of (key, row) pairs in any order."""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]

MULTIPLIER = 0x9E3779B97F4A7C15
"""2^64 / golden ratio, odd (Knuth, TAOCP 6.4)."""
PIECE_BYTES = 2**17
_INVERSE = np.uint64(pow(MULTIPLIER, -1, 2**64))


def split_mix(z: U64) -> U64:
    """Mix in place, as SplitMix64 does (Steele et al. 2014)."""
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    return z


WEIGHTS: U64 = np.uint64(1) | split_mix(np.uint64(MULTIPLIER) * np.arange(1, PIECE_BYTES // 8 + 1, dtype=np.uint64))
"""The odd weights of the words of a piece."""


class BlockChecksum:
    """The 64-bit multilinear hash of the bytes of a block (Lemire and Kaser, The Computer Journal 57, 2014).

    The pieces p = 1..n have PIECE_BYTES (the last one is filled up with zeros), words x and fixed odd weights w:
    h_p = h_{p-1} m + sum_i w_i x_i mod 2^64; the number of bytes comes last, like a piece. As weights are odd, every
    change of a single word shows; any other passes with a probability of about 2^-64.
    """

    def __init__(self) -> None:
        self._hash = 0
        self._bytes = 0

    def update(self, data: memoryview | bytes | NDArray[np.uint8]) -> None:
        """Add the next bytes: whole pieces of PIECE_BYTES, except in the last call."""
        view = memoryview(cast("bytes", data))
        whole = view.nbytes // PIECE_BYTES * PIECE_BYTES
        words = np.frombuffer(view, np.uint64, whole // 8)
        for begin in range(0, len(words), len(WEIGHTS)):
            self._add(int(np.einsum("i,i->", words[begin : begin + len(WEIGHTS)], WEIGHTS)))
        if rest := bytes(view[whole:]):
            words = np.frombuffer(rest + bytes(-len(rest) % 8), np.uint64)
            self._add(int(np.einsum("i,i->", words, WEIGHTS[: len(words)])))
        self._bytes += view.nbytes

    def _add(self, value: int) -> None:
        self._hash = (self._hash * MULTIPLIER + value) % 2**64

    def value(self) -> int:
        """Return the checksum of all bytes so far."""
        return (self._hash * MULTIPLIER + self._bytes) % 2**64


def of_block(data: NDArray[np.uint8]) -> int:
    """Return the checksum of the bytes of a block."""
    checksum = BlockChecksum()
    checksum.update(data)
    return checksum.value()


def of_rows(keys: U64, rows: NDArray[np.float32]) -> int:
    """Return an order-free checksum of (key, row) pairs: the sum modulo 2^64 of a hash of each pair.

    Equal pairs give the same sum wherever they lie; sums of disjoint sets add up.
    """
    words = np.ascontiguousarray(rows).view(np.uint32).astype(np.uint64)
    weights = np.arange(1, words.shape[1] + 1, dtype=np.uint64) * np.uint64(MULTIPLIER)
    mixed = (words * (weights | np.uint64(1))[None, :]).sum(axis=1, dtype=np.uint64)
    mixed ^= keys * _INVERSE
    mixed ^= mixed >> np.uint64(31)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(29)
    return int(mixed.sum(dtype=np.uint64))


def of_records(keys: U64, rows: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Return the checksum of each (key, row), as the log has it: [n]."""
    words = np.ascontiguousarray(rows).view(np.uint32).astype(np.uint64)
    weights = np.arange(1, words.shape[1] + 1, dtype=np.uint64) * np.uint64(MULTIPLIER)
    sums = (words * (weights | np.uint64(1))[None, :]).sum(axis=1, dtype=np.uint64)
    return (split_mix(sums ^ keys * np.uint64(MULTIPLIER)) >> np.uint64(32)).astype(np.uint32)
