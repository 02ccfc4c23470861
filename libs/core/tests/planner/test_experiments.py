"""Which configuration to measure next, and what the variants of the fit are good for."""

from __future__ import annotations

import numpy as np
import pytest
from stretto_core.fitter.regression import fit, least_squares, rmsle
from stretto_core.model.throughput import Configuration, FitError, Inputs, Measurement
from stretto_core.planner.experiments import REACH, fastest, to_verify, worth_measuring

AXES = ("workers", "ps")


def measured(pairs: list[tuple[int, int]], grows: float = 0.02) -> list[Measurement]:
    return [Measurement(Configuration(w, p, 1.0, 1.0, 64), 0.1 + grows * w / p) for w, p in pairs]


def proposed(pairs: list[tuple[int, int]], grows: float = 0.02) -> list[Configuration]:
    rows = measured(pairs, grows)
    return worth_measuring(fit(rows), [row.configuration for row in rows], AXES)


def test_proposals_are_new_within_reach_and_the_same_every_time() -> None:
    pairs = [(1, 1), (4, 2), (8, 4), (2, 4), (8, 1)]
    found = proposed(pairs)
    assert found == proposed(pairs)
    assert 0 < len(found) == len(set(found)) <= 3
    assert not {(row.workers, row.ps) for row in found} & set(pairs)
    assert all(row.workers <= 8 * REACH and row.ps <= 4 * REACH and row.batch_size == 64 for row in found)


def test_the_first_ones_are_far_from_all_that_is_known() -> None:
    assert proposed([(1, 1)])[0] == Configuration(2, 2, 1.0, 1.0, 64)
    assert proposed([(w, 2) for w in range(1, 8)])[0].ps != 2, "an axis that never varied"


def test_nothing_is_proposed_when_more_is_not_faster() -> None:
    rows = [Measurement(Configuration(4, p, 1.0, 1.0, 64), 0.1) for p in (1, 2, 4, 8)] * 5
    assert worth_measuring(fit(rows), [row.configuration for row in rows], ("ps",)) == []


def test_only_what_can_be_had_is_proposed_and_exploring_can_go_on_regardless() -> None:
    among = [Configuration(w, p, 1.0, 1.0, 64) for w in range(1, 9) for p in range(1, 9) if w + p <= 9]
    rows = measured([(1, 1), (8, 1), (1, 8), (4, 5)])
    known, model = [row.configuration for row in rows], fit(rows)
    found = worth_measuring(model, known, AXES, most=20, among=among, gain_min=-1.0)
    assert len(found) > 3
    assert set(found) <= set(among) - set(known)
    assert worth_measuring(model, known, AXES, among=known, gain_min=-1.0) == []


def test_the_fastest_by_the_model_is_measured_before_it_is_committed_to() -> None:
    among = [Configuration(w, p, 1.0, 1.0, 64) for w in range(1, 9) for p in range(1, 9) if w + p <= 9]
    truth = {row: 0.1 + 0.05 * row.workers / row.ps for row in among}
    rows = measured([(1, 1), (2, 2), (4, 1), (1, 4)], grows=0.05)
    known = list[Configuration]()
    while (plan := to_verify(fit(rows), rows, among)) is not None:
        rows.append(Measurement(plan, truth[plan]))
        known.append(plan)
    assert 0 < len(known) <= 3, "the model learns from what it verifies"
    best = max(among, key=lambda row: row.workers / truth[row])
    chosen = fastest(fit(rows), among, rows)
    assert chosen.workers / truth[chosen] > 0.97 * best.workers / truth[best]


def test_what_was_read_counts_beside_the_model() -> None:
    """No form bends as these do: the model, smooth over all, thinks less of the fastest than it was read to be."""
    times = {1: 1.0, 2: 0.55, 4: 0.33, 8: 0.20, 16: 0.22, 32: 0.24}
    rows = [Measurement(Configuration(w, 1, 1.0, 1.0, 64 // w), t) for w, t in times.items()]
    among = [row.configuration for row in rows]
    assert fastest(fit(rows), among, rows).workers == 8
    hung = [*rows[:-3], Measurement(rows[-3].configuration, 2.0), *rows[-2:]]
    assert fastest(fit(hung), among, hung).workers != 8, "a reading that hung is no reason to choose it"


def test_seconds_weigh_long_steps_and_logs_weigh_all_alike() -> None:
    """A long step that is 30 % off bends the fit of the seconds, and not that of the logs."""
    draw = np.random.default_rng(2)
    rows = measured([(w, p) for w in (1, 2, 4, 8, 16, 64) for p in (1, 2, 4)], grows=0.5)
    noisy = [Measurement(row.configuration, row.step_time_s * float(np.exp(0.15 * draw.normal()))) for row in rows]
    x = Inputs.of([row.configuration for row in rows])
    errors = {
        variant.__name__: float(
            np.sqrt(np.mean(np.log(variant(noisy, "paper").step_time_s(x) / [row.step_time_s for row in rows]) ** 2))
        )
        for variant in (rmsle, least_squares)
    }
    assert errors["rmsle"] < errors["least_squares"]
    assert rmsle(noisy, "paper").rmsle <= least_squares(noisy, "paper").rmsle


def test_nothing_measured_is_refused() -> None:
    for variant in (rmsle, least_squares):
        with pytest.raises(FitError, match="measurements is empty"):
            variant([])
