"""The throughput model against known truths, noise, outliers and the published measurements."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stretto_core.fitter.regression import fit
from stretto_core.model.throughput import FORMS, Configuration, FitError, Inputs, Measurement

TABLES = Path(__file__).parents[5] / "shared" / "data" / "ps-throughput-tables" / "ps_throughput.csv"


def configurations(random: np.random.Generator, count: int) -> list[Configuration]:
    return [
        Configuration(
            int(random.integers(1, 17)),
            int(random.integers(1, 9)),
            float(random.integers(1, 17)),
            float(random.integers(1, 9)),
            512,
        )
        for _ in range(count)
    ]


def true_times(form: str, rows: list[Configuration], random: np.random.Generator) -> np.ndarray:
    """Step times of a truth of that form, the share of every term drawn at random."""
    x = Inputs.of(rows)
    features = [np.broadcast_to(term.feature(x), x.workers.shape) for term in FORMS[form].terms if not term.if_varies]
    design = np.stack([*features, np.ones_like(x.workers)], axis=1)
    shares = random.dirichlet(np.ones(design.shape[1]))
    return design @ (shares / design.mean(axis=0)) * 0.1


def measured(rows: list[Configuration], times: np.ndarray) -> list[Measurement]:
    return [Measurement(row, float(time)) for row, time in zip(rows, times, strict=True)]


@pytest.mark.parametrize(("form", "error_max"), [("paper", 0.035), ("default", 0.05)])
def test_held_out_error_and_coverage_with_20_samples_at_5_percent_noise(form: str, error_max: float) -> None:
    errors, covered = [], []
    for seed in range(60):
        random = np.random.default_rng(seed)
        train, held_out = configurations(random, 20), configurations(random, 100)
        times = true_times(form, train + held_out, random)
        noisy = times[:20] * np.exp(0.05 * random.standard_normal(20))
        model = fit(measured(train, noisy), form)
        x = Inputs.of(held_out)
        errors.append(float(np.sqrt(np.mean(np.log(model.step_time_s(x) / times[20:]) ** 2))))
        low, high = model.interval_s(x)
        covered.append(float(np.mean((low <= times[20:]) & (times[20:] <= high))))
    assert np.mean(errors) <= error_max
    assert np.mean(covered) >= 0.85


def test_the_paper_form_recovers_exact_data() -> None:
    random = np.random.default_rng(1)
    rows = configurations(random, 20)
    model = fit(measured(rows, true_times("paper", rows, random)), "paper")
    assert model.rmsle < 1e-6
    assert model.unidentified == ()


def test_terms_whose_inputs_never_vary_are_named_and_still_predict() -> None:
    rows = [Configuration(w, p, 2.0, 1.0, 512) for w in (1, 2, 4) for p in (1, 2, 4)]
    times = np.array([0.03 + 0.01 * row.workers / row.ps for row in rows])
    model = fit(measured(rows, times), "paper")
    # m / l_w and the constant are one column here, and so are w / (p l_p) and (M / p) / (B / w)
    assert set(model.unidentified) == {"alpha_grad", "constant", "alpha_upd", "alpha_sync"}
    assert np.allclose(model.step_time_s(Inputs.of(rows)), times, rtol=1e-4)


def test_measured_components_separate_the_betas() -> None:
    random = np.random.default_rng(3)
    rows = configurations(random, 12)
    truth = {"grad": (3e-4, 0.004), "upd": (0.01, 0.002), "sync": (0.002, 0.006), "emb": (2e-5, 0.001)}
    measurements = []
    for row in rows:
        inputs = {
            "grad": row.batch_size / row.worker_cpu_cores,
            "upd": row.workers / (row.ps * row.ps_cpu_cores),
            "sync": row.workers / row.ps,
            "emb": row.batch_size / row.ps,
        }
        parts = {name: truth[name][0] * value + truth[name][1] for name, value in inputs.items()}
        measurements.append(Measurement(row, sum(parts.values()), 1.0, parts))
    model = fit(measurements, "paper")
    for name, (alpha, beta) in truth.items():
        assert model.coefficients[f"alpha_{name}"] == pytest.approx(alpha, rel=1e-3)
        assert model.coefficients[f"beta_{name}"] == pytest.approx(beta, rel=1e-2)
    collapsed = fit([Measurement(m.configuration, m.step_time_s) for m in measurements], "paper")
    assert collapsed.coefficients["constant"] == pytest.approx(0.013, rel=1e-2)
    assert not any(name.startswith("beta") for name in collapsed.coefficients)


def test_hung_windows_cost_little() -> None:
    plain, robust = [], []
    for seed in range(20):
        random = np.random.default_rng(seed)
        train, held_out = configurations(random, 30), configurations(random, 60)
        times = true_times("paper", train + held_out, random)
        noisy = times[:30] * np.exp(0.03 * random.standard_normal(30))
        noisy[:5] *= 4.0
        for errors, flag in ((plain, False), (robust, True)):
            model = fit(measured(train, noisy), "paper", robust=flag)
            errors.append(float(np.median(np.abs(np.log(model.step_time_s(Inputs.of(held_out)) / times[30:])))))
    assert np.mean(robust) < 0.05 < np.mean(plain)


def test_one_measurement_is_honest_about_everything_else() -> None:
    model = fit([Measurement(Configuration(1, 1, 1.0, 1.0, 512), 0.05)])
    assert model.half_width(Configuration(1, 1, 1.0, 1.0, 512)) < 0.3
    assert model.half_width(Configuration(16, 8, 4.0, 4.0, 512)) > 0.5
    assert "a1" in model.unidentified


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 8), st.floats(1e-4, 1e3)), min_size=1, max_size=12))
def test_coefficients_are_never_negative_and_predictions_always_positive(rows: list[tuple[int, int, float]]) -> None:
    measurements = [Measurement(Configuration(w, p, 1.0, 2.0, 256), time) for w, p, time in rows]
    for form in FORMS:
        model = fit(measurements, form)
        assert all(value >= 0 and math.isfinite(value) for value in model.coefficients.values())
        x = Inputs.of([Configuration(w, p, c, c, 256) for w in (1, 50) for p in (1, 9) for c in (0.5, 8.0)])
        low, high = model.interval_s(x)
        assert np.all(model.step_time_s(x) > 0)
        assert np.all((low <= high) & np.isfinite(high))
        assert fit(measurements, form) == model, "the same measurements give the same model"


@pytest.mark.parametrize("step_time_s", [0.0, -1.0, math.nan, math.inf])
def test_a_step_time_that_cannot_be_is_refused_by_name(step_time_s: float) -> None:
    with pytest.raises(FitError, match="step_time_s"):
        Measurement(Configuration(1, 1, 1.0, 1.0, 512), step_time_s)


def test_no_measurements_and_unknown_forms_are_refused() -> None:
    with pytest.raises(FitError, match="measurements is empty"):
        fit([])
    with pytest.raises(FitError, match="form is 'cubic'"):
        fit([Measurement(Configuration(1, 1, 1.0, 1.0, 512), 0.1)], "cubic")


@pytest.mark.skipif(not TABLES.exists(), reason=f"the published tables are not at {TABLES}")
def test_the_default_form_describes_published_measurements_better_than_the_paper_s() -> None:
    series: dict[tuple[str, str], list[Measurement]] = defaultdict(list)
    with TABLES.open() as file:
        for row in csv.DictReader(file):
            if row["num_ps"] in ("", "0"):
                continue
            workers, batch = int(row["num_workers"]), int(row["batch"])
            configuration = Configuration(workers, int(row["num_ps"]), 1.0, 1.0, batch)
            step_time_s = workers * batch / float(row["throughput"])
            series[(row["model"], row["framework"])].append(Measurement(configuration, step_time_s))
    errors: dict[str, list[float]] = {form: [] for form in FORMS}
    for rows in (rows for rows in series.values() if len(rows) >= 4):
        for form in FORMS:
            for i, left_out in enumerate(rows):
                model = fit([*rows[:i], *rows[i + 1 :]], form)
                predicted = float(model.step_time_s(Inputs.of([left_out.configuration]))[0])
                errors[form].append(abs(predicted / left_out.step_time_s - 1))
    assert len(errors["default"]) >= 15
    assert np.mean(errors["default"]) < 0.10
    assert np.mean(errors["default"]) < np.mean(errors["paper"])
