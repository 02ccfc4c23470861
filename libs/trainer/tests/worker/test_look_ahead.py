"""A worker goes the way with which its steps are faster, and finds out when that changes."""

import random

import pytest
from stretto.worker.look_ahead import LOOK_AHEAD, LookAhead, TimedChoice


def share_first(choice: TimedChoice, first_s: float, second_s: float, steps: int, noise: float, seed: int) -> float:
    """Train steps of these lengths; return the share of steps that went the first way."""
    random_of = random.Random(seed)
    first = 0
    for _ in range(steps):
        first += choice.is_on
        seconds = first_s if choice.is_on else second_s
        choice.passed(seconds * random_of.lognormvariate(0.0, noise))
    return first / steps


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("first_s", "is_better"), [(0.04, True), (0.06, False)])
def test_steps_go_the_way_that_is_faster(seed, first_s, is_better):
    found = TimedChoice()
    share_first(found, first_s, 0.05, 3_000, 0.3, seed)
    share = share_first(found, first_s, 0.05, 6_000, 0.3, seed + 100)
    assert (share > 0.9) if is_better else (share < 0.1)


@pytest.mark.parametrize("seed", range(5))
def test_what_becomes_better_is_found(seed):
    found = TimedChoice()
    share_first(found, 0.06, 0.05, 20_000, 0.2, seed)
    share_first(found, 0.04, 0.05, 6_000, 0.2, seed)
    assert share_first(found, 0.04, 0.05, 6_000, 0.2, seed) > 0.9


def test_rows_are_named_at_first():
    assert LookAhead().batches == LOOK_AHEAD
