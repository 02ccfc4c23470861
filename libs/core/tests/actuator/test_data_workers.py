"""Data workers beside a job: whatever becomes of them, the job's other pods, parameters and end are as without them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from actuator_builders import (
    get_servers,
    job_completed,
    plan,
    plan_decided,
    pod_given_up,
    pod_pending,
    pod_resize_refused,
)
from actuator_cluster import SimulatedCluster, started
from hypothesis import given
from hypothesis import strategies as st
from stretto_core.actuator import data_workers
from stretto_core.actuator.state import DataWorkers, JobOpened
from stretto_messages.actuator import DataWorkersChanged, JobFailed, JobFinished, PlanApplied, PodExited
from stretto_messages.arbiter import DataWorkersDecided
from stretto_messages.base import GIB, example_of

OPENED = JobOpened("job", samples_total=12, worker_failures=100)
WITH_DATA = JobOpened("job", samples_total=12, worker_failures=100, data=DataWorkers(2, 1.0, GIB))

of_the_job = st.sampled_from(["kill worker", "kill ps", "grow", "shrink"])
of_data_workers = st.sampled_from(["killed", "oom-killed", "user's error", "stopped", "no room", "given up", "refused"])


def told(cluster: SimulatedCluster) -> list[tuple[str, Any]]:
    """Return the facts that are not of data workers, without their times."""
    others = [f for f in cluster.facts if not isinstance(f, DataWorkersChanged) and getattr(f, "role", "") != "data"]
    return [(type(fact).__name__, getattr(fact, "pod", getattr(fact, "version", ""))) for fact in others]


def happen(cluster: SimulatedCluster, what: str, number: int) -> None:
    version = cluster.state.plan_version + 1
    if what.startswith("kill"):
        pods = cluster.running(what.removeprefix("kill "))
        cluster.kill(pods[number % len(pods)])
    elif what in ("grow", "shrink"):
        wanted = plan(workers=3, ps=2) if what == "grow" else plan(workers=1, ps=1)
        cluster.tell(plan_decided(version, wanted))


def befall(cluster: SimulatedCluster, what: str, number: int) -> None:
    """Let something happen to a data worker."""
    pods = cluster.running("data")
    pod = pods[number % len(pods)] if pods else "data-0"
    codes: dict[str, tuple[Any, int | None]] = {
        "killed": ("killed", 137),
        "oom-killed": ("oom-killed", 137),
        "user's error": ("error", 3),
        "stopped": ("completed", 0),
    }
    if what in codes:
        cluster.kill(pod, *codes[what])
    elif what == "no room":
        cluster.tell(pod_pending(pod, "no-room"))
    elif what == "given up":
        cluster.tell(pod_given_up(pod))
    else:
        cluster.tell(pod_resize_refused(pod))


@given(st.lists(st.tuples(of_the_job, st.integers(0, 5)), max_size=6), st.data())
def test_a_job_goes_its_way_whatever_happens_to_its_data_workers(
    script: list[tuple[str, int]], data: st.DataObject
) -> None:
    without, beside = started(plan(workers=2, ps=2), OPENED), started(plan(workers=2, ps=2), WITH_DATA)
    for what, number in script:
        for which in data.draw(st.lists(of_data_workers, max_size=4)):
            befall(beside, which, data.draw(st.integers(0, 3)))
            beside.run()
        for cluster in (without, beside):
            happen(cluster, what, number)
            cluster.run()
    for cluster in (without, beside):
        cluster.tell(job_completed())
        cluster.run()
    assert told(beside) == told(without)
    assert beside.told(JobFinished)
    assert not beside.pods


def test_data_workers_start_beside_workers_and_are_published_as_they_come_and_go() -> None:
    cluster = started(plan(workers=1, ps=1), WITH_DATA)
    assert cluster.running("data") == ["data-0", "data-1"]
    assert cluster.launched.index("data-0") > cluster.launched.index("ps-0")
    assert cluster.told(PlanApplied)
    (reply,) = cluster.tell(get_servers())
    assert [each.index for each in reply.data_workers] == [0, 1]
    cluster.kill("data-0")
    assert [each.index for each in cluster.told(DataWorkersChanged)[-1].data_workers] == [1]
    cluster.run()
    assert [each.index for each in cluster.told(DataWorkersChanged)[-1].data_workers] == [1, 2]
    versions = [event.version for event in cluster.told(DataWorkersChanged)]
    assert versions == list(range(1, len(versions) + 1))


def test_a_job_whose_data_workers_keep_dying_goes_on_without_any() -> None:
    cluster = started(plan(workers=1, ps=1), WITH_DATA)
    for _ in range(40):
        for pod in cluster.running("data"):
            cluster.kill(pod, "error", 1)
        cluster.run()
    assert not cluster.running("data")
    assert cluster.state.failures_in_row["data"] >= data_workers.FAILURES_MAX
    assert len([e for e in cluster.told(PodExited) if e.role == "data"]) <= data_workers.FAILURES_MAX + 1
    assert not cluster.told(JobFailed)
    cluster.tell(plan_decided(2, plan(workers=2, ps=1)))
    cluster.run()
    assert cluster.running("worker") == ["worker-0", "worker-1"]


def decided(version: int, count: int) -> DataWorkersDecided:
    return replace(example_of(DataWorkersDecided), job="job", version=version, count=count, memory_bytes=GIB)


def test_the_number_that_was_decided_last_runs_and_a_late_decision_changes_nothing() -> None:
    cluster = started(plan(workers=1, ps=1), OPENED)
    assert not cluster.running("data")
    cluster.tell(decided(1, 2))
    cluster.run()
    assert cluster.running("data") == ["data-0", "data-1"]
    cluster.tell(decided(3, 3))
    cluster.tell(decided(2, 0))
    cluster.run()
    assert cluster.running("data") == ["data-0", "data-1", "data-2"]
    cluster.tell(decided(4, 1))
    cluster.run()
    assert cluster.running("data") == ["data-0"], "the newest stop"
    cluster.tell(job_completed())
    cluster.run()
    assert not cluster.pods


def test_data_workers_that_were_given_up_are_tried_again_once_none_were_wanted() -> None:
    cluster = started(plan(workers=1, ps=1), OPENED)
    cluster.tell(decided(1, 1))
    for _ in range(20):
        cluster.run()
        for pod in cluster.running("data"):
            cluster.kill(pod, "error", 1)
    assert not cluster.running("data")
    cluster.tell(decided(2, 2))
    cluster.run()
    assert not cluster.running("data"), "more of what died would die as well"
    cluster.tell(decided(3, 0))
    cluster.tell(decided(4, 1))
    cluster.run()
    assert len(cluster.running("data")) == 1


@pytest.mark.parametrize("waiting", [True, False])
def test_no_plan_waits_for_a_data_worker(waiting: bool) -> None:
    cluster = SimulatedCluster(WITH_DATA)
    cluster.tell(plan_decided(1, plan()))
    for _ in range(10):
        if waiting:
            for pod in list(cluster.state.pods.values()):
                if pod.role == "data":
                    pod.not_before_s = cluster.now + 1e6
        cluster.step()
    assert cluster.told(PlanApplied)
