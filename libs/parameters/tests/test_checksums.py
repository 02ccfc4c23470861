"""The checksums of blocks and of rows."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from stretto_parameters.checksums import PIECE_BYTES, BlockChecksum, of_block, of_rows


def of(data: bytes) -> int:
    return of_block(np.frombuffer(data, np.uint8))


@given(st.permutations(range(30)), st.integers(0, 29))
def test_checksum_of_rows_ignores_order_adds_up_and_sees_each_value(order: list[int], cut: int) -> None:
    rng = np.random.default_rng(0)
    keys, rows = rng.integers(0, 2**62, 30, dtype=np.uint64), rng.normal(size=(30, 5)).astype(np.float32)
    whole = of_rows(keys, rows)
    first, second = order[:cut], order[cut:]
    assert (of_rows(keys[first], rows[first]) + of_rows(keys[second], rows[second])) % 2**64 == whole
    rows[cut, 2] = np.nextafter(rows[cut, 2], np.float32(9))
    assert of_rows(keys, rows) != whole


def test_a_checksum_shows_every_changed_bit_truncation_and_pieces_in_another_order() -> None:
    size = PIECE_BYTES
    data = np.random.default_rng(3).integers(0, 256, 2 * size + 13, np.uint8).tobytes()
    sums = {of(data)}
    for position in (0, size - 1, size, 2 * size, 2 * size + 12):
        for bit in range(8):
            changed = bytearray(data)
            changed[position] ^= 1 << bit
            sums.add(of(bytes(changed)))
    swapped = data[size : 2 * size] + data[:size] + data[2 * size :]
    others = (data[:-1], data + b"\0", data[:size], swapped, b"", bytes(8), bytes(16))
    sums |= {of(other) for other in others}
    assert len(sums) == 1 + 40 + len(others)
    in_turn = BlockChecksum()
    for begin in range(0, len(data), size):
        in_turn.update(data[begin : begin + size])
    assert in_turn.value() == of(data)
    assert of(b"what was written yesterday") == 0x4DB78204ED2F3CC2, "it must be the same in every process"
