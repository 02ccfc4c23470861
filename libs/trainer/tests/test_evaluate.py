"""Evaluation is exact, and leaves the parameters as they are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stretto.evaluate import auc, log_loss

scored = st.lists(st.tuples(st.booleans(), st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0])), min_size=2, max_size=60)


@given(scored)
def test_auc_is_the_share_of_pairs_in_order(samples: list[tuple[bool, float]]):
    label = np.array([int(y) for y, _ in samples])
    score = np.array([s for _, s in samples])
    pairs = [(p, n) for p in score[label == 1] for n in score[label == 0]]
    expected = np.mean([1.0 if p > n else 0.5 if p == n else 0.0 for p, n in pairs]) if pairs else 0.5
    assert auc(label, score) == pytest.approx(expected, abs=1e-12)


@given(scored)
def test_auc_depends_on_the_order_only(samples: list[tuple[bool, float]]):
    label = np.array([int(y) for y, _ in samples])
    score = np.array([s for _, s in samples])
    assert auc(label, score) == auc(label, np.exp(3 * score) + 7)


def test_log_loss_is_the_mean_negative_log_likelihood():
    label, probability = np.array([1, 0, 1, 0]), np.array([0.9, 0.1, 0.5, 0.5], np.float32)
    assert log_loss(label, probability) == pytest.approx(-(2 * np.log(0.9) + 2 * np.log(0.5)) / 4, rel=1e-6)
    assert np.isfinite(log_loss(np.array([1, 0]), np.array([0.0, 1.0])))
