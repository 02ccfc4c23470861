"""``stretto explain`` against a real gateway."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from installed_gateway import PLAN, Installed, decided, write_spec
from stretto_messages.actuator import PlanApplied
from stretto_messages.books import RowBooks
from stretto_messages.fitter import ModelFitted
from stretto_messages.planner import CandidatesComputed, HistoryMatched
from stretto_messages.profiler import ProfileMeasured
from stretto_messages.values import Candidate, Interval, Match, Plan, StepTimes


def test_explain_tells_what_was_measured_fitted_considered_and_brought(installed: Installed, tmp_path: Path) -> None:
    name, file = write_spec(tmp_path)
    installed.stretto("submit", file)
    times = StepTimes(emb_s=0.01, grad_s=0.02, upd_s=0.001, sync_s=0.002)
    wider = replace(PLAN, workers=2)

    def profile(version: int, plan: Plan, rate: float) -> ProfileMeasured:
        return ProfileMeasured(
            job=name, plan_version=version, plan=plan, batch_size=512, window_s=3.0, step_time_s=0.05, times=times,
            throughput=rate, samples_total=1, categories=4321, settled=True, workers=(), ps=(),
            rows=RowBooks(gradients_left_out=12, keys_without_row=9, rows_expired=3),
        )  # fmt: skip

    candidate = Candidate(
        id="c1", plan=wider, cost_per_hour=0.06, throughput=180.0,
        throughput_interval=Interval(low=150.0, high=210.0), gain=75.0, overhead_s=5.0,
    )  # fmt: skip
    installed.publish(
        HistoryMatched(
            job=name, metadata={}, smoothing=0.5, plan=PLAN,
            matches=(Match(job="past-1", similarity=0.9, weight=1.0, plan=PLAN, throughput=99.0),),
        ),
        decided(name, 1, PLAN, None),
        profile(1, PLAN, 100.0),
        ModelFitted(
            job=name, form="default", coefficients={"a1": 0.5}, log_sd=0.1, rmsle=0.023, points=3, configurations=1,
            unidentified=("a2",), plan_version=1, plan=PLAN, batch_size=512, measured_step_time_s=0.05,
            predicted_step_time_s=0.051, predicted_interval_s=Interval(low=0.04, high=0.06),
        ),
        CandidatesComputed(
            job=name, plan_version=1, plan=PLAN, throughput=100.0, algorithm="exact", plans_considered=123,
            candidates=(candidate,),
        ),
        decided(name, 2, wider, PLAN),
        PlanApplied(job=name, version=2, plan=wider, took_s=4.0),
        profile(2, wider, 171.0),
    )  # fmt: skip
    document = json.loads(installed.stretto("explain", name, "-o", "json").stdout)
    first, second = document["decisions"]
    assert first["warm_start"]["matches"][0]["job"] == "past-1"
    assert second["measured"]["throughput"] == 100.0
    assert second["fitted"]["rmsle"] == 0.023
    assert second["front"]["plans_considered"] == 123
    assert second["outcome"]["throughput"] == 171.0
    assert second["outcome"]["inside_interval"] is True
    told = " ".join(installed.stretto("explain", name, "-d", "2", "--derivation").stdout.replace("│", "").split())
    for words in (
        "RMSLE 0.023", "cannot be told apart yet: a2", "4,321 categories; 12 gradients left out, of keys without a "
        "row yet; about 9 keys have none now; 3 rows expired", "c1", "too dear", "[brackets]", "180/s",
        "171/s = 1.71 × before", "-5% off, inside the interval",
    ):  # fmt: skip
        assert words in told, words
    short = " ".join(installed.stretto("explain", name).stdout.replace("│", "").split())
    assert second["in_words"] in short
    assert "RMSLE" not in short
    shown = installed.stretto("watch", name, "--once").stdout
    for words in ("v2", "2 × worker", "171/s", "█"):
        assert words in shown, words
