"""The order of blocks is a seeded bijection that looks random and needs no memory."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stretto_core.dispatcher.order import BlockOrder


@given(blocks=st.integers(1, 3000), seed=st.integers(0, 2**63 - 1), epoch=st.integers(0, 100))
def test_every_block_comes_once(blocks: int, seed: int, epoch: int) -> None:
    order = BlockOrder(blocks, seed, epoch)
    assert sorted(order.block_at(position) for position in range(blocks)) == list(range(blocks))


def test_order_depends_on_seed_and_epoch_alone() -> None:
    def first(seed: int, epoch: int) -> list[int]:
        return [BlockOrder(1000, seed, epoch).block_at(position) for position in range(1000)]

    assert first(7, 0) == first(7, 0)
    assert first(7, 0) != first(7, 1)
    assert first(7, 0) != first(8, 0)


def test_without_shuffle_blocks_come_in_their_own_order() -> None:
    assert [BlockOrder(9, 3, 1, shuffle=False).block_at(position) for position in range(9)] == list(range(9))


def test_blocks_spread_evenly_over_positions() -> None:
    """Where block 0 lands over 4,000 seeds, in 20 equal cells: chi-square with 19 degrees of freedom."""
    blocks, seeds, cells = 1000, 4000, 20
    counts = [0] * cells
    for seed in range(seeds):
        counts[BlockOrder(blocks, seed, 0).block_at(17) * cells // blocks] += 1
    expected = seeds / cells
    assert sum((count - expected) ** 2 / expected for count in counts) < 43.8  # p = 0.001


def test_neighbours_do_not_stay_neighbours() -> None:
    order = BlockOrder(5000, 1, 0)
    blocks = [order.block_at(position) for position in range(5000)]
    steps = sum(second - first == 1 for first, second in pairwise(blocks))
    assert steps <= 8  # a random permutation has 1 on average


def test_a_dataset_of_any_size_costs_no_memory() -> None:
    order = BlockOrder(10**12 + 7, 5, 0)
    assert all(0 <= order.block_at(position) < 10**12 + 7 for position in range(0, 10**12, 10**10))
    assert math.isclose(sum(order.block_at(p) for p in range(1000)) / 1000, 5e11, rel_tol=0.1)


def test_a_position_outside_is_refused() -> None:
    with pytest.raises(IndexError, match="position 5 of an order of 5 blocks"):
        BlockOrder(5, 0, 0).block_at(5)
