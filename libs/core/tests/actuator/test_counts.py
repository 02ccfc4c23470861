"""The samples that a completed job has applied: the parameter servers' counts against the ledger's books."""

from dataclasses import asdict, replace

import pytest
from actuator_builders import (
    checkpoint_restored,
    counts_taken,
    job_completed,
    job_progressed,
    plan,
    server_counts,
    shard_abandoned,
)
from actuator_cluster import started
from stretto_core.actuator.counts import job_finished
from stretto_core.actuator.machine import ActuatorMachine
from stretto_core.actuator.state import ActuatorState, JobOpened
from stretto_core.dispatcher.book import fingerprint_of
from stretto_messages.actuator import JobFailed
from stretto_messages.books import RowBooks
from stretto_messages.values import SAMPLES_MAX


def test_counts_show_what_is_missing_and_what_is_twice() -> None:
    completed = job_completed(fingerprint=0xAA)
    exact = server_counts(3, ((0, 2), 100, 0xAA), skipped_repeats=7, rows=5, checksum="f" * 16)
    other = server_counts(3, ((1,), 100, 0xAA), skipped_repeats=9, rows=6, checksum="1a")
    finished = job_finished(100, completed, counts_taken(exact, other, server_counts(3, checksum="0")))
    assert (finished.samples_applied, finished.samples_lost, finished.samples_repeated) == (100, 0, 0)
    assert (finished.rows, finished.repeats_recognised, finished.checksum) == (11, 9, f"{0x19:016x}")
    assert (finished.applied.columns_total, len(finished.applied.columns)) == (3, 2)
    books = replace(exact, applied=replace(exact.applied, rows=RowBooks(gradients_left_out=2, rows_expired=4)))
    both = job_finished(100, completed, counts_taken(books, other)).applied.rows
    assert both == RowBooks(gradients_left_out=2, rows_expired=4)
    wrong = server_counts(3, ((0,), 90, 1), ((2,), 130, 2))
    torn = job_finished(100, completed, counts_taken(wrong, other))
    assert (torn.samples_applied, torn.samples_lost, torn.samples_repeated) == (90, 10, 30)
    exchanged = server_counts(3, ((0, 2), 100, 0xAB))
    others = job_finished(100, completed, counts_taken(exchanged, other))
    assert (others.samples_applied, others.samples_lost, others.samples_repeated) == (100, 1, 1)
    assert job_finished(100, completed, counts_taken(other)).samples_lost == 100, "two columns have no owner"
    assert job_finished(100, completed, counts_taken()).samples_lost == 100


def test_counts_of_data_that_were_given_up_and_of_other_data_before() -> None:
    """A worker died between its pushes of a batch to two servers, and the next one found the batch unreadable."""
    completed = job_completed(40, fingerprint_of(3, 60), ((3, 60),), samples_before=1000)
    counts = server_counts(
        2,
        ((0,), 1060, fingerprint_of(3, 60)),
        ((1,), 1080, fingerprint_of(3, 80)),
        shards=[(3, (0,), 60), (3, (1,), 80), (4, (0,), 1)],
    )
    finished = job_finished(100, completed, counts_taken(counts))
    assert (finished.samples_expected, finished.samples_applied) == (60, 60)
    assert (finished.samples_lost, finished.samples_repeated) == (0, 0)
    assert {part.shard for part in finished.applied.shards} == {3}, "the others are complete by the ledger's books"


def test_a_job_fails_that_gave_up_more_than_its_specification_allows() -> None:
    cluster = started(plan(), JobOpened("job", samples_total=1000, samples_given_up_max=100))
    cluster.tell(shard_abandoned(60, "row 3"))
    cluster.tell(checkpoint_restored())  # they are given up once more
    cluster.tell(shard_abandoned(60, "row 3"))
    cluster.tell(shard_abandoned(40, "row 5"))
    assert cluster.told(JobFailed) == []
    cluster.tell(shard_abandoned(1, "row 7"))
    assert cluster.told(JobFailed)[0].reason == (
        "101 samples of 1,000 (10.10%) were given up, and at most 100 may be (restarts.samples_given_up): mend the "
        "data, or allow more by a higher restarts.samples_given_up; the last: row 7"
    )
    cluster.tell(shard_abandoned(1, "row 8"))
    assert len(cluster.told(JobFailed)) == 1


def test_a_job_fails_that_gave_up_more_than_a_share_of_its_samples_if_no_number_is_stated() -> None:
    cluster = started(plan(), JobOpened("job", samples_total=10_050))
    cluster.tell(shard_abandoned(100, "row 3"))
    assert cluster.told(JobFailed) == []
    cluster.tell(shard_abandoned(1, "no column 'price'"))
    assert cluster.told(JobFailed)[0].reason == (
        "101 samples of 10,050 (1.00%) were given up, and at most 100 may be (1 %, as restarts.samples_given_up is "
        "null): mend the data, or allow more by a higher restarts.samples_given_up; the last: no column 'price'"
    )


def test_of_growing_data_the_share_is_of_the_samples_known_so_far() -> None:
    """The job knows none before the ledger tells of them; then it may give up more the more there are."""
    cluster = started(plan(), JobOpened("job"))
    cluster.tell(shard_abandoned(10, "row 3"))
    cluster.tell(job_progressed(100))  # of 1,000
    assert cluster.told(JobFailed) == []
    cluster.tell(replace(job_progressed(100), samples_total=3000))
    cluster.tell(shard_abandoned(20, "row 4"))
    assert cluster.told(JobFailed) == []
    cluster.tell(shard_abandoned(1, "row 5"))
    assert "31 samples of 3,000 (1.03%) were given up, and at most 30 may be" in cluster.told(JobFailed)[0].reason


def test_what_was_given_up_before_all_samples_were_known_counts_then() -> None:
    cluster = started(plan(), JobOpened("job"))
    cluster.tell(shard_abandoned(11, "row 3"))
    assert cluster.told(JobFailed) == []
    cluster.tell(job_progressed(100))  # of 1,000
    assert cluster.told(JobFailed)[0].reason.endswith("the last: row 3")


@pytest.mark.parametrize(("given_up", "phase"), [(100, "completing"), (101, "failed")])
@pytest.mark.parametrize("allowed", [100, None])
def test_what_was_given_up_before_a_restore_counts_at_the_end(given_up: int, phase: str, allowed: int | None) -> None:
    cluster = started(plan(), JobOpened("job", samples_total=10_000, samples_given_up_max=allowed))
    cluster.tell(job_completed(given_up))
    assert cluster.state.phase == phase


def test_a_job_of_the_version_before_may_go_on_giving_up_any_number() -> None:
    """Goal: what was accepted holds. Method: snapshots of version 1, with a number, without one, and of no job yet."""
    states = [
        started(plan(), JobOpened("job", samples_total=12, samples_given_up_max=most)).state for most in (5, None)
    ]
    told = [ActuatorMachine.migrate(asdict(state), 1) for state in (*states, ActuatorState())]
    assert [state["samples_given_up_max"] for state in told] == [5, SAMPLES_MAX, None]
    assert ActuatorMachine.migrate(asdict(states[1]), 2)["samples_given_up_max"] is None


def test_surplus_of_shards_that_the_books_no_longer_name_is_not_called_repeated() -> None:
    completed = job_completed(500, 7, unproven=80, samples=1000)
    finished = job_finished(0, completed, counts_taken(server_counts(1, ((0,), 1060, 9))))  # the ledger's own total
    assert (finished.samples_expected, finished.samples_lost, finished.samples_repeated) == (1000, 0, 0)
    more = counts_taken(server_counts(1, ((0,), 1100, 9)))
    assert job_finished(0, completed, more).samples_repeated == 20
