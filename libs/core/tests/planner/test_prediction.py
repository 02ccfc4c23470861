"""Predictions of a live job's own model, and the first plan of a job that does not exist."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from closed_loop import LIMITS, plan, profile
from hypothesis import given
from hypothesis import strategies as st
from stretto_core.machine import Emit
from stretto_core.model.throughput import Configuration, FittedModel
from stretto_core.model.types import JobOpened
from stretto_core.planner.history import HistoryMachine
from stretto_core.planner.machine import PlanMachine
from stretto_core.planner.preview import preview
from stretto_messages.actuator import PlanApplied
from stretto_messages.base import example_of
from stretto_messages.fitter import ModelFitted
from stretto_messages.planner import HistoryRecorded, PredictPlan, PreviewPlanReply

FITTED = replace(example_of(ModelFitted), job="a")


def machine(*events: Any) -> PlanMachine:
    made = PlanMachine()
    for event in (JobOpened("a", profile(limits=LIMITS)), *events):
        made.handle(event, 1.0)
    return made


APPLIED = PlanApplied(job="a", version=1, plan=plan(2, 1), took_s=1.0)


def test_before_its_first_fit_nothing_is_predicted() -> None:
    assert machine(APPLIED).predict(PredictPlan(job="a", plan=plan(4, 2))).answer == "no-model"


@given(st.integers(1, 40), st.integers(1, 40))
def test_a_prediction_is_the_models_own_within_the_limits(workers: int, ps: int) -> None:
    found = machine(APPLIED, FITTED).predict(PredictPlan(job="a", plan=plan(workers, ps))).prediction
    inside = LIMITS.clamp(plan(workers, ps))
    assert found.plan == inside
    (step,) = FittedModel.of(FITTED).predicted([Configuration.of(inside, FITTED.batch_size)])
    assert (found.step_time_s, found.step_time_interval_s.low, found.step_time_interval_s.high) == step
    assert found.throughput == pytest.approx(inside.workers * FITTED.batch_size / step.step_time_s)
    assert found.throughput_interval.low < found.throughput < found.throughput_interval.high


def test_asking_changes_nothing() -> None:
    made, same = machine(APPLIED, FITTED), machine(APPLIED, FITTED)
    made.predict(PredictPlan(job="a", plan=plan(4, 2)))
    assert made.state == same.state


@pytest.mark.parametrize("similar", [True, False])
def test_a_preview_is_the_proposal_that_the_job_would_get(similar: bool) -> None:
    """Goal: no second decision. Method: ask, then open the job, with and without a similar past one."""
    history = HistoryMachine()
    opened = JobOpened("a", profile(limits=LIMITS, metadata={"family": "dcn"}))
    if similar:
        history.handle(replace(example_of(HistoryRecorded), metadata={"family": "dcn"}, team=None), 0.0)
    before = dict(history.state.past)
    found = preview(history, PlanMachine(), opened, 1.0)
    assert isinstance(found, PreviewPlanReply)
    assert history.state.past == before
    real = PlanMachine()
    real.handle(opened, 1.0)
    (matched,) = history.handle(opened, 1.0)
    assert isinstance(matched, Emit)
    (proposed,) = real.handle(matched.fact, 1.0)  # type: ignore[arg-type]
    assert isinstance(proposed, Emit)
    fact: Any = proposed.fact
    assert (found.kind, found.plan, found.cost_per_hour, found.reasons) == (
        fact.kind, fact.plan, fact.cost_per_hour, fact.reasons,
    )  # fmt: skip
    assert bool(found.matches) == similar


def test_a_stated_plan_is_previewed_as_it_is() -> None:
    opened = JobOpened("a", profile(limits=LIMITS, initial=plan(3, 2)))
    found = preview(HistoryMachine(), PlanMachine(), opened, 1.0)
    assert (found.kind, found.plan, found.matches) == ("initial", plan(3, 2), ())
