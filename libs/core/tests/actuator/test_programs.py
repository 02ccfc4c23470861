"""A job that runs a program: it has no servers, and it is over once its programs have ended by themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from actuator_builders import counts_taken, job_completed, job_progressed, pod_exited
from actuator_cluster import SimulatedCluster, started
from stretto_core.actuator.counts import job_finished_of_program
from stretto_core.actuator.ending import PROGRAM_END_S
from stretto_core.actuator.observations import PodResizeRefused
from stretto_core.actuator.state import JobOpened
from stretto_core.actuator.steps import next_steps
from stretto_messages.actuator import JobFailed, JobFinished, PlanApplied
from stretto_messages.arbiter import PlanDecided
from stretto_messages.base import GIB, NO_SERVERS, example_of
from stretto_messages.dispatcher import LedgerReturn
from stretto_messages.values import Plan

PLAN = Plan(2, NO_SERVERS[0], 1.0, NO_SERVERS[1], GIB, NO_SERVERS[2])
OPENED = JobOpened("job", samples_total=12, runs_program=True)


def trained() -> SimulatedCluster:
    """A job whose samples are all done, while its programs run on."""
    cluster = started(PLAN, OPENED)
    cluster.tell(job_completed(samples=12, fingerprint=0, samples_recomputed=3))
    return cluster


def test_workers_start_without_servers_and_a_lost_one_comes_back() -> None:
    cluster = started(PLAN, OPENED)
    assert cluster.launched == ["worker-0", "worker-1"]
    assert cluster.told(PlanApplied)
    cluster.kill("worker-0")
    cluster.run()
    assert cluster.launched == ["worker-0", "worker-1", "worker-2"]


def test_the_job_waits_for_what_programs_do_after_the_last_sample() -> None:
    cluster = trained()
    assert not next_steps(cluster.state, cluster.now).conclude
    cluster.kill("worker-0", "completed", 0)
    assert not next_steps(cluster.state, cluster.now).conclude
    cluster.kill("worker-1", "completed", 0)
    cluster.run()
    (finished,) = cluster.told(JobFinished)
    assert (finished.samples_applied, finished.samples_lost) == (12, 0)
    assert [each.words for each in finished.shortfalls] == ["at most 3 samples twice"]
    assert cluster.launched == ["worker-0", "worker-1"], "no program is run again for nothing"


def test_what_was_trained_again_after_a_return_to_a_checkpoint_is_told() -> None:
    cluster = started(PLAN, OPENED)
    back = LedgerReturn(checkpoint="job-000002", samples_before=8, samples_gained=0, samples_undone=4)
    cluster.tell(job_progressed(8))
    cluster.tell(replace(job_progressed(4), returned=back))
    cluster.tell(job_completed(samples=12, fingerprint=0))
    for name in ("worker-0", "worker-1"):
        cluster.kill(name, "completed", 0)
    cluster.run()
    (finished,) = cluster.told(JobFinished)
    assert [each.words for each in finished.shortfalls] == ["4 samples trained again"]


def test_it_waits_for_so_long_and_no_longer() -> None:
    cluster = trained()
    cluster.kill("worker-0", "completed", 0)
    cluster.now += PROGRAM_END_S
    cluster.run()
    (finished,) = cluster.told(JobFinished)
    repeated, stopped = finished.shortfalls
    assert not repeated.lacking
    assert (stopped.words, stopped.lacking) == ("programs stopped", True)
    assert "600 s after the last sample the program of worker-1 had not ended" in stopped.detail


@pytest.mark.parametrize(
    ("reason", "code", "detail", "told"),
    [
        ("failed", 3, "exit 3: the program ended with status 1", "the program ended with status 1"),
        ("killed", 137, "", "exit code 137 (killed)"),
        ("killed", 139, "", "exit code 139 (killed)"),
        ("node-lost", None, "", "no exit code (node-lost)"),
    ],
)
def test_a_program_that_does_not_end_well_after_the_last_sample_fails_the_job(
    reason: str, code: int | None, detail: str, told: str
) -> None:
    cluster = trained()
    cluster.tell(pod_exited("worker-1", reason, code, detail))
    (failed,) = cluster.told(JobFailed)
    assert failed.reason == f"the program of worker-1 failed after the last sample, and may not have saved: {told}"


def test_samples_that_workers_did_not_report_are_lost() -> None:
    finished = job_finished_of_program(12, job_completed(samples_abandoned=2, samples=9), counts_taken())
    assert (finished.samples_expected, finished.samples_applied, finished.samples_lost) == (10, 9, 1)


def test_a_watched_program_is_not_ended_for_another_size() -> None:
    for watched in (True, False):
        cluster = started(PLAN, replace(OPENED, watched=watched))
        larger = replace(PLAN, worker_cpu_cores=2.0)
        cluster.tell(replace(example_of(PlanDecided), job="job", version=9, plan=larger))
        cluster.tell(PodResizeRefused(job="job", pod="worker-0"))
        assert (cluster.state.pods["worker-0"].phase == "running") == watched
        cluster.kill("worker-0")
        cluster.run()
        assert cluster.state.pods[cluster.launched[-1]].cpu_cores == 2.0, "the next one has the plan's size"
