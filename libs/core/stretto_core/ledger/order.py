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
        self._keys = tuple(_mix(root + 0x9E3779B97F4A7C15 * (index + 1) & _MASK_64) for index in range(_ROUNDS))

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
        """Six rounds; the halves differ by a bit at most, and each is masked with its own width, in turns."""
        right_bits = self._right_bits
        left, right = value >> right_bits, value & self._right_mask
        left_mask, right_mask = self._left_mask, self._right_mask
        key_0, key_1, key_2, key_3, key_4, key_5 = self._keys
        left ^= _mix(right + key_0 & _MASK_64) & left_mask
        right ^= _mix(left + key_1 & _MASK_64) & right_mask
        left ^= _mix(right + key_2 & _MASK_64) & left_mask
        right ^= _mix(left + key_3 & _MASK_64) & right_mask
        left ^= _mix(right + key_4 & _MASK_64) & left_mask
        right ^= _mix(left + key_5 & _MASK_64) & right_mask
        return left << right_bits | right
