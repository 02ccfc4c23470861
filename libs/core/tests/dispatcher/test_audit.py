"""The audit of the books shows every difference and never offsets one against another."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger_builders import AUDIT, arrival, mark_ledger, release
from ledger_harness import LedgerHarness
from stretto_core.dispatcher.audit import Applied, Counted, epochs_of, prove
from stretto_core.dispatcher.book import fingerprint_of
from stretto_core.dispatcher.events import LedgerRestored
from stretto_core.dispatcher.source import DataSpec
from stretto_messages.books import Fault, PartialShard
from stretto_messages.dispatcher import JobCompleted

SHARDS = {0: 80, 1: 80, 2: 40}
SAMPLES, PRINT = sum(SHARDS.values()), sum(fingerprint_of(*item) for item in SHARDS.items()) % 2**64
GOOD = Counted((0, 1, 2), SAMPLES, PRINT)


def batch(shard: int, start: int, stop: int) -> int:
    """Return the contribution of one applied batch to a fingerprint."""
    return fingerprint_of(shard, 1) * (stop**2 - start**2)


def test_columns_that_agree_are_exact() -> None:
    proof = prove(SAMPLES, PRINT, 3, [GOOD])
    assert (proof.faults, proof.lost, proof.repeated, proof.samples) == ((), 0, 0, 200)


def test_what_one_column_lost_and_another_has_twice_is_not_netted() -> None:
    less = Counted((1,), SAMPLES - 10, (PRINT - batch(0, 10, 20)) % 2**64)
    more = Counted((2,), SAMPLES + 10, (PRINT + batch(1, 0, 10)) % 2**64)
    proof = prove(SAMPLES, PRINT, 3, [replace(GOOD, columns=(0,)), less, more])
    assert proof.faults == (Fault((2,), 0, 10), Fault((1,), 10, 0))
    assert (proof.lost, proof.repeated) == (10, 10)


def test_a_batch_lost_and_another_one_twice_in_the_same_column_show() -> None:
    """The number of samples is right."""
    for lost, twice in (((0, 10, 20), (1, 10, 20)), ((0, 10, 20), (0, 20, 30))):
        column = Counted((1,), SAMPLES, (PRINT - batch(*lost) + batch(*twice)) % 2**64)
        proof = prove(SAMPLES, PRINT, 3, [replace(GOOD, columns=(0, 2)), column])
        assert proof.faults == (Fault((1,), 1, 1),)


def test_a_column_of_nobody_or_of_two_servers_shows() -> None:
    proof = prove(SAMPLES, PRINT, 4, [GOOD, replace(GOOD, columns=(0,))])
    assert proof.faults == (Fault((0,), 0, 0, servers=2), Fault((3,), SAMPLES, 0, servers=0))


@given(st.integers(0, 2**53), st.lists(st.integers(1, 10**6), min_size=1, max_size=40))
def test_batches_add_up_to_their_shard_in_any_order(shard: int, batches: list[int]) -> None:
    total, start = 0, 0
    parts = []
    for length in batches:
        parts.append(batch(shard, start, start + length))
        start += length
    for part in reversed(parts):
        total = (total + part) % 2**64
    assert total == fingerprint_of(shard, start)


def test_an_open_shard_counts_as_far_as_each_column_is() -> None:
    counted = [
        Counted((0,), SAMPLES + 20, (PRINT + fingerprint_of(3, 20)) % 2**64),
        Counted((1,), SAMPLES + 10, (PRINT + fingerprint_of(3, 10)) % 2**64),
    ]
    applied = [Applied(3, (0,), 20), Applied(3, (1,), 10)]
    assert not prove(SAMPLES, PRINT, 2, counted, applied).faults
    assert prove(SAMPLES, PRINT, 2, counted, applied[:1]).faults == (Fault((1,), 0, 10),)


def test_each_sample_of_an_epoch_is_somewhere() -> None:
    harness = LedgerHarness(DataSpec(200, 10, 8), epochs=3)
    assert epochs_of(harness.audit().book, []) == []
    slow, shard = harness.lease("worker-1"), None
    for _ in range(4):
        shard = harness.lease("worker-0", shard)
    told = harness.audit()
    first, second = epochs_of(told.book, told.shards)
    assert (first.in_flight, first.waiting, first.done) == (slow.length, 0, 200 - slow.length)
    assert second.in_flight == shard.length
    assert first.done + second.done == told.book.samples_done
    assert harness.audit() == told
    assert harness.tell(AUDIT) == harness.tell(AUDIT)
    assert harness.tell(AUDIT).ledger.epochs == (first, second)


@pytest.mark.parametrize("growing", [False, True])
def test_data_of_another_name_are_other_data_however_alike_the_numbers(growing: bool) -> None:
    """A daily retrain from yesterday's final checkpoint trains all of today."""
    day = (arrival("day", 160),) if growing else ()
    spec = DataSpec(0 if growing else 160, 10, 8, growing=growing, name="clicks/1")
    donor, again, next_day = (
        LedgerHarness(spec, 1, day), LedgerHarness(spec, 1, day), LedgerHarness(replace(spec, name="clicks/2"), 1, day)
    )  # fmt: skip
    donor.lease("worker-0", donor.lease("worker-0"))
    mark = donor.tell(mark_ledger("m")).book
    for harness, done, before in ((again, 80, 0), (next_day, 0, 80)):
        harness.tell(LedgerRestored(mark))
        book = harness.audit().book
        assert (book.samples_done, book.samples_before, book.samples_waiting) == (done, before, 160 - done)


def test_parameters_of_other_data_bring_what_they_counted() -> None:
    donor = LedgerHarness(DataSpec(160, 10, 8))
    harness = LedgerHarness(DataSpec(80, 10, 8))
    assert donor.next("worker-0", donor.lease("worker-0", donor.lease("worker-0"))).answer == "end"
    mark = donor.tell(mark_ledger("m")).book
    harness.tell(LedgerRestored(mark))
    assert harness.next("worker-0", harness.lease("worker-0")).answer == "end"
    book = harness.audit().book
    assert (book.samples_before, book.samples_done) == (160, 80)
    prints = fingerprint_of(0, 80) + fingerprint_of(1, 80) + fingerprint_of(2, 80)
    assert not prove(240, book.fingerprint, 1, [Counted((0,), 240, prints % 2**64)]).faults


def test_what_was_done_of_a_shard_that_was_given_up_is_not_excused_where_it_is_missing() -> None:
    """The books hold 20 samples of shard 3 for done; column 1 has but 10 of them, and its record says so."""
    samples, prints = SAMPLES + 20, PRINT + fingerprint_of(3, 20)
    counted = [
        Counted((0,), samples, prints % 2**64),
        Counted((1,), samples - 10, (PRINT + fingerprint_of(3, 10)) % 2**64),
    ]
    applied = [Applied(3, (0,), 20, known=20), Applied(3, (1,), 10, known=20)]
    assert prove(samples, prints, 2, counted, applied).faults == (Fault((1,), 10, 0),)


def test_what_was_in_flight_in_the_checkpoint_of_other_data_is_not_called_repeated() -> None:
    """Column 1 got 30 samples of a shard that was leased when the donor was marked, column 0 got 20 of them."""
    donor = LedgerHarness(DataSpec(400, 10, 8))
    first = donor.lease("worker-0")
    open_shard = donor.lease("worker-0", first)
    mark = donor.tell(mark_ledger("m")).book
    harness = LedgerHarness(DataSpec(80, 10, 8))
    harness.tell(LedgerRestored(mark))
    own = harness.lease("worker-0")
    assert harness.next("worker-0", own).answer == "end"
    (completed,) = harness.said(JobCompleted)
    assert completed.books.partial == (PartialShard(shard=open_shard.id, known=0),)
    prints = fingerprint_of(first.id, 80) + fingerprint_of(own.id, 80)
    counted = [
        Counted((0,), 180, (prints + fingerprint_of(open_shard.id, 20)) % 2**64),
        Counted((1,), 190, (prints + fingerprint_of(open_shard.id, 30)) % 2**64),
    ]
    applied = [Applied(open_shard.id, (0,), 20), Applied(open_shard.id, (1,), 30)]
    expected = completed.books.samples_before + completed.samples
    assert not prove(expected, int(completed.books.fingerprint, 16), 2, counted, applied).faults


def test_more_given_up_shards_than_the_dead_letter_list_holds_stay_provable_and_then_are_called_unproven() -> None:
    """Every shard fails with one batch applied that the last report did not know of."""
    harness, count = LedgerHarness(DataSpec(22_000, 10, 2)), 0
    prints, applied = 0, list[Applied]()
    while (reply := harness.next("worker-0")).shard is not None:
        shard = reply.shard
        count += 1
        prints += fingerprint_of(shard.id, 10)
        applied.append(Applied(shard.id, (0,), 10))
        for attempt in (1, 2, 3):
            harness.tell(release("worker-0", shard.id, attempt, 0, "bad row"))
            if attempt < 3:
                harness.next("worker-0")
        if count == 1000:
            book = harness.audit().book
            assert (len(book.given_up), len(book.partial), book.unproven) == (200, 800, 0)
    assert count == 1100
    (completed,) = harness.said(JobCompleted)
    assert completed.books.unproven == 100 * 20
    counted = [Counted((0,), 11_000, prints % 2**64)]
    named = [
        part
        for part in applied
        if part.shard in {one.shard for one in (*completed.books.given_up, *completed.books.partial)}
    ]
    assert len(named) == 1000
    (fault,) = prove(0, int(completed.books.fingerprint, 16), 1, counted, named, completed.books.unproven).faults
    assert (fault.lost, fault.repeated, fault.unproven) == (0, 0, 1000)


def test_a_mark_of_the_time_before_takes_given_up_shards_out_of_every_list() -> None:
    harness = LedgerHarness(DataSpec(22_000, 10, 2))
    for n in range(1100):
        if n == 150:
            harness.tell(mark_ledger("c1"))
        if n == 1050:
            mark = harness.tell(mark_ledger("c2", after="c1"))
        shard = harness.lease("worker-0")
        for attempt in (1, 2, 3):
            harness.tell(release("worker-0", shard.id, attempt, 0, "bad row"))
            if attempt < 3:
                harness.next("worker-0")
    book = mark.book
    assert (len(book.given_up), len(book.partial), book.unproven, book.samples_abandoned) == (150, 0, 0, 3000)
    assert len(book.requeued) == 900
