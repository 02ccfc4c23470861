import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stretto.engine.layout import (
    DELETED_STORED,
    EMPTY_STORED,
    BlockChecksum,
    Layout,
    Optimizer,
    block_checksum,
    checksum,
)
from stretto.engine.ownership import Own, owners
from stretto.errors import LayoutError
from stretto_core.actuator import placement
from stretto_core.actuator.placement import owner_of

LAYOUT = Layout(dimension=4, dense_size=100)
RESERVED = {int(k) for k in LAYOUT.restore(np.array([EMPTY_STORED, DELETED_STORED]))}
int64 = st.integers(-(2**63), 2**63 - 1).filter(lambda k: k not in RESERVED)


@given(st.lists(int64, min_size=1, max_size=50))
def test_storing_is_a_bijection(keys):
    array = np.array(keys, np.int64)
    assert (LAYOUT.restore(LAYOUT.store(array)) == array).all()


@given(st.lists(int64, max_size=200), st.sampled_from([2, 16, 64, 1024]))
def test_index_groups_unique_keys_by_bucket_and_inverts(keys, buckets):
    layout = Layout(dimension=4, dense_size=10, buckets=buckets)
    batch = layout.index(np.array(keys, np.int64))
    assert batch.counts.sum() == len(batch) == len(set(keys))
    top_bits = batch.stored.view(np.uint64) >> np.uint64(64 - buckets.bit_length() + 1)
    assert (np.repeat(np.arange(buckets), batch.counts) == top_bits).all()
    assert (layout.restore(batch.stored)[batch.inverse] == np.array(keys, np.int64)).all()


def test_index_keeps_the_shape_of_the_ids():
    batch = LAYOUT.index(np.arange(12).reshape(3, 4))
    assert batch.inverse.shape == (3, 4)


@pytest.mark.parametrize("key", sorted(RESERVED))
def test_a_reserved_key_is_refused_by_name(key):
    with pytest.raises(LayoutError, match=str(key)):
        LAYOUT.index(np.array([1, key]))


def test_small_consecutive_keys_and_field_tagged_keys_fill_the_buckets_evenly():
    for keys in (np.arange(64_000), (np.arange(26)[:, None] << 48 | np.arange(2_500)[None]).reshape(-1)):
        counts = LAYOUT.index(keys).counts
        assert counts.min() > 0.7 * counts.mean()
        low_bits = LAYOUT.index(keys).stored & 0xFFFF
        assert len(np.unique(low_bits)) > 0.5 * 2**16  # the tables probe by the low bits


def test_initial_rows_depend_on_key_and_seed_only_and_are_uniform():
    stored = LAYOUT.index(np.arange(20_000)).stored
    rows = LAYOUT.initial_rows(stored)
    assert (rows == LAYOUT.initial_rows(stored[::-1])[::-1]).all()
    assert not (rows == Layout(dimension=4, dense_size=100, seed=1).initial_rows(stored)).any(axis=1).any()
    assert abs(rows).max() <= 0.05
    assert abs(rows.mean(axis=0)).max() < 0.001
    assert rows.std() == pytest.approx(0.05 / 3**0.5, rel=0.02)
    assert abs(np.corrcoef(rows.T) - np.eye(4)).max() < 0.03


@given(st.integers(0, 1000), st.integers(1, 20))
def test_dense_vector_survives_slicing(size, slices):
    layout = Layout(dimension=1, dense_size=size, slices=slices)
    vector = np.arange(size, dtype=np.float32)
    assert (layout.join_dense(layout.split_dense(vector)) == vector).all()


def test_layout_travels_as_json():
    layout = Layout(16, 1000, 3, Optimizer("adam", learning_rate=0.1), seed=4)
    assert Layout.from_dict(json.loads(json.dumps(layout.to_dict()))) == layout
    with pytest.raises(LayoutError):
        Layout.from_dict({"dimension": 3})


@given(st.permutations(range(30)), st.integers(0, 29))
def test_checksum_ignores_order_adds_up_and_sees_each_value(order, cut):
    rng = np.random.default_rng(0)
    keys, rows = rng.integers(0, 2**62, 30), rng.normal(size=(30, 5)).astype(np.float32)
    whole = checksum(keys, rows)
    first, second = order[:cut], order[cut:]
    assert (checksum(keys[first], rows[first]) + checksum(keys[second], rows[second])) % 2**64 == whole
    rows[cut, 2] = np.nextafter(rows[cut, 2], np.float32(9))
    assert checksum(keys, rows) != whole


def test_of_two_claimants_the_new_owner_serves_as_the_actuator_plans():
    frozen, mine = np.array([2, 1, 0, 0]), np.array([1, 0, 2, 0])
    assert owners({5: frozen, 7: mine}, 4).tolist() == [7, 5, 7, -1]
    assert owner_of({5: frozen[:3].tolist(), 7: mine[:3].tolist()}) == [7, 5, 7]
    assert (Own.NOT_MINE, Own.MINE, Own.FROZEN) == (placement.NOT_MINE, placement.MINE, placement.FROZEN)


def test_a_checksum_shows_every_changed_bit_truncation_and_pieces_in_another_order():
    size = BlockChecksum.PIECE_BYTES
    data = np.random.default_rng(3).integers(0, 256, 2 * size + 13, np.uint8).tobytes()
    sums = {block_checksum(data)}
    for position in (0, size - 1, size, 2 * size, 2 * size + 12):
        for bit in range(8):
            changed = bytearray(data)
            changed[position] ^= 1 << bit
            sums.add(block_checksum(bytes(changed)))
    swapped = data[size : 2 * size] + data[:size] + data[2 * size :]
    others = (data[:-1], data + b"\0", data[:size], swapped, b"", bytes(8), bytes(16))
    sums |= {block_checksum(other) for other in others}
    assert len(sums) == 1 + 40 + len(others)
    in_turn = BlockChecksum()
    for begin in range(0, len(data), size):
        in_turn.update(data[begin : begin + size])
    assert in_turn.value() == block_checksum(data)
    assert block_checksum(b"what was written yesterday") == 0x4DB78204ED2F3CC2, "it must be the same in every process"
