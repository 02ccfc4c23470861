"""Paths of a step that overlap, and the terms that only some measurements speak of."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stretto_core.fitter.regression import fit
from stretto_core.model.throughput import OPTIMUS, Configuration, FitError, Inputs, Measurement, combined


def configurations(random: np.random.Generator, count: int) -> list[Configuration]:
    return [
        Configuration(int(random.integers(1, 17)), int(random.integers(1, 9)), float(random.integers(1, 9)), 1.0, 512)
        for _ in range(count)
    ]


def paths(rows: list[Configuration]) -> np.ndarray:
    """Seconds of computing and of communicating."""
    return np.array([[0.4 / row.worker_cpu_cores for row in rows], [0.02 + 0.02 * row.workers for row in rows]])


def measured(rows: list[Configuration], times: np.ndarray) -> list[Measurement]:
    return [Measurement(row, float(time)) for row, time in zip(rows, times, strict=True)]


@given(st.lists(st.just(0.0) | st.floats(1e-9, 1e3), min_size=1, max_size=4), st.floats(1, 32))
def test_paths_take_no_less_than_the_slowest_and_no_more_than_their_sum(parts: list[float], overlap: float) -> None:
    total = float(combined(np.array(parts)[:, None], overlap)[0])
    assert max(parts) * (1 - 1e-12) <= total <= sum(parts) * (1 + 1e-9)


@pytest.mark.parametrize(("true", "expected"), [(1.0, {1.0}), (16.0, {4.0, 8.0})])
def test_an_overlap_is_found_where_there_is_one_and_only_there(true: float, expected: set[float]) -> None:
    for seed in range(10):
        random = np.random.default_rng(seed)
        train, held_out = configurations(random, 24), configurations(random, 100)
        times = combined(paths(train), true) * np.exp(0.03 * random.standard_normal(24))
        model = fit(measured(train, times))
        assert model.overlap in expected
        error = np.abs(np.log(model.step_time_s(Inputs.of(held_out)) / combined(paths(held_out), true)))
        assert error.mean() < 0.05
        assert fit(measured(train, times), "paper").overlap == 1


def test_the_constants_of_two_paths_are_told_apart_where_either_is_the_slowest() -> None:
    rows = [Configuration(w, 1, c, 1.0, 512) for w in (1, 2, 4, 8, 16) for c in (1.0, 2.0, 4.0, 8.0)]
    times = np.array([max(0.05 + 0.4 / row.worker_cpu_cores, 0.08 + 0.02 * row.workers) for row in rows])
    model = fit(measured(rows, times))
    assert model.overlap > 1
    assert "a2_grad" in model.coefficients
    assert "a2_grad" not in model.unidentified
    assert {"a2", "a6"} <= set(model.unidentified), "one PS of one core: a constant like any other"


def test_few_measurements_never_speak_for_an_overlap() -> None:
    random = np.random.default_rng(0)
    rows = configurations(random, 3)
    assert fit(measured(rows, combined(paths(rows), 16.0))).overlap == 1


def test_a_hung_window_is_no_overlap() -> None:
    for seed in range(10):
        random = np.random.default_rng(seed)
        rows = configurations(random, 16)
        times = combined(paths(rows), 1.0) * np.exp(0.03 * random.standard_normal(16))
        times[:2] *= 5.0
        assert fit(measured(rows, times)).overlap == 1


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.floats(1e-3, 1e3), st.sampled_from(["default", "paper", "optimus"]))
def test_in_another_unit_of_time_the_model_is_the_same(seed: int, unit: float, form: str) -> None:
    """T is of degree one in the coefficients, whatever the overlap."""
    random = np.random.default_rng(seed)
    rows = configurations(random, 12)
    times = combined(paths(rows), 8.0) * np.exp(0.05 * random.standard_normal(12))
    one, other = fit(measured(rows, times), form), fit(measured(rows, times * unit), form)
    assert one.overlap == other.overlap
    x = Inputs.of(configurations(random, 20))
    assert np.allclose(one.step_time_s(x) * unit, other.step_time_s(x), rtol=1e-3)
    assert np.allclose(one.log_sd(x), other.log_sd(x), rtol=2e-2)


def test_terms_of_nodes_and_memory_are_there_only_where_these_vary() -> None:
    rows = [Configuration(w, 1, 1.0, 1.0, 64, nodes=n) for w, n in ((1, 1), (2, 1), (4, 1), (2, 2), (4, 2), (8, 2))]
    times = np.array([0.1 + 0.05 * (row.nodes > 1) for row in rows])
    model = fit(measured(rows, times))
    assert {"a8", "a9"} <= model.coefficients.keys()
    assert "a10" not in model.coefficients
    far, near = (Inputs.of([Configuration(4, 1, 1.0, 1.0, 64, nodes=n)]) for n in (2, 1))
    assert model.step_time_s(far)[0] > 1.2 * model.step_time_s(near)[0]
    alone = fit(measured(rows[:3], times[:3]))
    assert not {"a8", "a9", "a10"} & alone.coefficients.keys()


def test_memory_that_cannot_cache_the_data_is_a_path_of_its_own() -> None:
    rows = [Configuration(1, 1, c, 1.0, 64, worker_memory_gib=g) for c in (1.0, 2.0, 4.0, 8.0) for g in (20.0, 60.0)]
    times = np.array([max(0.5 / row.worker_cpu_cores, 6.0 / row.worker_memory_gib) for row in rows])
    model = fit(measured(rows * 2, np.tile(times, 2)))
    assert model.overlap > 1
    assert np.allclose(model.step_time_s(Inputs.of(rows)), times, rtol=0.1)


def test_optimus_form_tells_what_it_cannot_know() -> None:
    rows = [Configuration(w, p, 1.0, 1.0, 64) for w in (1, 2, 4, 8) for p in (1, 2, 4)]
    truth = np.array([0.1 + 0.03 * row.workers / row.ps + 0.01 * row.workers + 0.02 * row.ps for row in rows])
    model = fit(measured(rows, truth), OPTIMUS.name)
    assert model.rmsle < 1e-6
    assert set(model.unidentified) == {"theta0", "theta1"}, "the batch never varied"


def test_a_similar_job_tells_what_few_measurements_leave_open() -> None:
    """Two readings, at one count of workers: how it scales is known only from the other job, twice as fast."""
    random = np.random.default_rng(4)
    rows, held_out = configurations(random, 20), configurations(random, 60)
    similar = fit(measured(rows, combined(paths(rows), 1.0)))
    few = [Configuration(4, p, 2.0, 1.0, 512) for p in (1, 4)]
    truth = 2 * combined(paths(held_out), 1.0)
    own = fit(measured(few, 2 * combined(paths(few), 1.0)))
    both = fit(measured(few, 2 * combined(paths(few), 1.0)), similar=similar.known)
    x = Inputs.of(held_out)
    alone, helped = (float(np.abs(model.step_time_s(x) / truth - 1).mean()) for model in (own, both))
    assert helped < 0.05 < alone
    assert np.mean(both.log_sd(x)) < np.mean(own.log_sd(x))


def test_enough_measurements_overrule_a_similar_job() -> None:
    random = np.random.default_rng(5)
    rows, held_out = configurations(random, 30), configurations(random, 60)
    unlike = fit([Measurement(row, 0.1 * row.workers) for row in rows])
    model = fit(measured(rows, combined(paths(rows), 1.0)), similar=unlike.known)
    error = np.abs(model.step_time_s(Inputs.of(held_out)) / combined(paths(held_out), 1.0) - 1)
    assert error.mean() < 0.05


def test_a_similar_job_of_another_form_is_refused() -> None:
    rows = measured([Configuration(1, 1, 1.0, 1.0, 64)], np.array([0.1]))
    with pytest.raises(FitError, match="similar has the form 'paper'"):
        fit(rows, similar=fit(rows, "paper").known)
