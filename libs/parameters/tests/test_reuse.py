"""Sampled reuse distances against LRU played out."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stretto_parameters.keys import U64, store
from stretto_parameters.tiers import reuse
from stretto_parameters.tiers.reuse import KEYS_MAX, POINTS, ReuseDistances


def reads(batches: Iterable[U64], rows: int) -> float:
    """Return the share of pulls that LRU with `rows` rows in memory reads. A new row is in memory."""
    memory, known = OrderedDict[int, None](), set[int]()
    read = pulled = 0
    for batch in batches:
        for key in batch.tolist():
            pulled += 1
            read += key in known and key not in memory
            memory[key] = None
            memory.move_to_end(key)
            known.add(key)
            if len(memory) > rows:
                memory.popitem(last=False)
    return read / pulled


@given(st.lists(st.sets(st.integers(0, 40), min_size=1, max_size=20), min_size=1, max_size=20), st.integers(0, 2**64))
def test_all_keys_followed_tell_what_lru_reads(batches: list[set[int]], seed: int) -> None:
    followed, pulls = ReuseDistances(seed, share=1), [store(np.array(sorted(batch))) for batch in batches]
    for batch in pulls:
        followed.add(batch)
    rows = len(set().union(*batches))
    played = [reads(pulls, rows * k // POINTS) for k in range(1, POINTS + 1)]
    assert followed.miss_ratios(rows) == pytest.approx(played)


def zipf(seed: int) -> list[U64]:
    """Batches of 2,048 draws by a power law of 100,000 keys."""
    rng = np.random.default_rng(seed)
    chance = 1 / np.arange(1, 100_001) ** 1.05
    draws = rng.choice(100_000, (80, 2048), p=chance / chance.sum())
    return [store(np.unique(batch)) for batch in draws]


@pytest.mark.parametrize(("share", "seed"), [(8, 1), (8, 2), (8, 3), (1, 4)])
def test_a_sample_tells_the_reads_of_a_zipf_stream_within_two_points(
    share: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beginning with all keys, a server follows a smaller share of them once they are too many."""
    monkeypatch.setattr(reuse, "FORGET", 2**62)
    batches, followed = zipf(seed), ReuseDistances(seed, share)
    for batch in batches:
        followed.add(batch)
    assert len(followed._last) <= KEYS_MAX
    rows = len(np.unique(np.concatenate(batches)))
    found = followed.miss_ratios(rows)
    for k in (1, 2, 4, 8):
        assert found[k - 1] == pytest.approx(reads(batches, rows * k // POINTS), abs=0.02)
    assert found[0] > 0.2 > found[7] > found[-1] == 0


def test_rows_that_were_there_before_are_room_that_is_not_needed() -> None:
    followed = ReuseDistances(1, share=1)
    for _ in range(3):
        followed.add(np.arange(100, dtype=np.uint64))
    assert followed.miss_ratios(100)[POINTS // 2] == pytest.approx(2 / 3)
    assert followed.miss_ratios(1600) == (0.0,) * POINTS, "a sixteenth holds all keys that are pulled"
    assert ReuseDistances(1).miss_ratios(10) == ()


def test_rows_that_came_by_a_checkpoint_are_read_although_nobody_saw_their_last_use() -> None:
    """Played: memory has the latest of rows that were used in another order before. New rows count as ever."""
    keys, followed = np.arange(1024, dtype=np.uint64), ReuseDistances(1, share=1)
    before, now = (np.random.default_rng(seed).permutation(keys) for seed in (1, 2))
    for begin in range(0, 1024, 64):
        fresh = followed.add(store(now[begin : begin + 64]))
        assert len(fresh) == 64
        followed.had_rows(64, 1024)
        assert not len(followed.add(store(now[begin : begin + 64]))), "seen before"
    found = followed.miss_ratios(1024)
    for k in (2, 4, 8, 12):
        batches = [*before.reshape(-1, 64), *(batch for batch in now.reshape(-1, 64) for _ in range(2))]
        played = reads(batches, 1024 * k // POINTS) * len(batches) / 32
        assert found[k - 1] == pytest.approx(played, abs=0.02)
    assert found[-1] == 0
    followed.add(store(np.arange(2000, 2064, dtype=np.uint64)))
    assert followed.miss_ratios(1088)[0] < found[0]


def test_the_curve_follows_the_data() -> None:
    """At first a thousand keys in turn, of which a sixteenth is in memory; then fifty of them alone."""
    followed, keys = ReuseDistances(1, share=1), np.arange(1000, dtype=np.uint64)
    for _ in range(4):
        followed.add(keys)
    assert followed.miss_ratios(1000)[0] == pytest.approx(0.75)
    for _ in range(400):
        followed.add(keys[:50])
    assert followed.miss_ratios(1000)[0] < 0.05
