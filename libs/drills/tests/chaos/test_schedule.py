"""The schedule of a seed: the same everywhere, and one that can be played."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from stretto_drills.chaos.schedule import CHANGES, FAULTS, KINDS, Intensity, draw, kinds_for, samples_for
from stretto_wire.contract.registry import SERVICES

SEEDS = st.integers(0, 2**40)
INTENSITIES = st.sampled_from(list(Intensity))
SOME_KINDS = st.lists(st.sampled_from(FAULTS), unique=True)

EXPECTED_OF_SEED_7 = [
    (1, "worker-kill", 0.1964, 0.775054, ""),
    (2, "worker-stop", 0.3642, 0.840342, ""),
    (3, "spill-damage", 0.6294, 0.716506, ""),
    (4, "scale-ps", 0.7295, 0.529664, ""),
]


@given(SEEDS, INTENSITIES, SOME_KINDS, st.randoms(use_true_random=True))
def test_a_seed_brings_the_same_schedule_whatever_was_drawn_before(
    seed: int, intensity: Intensity, kinds: list[str], other: random.Random
) -> None:
    first = json.dumps(draw(seed, intensity, kinds).document())
    random.seed(other.random())
    assert json.dumps(draw(seed, intensity, kinds).document()) == first


def test_the_schedule_of_a_seed_is_the_one_that_it_was() -> None:
    """A report names a seed: it must bring the same faults in the next version, on any machine."""
    told = [
        (one.number, one.kind, one.at, one.chance, one.service) for one in draw(7, Intensity.CALM, list(FAULTS)).planned
    ]
    assert told == EXPECTED_OF_SEED_7


@given(SEEDS, INTENSITIES, SOME_KINDS)
@example(0, Intensity.FIERCE, ["worker-kill", "worker-kill-migrating"])  # what waited came after what follows it
def test_a_schedule_can_be_played(seed: int, intensity: Intensity, kinds: list[str]) -> None:
    schedule = draw(seed, intensity, kinds)
    planned = schedule.planned
    assert [one.number for one in planned] == list(range(1, len(planned) + 1))
    assert [one.at for one in planned] == sorted(one.at for one in planned)
    assert all(0 < one.at < 0.9 and 0 <= one.chance < 1 for one in planned)
    faults = [one for one in planned if not one.planned]
    assert {one.kind for one in faults} <= set(kinds)
    assert bool(faults) == bool(kinds)
    for one in planned:
        low, high = KINDS[one.kind].lasts_s
        assert low <= one.lasts_s <= high
        assert one.service in ("", "nats", "redis", *SERVICES)
        assert bool(one.service) == bool(KINDS[one.kind].service)
    for index, one in enumerate(planned):
        if one.during:  # somebody has to cause it
            assert planned[index - 1].kind == "scale-ps"


@given(SEEDS, INTENSITIES)
def test_the_job_goes_back_to_a_checkpoint_only_so_often(seed: int, intensity: Intensity) -> None:
    planned = draw(seed, intensity, list(FAULTS)).planned
    most = {Intensity.CALM: 1, Intensity.ROUGH: 2, Intensity.FIERCE: 3}[intensity]
    assert sum(KINDS[one.kind].restores for one in planned) <= most
    kinds = [one.kind for one in planned if not one.planned]
    assert len(kinds) == {Intensity.CALM: 3, Intensity.ROUGH: 6, Intensity.FIERCE: 12}[intensity]


def test_every_kind_is_drawn_in_some_schedule() -> None:
    seen = {one.kind for seed in range(60) for one in draw(seed, Intensity.ROUGH, list(FAULTS)).planned}
    assert seen == {*FAULTS, *CHANGES}


def test_what_is_drawn_depends_on_wishes_only_and_not_on_what_the_machine_can_do() -> None:
    assert set(FAULTS) - set(kinds_for(without=["ps-kill"])) == {"ps-kill"}
    assert kinds_for(only=["shm-full", "ps-kill"], without=["ps-kill"]) == ["shm-full"]


@pytest.mark.parametrize("intensity", list(Intensity))
def test_more_faults_need_a_longer_job(intensity: Intensity) -> None:
    assert samples_for(intensity) >= 100_000 * len(draw(1, intensity, list(FAULTS)).planned)
