"""A worker names rows ahead while its steps are faster so, and finds out what else is true."""

import random

import pytest
from stretto.worker.look_ahead import LookAhead


def share_named(look_ahead: LookAhead, named_s: float, unnamed_s: float, steps: int, noise: float, seed: int) -> float:
    """Train steps of these lengths; return the share of steps with named rows."""
    random_of = random.Random(seed)
    named = 0
    for _ in range(steps):
        named += look_ahead.is_on
        seconds = named_s if look_ahead.is_on else unnamed_s
        look_ahead.passed(seconds * random_of.lognormvariate(0.0, noise))
    return named / steps


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("named_s", "is_better"), [(0.04, True), (0.06, False)])
def test_rows_are_named_while_steps_are_faster_so(seed, named_s, is_better):
    found = LookAhead()
    share_named(found, named_s, 0.05, 3_000, 0.3, seed)
    share = share_named(found, named_s, 0.05, 6_000, 0.3, seed + 100)
    assert (share > 0.9) if is_better else (share < 0.1)


@pytest.mark.parametrize("seed", range(5))
def test_what_becomes_better_is_found(seed):
    found = LookAhead()
    share_named(found, 0.06, 0.05, 20_000, 0.2, seed)
    share_named(found, 0.04, 0.05, 6_000, 0.2, seed)
    assert share_named(found, 0.04, 0.05, 6_000, 0.2, seed) > 0.9


def test_rows_are_named_at_first():
    assert LookAhead().is_on
