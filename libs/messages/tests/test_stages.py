"""Plans whose workers are of several stages: which there are, how they shrink, what they say."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stretto_messages.base import GIB, InvalidValue
from stretto_messages.values import NO_EXTENDED, ON_CORES, Plan, WorkerGroup, WorkerPlace

ONE = Plan(3, 1, 1.0, 1.0, GIB, GIB)
READS = WorkerGroup("a", 1, 2.0, GIB)
COMPUTES = WorkerGroup("b", 2, 8.0, GIB, stage=1, first_layer=1)
LAST = WorkerGroup("b", 1, 8.0, GIB, stage=2, first_layer=4)


def test_a_plan_of_stages_counts_its_workers_by_place_and_pays_units() -> None:
    plan = ONE.with_workers(2, [LAST, COMPUTES])
    assert (plan.stages, plan.workers, ONE.stages) == (3, 5, 1)
    assert plan.worker_places == {ON_CORES: 2, WorkerPlace(1, 1, "b"): 2, WorkerPlace(2, 4, "b"): 1}
    assert plan.resources(NO_EXTENDED).extended == (("devices/b", 3),), "units of all stages"
    assert plan.describe().startswith("2 workers x 1 cores / 1.00 GiB, 2 workers of stage 1 on b, 1 worker of stage 2")


@pytest.mark.parametrize(
    "groups",
    [
        pytest.param((1, replace(LAST, stage=2)), id="no stage 1"),
        pytest.param((0, COMPUTES), id="nobody reads"),
        pytest.param((1, replace(COMPUTES, first_layer=0)), id="it begins where stage 0 does"),
        pytest.param((1, COMPUTES, replace(LAST, first_layer=1)), id="both begin at one layer"),
        pytest.param((1, COMPUTES, replace(COMPUTES, device="c", first_layer=2)), id="a stage begins at two layers"),
        pytest.param((1, replace(COMPUTES, first_layer=2)), id="stage 0 has layers behind the rows"),
        pytest.param((1, replace(READS, first_layer=1), COMPUTES), id="stage 0 begins after the rows"),
    ],
)
def test_stages_without_workers_or_layers_of_their_own_are_no_plan(
    groups: tuple[int, *tuple[WorkerGroup, ...]],
) -> None:
    cores, *others = groups
    with pytest.raises(InvalidValue, match=r"give each stage from 0 on at least one worker and one first_layer"):
        ONE.with_workers(cores, others)


@given(st.integers(0, 4), st.integers(0, 3), st.integers(1, 4), st.integers(0, 3), st.integers(1, 12))
def test_fewer_workers_keep_one_of_each_stage_as_long_as_they_can(
    cores: int, reading: int, computing: int, last: int, most: int
) -> None:
    groups = [replace(READS, workers=reading), replace(COMPUTES, workers=computing), replace(LAST, workers=last)]
    if not cores + reading:
        return
    plan = ONE.with_workers(cores, groups)
    fewer = plan.fewer_workers(most)
    assert fewer.workers == min(plan.workers, most)
    assert fewer.stages == (plan.stages if most >= plan.stages else 1)
    if fewer.stages == 1 and most < plan.workers:
        assert fewer.workers == min(cores + reading, most)
