"""Sights of keys without a row: never too few, seldom too many, the same after a copy; and rows that expire."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stretto_parameters import InputRefused, Layout, RowPolicy, Table
from stretto_parameters.checksums import MULTIPLIER, split_mix
from stretto_parameters.policy.admission import DEPTH, FIRST_WIDTH, Admission
from stretto_parameters.policy.expiry import Expiry

BUCKETS, SHIFT = 4, 62


def keys_of(numbers: np.ndarray) -> np.ndarray:
    """Return different keys that look random, one for each number."""
    return split_mix(numbers.astype(np.uint64) * np.uint64(MULTIPLIER))


@pytest.mark.parametrize("admit", [2, 3])
def test_a_key_is_admitted_at_its_nth_sight_at_the_latest_and_seldom_earlier(admit: int) -> None:
    """Method: 100,000 keys, most of them seen once or twice, so that each bucket goes through five sketches."""
    random = np.random.default_rng(admit)
    admission = Admission(admit, 7, BUCKETS, SHIFT)
    seen, has_row, early = np.zeros(100_000, np.int64), np.zeros(100_000, np.bool_), 0
    for push in range(50):
        numbers = np.unique(np.append(random.integers(0, 2000 * (push + 1), 3000), np.arange(2000) + 2000 * push))
        numbers = numbers[~has_row[numbers]]
        keys = keys_of(numbers)
        sights = admission.sights(keys)
        assert (sights >= seen[numbers]).all()
        admission.count(keys, sights)
        seen[numbers] += 1
        admitted = admission.admits(sights)
        assert admitted[seen[numbers] >= admit].all()
        early += int((seen[numbers[admitted]] < admit).sum())
        has_row[numbers[admitted]] = True
    assert early < 0.03 * len(seen)
    assert abs(admission.without_row.sum() - (~has_row).sum()) < 0.06 * len(seen)
    assert admission.kept_out.sum() == (seen - has_row).sum(), "all sights but those that made a row"


@given(st.lists(st.lists(st.integers(0, 3000), max_size=40, unique=True), max_size=6), st.integers(0, 3000))
def test_a_copy_of_a_bucket_counts_on_as_the_bucket_does(pushes: list[list[int]], first: int) -> None:
    ours, copy = (Admission(5, 7, BUCKETS, SHIFT) for _ in range(2))
    many = keys_of(np.arange(first * 3))
    ours.count(many, ours.sights(many))
    for push in pushes:
        keys = keys_of(np.array(push, np.int64))
        ours.count(keys, ours.sights(keys))
    for bucket in range(BUCKETS):
        assert copy.load(bucket, np.append(ours.export(bucket), np.uint8(3))).tolist() == [3], "what follows it"
        assert copy.export(bucket).tobytes() == ours.export(bucket).tobytes()
        assert copy.used_bytes(bucket) == len(ours.export(bucket)) - 24
    assert copy.sights(many).tolist() == ours.sights(many).tolist()
    copy.clear(1)
    assert copy.used_bytes(1) == 0
    assert copy.sights(many)[many >> np.uint64(SHIFT) == 1].sum() == 0
    with pytest.raises(InputRefused, match="sights of bucket 1: 4 bytes are not"):
        copy.load(1, np.zeros(4, np.uint8))
    with pytest.raises(InputRefused, match="of 9 keys"):
        copy.load(1, np.array([9, 0, 0], np.int64).view(np.uint8))


def test_a_key_takes_some_ten_bytes_until_its_row() -> None:
    admission = Admission(2, 7, BUCKETS, SHIFT)
    assert sum(map(admission.used_bytes, range(BUCKETS))) == 0
    keys = keys_of(np.arange(5000))
    admission.count(keys, admission.sights(keys))
    assert admission.used_bytes(0) == DEPTH * FIRST_WIDTH
    keys = keys_of(np.arange(5000, 100_000))
    for begin in range(0, len(keys), 5000):
        chosen = keys[begin : begin + 5000]
        admission.count(chosen, admission.sights(chosen))
    assert 10 < sum(map(admission.used_bytes, range(BUCKETS))) / 100_000 < 35


@given(
    st.integers(8, 300), st.integers(0, 3), st.lists(st.integers(1, 300), min_size=1, max_size=12), st.integers(0, 11)
)
def test_a_row_goes_after_its_life_and_before_a_quarter_more(life: int, bucket: int, gains: list[int], at: int) -> None:
    """The row changes with the push `at`, and no more; pushes have `gains` samples, none more than a life."""
    expiry = Expiry(life, 4)
    samples = np.cumsum([min(gain, life) for gain in gains])
    changed = int(samples[min(at, len(samples) - 1)])
    stamp = expiry.stamps(np.array([changed])).astype(np.uint8)
    gone = False
    for before, now in zip(np.append(0, samples[:-1]).tolist(), samples.tolist(), strict=True):
        if now <= changed or gone:
            continue
        if expiry.is_due(np.full(4, before), np.full(4, now))[bucket]:
            gone = bool(expiry.expired(bucket, stamp, now, now)[0])
        assert not gone or now - changed > life
        assert gone or now - changed <= life + life // 8 * 2


def test_a_layout_without_a_policy_is_written_as_ever() -> None:
    plain = Layout((Table(4),), 3, 4, 2)
    assert "rows" not in plain.to_dict()
    policy = Layout((Table(4),), 3, 4, 2, rows=RowPolicy(3, 1000))
    assert Layout.from_dict(policy.to_dict()) == policy != plain
    assert not plain.agrees(policy)
    for wrong in ({"admit": 0}, {"admit": 101}, {"expire_samples": -1}):
        with pytest.raises(InputRefused, match=f"{next(iter(wrong))} = .* of rows must be between"):
            RowPolicy(**wrong)
