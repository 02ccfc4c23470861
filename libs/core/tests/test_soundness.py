"""A machine whose state cannot be says so after the next event, and the runtime takes that event back."""

from __future__ import annotations

import checkpoint_harness
import pytest
from actuator_builders import plan_converged, plan_decided
from arbiter_builders import started
from checkpoint_builders import migration_started
from closed_loop import plan
from job_builders import plan_proposed
from ledger_builders import AUDIT
from ledger_harness import LedgerHarness
from stretto_core.actuator.machine import ActuatorMachine
from stretto_core.actuator.state import JobOpened
from stretto_core.arbiter.state import ArbiterSettings
from stretto_core.machine import Tick
from stretto_messages.base import GIB
from stretto_messages.values import Resources


@pytest.mark.parametrize("event", [AUDIT, Tick()])
def test_a_sample_that_is_in_two_places_is_told(event: object) -> None:
    job = LedgerHarness()
    job.lease("worker-0")
    book = job.ledger.state.book
    assert book is not None
    book.samples_done += 1
    with pytest.raises(AssertionError, match=r"81 samples are in a place, 80 are opened"):
        job.tell(event)


def test_no_job_completes_by_books_that_do_not_balance() -> None:
    job = LedgerHarness()
    shard = job.lease("worker-0")
    book = job.ledger.state.book
    assert book is not None
    book.samples_done += 920
    with pytest.raises(AssertionError, match="1000 samples are in a place, 80 are opened"):
        job.next("worker-0", shard)


def test_a_checkpoint_of_columns_that_move_is_told() -> None:
    job = checkpoint_harness.Job()
    job.serve()
    job.state.migrating = True
    with pytest.raises(AssertionError, match="takes images while columns move"):
        job.tell(Tick())
    job.tell(migration_started())  # gives the attempt up, and is sound again


def test_a_pod_of_an_ended_job_that_is_not_asked_to_stop_is_told() -> None:
    machine = ActuatorMachine()
    machine.handle(JobOpened("job", samples_total=10), 0.0)
    machine.handle(plan_decided(1, plan()), 0.0)
    machine.state.phase = "failed"
    with pytest.raises(AssertionError, match="ps-0 of an ended job is starting"):
        machine.handle(plan_converged(1), 1.0)


def test_a_claim_beyond_the_room_is_told() -> None:
    machine = started(ArbiterSettings(Resources(9.0, 20 * GIB)), jobs=1)
    machine.state.jobs["job-0"].plan = plan(100)
    with pytest.raises(AssertionError, match="are held in"):
        machine.handle(plan_proposed("job-0", "measure", plan(), 0.1, ("r",)), 1.0)
