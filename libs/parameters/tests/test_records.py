"""The judgement of a push, marks of finished shards, fingerprints."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stretto_core.dispatcher.book import fingerprint_of
from stretto_parameters import Code, InputRefused, Own, Progress
from stretto_parameters.records import Marks, Records, fingerprint, judge

MINE, FROZEN, GONE = Own.MINE, Own.FROZEN, Own.NOT_MINE


@pytest.mark.parametrize(
    ("own", "offsets", "stale", "code"),
    [
        ((MINE, MINE, GONE), (10, 10, 0), False, Code.APPLIED),  # the last column is not claimed
        ((MINE, MINE, GONE), (10, 20, 0), False, Code.APPLIED),
        ((MINE, MINE, GONE), (20, 30, 0), False, Code.APPLIED),
        ((MINE, FROZEN, GONE), (10, 10, 0), False, Code.NOT_OWNED),
        ((GONE, MINE, GONE), (0, 15, 0), True, Code.NOT_OWNED),
        ((MINE, MINE, GONE), (0, 15, 0), True, Code.STALE),
        ((MINE, MINE, GONE), (0, 15, 0), False, Code.GAP),
        ((MINE, MINE, GONE), (10, 15, 0), False, Code.MISALIGNED),
    ],
)
def test_the_first_condition_that_fits_is_the_answer(
    own: tuple[Own, ...], offsets: tuple[int, ...], stale: bool, code: Code
) -> None:
    claim = np.array([True, True, False])
    assert judge(claim, np.array(own), np.array(offsets), 10, 20, stale) is code


@given(st.integers(0, 2**62), st.lists(st.integers(1, 1000), min_size=1, max_size=8))
def test_fingerprints_of_batches_add_up_to_that_of_the_ledger(shard: int, lengths: list[int]) -> None:
    total, at = 0, 0
    for length in lengths:
        total += fingerprint(shard, at, at + length)
        at += length
    assert total % 2**64 == fingerprint_of(shard, at) % 2**64


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3000)), st.integers(0, 3000))
def test_marks_are_a_set(shards: list[int], asked: int) -> None:
    marks = Marks()
    marks.update(np.array(shards[::2], np.int64))
    for shard in shards:
        marks.update(np.array([shard], np.int64))
    assert len(marks) == len(set(shards))
    assert marks.array().tolist() == sorted(set(shards))
    assert (asked in marks) == (asked in set(shards))


def test_marks_since_a_number_of_them_are_the_new_ones_or_all() -> None:
    marks = Marks()
    marks.update(np.array([5, 3, 5]))
    marks.update(np.array([3, 9, -7]))
    assert marks.since(2).tolist() == [-7, 9]
    assert marks.since(4).tolist() == []
    assert marks.since(9).tolist() == [-7, 3, 5, 9], "of a set that was begun anew the caller knows nothing"
    marks.update(np.arange(100_000))
    assert marks.since(4).tolist() == marks.array().tolist(), "too many are new to be remembered one by one"
    marks.update(np.array([200_000]))
    assert marks.since(100_001).tolist() == [200_000]


def test_finished_shards_lose_their_records_however_they_are_given() -> None:
    records = Records(3, 2)
    for shard in range(4):
        records.account(shard, 1, 0, 10, np.ones(3, np.bool_))
    records.finish([1])
    records.finish(np.array([1, 3, 4]))
    assert records.progress().shards.tolist() == [0, 2]
    assert records.progress().finished.tolist() == [1, 3, 4]
    assert records.progress(3).finished.tolist() == []
    assert records.progress(1, only_new=True).finished.tolist() == [3, 4]


def test_a_hundred_thousand_finished_shards_cost_little() -> None:
    records = Records(76, 64)
    records.finish(range(100_000))
    assert len(records.finished) == 100_000
    assert records.used_bytes < 100_000


def test_progress_of_another_layout_is_refused() -> None:
    none = np.zeros(0, np.int64)
    given = Progress(none, np.zeros((0, 10), np.int64), none, np.zeros(3, np.int64), np.zeros(3, np.int64))
    with pytest.raises(InputRefused, match=r"records of progress have shape \(0, 10\), wanted \(0, 5\)"):
        Records(3, 2).merge(np.ones(3, np.bool_), given)


def test_progress_of_a_server_without_live_shards_is_merged() -> None:
    records = Records(3, 2)
    records.finish([5])
    other = Records(3, 2)
    other.merge(np.ones(3, np.bool_), records.progress())
    assert other.progress().records.shape == (0, 5)
    assert 5 in other.finished


def test_a_column_that_comes_back_from_an_older_image_forgets_its_earlier_stay() -> None:
    here, image, all_three = Records(3, 2), Records(3, 2), np.ones(3, np.bool_)
    image.account(1, 1, 0, 10, all_three)
    before = image.progress()
    here.merge(all_three, before)
    here.account(2, 1, 0, 10, all_three)  # after the image, and before the columns went elsewhere
    back = np.array([True, False, False])
    here.merge(back, before)
    assert here.of(2)[:3].tolist() == [0, 10, 10]
    assert here.samples.tolist() == [10, 20, 20]
    assert here.fingerprints[0] == before.fingerprints[0]
