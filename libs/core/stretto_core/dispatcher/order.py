"""A seeded order of blocks that needs no list: position -> block in constant time and memory.

A Feistel network permutes the smallest power of two that holds all blocks; positions that land outside are
encrypted again until they land inside (cycle walking: Black and Rogaway, "Ciphers with arbitrary finite domains",
CT-RSA 2002). Fewer than two walks are needed on average, whatever the size of the dataset.
"""

from __future__ import annotations

_MASK_64 = (1 << 64) - 1
_ROUNDS = 6


def _mix(value: int) -> int:
    """The finaliser of splitmix64: every input bit reaches every output bit."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return value ^ (value >> 31)


def mixed(seed: int, number: int) -> int:
    """64 bits that look random, from two numbers."""
    return _mix(_mix(seed & _MASK_64) + number & _MASK_64)


class BlockOrder:
    """The order of ``blocks`` blocks in one epoch: a bijection of range(blocks), the identity without shuffle."""

    __slots__ = ("_keys", "_left_bits", "_left_mask", "_right_bits", "_right_mask", "blocks", "shuffle")

    def __init__(self, blocks: int, seed: int, epoch: int, shuffle: bool = True) -> None:
        self.blocks = blocks
        self.shuffle = shuffle and blocks > 1
        bits = max(2, (blocks - 1).bit_length())
        self._left_bits = bits // 2
        self._right_bits = bits - self._left_bits
        self._left_mask = (1 << self._left_bits) - 1
        self._right_mask = (1 << self._right_bits) - 1
        root = _mix(_mix(seed & _MASK_64) + 0x9E3779B97F4A7C15 * (epoch + 1) & _MASK_64)
        keys = [_mix(root + 0x9E3779B97F4A7C15 * (index + 1) & _MASK_64) for index in range(_ROUNDS)]
        self._keys = tuple(zip(keys[::2], keys[1::2], strict=True))

    def block_at(self, position: int) -> int:
        """The block that comes at ``position``. IndexError outside 0 … blocks - 1."""
        if not 0 <= position < self.blocks:
            raise IndexError(f"position {position} of an order of {self.blocks} blocks")
        if not self.shuffle:
            return position
        block = self._encrypt(position)
        while block >= self.blocks:
            block = self._encrypt(block)
        return block

    def _encrypt(self, value: int) -> int:
        """Six rounds, two by two; the halves differ by a bit at most, and each is masked with its own width.

        ``_mix`` is written out: this is done for every lease.
        """
        right_bits, left_mask, right_mask = self._right_bits, self._left_mask, self._right_mask
        left, right = value >> right_bits, value & right_mask
        for key, other in self._keys:
            mixed = right + key & _MASK_64
            mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK_64
            mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK_64
            left ^= (mixed ^ mixed >> 31) & left_mask
            mixed = left + other & _MASK_64
            mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK_64
            mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK_64
            right ^= (mixed ^ mixed >> 31) & right_mask
        return left << right_bits | right
