"""The policies that share out data workers, as the paper has them."""

from __future__ import annotations

import pytest
from stretto_core.model.sharing import Sharer, fair, max_throughput, shortest_remaining

JOB = Sharer(gpus=4, steps_left=600.0, ideal_per_s=20.0, per_cpu=0.5)


def test_the_metrics_are_the_papers() -> None:
    assert max_throughput(JOB, 8.0, 10.0) == pytest.approx(-(1.0 / 20.0) / 2.0 * 4)
    assert shortest_remaining(JOB, 8.0, 10.0) == pytest.approx(600.0 * 10.0 / 5.0)
    assert fair(JOB, 8.0, 10.0) == pytest.approx(5.0 / 20.0)


def test_steps_of_any_size_rank_alike_but_for_the_time_that_they_take() -> None:
    """The same job told in steps of a hundredth: throughput is relative to its own ideal."""
    finer = Sharer(4, 60_000.0, 2000.0, 50.0)
    for ranking in (max_throughput, shortest_remaining, fair):
        assert ranking(finer, 8.0, 10.0) == pytest.approx(ranking(JOB, 8.0, 10.0))


def test_no_policy_sees_more_than_the_training_workers_take() -> None:
    assert JOB.steps_per_s(1000.0) == 20.0
