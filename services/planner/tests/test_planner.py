"""The planner's machines, its plug-ins, and what odd input does to it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict, replace
from typing import Any

import pytest
from stretto_core.fitter.machine import FitMachine
from stretto_core.fitter.regression import fit
from stretto_core.model.pareto import CandidateProblem, Comparison, Overheads, exact_front, grid_within, weigh
from stretto_core.model.throughput import Configuration, Measurement
from stretto_core.model.types import JobLimits, JobOpened, Prices
from stretto_core.planner.history import HistoryMachine
from stretto_core.planner.machine import PlanMachine
from stretto_messages.base import GIB, example_of
from stretto_messages.planner import CandidatesComputed, HistoryMatched, HistoryRecorded, PlanProposed
from stretto_messages.profiler import ProfileMeasured
from stretto_messages.values import KnownModel, Plan, Resources
from stretto_planner.service import Planner
from stretto_planner.settings import PlannerSettings
from stretto_runtime import Meta, SettingsFault
from stretto_runtime.profile import profile_of
from stretto_wire.codec import decode, encode
from stretto_wire.contract.submission import JobSubmitted
from stretto_wire.jobspec import spec

META = Meta(1, 1000.0, "evt", {}, "a")
PLAN = Plan(2, 1, 0.5, 1.5, GIB, 2 * GIB)


def opened(**resources: Any) -> JobOpened:
    document = {
        "name": "a",
        "model": {"entry": "m:M", "metadata": {"family": "dcn", "rows": 10, "wide": True}},
        "dataset": {"samples": 1000, "epochs": 3, "batch_size": 64},
        "resources": resources,
        "priority": 2.0,
    }
    return Planner(PlannerSettings()).to_event(JobSubmitted(job="a", spec=spec.JobSpec.parse(document)), META)


def test_a_specification_becomes_what_the_decisions_need() -> None:
    profile = opened(
        workers={"count": {"min": 1, "max": 4}, "memory": {"min": "1Gi", "max": "2Gi"}}, ps={"cpu_cores": {"max": 2.0}}
    ).profile
    assert (profile.batch_size, profile.samples, profile.weight) == (64, 3000, 2.0)
    assert profile.metadata == {"family": "dcn", "rows": 10, "wide": True}
    assert (profile.limits.low.workers, profile.limits.high.workers) == (1, 4)
    assert profile.limits.high.worker_memory_bytes == 2 * GIB
    assert profile.limits.high.ps_cpu_cores == 2.0


def test_a_match_carries_what_its_reasons_need() -> None:
    """A completed job is remembered, resembles the next one, and is named in the reasons of its first plan."""
    service = Planner(PlannerSettings())
    history, machine = service.machine("_", None), service.machine("b", None)
    known = KnownModel(form="default", coefficients={"a1": 0.02, "a2": 0.001}, overlap=4.0)
    metadata = {"family": "dcn", "rows": 10, "wide": True}
    past = replace(example_of(HistoryRecorded), job="old", metadata=metadata, plan=PLAN, throughput=123.0, model=known)
    history.handle(decode(HistoryRecorded, encode(past)), 1.0)
    (matched,) = [action.fact for action in history.handle(opened(), 2.0)]
    assert decode(HistoryMatched, encode(matched)) == matched
    assert matched.model == past.model
    machine.handle(opened(), 2.0)
    (proposed,) = [action.fact for action in machine.handle(matched, 3.0)]
    assert decode(PlanProposed, encode(proposed)) == proposed
    assert any("closest is old" in reason for reason in proposed.reasons)


def test_one_machine_per_job_and_one_for_the_cluster() -> None:
    service = Planner(PlannerSettings())
    assert isinstance(service.machine("_", None), HistoryMachine)
    assert isinstance(service.machine("a", None), PlanMachine)
    assert set(service.state_types) == {"job", "cluster"}


def test_algorithms_are_chosen_by_name_and_unknown_ones_refused() -> None:
    with pytest.raises(SettingsFault, match=r"STRETTO_PLANNER_ALGORITHM='annealing'.*installed.*are exact, nsga2"):
        Planner(PlannerSettings(algorithm="annealing"))


def test_pymoo_is_imported_only_when_it_is_chosen() -> None:
    code = "import sys; import stretto_planner.service; sys.exit('pymoo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_zero_worker_plan_or_an_odd_model_is_no_crash() -> None:
    fitter = FitMachine()
    idle = Plan(0, 1, 1.0, 1.0, GIB, GIB)
    assert fitter.handle(replace(example_of(ProfileMeasured), plan=idle, throughput=0.0), 1.0) == []
    machine = Planner(PlannerSettings()).machine("a", None)
    (action,) = machine.handle(opened(initial=asdict(idle), fixed=True), 1.0)
    assert action.fact.plan.workers == 1


def test_candidates_survive_the_wire_well_enough_to_be_sent_on() -> None:
    model = fit([Measurement(Configuration(w, 1, 1.0, 1.0, 64), 0.02 + 0.01 * w) for w in (1, 2, 4)])
    limits = JobLimits(Plan(1, 1, 0.5, 0.5, GIB, GIB), Plan(32, 8, 8.0, 8.0, GIB, GIB))
    problem = CandidateProblem(model, 64, grid_within(limits, Resources(96.0, 400 * GIB)), Prices())
    front = weigh(problem, exact_front(problem), Comparison(PLAN, 1000.0, 1e9, Overheads()))[:64]
    message = replace(example_of(CandidatesComputed), candidates=tuple(front))
    assert decode(CandidatesComputed, encode(message)) == message


def test_a_growing_job_has_time_for_any_change_to_pay_off() -> None:
    document = {"name": "a", "model": {"entry": "m:M"}, "dataset": {"growing": True}}
    assert profile_of(spec.JobSpec.parse(document)).samples > 10**12
