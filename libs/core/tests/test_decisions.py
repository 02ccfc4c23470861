"""Whole sequences of the real machines: from submission to completion, and what they refuse to do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from closed_loop import MIB, Loop, plan, profile, truth
from job_builders import (
    job_ended,
    job_progressed,
    no_history,
    past_job,
    plan_applied,
    plan_decided,
    plan_refused,
    profile_measured,
)
from stretto_core.arbiter.state import ArbiterState
from stretto_core.fitter.machine import FitMachine, weighted_median
from stretto_core.fitter.state import FitState, FitterSettings
from stretto_core.machine import Emit
from stretto_core.model.throughput import Configuration, FittedModel, Inputs
from stretto_core.model.types import JobOpened
from stretto_core.planner.exploration import ExplorationLimits
from stretto_core.planner.history import HistoryMachine
from stretto_core.planner.machine import PlanMachine
from stretto_core.planner.state import HistorySettings, PlannerSettings
from stretto_messages.arbiter import PlanDecided
from stretto_messages.base import GIB
from stretto_messages.fitter import ModelFitted
from stretto_messages.planner import CandidatesComputed, HistoryRecorded, PlanProposed
from stretto_messages.profiler import ProfileMeasured
from stretto_messages.values import Plan, Resources

BIG = Resources(64, 256 * GIB)


def decided(loop: Loop, job: str = "a") -> list[PlanDecided]:
    return loop.facts(PlanDecided, job)


def capacity_held(loop: Loop) -> None:
    claimed = loop.arbiter.state.claimed()
    assert claimed.fits(loop.arbiter.settings.capacity), claimed


# ---- the whole way of a job ------------------------------------------------------------------------------------


def test_a_job_goes_from_history_over_measurements_to_a_better_plan_and_back_into_history() -> None:
    loop = Loop(BIG)
    loop.tell(past_job("old", {"model": "wide-deep"}, plan(2, 1), 30_000.0, ps_memory_peak_bytes=900 * MIB))
    loop.submit("a", profile(100_000_000, metadata={"model": "wide-deep"}))
    loop.run(1500)
    kinds = [fact.kind for fact in decided(loop)]
    assert kinds[0] == "warm-start"
    assert decided(loop)[0].plan == plan(2, 1)
    assert kinds.count("measure") <= 5
    assert "improve" in kinds
    assert [fact.version for fact in decided(loop)] == list(range(1, len(kinds) + 1))
    rates = [fact.throughput for fact in loop.facts(ProfileMeasured)]
    assert rates[-1] > 3 * rates[0]
    recorded = loop.facts(HistoryRecorded, "a")
    assert len(recorded) == 1
    assert recorded[0].plan == decided(loop)[-1].plan
    assert "a" in loop.history.state.past
    assert loop.arbiter.state.jobs == {}, "everything is given back"


@pytest.mark.proof
def test_the_first_models_of_a_job_like_a_past_one_are_better_and_the_history_keeps_what_explain_tells() -> None:
    """The other is slower, above all where its servers are the reason."""

    def other(p: Plan) -> float:
        return 1.3 * truth(p) + 0.002 * p.workers / (p.ps * p.ps_cpu_cores)

    plans = [plan(w, p) for w in (1, 2, 4, 8, 12) for p in (1, 2, 4)]
    x, real = Inputs.of([Configuration.of(p, 512) for p in plans]), np.array([other(p) for p in plans])

    def errors(*, remembered: bool) -> dict[int, float]:
        """Return the mean error of the first model for each number of measured configurations."""
        loop = Loop(BIG)
        loop.submit("a", profile(100_000_000, metadata={"model": "wide-deep"}))
        loop.run(1500)
        (past,) = loop.facts(HistoryRecorded, "a")
        assert past.model == FittedModel.of(loop.facts(ModelFitted, "a")[-1]).known
        assert past.throughput == pytest.approx(past.plan.workers * 512 / truth(past.plan), rel=0.01)
        if not remembered:
            loop.tell(replace(past, model=None))
        loop.step_time = other
        loop.submit("b", profile(100_000_000, metadata={"model": "wide-deep"}))
        loop.run(300)
        found = dict[int, float]()
        for fact in loop.facts(ModelFitted, "b"):
            error = float(np.abs(FittedModel.of(fact).step_time_s(x) / real - 1).mean())
            found.setdefault(len(fact.measured), error)
        return found

    helped, alone = errors(remembered=True), errors(remembered=False)
    assert {1, 2} <= helped.keys() & alone.keys()
    assert all(helped[count] < 0.15 and helped[count] < 0.7 * alone[count] for count in (1, 2))


def test_predictions_that_led_to_a_decision_come_true_within_their_interval_mostly() -> None:
    loop = Loop(BIG)
    loop.submit("a", profile(100_000_000))
    loop.run(600)
    improved = [fact for fact in decided(loop) if fact.kind == "improve"]
    assert improved
    for fact in improved:
        came = fact.plan.workers * 512 / truth(fact.plan)
        interval = fact.throughput_interval
        assert interval.low * 0.9 <= came <= interval.high * 1.1
        assert any("predicted" in reason and "90 %" in reason for reason in fact.reasons)
        assert 0 < len(fact.alternatives) <= 8
        assert all(alternative.why_not for alternative in fact.alternatives)


def test_two_cores_are_enough_to_scale_out_and_to_add_a_server() -> None:
    loop = Loop(Resources(2, 8 * GIB))
    loop.submit("a", profile(5_000_000))
    loop.run(200)
    plans = [fact.plan for fact in decided(loop)]
    assert max(p.workers for p in plans) == 2
    assert max(p.ps for p in plans) == 2
    capacity_held(loop)


def test_noise_alone_never_resizes_a_job() -> None:
    loop = Loop(Resources(4, 16 * GIB), noise=0.06)
    loop.submit("a", profile(500_000_000))
    loop.run(400)
    settled = len(decided(loop))
    loop.run(1500)
    assert len(decided(loop)) <= settled + 1


@pytest.mark.proof
def test_many_jobs_share_the_capacity_and_none_overdraws_it() -> None:
    loop = Loop(Resources(24, 96 * GIB))
    for i in range(5):
        loop.submit(f"job-{i}", profile(20_000_000 * (i + 1), weight=1.0 + i))
        loop.run(15)
        capacity_held(loop)
    for _ in range(40):
        loop.run(20)
        capacity_held(loop)
    assert {fact.job for fact in loop.facts(PlanDecided) if fact.kind == "improve"}


def test_the_same_messages_give_the_same_decisions() -> None:
    def history() -> list[object]:
        loop = Loop(Resources(12, 64 * GIB))
        loop.submit("a", profile())
        loop.submit("b", profile())
        loop.run(300)
        return loop.log

    assert history() == history()


# ---- the planner -----------------------------------------------------------------------------------------------


def start(machine: PlanMachine, job: JobOpened) -> list[object]:
    facts = machine.handle(job, 0.0)
    match = no_history(job.job)
    return [action.fact for action in [*facts, *machine.handle(match, 0.1)] if isinstance(action, Emit)]


def test_a_stated_plan_goes_before_history_and_is_brought_within_the_limits() -> None:
    machine = PlanMachine(None, PlannerSettings(BIG))
    facts = start(machine, JobOpened("a", profile(initial=plan(100, 2))))
    assert [fact.kind for fact in facts] == ["initial"]
    assert facts[0].plan == plan(16, 2)
    assert any("outside" in reason for reason in facts[0].reasons)


def test_a_fixed_job_is_never_advised() -> None:
    loop = Loop(BIG)
    loop.submit("a", profile(initial=plan(1, 1), fixed=True))
    loop.run(100)
    assert [fact.kind for fact in decided(loop)] == ["initial"]
    assert loop.facts(CandidatesComputed) == []


def test_a_refused_measurement_leads_to_another_and_the_search_ends_until_there_may_be_room() -> None:
    machine = PlanMachine(None, PlannerSettings(BIG))
    start(machine, JobOpened("a", profile(10**9)))
    machine.handle(plan_decided("a", 1, "warm-start", plan(), BIG), 1.0)
    machine.handle(plan_applied("a", 1, plan(), 3.0), 2.0)
    fitter, asked = FitMachine(), []

    def measure(now: float) -> None:
        window = profile_measured("a", 1, plan(), 0.05, 10_240.0)
        for fitted in fitter.handle(window, now):
            for action in machine.handle(fitted.fact, now):
                if isinstance(action.fact, PlanProposed):
                    asked.append(action.fact.plan)
                    machine.handle(plan_refused("a", "measure", action.fact.plan, ("no room",)), now + 0.5)

    for i in range(40):
        measure(3.0 + i)
    assert len(asked) == len(set(asked)) > 1
    assert machine.state.explored_enough
    before = list(asked)
    for i in range(5):
        measure(700.0 + i)
    assert asked[len(before)] in before
    machine.handle(plan_applied("a", 2, plan(2), 1.0), 710.0)
    assert machine.state.refused == []


def test_only_a_completed_job_is_advised_again_when_its_ledger_goes_on() -> None:
    for outcome, again in (("completed", True), ("failed", False)):
        machine = PlanMachine(None, PlannerSettings(BIG))
        machine.handle(JobOpened("a", profile(initial=plan())), 0.0)
        machine.handle(job_ended("a", outcome), 1.0)
        machine.handle(job_progressed("a", 1000, 5_000_000, 10.0), 2.0)
        assert machine.state.ended is not again


def test_a_model_of_a_job_that_is_over_is_forgotten() -> None:
    machine = FitMachine()
    machine.handle(window(0.02), 1000.0)
    assert machine.state.measured
    machine.handle(job_ended("a", "cancelled"), 1001.0)
    assert machine.state == FitState()


def test_varying_the_cores_too_identifies_what_they_do() -> None:
    axes = ("workers", "ps", "worker_cpu_cores", "ps_cpu_cores")
    explore = ExplorationLimits(explorations_max=6, axes=axes)
    loop = Loop(BIG, planner_settings=PlannerSettings(room=BIG, exploration=explore))
    loop.submit("a", profile(10**9))
    loop.run(200)
    measured = [fact.plan for fact in decided(loop) if fact.kind == "measure"]
    assert all(len({getattr(p, axis) for p in [plan(), *measured]}) > 1 for axis in axes)
    terms = set(loop.facts(ModelFitted)[-1].unidentified)
    assert not {"a1", "a3"} & terms


def test_no_measurement_starts_when_the_job_is_nearly_done() -> None:
    loop = Loop(BIG)
    loop.submit("a", profile(600_000))  # about 35 s of training
    loop.run(60)
    assert [fact.kind for fact in decided(loop)] == ["warm-start"]


def test_the_time_that_changes_took_refines_the_overhead() -> None:
    def learned(kept: float) -> float:
        loop = Loop(BIG, apply_s=25.0, kept_while_applying=kept)
        loop.submit("a", profile(100_000_000))
        loop.run(300)
        overheads = loop.planners["a"].state.overheads
        return overheads.worker_change_s

    assert learned(0.0) > 10, "nothing is trained meanwhile"
    assert 5 < learned(0.5) < 15
    assert learned(1.0) < 5, "training goes on while pods start: little is lost"


# ---- the fitter ------------------------------------------------------------------------------------------------


def window(step_time_s: float, settled: bool = True, workers: int = 1) -> ProfileMeasured:
    return profile_measured("a", 1, plan(workers), step_time_s, 1.0, settled=settled)


def test_unsettled_and_repeated_windows_do_not_count() -> None:
    machine = FitMachine()
    assert machine.handle(window(0.05, settled=False), 1.0) == []
    assert len(machine.handle(window(0.05), 2.0)) == 1
    assert machine.handle(window(0.05), 2.0) == []
    assert machine.state.windows == 1


def test_one_hung_window_does_not_move_a_configuration() -> None:
    machine = FitMachine()
    for i in range(9):
        machine.handle(window(0.05), float(i))
    (action,) = machine.handle(window(1.0), 9.0)
    assert action.fact.measured_step_time_s == pytest.approx(0.05)


def test_old_windows_are_forgotten() -> None:
    machine = FitMachine(None, FitterSettings(half_life_s=60.0))
    for i in range(10):
        machine.handle(window(0.05), float(i))
    for i in range(10):
        last = machine.handle(window(0.08 + i * 1e-6), 1000.0 + i)
    assert last[0].fact.measured_step_time_s == pytest.approx(0.08, rel=1e-3)


def test_the_model_carries_its_error_and_what_it_does_not_know() -> None:
    machine = FitMachine()
    facts = [a.fact for w in (1, 2) for i in range(3) for a in machine.handle(window(0.05 + 0.01 * w, True, w), i + w)]
    last: ModelFitted = facts[-1]
    assert last.predicted_interval_s.low < last.predicted_step_time_s < last.predicted_interval_s.high
    assert "a7" in last.unidentified
    assert [row.windows for row in last.measured] == [3, 3]
    assert last.rmsle < 0.1


def test_weighted_median() -> None:
    assert weighted_median([3.0, 1.0, 2.0], [1, 1, 1]) == 2.0
    assert weighted_median([1.0, 2.0], [1, 1]) == 1.5
    assert weighted_median([1.0, 2.0, 9.0], [1, 1, 5]) == 9.0


# ---- history ---------------------------------------------------------------------------------------------------


def test_history_is_bounded_and_a_repeated_record_counts_once() -> None:
    machine = HistoryMachine(None, HistorySettings(jobs_kept=3))
    for i in [0, 1, 1, 2, 3]:
        machine.handle(past_job(f"j{i}", {"m": "x"}, plan(), 1.0), float(i))
    assert list(machine.state.past) == ["j1", "j2", "j3"]
    (action,) = machine.handle(JobOpened("new", profile(metadata={"m": "x"})), 9.0)
    assert sum(match.weight for match in action.fact.matches) == pytest.approx(1.0)


@pytest.mark.parametrize(("past", "told"), [(1, "over 1 similar past job with"), (2, "over 2 similar past jobs with")])
def test_a_warm_start_tells_how_many_jobs_it_follows(past: int, told: str) -> None:
    history = HistoryMachine(None, HistorySettings())
    for name in map(str, range(past)):
        history.handle(past_job(name, {"m": "x"}, plan(), 1.0), 0.0)
    submitted = JobOpened("new", profile(metadata={"m": "x"}))
    machine = PlanMachine(None, PlannerSettings(BIG))
    machine.handle(submitted, 1.0)
    (matched,) = history.handle(submitted, 1.0)
    (proposed, *_) = [one.fact for one in machine.handle(matched.fact, 2.0) if isinstance(one, Emit)]
    assert proposed.kind == "warm-start"
    assert told in proposed.reasons[0]


def test_state_survives_a_snapshot() -> None:
    from pydantic import TypeAdapter
    from stretto_core.fitter.state import FitState
    from stretto_core.planner.state import HistoryState, PlanState

    loop = Loop(BIG)
    loop.submit("a", profile(10**8, metadata={"model": "x", "rows": 3}))
    loop.run(400)
    loop.tell(past_job("old", {"m": 1}, plan(), 1.0))
    for kind, state in (
        (ArbiterState, loop.arbiter.state),
        (PlanState, loop.planners["a"].state),
        (FitState, loop.fitters["a"].state),
        (HistoryState, loop.history.state),
    ):
        adapter = TypeAdapter(kind)
        document = adapter.dump_json(state)
        assert adapter.validate_json(document) == state
        assert len(document) < 256 * 1024
