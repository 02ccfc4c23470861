"""Extended resources in the arbiter: no decision exceeds them, and a job that waits for them says so."""

from __future__ import annotations

import pickle
import random
from dataclasses import replace
from typing import Any

import pytest
from arbiter_builders import Told, busy_cluster, candidate, event_of
from closed_loop import plan, profile
from hypothesis import given, settings
from hypothesis import strategies as st
from job_builders import candidates_computed, job_ended, plan_applied, plan_proposed, pod_unplaced
from stretto_core.arbiter.machine import ArbiterMachine
from stretto_core.arbiter.selection import greedy, hull
from stretto_core.arbiter.state import ArbiterSettings
from stretto_core.machine import Tick
from stretto_core.model.teams import TeamQuota
from stretto_core.model.types import DeviceType, JobOpened, Prices
from stretto_messages.arbiter import PlanDecided, PlanRefused
from stretto_messages.base import GIB
from stretto_messages.values import Extended, ExtendedPerPod, Resources, total

GPU, FPGA = "nvidia.com/gpu", "example.com/fpga"
NAMES = ("a", "b", "c", "d", "e", "f")


def cluster(**counts: int) -> Resources:
    names = {"gpu": GPU, "fpga": FPGA}
    return Resources(20.0, 60 * GIB, tuple(sorted((names[name], count) for name, count in counts.items() if count)))


def with_gpus(count: int = 1, **spec: Any) -> Any:
    return profile(10**7, extended=ExtendedPerPod(worker=((GPU, count),)), **spec)


def arbiter(capacity: Resources, **settings: Any) -> Told:
    return Told(ArbiterMachine(None, ArbiterSettings(capacity, background_algorithm="", **settings)))


counts = st.integers(0, 3)
per_pod: st.SearchStrategy[Extended] = st.builds(
    lambda gpu, fpga: tuple(pair for pair in ((FPGA, fpga), (GPU, gpu)) if pair[1]), counts, counts
)
jobs = st.fixed_dictionaries({name: st.builds(ExtendedPerPod, per_pod, per_pod) for name in NAMES})
quota = st.builds(lambda gpu, borrow: TeamQuota(extended={GPU: gpu}, borrow=borrow), st.integers(0, 6), st.booleans())


@settings(max_examples=80)
@given(st.integers(0, 2**32), st.integers(0, 12), st.integers(0, 12), jobs, st.none() | quota)
@pytest.mark.proof
def test_no_decision_exceeds_the_devices_of_the_cluster(
    seed: int, gpus: int, fpgas: int, extended: dict[str, ExtendedPerPod], ads: TeamQuota | None
) -> None:
    """Goal: the claims of all jobs never exceed the devices that there are; pods that find no room count as well.

    Method: random events of six jobs with drawn devices per pod, in two teams; claims counted anew from the plans after
    each. Now and then a second machine that knows nothing but the state decides the same: the index of sums is exact.
    """
    rng, now, capacity = random.Random(seed), 0.0, cluster(gpu=gpus, fpga=fpgas)
    limits = ArbiterSettings(
        capacity, stop_grace_s=7.0, apply_timeout_s=1e9, round_s=1.0, settle_s=0.0, quotas={"ads": ads} if ads else {}
    )
    machine = ArbiterMachine(None, limits)
    for step in range(120):
        now += rng.choice([0.0, 0.5, 2.0, 20.0])
        event = Tick() if rng.random() < 0.1 else event_of(machine, busy_cluster(rng, machine, list(NAMES)))
        if isinstance(event, JobOpened):
            team = "ads" if event.job in NAMES[:3] else "feed"
            event = replace(event, profile=replace(event.profile, extended=extended[event.job]), team=team)
        held = machine.state.claimed()
        afresh = None if step % 8 else ArbiterMachine(pickle.loads(pickle.dumps(machine.state)), limits)
        actions = machine.handle(event, now)  # type: ignore[arg-type]
        if afresh is not None:
            assert actions == afresh.handle(event, now)  # type: ignore[arg-type]
        claimed = machine.state.claimed()
        for name in (GPU, FPGA):
            counted = sum(
                max(_counted(extended[job.job], name, each) for each in (job.plan, job.before) if each is not None)
                for job in machine.state.jobs.values()
                if job.plan is not None and not job.replacing
            )
            assert counted <= claimed.count_of(name) <= capacity.count_of(name)
            believed = capacity.count_of(name) - total(
                job.without_room for job in machine.state.jobs.values()
            ).count_of(name)
            assert claimed.count_of(name) <= max(believed, held.count_of(name))
        for fact in (action.fact for action in actions):
            if isinstance(fact, PlanDecided):
                assert set(fact.free_extended) == {name for name, _ in capacity.extended}


def _counted(extended: ExtendedPerPod, name: str, here: Any) -> int:
    return here.workers * dict(extended.worker).get(name, 0) + here.ps * dict(extended.ps).get(name, 0)


def test_a_job_waits_for_devices_with_the_reason_and_starts_when_they_are_free() -> None:
    told = arbiter(cluster(gpu=1))
    (first,) = told.start("a", with_gpus(fixed=True))
    assert isinstance(first, PlanDecided)
    assert first.free_extended == {GPU: 0}
    told.applied("a")
    (second,) = told.start("b", with_gpus(fixed=True))
    assert isinstance(second, PlanRefused)
    assert f"0 {GPU} of 20 cores and 60.00 GiB and 1 {GPU} are free" in second.reasons[0]
    assert f"1 {GPU}: it waits" in second.reasons[-1]
    assert not told.tell(Tick())
    (third,) = told.tell(job_ended("a", "gone"))
    assert (third.job, isinstance(third, PlanDecided)) == ("b", True)


def test_a_job_that_asks_for_what_the_cluster_lacks_is_told_what_it_is() -> None:
    told = arbiter(cluster(gpu=2))
    spec = profile(10**7, extended=ExtendedPerPod(worker=((FPGA, 1),)))
    (refused,) = told.start("a", spec)
    assert isinstance(refused, PlanRefused)
    assert any(f"more than the whole cluster, by 0 cores and 0.00 GiB and 1 {FPGA}" in each for each in refused.reasons)
    (other,) = told.start("b", profile(10**7))
    assert isinstance(other, PlanDecided), "who waits in vain keeps nobody out"


def test_a_plan_is_reduced_to_the_devices_that_are_free() -> None:
    told = arbiter(cluster(gpu=5))
    (decided,) = told.start("a", with_gpus(2), workers=8)
    assert decided.plan.workers == 2
    assert decided.kind == "fit-capacity"


def test_devices_are_taken_back_only_from_who_has_them() -> None:
    """A job with cores to spare and no device keeps them; the one with devices gives back no more than is missing."""
    told = arbiter(Resources(40.0, 100 * GIB, ((GPU, 4),)))
    for job, spec in (("plain", profile(10**7)), ("large", with_gpus())):
        told.start(job, spec, workers=4)
        told.applied(job)
    facts = told.start("late", with_gpus(), workers=1)
    taken = [fact for fact in facts if isinstance(fact, PlanDecided)]
    assert [(fact.job, fact.plan.workers, fact.kind) for fact in taken] == [("large", 3, "rebalance")]
    assert taken[0].plan.worker_cpu_cores == 1.0, "its cores are not missing"
    (started,) = [fact for fact in told.applied("large") if isinstance(fact, PlanDecided)]
    assert (started.job, started.free_extended) == ("late", {GPU: 0})


@pytest.mark.parametrize("algorithm", [hull.hull, greedy.weighted_greedy])
def test_a_round_shares_devices(algorithm: Any) -> None:
    """Goal: two jobs that would each take all free devices do not both get them. Method: one round with candidates."""
    limits = ArbiterSettings(cluster(gpu=6), settle_s=0.0, round_s=0.0, background_algorithm="")
    machine = ArbiterMachine(None, limits, algorithm)
    for name in ("a", "b"):
        machine.handle(JobOpened(name, with_gpus()), 0.0)
        machine.handle(plan_proposed(name, "warm-start", plan(), 0.1, ("r",)), 0.0)
        machine.handle(plan_applied(name, 1, plan(), 2.0), 0.0)
    for name in ("a", "b"):
        state = machine.state.jobs[name]
        state.candidates = candidates_computed(name, 1, plan(), 1000.0, (candidate(5, 1, 5000.0, 0.0),))
        state.throughput = 1000.0
        machine._context.register.touch(name)
    decided = [action.fact for action in machine.handle(Tick(), 100.0)]
    assert [fact.plan.workers for fact in decided if isinstance(fact, PlanDecided)] == [5]
    assert machine.state.claimed().count_of(GPU) == 6


def test_jobs_without_devices_grow_while_others_wait_for_devices_but_not_into_their_cores() -> None:
    told = arbiter(Resources(10.0, 60 * GIB, ((GPU, 1),)))
    for job, spec in (("holder", with_gpus(fixed=True)), ("plain", profile(10**7))):
        told.start(job, spec)
        told.applied(job)
    (refused,) = told.start("late", with_gpus(fixed=True))
    assert isinstance(refused, PlanRefused), "it waits for the device, and would need 2 of the 6 free cores"
    (decided,) = told.tell(plan_proposed("plain", "measure", plan(5), 0.1, ("r",)))
    assert (decided.job, decided.plan.workers, decided.free_cpu_cores) == ("plain", 5, 2.0)
    told.applied("plain")
    (kept,) = told.tell(plan_proposed("plain", "measure", plan(6), 0.1, ("r",)))
    assert isinstance(kept, PlanRefused)
    (started,) = told.tell(job_ended("holder", "gone"))
    assert (started.job, isinstance(started, PlanDecided)) == ("late", True)


def test_pods_without_a_device_are_subtracted_until_they_have_one() -> None:
    told = arbiter(cluster(gpu=2), no_room_s=50.0)
    told.start("a", with_gpus(fixed=True))
    told.tell(pod_unplaced("a", "worker-0", "worker", f"0/3 nodes are available: 3 Insufficient {GPU}"))
    (refused,) = told.start("b", with_gpus(fixed=True))
    assert any(
        f"1 core and 1.00 GiB and 1 {GPU} of it are spread over nodes too full for one pod" in each
        for each in refused.reasons
    )
    told.now += 100.0
    assert [fact.job for fact in told.tell(Tick()) if isinstance(fact, PlanDecided)] == ["b"]


def test_a_team_gets_no_more_devices_than_its_quota_and_the_reason_says_it() -> None:
    quotas = {"ads": TeamQuota(extended={GPU: 1}, borrow=False)}
    told = arbiter(cluster(gpu=4), quotas=quotas)
    told.start("a", with_gpus(fixed=True), team="ads")
    told.applied("a")
    (refused,) = told.start("b", with_gpus(fixed=True), team="ads")
    assert any(f"its quota is any cores and any memory and 1 {GPU}; it may not borrow" in e for e in refused.reasons)
    (other,) = told.start("c", with_gpus(3, fixed=True), team="feed")
    assert isinstance(other, PlanDecided)


def test_a_team_gets_no_more_units_of_a_type_of_devices_than_its_quota() -> None:
    """Units of a type are counted as extended resources: a quota names them like those."""
    fast = DeviceType("gpu-a", price_per_hour=1.0, count=4, cpu_cores=8.0, memory_bytes=32 * GIB)
    quotas = {"ads": TeamQuota(extended={fast.resource: 2}, borrow=False)}
    told = arbiter(Resources(20.0, 60 * GIB, ((fast.resource, 4),)), devices=(fast,), quotas=quotas)
    started = list[str]()
    for job, team in (("a", "ads"), ("b", "ads"), ("c", "feed")):
        told.tell(JobOpened(job, profile(10**7, fixed=True, devices_asked=("auto",)), team))
        wanted = plan(2).with_workers(0, [fast.group(2)])
        (answer,) = told.tell(plan_proposed(job, "initial", wanted))
        started += [job] * isinstance(answer, PlanDecided)
        if job == "b":
            assert any(f"any memory and 2 {fast.resource}; it may not borrow" in each for each in answer.reasons)
    assert started == ["a", "c"]


def test_devices_cost_their_price() -> None:
    told = arbiter(cluster(gpu=4))
    prices = Prices(1.0, 0.0, {GPU: 10.0})
    (decided,) = told.start("a", with_gpus(2, fixed=True, prices=prices))
    assert decided.cost_per_hour == pytest.approx(2.0 + 20.0)
