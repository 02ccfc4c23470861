"""The genetic placement: what core provisions, never below the optimum, the same for a seed."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st
from stretto_core.algorithms import PLACE
from stretto_core.planner.placement import DeviceType, Layer, PlacementProblem, exact, provision
from stretto_plugins.genetic.placement import genetic

shares = st.sampled_from([0.5, 0.9, 0.99])
times = st.floats(0.01, 1.0).map(lambda value: round(value, 3))


@st.composite
def problems(draw: st.DrawFn) -> PlacementProblem:
    kinds = draw(st.integers(1, 3))

    def column(values: st.SearchStrategy[float]) -> tuple[float, ...]:
        return tuple(draw(values) for _ in range(kinds))

    types = tuple(
        DeviceType(f"gpu{i}", draw(st.floats(0.0, 5.0)), draw(st.none() | st.integers(0, 12))) for i in range(kinds)
    )
    layers = tuple(
        Layer(f"l{i}", "", column(times), column(shares), column(times), column(shares))
        for i in range(draw(st.integers(1, 5)))
    )
    return PlacementProblem(layers, types, 100.0, draw(st.floats(20.0, 200.0)), 1e6, draw(st.integers(0, 2**40)))


@settings(max_examples=8)
@given(problems())
def test_what_it_finds_can_be_had_and_is_not_below_the_optimum(problem: PlacementProblem) -> None:
    found, best = genetic(problem, generations=4), exact(problem)
    assert found == genetic(problem, generations=4), "a seed decides"
    if found is None:
        return
    assert best is not None
    assert provision(problem, found.assignment) == found
    assert best.cost <= found.cost * (1 + 1e-8)
    assert (found.bound, found.optimal) == (None, False)


def test_it_finds_the_optimum_of_a_small_problem() -> None:
    layers = tuple(
        Layer(f"l{i}", "", (0.4, 0.02 + 0.2 * (i % 3 == 0)), (0.99, 0.95), (0.01, 0.01), (0.9, 0.9)) for i in range(8)
    )
    problem = PlacementProblem(layers, (DeviceType("cpu", 0.04, 60), DeviceType("gpu", 2.42)), 512, 4000, 1e9)
    found, best = PLACE.named("genetic")(problem), exact(problem)
    assert found is not None
    assert best is not None
    assert math.isclose(found.cost, best.cost, rel_tol=1e-6)
