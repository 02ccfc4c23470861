"""The planner's translation, its plug-ins, and what odd input does to it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict
from typing import Any

import pytest
from stretto_core import jobs
from stretto_core.fitter.machine import FitMachine
from stretto_core.fitter.regression import fit
from stretto_core.model.pareto import CandidateProblem, Comparison, Overheads, exact_front, grid_within, weigh
from stretto_core.model.throughput import Configuration, KnownModel, Measurement
from stretto_core.model.types import JobLimits, Prices
from stretto_core.planner.history import HistoryMachine
from stretto_core.planner.machine import PlanMachine
from stretto_core.planner.warmstart import PastJob, SimilarJob
from stretto_messages.base import GIB
from stretto_messages.planner import CandidatesComputed
from stretto_messages.values import Plan, Resources
from stretto_planner import handlers
from stretto_planner.service import Planner
from stretto_planner.settings import PlannerSettings
from stretto_runtime import Meta, SettingsFault
from stretto_runtime.planning import profile_of
from stretto_wire import spec
from stretto_wire.codec import decode, encode
from stretto_wire.submission import JobSubmitted

META = Meta(1, 1000.0, "evt", {}, "a")
PLAN = Plan(2, 1, 0.5, 1.5, GIB, 2 * GIB)


def over_the_wire(fact: Any) -> Any:
    """A fact as the next machine gets it."""
    message = handlers.to_message(fact.job, fact)
    return handlers.to_event(decode(type(message), encode(message)), META)


def submitted(**resources: Any) -> jobs.JobSubmitted:
    document = {
        "name": "a",
        "model": {"entry": "m:M", "metadata": {"family": "dcn", "rows": 10, "wide": True}},
        "dataset": {"samples": 1000, "epochs": 3, "batch_size": 64},
        "resources": resources,
        "priority": 2.0,
    }
    return handlers.to_event(JobSubmitted(job="a", spec=spec.JobSpec.parse(document)), META)


def test_a_specification_becomes_what_the_decisions_need() -> None:
    profile = submitted(
        workers={"count": {"min": 1, "max": 4}, "memory": {"min": "1Gi", "max": "2Gi"}}, ps={"cpu_cores": {"max": 2.0}}
    ).profile
    assert (profile.batch_size, profile.samples, profile.weight) == (64, 3000, 2.0)
    assert profile.metadata == {"family": "dcn", "rows": 10, "wide": True}
    assert (profile.limits.low.workers, profile.limits.high.workers) == (1, 4)
    assert profile.limits.high.worker_memory_bytes == 2 * GIB
    assert profile.limits.high.ps_cpu_cores == 2.0


def test_a_past_job_survives_the_wire() -> None:
    model = KnownModel("default", {"a1": 0.02, "a2": 0.001}, 4.0)
    past = PastJob("a", {"family": "dcn", "rows": 10}, PLAN, 123.0, 60.0, GIB, 1000, model)
    assert over_the_wire(jobs.HistoryRecorded("a", past)) == jobs.HistoryRecorded("a", past)


def test_a_match_carries_what_its_reasons_need() -> None:
    past = PastJob("old", {}, PLAN, 123.0, 0.0, 0, 0)
    found = (SimilarJob(past, 0.9, {"family": 0.9}, 1.0),)
    match = jobs.HistoryMatched("a", {"family": "dcn"}, found, 0.5, PLAN, KnownModel("paper", {"constant": 0.1}))
    assert over_the_wire(match) == match


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
    assert fitter.handle(jobs.ProfileMeasured("a", 1, idle, 64, 5.0, 0.1, {}, 0.0, 0, True), 1.0) == []
    machine = Planner(PlannerSettings()).machine("a", None)
    (action,) = machine.handle(submitted(initial=asdict(idle), fixed=True), 1.0)
    assert action.fact.plan.workers == 1


def test_candidates_survive_the_wire_well_enough_to_be_sent_on() -> None:
    model = fit([Measurement(Configuration(w, 1, 1.0, 1.0, 64), 0.02 + 0.01 * w) for w in (1, 2, 4)])
    limits = JobLimits(Plan(1, 1, 0.5, 0.5, GIB, GIB), Plan(32, 8, 8.0, 8.0, GIB, GIB))
    problem = CandidateProblem(model, 64, grid_within(limits, Resources(96.0, 400 * GIB)), Prices())
    front = weigh(problem, exact_front(problem), Comparison(PLAN, 1000.0, 1e9, Overheads()))[:64]
    fact = jobs.CandidatesComputed("a", 3, PLAN, 1000.0, "exact", 10, tuple(front))
    message = handlers.to_message("a", fact)
    assert decode(CandidatesComputed, encode(message)) == message
    assert [candidate.throughput for candidate in message.candidates] == [c.throughput for c in front]


def test_a_growing_job_has_time_for_any_change_to_pay_off() -> None:
    document = {"name": "a", "model": {"entry": "m:M"}, "dataset": {"growing": True}}
    assert profile_of(spec.JobSpec.parse(document)).samples > 10**12
