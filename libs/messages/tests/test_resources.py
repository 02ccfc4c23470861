"""Arithmetic of amounts of resources, extended ones among them, against counts by name."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from stretto_messages.base import GIB
from stretto_messages.values import (
    NOTHING,
    ExtendedPerPod,
    Plan,
    Resources,
    extended_of,
    larger,
    lesser,
    shortage,
    total,
)

NAMES = ("amd.com/gpu", "example.com/fpga", "nvidia.com/gpu")
counts = st.dictionaries(st.sampled_from(NAMES), st.integers(-3, 5)).map(extended_of)
amounts = st.builds(Resources, st.integers(-4, 4).map(float), st.integers(-4, 4), counts)
per_pod = st.dictionaries(st.sampled_from(NAMES), st.integers(1, 3)).map(extended_of)


def of(amount: Resources) -> dict[str, float]:
    counts = {name: amount.count_of(name) for name in NAMES}
    return {"cores": amount.cpu_cores, "bytes": amount.memory_bytes, **counts}


@given(amounts, amounts)
def test_every_operation_acts_on_each_resource_alone(one: Resources, other: Resources) -> None:
    ours, theirs = of(one), of(other)
    assert of(one + other) == {name: ours[name] + theirs[name] for name in ours}
    assert of(one - other) == {name: ours[name] - theirs[name] for name in ours}
    assert of(larger(one, other)) == {name: max(ours[name], theirs[name]) for name in ours}
    assert of(lesser(one, other)) == {name: min(ours[name], theirs[name]) for name in ours}
    assert of(shortage(one, other)) == {name: max(ours[name] - theirs[name], 0) for name in ours}


@given(amounts, amounts)
def test_equal_amounts_have_one_form(one: Resources, other: Resources) -> None:
    assert one + other - other == one
    assert one - one == NOTHING
    assert hash(one + other) == hash(other + one)


@given(amounts, amounts)
def test_an_amount_fits_if_each_resource_that_it_includes_does(one: Resources, free: Resources) -> None:
    ours, theirs = of(one), of(free)
    devices = all(ours[name] <= theirs[name] for name in NAMES if ours[name] > 0)
    assert one.fits(free) == (ours["cores"] <= theirs["cores"] and ours["bytes"] <= theirs["bytes"] and devices)


@given(st.lists(amounts, max_size=5))
def test_a_total_is_the_sum_in_any_order(each: list[Resources]) -> None:
    assert total(each) == total(reversed(each)) == sum(each, NOTHING)


@given(st.integers(0, 9), st.integers(1, 9), per_pod, per_pod)
def test_a_job_has_the_devices_of_its_pods(workers: int, ps: int, of_worker: object, of_ps: object) -> None:
    extended = ExtendedPerPod(of_worker, of_ps)  # type: ignore[arg-type]
    plan = Plan(workers, ps, 0.5, 0.25, GIB, GIB)
    pods = [plan.pod("worker", extended)] * workers + [plan.pod("ps", extended)] * ps
    expected = sum((Counter(dict(pod.extended)) for pod in pods), Counter[str]())
    assert dict(plan.resources(extended).extended) == dict(expected)
    assert plan.resources(extended) == total(pods)
