"""The arbiter as it is served: its settings, its plug-ins, what it saves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from stretto_arbiter.service import Arbiter
from stretto_arbiter.settings import ArbiterSettings
from stretto_core.algorithms import SELECT
from stretto_core.machine import Tick
from stretto_messages.actuator import JobFailed, JobFinished, PlanApplied, PodExited, PodPending, PodStarted
from stretto_messages.arbiter import PlanRefused
from stretto_messages.base import GIB, example_of
from stretto_messages.dispatcher import JobCompleted, JobProgressed
from stretto_messages.gateway import PlanRequested
from stretto_messages.planner import CandidatesComputed, PlanProposed
from stretto_messages.values import Interval, Plan
from stretto_runtime import Meta, SettingsFault
from stretto_runtime.inputs import CLUSTER
from stretto_runtime.owner.machines import Machines
from stretto_wire.codec import decode, encode
from stretto_wire.contract.submission import JobSubmitted

from tests.live_bus import candidate, computed, plan_of, submission

META = Meta(1, 1000.0, "evt", {}, "_")


def plan(workers: int, **changes: Any) -> Plan:
    return replace(plan_of(workers, cores=1.0), **changes)


def submitted(job: str = "a", **more: Any) -> JobSubmitted:
    return submission(job, dataset={"samples": 10**9}, **more)


def candidates(version: int, *rows: tuple[int, float]) -> CandidatesComputed:
    made = [candidate(f"c{i}", plan(workers), rate, 0.05 * workers) for i, (workers, rate) in enumerate(rows)]
    return computed("a", plan(1), *made, version=version)


class Cluster:
    """The service's own machine, fed with messages as they come off the bus."""

    def __init__(self, **settings: Any) -> None:
        self.service = Arbiter(ArbiterSettings(cpu_cores=8, memory_bytes=32 * GIB, **settings))
        self.machine = self.service.machine("_", None)
        self.now = 1000.0

    def tell(self, message: Any, after_s: float = 1.0) -> list[Any]:
        self.now += after_s
        event = message if isinstance(message, Tick) else self.service.to_event(message, META)
        told = [self.service.to_message("_", action.fact) for action in self.machine.handle(event, self.now)]
        assert all(decode(type(fact), encode(fact)) == fact for fact in told)
        return told

    def start(self) -> None:
        self.tell(submitted())
        proposal = PlanProposed(job="a", kind="warm-start", plan=plan(1), cost_per_hour=0.1, reasons=("r",))
        (decided,) = self.tell(proposal)
        assert (decided.version, decided.plan, decided.previous) == (1, plan(1), None)
        self.tell(PlanApplied(job="a", version=1, plan=plan(1), took_s=3.0))


def test_a_decision_says_why_and_what_else_was_possible() -> None:
    cluster = Cluster()
    cluster.start()
    (decided,) = cluster.tell(candidates(1, (1, 1000.0), (2, 1900.0), (3, 2500.0), (7, 2600.0), (40, 9000.0)), 60)
    assert (decided.kind, decided.version, decided.previous) == ("improve", 2, plan(1))
    assert decided.plan.workers in (2, 3)
    assert decided.throughput_before == 1000.0
    assert decided.throughput_interval.low < decided.throughput < decided.throughput_interval.high
    assert decided.free_cpu_cores == 8 - decided.plan.workers - 1
    assert any("samples/s" in reason for reason in decided.reasons)
    why_not = {row.plan.workers: row.why_not for row in decided.alternatives}
    assert "cores" in why_not[40]
    assert len(decided.alternatives) == 3
    assert (decided.algorithm, decided.round.algorithm, decided.round.objective) == (
        *[SELECT.default] * 2,
        "efficiency",
    )
    assert 0 < decided.round.term == decided.round.value <= decided.round.bound
    assert decided.round.gap == pytest.approx(1 - decided.round.value / decided.round.bound)


@pytest.mark.parametrize("objective", ["efficiency", "gain", "completion", "cost"])
def test_the_objective_decides(objective: str) -> None:
    cluster = Cluster(objective=objective, rho=0.0)
    cluster.start()
    (decided,) = cluster.tell(candidates(1, (2, 1900.0), (5, 3000.0)), 60)
    assert decided.plan.workers == {"efficiency": 2, "gain": 5, "completion": 5, "cost": 2}[objective]
    assert decided.round.objective == objective


def test_an_interval_that_reaches_zero_is_no_crash() -> None:
    cluster = Cluster()
    cluster.start()
    message = candidates(1, (2, 1900.0))
    wide = replace(message.candidates[0], throughput_interval=Interval(low=0.0, high=9e9))
    assert cluster.tell(replace(message, candidates=(wide,)), 60) == []


@pytest.mark.parametrize("is_told", [True, False], ids=["told", "never told"])
def test_a_completed_job_gives_back_its_room_when_its_pods_are_gone(is_told: bool) -> None:
    cluster = Cluster()
    cluster.start()
    completed = JobCompleted(job="a", samples=1, samples_abandoned=0, epochs=1, shards=1, requeued=0, started_at_s=1.0)
    cluster.tell(replace(example_of(PodStarted), job="a", pod="ps-0", role="ps"))
    cluster.tell(completed)
    assert cluster.machine.free().cpu_cores == 6
    finished = JobFinished(
        job="a", samples_expected=1, samples_applied=1, samples_lost=0, samples_repeated=0, repeats_recognised=0, rows=1
    )
    cluster.tell(finished)
    assert cluster.machine.free().cpu_cores == 6
    if is_told:
        cluster.tell(PodExited(job="a", pod="ps-0", role="ps", reason="stopped", exit_code=None))
    else:
        cluster.tell(Tick(), cluster.machine.settings.stop_grace_s + 1.0)
    assert cluster.machine.free().cpu_cores == 8
    assert not cluster.machine.ticking


def test_what_a_pod_finds_no_room_for_is_not_given_to_others() -> None:
    cluster = Cluster()
    cluster.start()
    waits = {"job": "a", "pod": "worker-0", "role": "worker"}
    cluster.tell(PodPending(**waits, reason="no-room", detail="3 Insufficient cpu."))
    assert cluster.machine.free().cpu_cores == 5
    cluster.tell(PodExited(**waits, reason="stopped", exit_code=None))
    assert cluster.machine.free().cpu_cores == 6
    cluster.tell(PodPending(**waits, reason="quota"))
    assert cluster.machine.free().cpu_cores == 5
    (decided,) = cluster.tell(PlanRequested(job="a", plan=plan(2), by="ada"))
    assert any("no room for worker-0 of the plan before" in reason and "quota" in reason for reason in decided.reasons)
    cluster.tell(PodExited(**waits, reason="stopped", exit_code=None))
    free = cluster.machine.free()
    cluster.tell(PodPending(job="a", pod="data-0", role="data", reason="no-room"))
    assert cluster.machine.free() == free, "no plan has less room for a data worker that finds none"


def test_a_pod_that_waits_for_its_image_has_found_the_room_that_it_lacked() -> None:
    cluster = Cluster()
    cluster.start()
    waits = {"job": "a", "pod": "worker-0", "role": "worker"}
    cluster.tell(PodPending(**waits, reason="no-room"))
    assert cluster.machine.free().cpu_cores == 5
    cluster.tell(PodPending(**waits, reason="image-pull"))
    assert cluster.machine.free().cpu_cores == 6


def test_what_a_user_asks_for_is_given_whatever_it_brings_and_no_measurement_takes_its_place() -> None:
    cluster = Cluster()
    cluster.start()
    measure = PlanProposed(job="a", kind="measure", plan=plan(2), cost_per_hour=0.1, reasons=("r",))
    (decided,) = cluster.tell(measure)
    assert cluster.tell(PlanRequested(job="a", plan=plan(3), by="ada")) == []  # plan 2 is being applied
    assert cluster.tell(measure) == []
    (decided,) = cluster.tell(PlanApplied(job="a", version=decided.version, plan=plan(2), took_s=3.0))
    assert (decided.kind, decided.plan, decided.throughput) == ("requested", plan(3), None)
    assert "ada" in decided.reasons[0]


def test_what_a_user_asks_for_without_room_is_refused_with_the_reason() -> None:
    cluster = Cluster()
    cluster.start()
    (refused,) = cluster.tell(PlanRequested(job="a", plan=plan(40), by="ada"))
    assert (refused.kind, refused.wanted.workers) == ("requested", 40)
    assert "free" in refused.reasons[-1]


def test_events_of_unknown_jobs_change_nothing() -> None:
    cluster = Cluster()
    assert cluster.tell(candidates(1, (2, 1900.0))) == []
    assert cluster.tell(JobFailed(job="a", reason="x")) == []
    assert cluster.tell(Tick()) == []


def test_algorithms_are_chosen_by_name_and_unknown_ones_refused() -> None:
    for name in ("weighted-greedy", "exact"):
        cluster = Cluster(algorithm=name)
        cluster.start()
        (decided,) = cluster.tell(candidates(1, (2, 1900.0)), 60)
        assert decided.round.algorithm == name
    with pytest.raises(SettingsFault, match=r"STRETTO_ARBITER_ALGORITHM='auction'.*installed.*are.*weighted-greedy"):
        Arbiter(ArbiterSettings(algorithm="auction"))
    with pytest.raises(SettingsFault, match=r"STRETTO_ARBITER_BACKGROUND_ALGORITHM='auction'"):
        Arbiter(ArbiterSettings(background_algorithm="auction"))
    Arbiter(ArbiterSettings(background_algorithm=""))


def test_settings_come_from_the_environment_under_the_service_s_name() -> None:
    settings = ArbiterSettings.load("arbiter", {"STRETTO_ARBITER_CPU_CORES": "3.5", "STRETTO_ARBITER_RHO": "0"})
    machine = settings.machine()
    assert (machine.capacity.cpu_cores, machine.rho) == (3.5, 0.0)
    with pytest.raises(SettingsFault, match="CPU_CORES"):
        ArbiterSettings.load("arbiter", {"STRETTO_ARBITER_CPU_CORES": "-1"})


def test_a_refusal_names_what_was_wanted() -> None:
    cluster = Cluster()
    cluster.start()
    proposal = PlanProposed(job="a", kind="measure", plan=plan(30), cost_per_hour=1.0, reasons=("r",))
    (refused,) = cluster.tell(proposal)
    assert isinstance(refused, PlanRefused)
    assert refused.wanted == plan(30)


def test_another_replica_knows_the_devices_that_are_held_and_their_prices() -> None:
    """Method: one of two GPUs is held, one is requested by a pod without room; another replica reads what was saved."""
    service = Arbiter(ArbiterSettings(cpu_cores=8, memory_bytes=32 * GIB, extended_resources={"nvidia.com/gpu": 2}))
    machines, others = Machines(service), Machines(service)
    devices = {"resources": {"workers": {"extended": {"nvidia.com/gpu": 1}}}}
    prices = {"prices": {"extended_hour": {"nvidia.com/gpu": 2.5}}}
    told: list[Any] = [
        submitted("a", **devices, **prices),
        PlanProposed(job="a", kind="warm-start", plan=plan(1), cost_per_hour=0.1, reasons=("r",)),
        PodPending(job="a", pod="worker-0", role="worker", reason="no-room", detail="Insufficient nvidia.com/gpu"),
        submitted("b", **devices),
    ]
    for seq, message in enumerate(told, start=1):
        machines.handle(CLUSTER, service.to_event(message, META), 1000.0 + seq, seq)
    others.load({CLUSTER: machines.documents([CLUSTER])[CLUSTER]})
    proposal = PlanProposed(job="b", kind="warm-start", plan=plan(1), cost_per_hour=0.1, reasons=("r",))
    ours, theirs = (each.handle(CLUSTER, service.to_event(proposal, META), 1010.0, 9) for each in (machines, others))
    assert ours == theirs
    (refused,) = [action.fact for action in ours]
    assert (
        "1 core and 1.00 GiB and 1 nvidia.com/gpu of it are spread over nodes too full for one pod"
        in refused.reasons[0]
    )


def test_only_what_changed_is_saved_and_another_replica_decides_on_from_it() -> None:
    service = Arbiter(ArbiterSettings(cpu_cores=8, memory_bytes=32 * GIB))
    machines, others = Machines(service), Machines(service)
    jobs_here = ["a", "b", "c"]
    proposal = {"kind": "warm-start", "plan": plan(1), "cost_per_hour": 0.1, "reasons": ("r",)}
    told: list[Any] = [submitted(job) for job in jobs_here]
    told += [PlanProposed(job=job, **proposal) for job in jobs_here]
    told += [PlanApplied(job=job, version=1, plan=plan(1), took_s=3.0) for job in jobs_here]
    for seq, message in enumerate(told, start=1):
        machines.handle(CLUSTER, service.to_event(message, META), 1000.0 + seq, seq)
    document = machines.documents([CLUSTER])[CLUSTER]
    assert document.parts.keys() == document.behind[0] == document.behind[1] == set(jobs_here)
    document.saved()
    progress = {"samples_total": 9, "epoch": 0, "samples_per_s": 1.0, "shards_leased": 1, "shards_requeued_total": 0}
    for job in jobs_here:
        done = JobProgressed(job=job, samples_done=7, **progress)
        machines.handle(CLUSTER, service.to_event(done, META), 1015.0, 15)
    machines.handle(CLUSTER, service.to_event(candidates(1, (2, 1900.0)), META), 1016.0, 16)
    document = machines.documents([CLUSTER])[CLUSTER]
    assert document.behind == ({"a"}, {"a"}), "progress is no reason to save a job"
    others.load({CLUSTER: document})
    after = [each.handle(CLUSTER, Tick(), 1060.0, 17) for each in (machines, others)]
    assert after[0] == after[1]
    assert after[0][0].fact.plan.workers == 2
