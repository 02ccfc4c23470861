"""The two checksums of parameters: of the bytes of a block, and of (key, row) pairs in any order."""

from __future__ import annotations

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


def of_block(data: NDArray[np.uint8]) -> int:
    """Return the 64-bit multilinear hash of bytes (Lemire and Kaser, The Computer Journal 57, 2014).

    The pieces p = 1..n have PIECE_BYTES (the last one is filled up with zeros), words x and fixed odd weights w:
    h_p = h_{p-1} m + sum_i w_i x_i mod 2^64; the number of bytes comes last, like a piece. As weights are odd, every
    change of a single word shows; any other passes with a probability of about 2^-64.
    """
    value = 0
    for begin in range(0, len(data), PIECE_BYTES):
        piece = data[begin : begin + PIECE_BYTES]
        padded = np.zeros(-(-len(piece) // 8) * 8, np.uint8)
        padded[: len(piece)] = piece
        words = padded.view(np.uint64)
        value = (value * MULTIPLIER + int((words * WEIGHTS[: len(words)]).sum(dtype=np.uint64))) % 2**64
    return (value * MULTIPLIER + len(data)) % 2**64


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
