"""Negatives: draws follow Q and nothing but a sample's number; the corrected softmax stands for that over all items."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stretto import DataError
from stretto.negatives import Popularity, softmax_loss

COUNTS = {3: 1, 5: 7, 10**15: 2, 10**15 + 1: 4}
ITEMS = np.array(sorted(COUNTS))
SEEN = np.repeat(ITEMS, [COUNTS[item] for item in ITEMS])
"""Each item as often as it was counted: a batch of just its expectation."""


@pytest.mark.parametrize("power", [0.0, 0.75, 1.0])
def test_items_are_drawn_by_their_popularity_and_the_sum_over_all_items_is_not_biased(power: float):
    popularity = Popularity.of([SEEN[:5], SEEN[5:]], power)
    drawn = popularity.draw(0, 40_000, 5, seed=3)
    weights = np.array([COUNTS[item] for item in ITEMS]) ** power
    q = weights / weights.sum()
    assert np.allclose(np.exp(popularity.log_q(ITEMS)), q)
    assert np.allclose([(drawn == item).mean() for item in ITEMS], q, atol=0.005)
    scores = dict(zip(ITEMS.tolist(), [0.3, -1.0, 1.2, 0.1], strict=True))
    terms = np.exp(np.vectorize(scores.get)(drawn) - popularity.log_q(drawn))
    assert terms.mean() == pytest.approx(np.exp(list(scores.values())).sum(), rel=0.02)


@given(start=st.integers(0, 2**40), cut=st.integers(0, 20), each=st.integers(1, 9))
def test_a_sample_has_the_same_items_in_whatever_batch_it_is_read(start: int, cut: int, each: int):
    popularity = Popularity.of([SEEN])
    whole = popularity.draw(start, 20, each)
    assert whole.shape == (20, each)
    parts = [popularity.draw(start, cut, each), popularity.draw(start + cut, 20 - cut, each)]
    assert np.array_equal(np.concatenate(parts), whole)


def test_popularity_is_kept_in_a_file_and_an_item_that_nobody_counted_is_rare(tmp_path: Path):
    Popularity.of([SEEN]).save(tmp_path / "items.npz")
    again = Popularity.load(tmp_path / "items.npz")
    assert np.allclose(again.log_q(np.array([[5, 3], [4, 2**62]])), np.log([[7, 1], [1, 1]]) - np.log(14))
    (tmp_path / "other").write_text("counts")
    with pytest.raises(DataError, match=r"other is no popularity: .*write it by Popularity\.of"):
        Popularity.load(tmp_path / "other")
    with pytest.raises(DataError, match="distinct and rising"):
        Popularity.of([])


def check_the_corrected_softmax(tensor: Any):
    """The loss of the batch of expectation is the full softmax's, but for what no parameter changes; hits are none."""
    towers = np.random.default_rng(0).normal(size=(len(SEEN), len(ITEMS)))  # scores of each sample with each item
    own = np.searchsorted(ITEMS, SEEN)
    log_q = Popularity.of([SEEN]).log_q(SEEN)
    full = np.log(np.exp(towers).sum(1)) - towers[np.arange(len(SEEN)), own]
    loss = softmax_loss(tensor(towers[:, own]), tensor(log_q.astype(np.float64)))
    assert np.allclose(loss, full + log_q + np.log(len(SEEN)), atol=1e-5)
    # the first sample, 3, alone with drawn ones, of which two are 3 by chance
    drawn, chance = np.array([5, 3, 3, 10**15]), np.log([0.1, 0.2, 0.2, 0.5])
    scores = np.array([[1.0, 2.0, 1.0, 1.0, 3.0]])
    loss = softmax_loss(
        tensor(scores), tensor(np.concatenate([log_q[:1], chance])), tensor(np.concatenate([SEEN[:1], drawn]))
    )
    kept = scores[0, [0, 1, 4]] - [log_q[0], chance[0], chance[3]]
    assert np.allclose(loss, [np.log(np.exp(kept).sum()) - kept[0]], atol=1e-5)


def test_the_corrected_softmax_stands_for_that_over_all_items(run_warm: Any):
    run_warm(f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import tensorflow as tf
from test_negatives import check_the_corrected_softmax
check_the_corrected_softmax(tf.constant)
""")


def test_the_corrected_softmax_of_pytorch_is_the_same():
    torch = pytest.importorskip("torch")
    check_the_corrected_softmax(torch.from_numpy)
