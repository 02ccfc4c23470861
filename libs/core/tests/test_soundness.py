"""A defect that would spoil a job's state is told by the event that shows it, and stops nobody from ending the job."""

from __future__ import annotations

import checkpoint_harness
import pytest
from actuator_builders import checkpoint_restored, job_cancelled, plan_decided
from actuator_cluster import started
from checkpoint_builders import migration_started
from closed_loop import plan
from ledger_builders import AUDIT, pod_exited
from ledger_builders import job_cancelled as ledger_cancelled
from ledger_harness import LedgerHarness
from stretto_core.actuator.machine import ActuatorMachine
from stretto_core.actuator.state import JobOpened, Pod
from stretto_core.checkpoints.machine import CheckpointMachine
from stretto_core.dispatcher.state import LedgerState, faults_of


def test_a_ledger_that_forgets_a_lease_says_so_and_can_still_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    job = LedgerHarness()
    job.lease("worker-0")
    monkeypatch.setattr(LedgerState, "take_back", lambda *_: None)
    with pytest.raises(AssertionError, match="-80 samples are in places beyond"):
        job.tell(pod_exited("worker-0"))
    assert faults_of(job.ledger.state), "the runtime takes the event back, this harness does not"
    job.tell(AUDIT)
    job.tell(ledger_cancelled())
    assert job.ledger.ended


def test_no_job_completes_by_books_that_do_not_balance() -> None:
    job = LedgerHarness()
    shard = job.lease("worker-0")
    book = job.ledger.state.book
    assert book is not None
    book.samples_done += 920
    with pytest.raises(AssertionError, match=r"\+920 samples are in places beyond"):
        job.next("worker-0", shard)


def test_an_attempt_that_goes_on_while_columns_move_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    job = checkpoint_harness.Job()
    job.serve()
    monkeypatch.setattr(
        CheckpointMachine, "_migration_started", lambda machine: setattr(machine.state, "migrating", True) or []
    )
    with pytest.raises(AssertionError, match="images are taken while columns move"):
        job.tell(migration_started())


def test_an_end_that_leaves_pods_wanted_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = ActuatorMachine()
    machine.handle(JobOpened("job", samples_total=10), 0.0)
    machine.handle(plan_decided(1, plan()), 0.0)
    monkeypatch.setattr(Pod, "stop", lambda _: None)
    with pytest.raises(AssertionError, match="ps-0 is wanted by an ended job"):
        machine.handle(job_cancelled(), 1.0)


def test_parameters_that_come_back_after_the_end_bring_no_pod_back() -> None:
    cluster = started(plan(ps=2))
    cluster.kill("ps-0")
    cluster.kill("ps-1")
    cluster.tell(job_cancelled())
    for layout in ("restoring", "recovering"):
        cluster.state.layout = layout
        cluster.tell(checkpoint_restored())
        assert cluster.state.phase == "cancelled"
        assert {pod.phase for pod in cluster.state.pods.values()} <= {"stopping"}
