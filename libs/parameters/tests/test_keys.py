"""Keys as they are stored, and the dense vector in slices."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stretto_parameters import InputRefused, Layout, Table, keys
from stretto_parameters.layout import RowFormat
from stretto_parameters.reference import initial_weights

int64 = st.integers(-(2**63), 2**63 - 1)
LAYOUT = Layout((Table(4),), 100, 64, 12)


@given(st.lists(int64, min_size=1, max_size=50))
def test_storing_is_a_bijection(given_keys: list[int]) -> None:
    array = np.array(given_keys, np.int64)
    assert (keys.restore(keys.store(array)) == array).all()


@given(st.lists(int64, max_size=200), st.sampled_from([2, 16, 64, 1024]))
def test_index_groups_unique_keys_by_bucket_and_inverts(ids: list[int], buckets: int) -> None:
    (batch,) = Layout((Table(4),), 10, buckets, 1).index(np.array(ids, np.int64)).tables
    assert batch.counts.sum() == len(batch) == len(set(ids))
    top_bits = batch.stored >> np.uint64(64 - buckets.bit_length() + 1)
    assert (np.repeat(np.arange(buckets), batch.counts) == top_bits).all()
    assert (keys.restore(batch.stored)[batch.inverse] == np.array(ids, np.int64)).all()


def test_index_keeps_the_shape_of_the_ids_and_wants_those_of_every_table() -> None:
    layout = Layout((Table(4), Table(8)), 100, 64, 12)
    batch = layout.index(np.arange(12).reshape(3, 4), np.arange(3))
    assert [table.inverse.shape for table in batch.tables] == [(3, 4), (3,)]
    assert len(batch) == 15
    with pytest.raises(InputRefused, match="ids of 1 tables were given, the layout has 2"):
        layout.index(np.arange(3))


def test_small_consecutive_keys_and_field_tagged_keys_fill_the_buckets_evenly() -> None:
    for ids in (np.arange(64_000), (np.arange(26)[:, None] << 48 | np.arange(2_500)[None]).reshape(-1)):
        (batch,) = LAYOUT.index(ids).tables
        assert batch.counts.min() > 0.7 * batch.counts.mean()
        low_bits = batch.stored & np.uint64(0xFFFF)
        assert len(np.unique(low_bits)) > 0.5 * 2**16


def test_initial_weights_depend_on_key_and_seed_only_and_are_uniform() -> None:
    stored = LAYOUT.index(np.arange(20_000)).tables[0].stored
    form = RowFormat.of_table(LAYOUT.tables[0])
    rows = initial_weights(form, stored)
    assert (rows == initial_weights(form, stored[::-1])[::-1]).all()
    assert not (rows == initial_weights(RowFormat.of_table(Table(4, seed=1)), stored)).any(axis=1).any()
    assert abs(rows).max() <= 0.05
    assert abs(rows.mean(axis=0)).max() < 0.001
    assert rows.std() == pytest.approx(0.05 / 3**0.5, rel=0.02)
    assert abs(np.corrcoef(rows.T) - np.eye(4)).max() < 0.03


def test_initial_weights_can_be_normal() -> None:
    """Mean, deviation, and the shares beyond one and two deviations are those of the normal distribution."""
    stored = LAYOUT.index(np.arange(50_000)).tables[0].stored
    rows = initial_weights(RowFormat.of_table(Table(4, initial_scale=0.5, distribution="normal")), stored)
    assert abs(rows.mean(axis=0)).max() < 0.01
    assert rows.std() == pytest.approx(0.5, rel=0.01)
    assert abs(np.corrcoef(rows.T) - np.eye(4)).max() < 0.02
    for deviations, share in ((1, 0.3173), (2, 0.0455)):
        assert (abs(rows) > deviations * 0.5).mean() == pytest.approx(share, abs=0.01)


@given(st.integers(0, 1000), st.integers(1, 20))
def test_dense_vector_survives_slicing(size: int, slices: int) -> None:
    layout = Layout((), size, 2, slices)
    vector = np.arange(size, dtype=np.float32)
    assert (layout.join_dense(layout.split_dense(vector)) == vector).all()
    with pytest.raises(InputRefused, match="the layout wants"):
        layout.split_dense(np.zeros(size + 1, np.float32))
