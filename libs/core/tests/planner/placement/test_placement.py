"""HeterPS: the optimum is what brute force finds, nothing is cheaper, and every plan does what it says."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stretto_core.algorithms import PLACE
from stretto_core.planner.placement import DeviceType, Layer, Placement, PlacementProblem, provision
from stretto_core.planner.placement.baselines import brute_force
from stretto_core.planner.placement.optimum import exact
from stretto_messages.base import InvalidValue

METHODS = ("brute-force", "greedy", "cpu-only", "gpu-only", "heuristic")
some = st.floats(0.001, 2.0).map(lambda value: round(value, 3))
times = st.floats(0.0, 2.0).map(lambda value: round(value, 3))
shares = st.sampled_from([0.0, 0.5, 0.9, 0.99])


@st.composite
def problems(draw: st.DrawFn, limits: st.SearchStrategy[int | None]) -> PlacementProblem:
    kinds, layers = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    types = tuple(
        DeviceType(f"{'cpu' if draw(st.booleans()) else 'gpu'}{i}", draw(st.floats(0.01, 5.0)), draw(limits))
        for i in range(kinds)
    )

    def column(values: st.SearchStrategy[float]) -> tuple[float, ...]:
        return tuple(draw(values) for _ in range(kinds))

    profiled = tuple(
        Layer(f"l{i}", "", column(some if i == 0 else times), column(shares), column(times), column(shares))
        for i in range(layers)
    )
    return PlacementProblem(profiled, types, 100.0, draw(st.floats(20.0, 400.0)), 1e6)


def check(problem: PlacementProblem, found: Placement) -> None:
    """By the formulas of HeterPS, layer by layer."""
    tau_s = problem.profile_batch / found.throughput
    assert found.throughput >= problem.throughput_limit * (1 - 1e-12)
    assert [stage.first for stage in found.stages] == [0, *(stage.last + 1 for stage in found.stages[:-1])]
    assert found.stages[-1].last == len(problem.layers) - 1
    assert all(one.type != other.type for one, other in zip(found.stages, found.stages[1:], strict=False))
    for stage in found.stages:
        of, layers = stage.type, problem.layers[stage.first : stage.last + 1]
        serial = sum(layer.compute_s[of] * (1 - layer.parallel_fraction[of]) for layer in layers)
        shared = sum(layer.compute_s[of] * layer.parallel_fraction[of] for layer in layers)
        end = layers[-1]
        sending = end.transfer_s[of] * (
            1 - end.transfer_parallel_fraction[of] + end.transfer_parallel_fraction[of] / stage.units
        )
        assert stage.units >= 1
        assert max(serial + shared / stage.units, sending) <= tau_s * (1 + 1e-9)
    for index, kind in enumerate(problem.types):
        assert kind.limit is None or sum(s.units for s in found.stages if s.type == index) <= kind.limit
    hourly = sum(problem.types[stage.type].price_per_hour * stage.units for stage in found.stages)
    assert math.isclose(found.cost, problem.samples / found.throughput / 3600 * hourly, rel_tol=1e-9)


@settings(max_examples=60)
@given(problems(st.none()))
def test_the_optimum_is_what_brute_force_finds(problem: PlacementProblem) -> None:
    same(problem, exact(problem), brute_force(problem))


@settings(max_examples=60)
@given(problems(st.none() | st.integers(0, 12)))
@pytest.mark.proof
def test_under_limits_the_optimum_is_what_brute_force_finds(problem: PlacementProblem) -> None:
    same(problem, exact(problem), brute_force(problem))


def same(problem: PlacementProblem, found: Placement | None, tried: Placement | None) -> None:
    assert (found is None) == (tried is None)
    if found is None or tried is None:
        return
    check(problem, found)
    assert found.bound is not None
    assert found.bound <= tried.cost * (1 + 1e-9)
    assert math.isclose(found.cost, tried.cost, rel_tol=1e-6)
    assert found.optimal or found.bound < found.cost


@settings(max_examples=25)
@given(problems(st.none() | st.integers(0, 12)))
@pytest.mark.proof
def test_no_method_is_cheaper_or_does_not_do_what_it_says(problem: PlacementProblem) -> None:
    best = exact(problem)
    for name in METHODS:
        found = PLACE.named(name)(problem)
        assert found is None or best is not None, name
        if found is not None and best is not None:
            check(problem, found)
            assert best.cost <= found.cost * (1 + 1e-8), name


@settings(max_examples=25)
@given(problems(st.none() | st.integers(0, 12)), st.randoms(use_true_random=False))
def test_the_order_of_the_types_changes_nothing(problem: PlacementProblem, random: object) -> None:
    order = list(range(len(problem.types)))
    random.shuffle(order)  # type: ignore[attr-defined]
    fields = ("compute_s", "parallel_fraction", "transfer_s", "transfer_parallel_fraction")
    turned = PlacementProblem(
        tuple(
            replace(layer, **{name: tuple(getattr(layer, name)[i] for i in order) for name in fields})
            for layer in problem.layers
        ),
        tuple(problem.types[i] for i in order),
        problem.profile_batch,
        problem.throughput_limit,
        problem.samples,
    )
    one, other = exact(problem), exact(turned)
    assert (one is None) == (other is None)
    assert one is None or other is None or math.isclose(one.cost, other.cost, rel_tol=1e-8)


@settings(max_examples=40)
@given(problems(st.none()))
def test_an_assignment_gets_its_best_throughput(problem: PlacementProblem) -> None:
    """Against all throughputs at which a stage's units change, up to 40 units."""
    for assignment in list(product(range(len(problem.types)), repeat=len(problem.layers)))[:6]:
        found = provision(problem, assignment)
        if found is None:
            continue
        check(problem, found)
        assert found.assignment == list(assignment)
        for faster in (1.0, 1.07, 1.31, 2.0, 3.7):
            again = provision(replace(problem, throughput_limit=problem.throughput_limit * faster), assignment)
            assert again is None or found.cost <= again.cost * (1 + 1e-9)


def test_what_is_wholly_shared_ends_and_says_what_could_still_be_gained() -> None:
    """With no serial part ever more units are ever so little cheaper: there is no optimum to be reached."""
    layers = tuple(
        Layer(f"l{i}", "", (0.3 + 0.1 * i, 0.017 * (i + 1)), (1.0, 1.0), (0.01, 0.013), (1.0, 1.0)) for i in range(8)
    )
    problem = PlacementProblem(layers, (DeviceType("cpu", 0.03), DeviceType("gpu", 1.1)), 512, 20_000, 1e9)
    found = exact(problem)
    assert found.bound is not None
    check(problem, found)
    assert found.bound <= found.cost <= found.bound * 1.001


def test_too_many_assignments_are_refused_by_brute_force() -> None:
    layer = Layer("l", "", (1.0, 1.0), (0.9, 0.9), (0.0, 0.0), (0.0, 0.0))
    problem = PlacementProblem((layer,) * 30, (DeviceType("cpu", 1.0), DeviceType("gpu", 1.0)), 1, 1, 1)
    with pytest.raises(InvalidValue, match=r"2\^30 assignments.*exact"):
        brute_force(problem)
