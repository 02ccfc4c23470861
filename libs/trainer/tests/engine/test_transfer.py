"""The types in which values travel: what arrives of them, and what rounding leaves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from stretto.engine.layout import one_table
from stretto.engine.transfer import (
    EXACT,
    Debt,
    Transfer,
    Transfers,
    Wire,
    received,
    received_keys,
    sent,
    sent_keys,
)
from stretto_parameters import InputRefused

WIDTHS = st.sampled_from([1, 3, 16, 63, 64, 65, 130])
STEP = {Transfer.FLOAT32: 0.0, Transfer.BFLOAT16: 2**-7, Transfer.INT8: 1 / 126}
"""The most that rounding up or down changes, as a share of the largest value of a block."""
BOOKS = (1, 0)


def values_of(data, n: int = 3) -> np.ndarray:
    width = data.draw(WIDTHS)
    floats = st.floats(-(2.0**100), 2.0**100, width=32) | st.floats(-2, 2, width=32)
    return data.draw(arrays.arrays(np.float32, (n, width), elements=floats))


def most_of_blocks(values: np.ndarray) -> np.ndarray:
    """Return for each value the largest of its block, and what is too small to have a scale."""
    blocks = np.maximum.reduceat(np.abs(values), range(0, values.shape[1], 64), axis=1)
    return np.repeat(blocks, 64, axis=1)[:, : values.shape[1]] + 127 * np.finfo(np.float32).tiny / STEP[Transfer.INT8]


def arrived(values: np.ndarray, transfer: Transfer, chances: np.random.Generator | None = None) -> np.ndarray:
    travelling = np.ascontiguousarray(sent(values, transfer, chances))
    assert travelling.nbytes == len(values) * transfer.row_bytes(values.shape[1])
    return received("values", travelling.reshape(-1).view(np.uint8), transfer, values.shape[1])


@given(st.data(), st.sampled_from(Transfer), st.booleans())
def test_what_arrives_is_within_one_step_of_rounding(data, transfer: Transfer, by_chance: bool) -> None:
    values = values_of(data, data.draw(st.integers(0, 4)))
    found = arrived(values, transfer, np.random.default_rng(0) if by_chance else None)
    share = STEP[transfer] if by_chance else STEP[transfer] / 2
    assert (np.abs(found - values) <= 1.01 * share * most_of_blocks(values)).all()
    assert (arrived(np.zeros_like(values), transfer) == 0).all()


def test_rounding_by_chance_is_right_in_the_mean_and_by_the_same_chances_the_same() -> None:
    values = np.random.default_rng(5).normal(size=(20, 16)).astype(np.float32)
    values[:, 1] = values[:, 0] / 1000  # less than a step: to nearest, it would never arrive
    found = [arrived(values, Transfer.INT8, np.random.default_rng(seed)) for seed in range(2000)]
    step = np.abs(values).max(axis=1, keepdims=True) / 127
    assert (np.abs(np.mean(found, axis=0) - values) < 5 * step / np.sqrt(4 * len(found))).all()
    assert (arrived(values, Transfer.INT8, np.random.default_rng(7)) == found[7]).all()


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_arrives_as_nan_with_its_block_alone(odd: float) -> None:
    values = np.full((2, 128), 127, np.float32)
    values[1, 70] = odd
    found = arrived(values, Transfer.INT8)
    assert np.isnan(found[1, 64:]).all()
    assert (found[0] == 127).all()
    assert (found[1, :64] == 127).all()


@given(st.lists(st.tuples(st.sampled_from(Transfer), st.booleans()), max_size=30), st.integers(0, 2**32))
def test_what_arrived_and_what_is_owed_are_the_sum_of_all_gradients(pushes: list, seed: int) -> None:
    """Whatever the types were, and whichever pushes were refused; after one in float32 nothing is owed."""
    rng, debt = np.random.default_rng(seed), Debt()
    total, there, none = np.zeros((3, 70)), np.zeros((3, 70)), np.zeros((3, 70), np.float32)
    for transfer, is_refused in [*pushes, (Transfer.FLOAT32, False)]:
        gradient = (rng.normal(size=(3, 70)) * 10.0 ** rng.integers(-3, 3)).astype(np.float32)
        whole = debt.added_to(gradient, BOOKS)
        if is_refused:
            continue
        travelling = sent(whole, transfer)
        debt.note(whole, travelling, transfer, BOOKS)
        total += gradient
        there += received("slices", np.ascontiguousarray(travelling), transfer, 70)
        owed = debt.added_to(none, BOOKS)
        assert there + owed == pytest.approx(total, rel=0, abs=1e-3)  # float32 of values up to 500
        assert (np.abs(owed) <= 0.51 * STEP[transfer] * most_of_blocks(whole)).all()
    assert owed is none


def test_servers_of_other_books_are_owed_nothing() -> None:
    """Workers train the samples again whose gradients were rounded."""
    debt, gradient = Debt(), np.linspace(-1, 1, 64, dtype=np.float32)[None]
    debt.note(gradient, sent(gradient, Transfer.INT8), Transfer.INT8, BOOKS)
    assert (debt.added_to(gradient, BOOKS) != gradient).any()
    assert debt.added_to(gradient, (2, 0)) is gradient


@given(st.lists(st.integers(0, 2**64 - 1), max_size=40), st.sampled_from([0, 40, 63]))
def test_packed_keys_are_the_keys(numbers: list[int], shift: int) -> None:
    keys = np.array(sorted({number >> shift for number in numbers}), np.uint64)
    packs = Transfers(packs_keys=True)
    assert received_keys("keys", sent_keys(keys, packs), packs).tolist() == keys.tolist()
    many = np.unique(np.random.default_rng(1).integers(0, 2**64, 3000, np.uint64))
    assert sent_keys(many, packs).nbytes < 7.01 * len(many)
    assert sent_keys(many, EXACT) is many


@pytest.mark.parametrize("part", [b"1", b"\x09" + bytes(8), b"\x00" + bytes(9), b"\x03" + bytes(12)])
def test_keys_that_are_not_packed_are_refused(part: bytes) -> None:
    with pytest.raises(InputRefused, match=r"keys: \d+ bytes are no packed keys of"):
        received_keys("keys", part, Transfers(packs_keys=True))


def test_rows_travel_in_the_narrower_type_of_both_fields() -> None:
    wire = Wire.of("bfloat16", {"push": "int8", "dense_every": 4})
    assert wire == Wire(Transfers(Transfer.BFLOAT16), Transfers(Transfer.INT8, Transfer.INT8, packs_keys=True), 4)
    assert Wire.of("float32", {}) == Wire()


def test_a_step_has_its_share_of_the_bytes_of_a_push_of_several_batches() -> None:
    layout = one_table(16, 380)
    of_step, of_push = (layout.index(np.arange(count)) for count in (100, 250))
    row, dense = 8 + 16 * 4, layout.slices * layout.slice_length * 4
    wire = Wire(dense_every=2, push_every=5)
    assert Wire().step_bytes(layout, of_step) == 2 * (100 * row + dense)
    assert wire.step_bytes(layout, of_step, of_push, 5) == 100 * row + dense / 2 + (250 * row + dense) / 5
