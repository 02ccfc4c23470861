"""The books of a completed job: what the parameter servers counted beside what the ledger told."""

import pytest
from actuation_world import plan, started
from stretto_core import actuator as a
from stretto_core.dispatcher import Applied, Counted, fingerprint_of


def test_books_count_what_is_missing_and_what_is_twice() -> None:
    completed, done = a.JobCompleted(fingerprint=0xAA), a.BooksTaken
    exact = a.Book(7, 5, "f" * 16, 3, (Counted((0, 2), 100, 0xAA),))
    other = a.Book(9, 6, "1a", 3, (Counted((1,), 100, 0xAA),))
    books = a.close_books(100, completed, done((exact, other, a.Book(0, 0, "0", 3, ())), None))
    assert (books.samples_applied, books.samples_lost, books.samples_repeated) == (100, 0, 0)
    assert (books.rows, books.repeats_recognised, books.checksum) == (11, 9, f"{0x19:016x}")
    assert (books.columns_total, len(books.counted)) == (3, 2)
    wrong = a.Book(0, 0, "", 3, (Counted((0,), 90, 1), Counted((2,), 130, 2)))
    torn = a.close_books(100, completed, done((wrong, other), None))
    assert (torn.samples_applied, torn.samples_lost, torn.samples_repeated) == (90, 10, 30)
    exchanged = a.Book(0, 0, "", 3, (Counted((0, 2), 100, 0xAB),))
    others = a.close_books(100, completed, done((exchanged, other), None))
    assert (others.samples_applied, others.samples_lost, others.samples_repeated) == (100, 1, 1)
    assert a.close_books(100, completed, done((other,), None)).samples_lost == 100, "two columns are nobody's"
    assert a.close_books(100, completed, done((), None)).samples_lost == 100


def test_books_of_data_that_were_given_up_and_of_other_data_before() -> None:
    """A worker died between its pushes of a batch to two servers, and the next one found the batch unreadable."""
    completed = a.JobCompleted(40, 1000, fingerprint_of(3, 60), ((3, 60),))
    more = fingerprint_of(3, 80)
    book = a.Book(
        0, 0, "", 2, (Counted((0,), 1060, fingerprint_of(3, 60)), Counted((1,), 1080, more)),
        (Applied(3, (0,), 60), Applied(3, (1,), 80)),
    )  # fmt: skip
    books = a.close_books(100, completed, a.BooksTaken((book,), None))
    assert (books.samples_expected, books.samples_applied) == (60, 60)
    assert (books.samples_lost, books.samples_repeated) == (0, 0)


def test_a_job_fails_that_gave_up_more_than_it_may() -> None:
    world = started(plan())
    world.state.samples_given_up_max = 100
    world.tell(a.ShardAbandoned(60, "row 3"))
    world.tell(a.CheckpointRestored())  # they are given up once more
    world.tell(a.ShardAbandoned(60, "row 3"))
    world.tell(a.ShardAbandoned(40, "row 5"))
    assert world.told(a.JobFailed) == []
    world.tell(a.ShardAbandoned(1, "row 7"))
    assert world.told(a.JobFailed)[0].reason == (
        "101 samples were given up, restarts.samples_given_up allows 100; the last: row 7"
    )
    world.tell(a.ShardAbandoned(1, "row 8"))
    assert len(world.told(a.JobFailed)) == 1


@pytest.mark.parametrize(("given_up", "phase"), [(100, "completing"), (101, "failed")])
def test_what_was_given_up_before_a_restore_counts_at_the_end(given_up: int, phase: str) -> None:
    world = started(plan())
    world.state.samples_given_up_max = 100
    world.tell(a.JobCompleted(given_up))
    assert world.state.phase == phase


def test_surplus_of_shards_that_the_books_no_longer_name_is_not_called_repeated() -> None:
    completed = a.JobCompleted(500, 0, 7, (), unproven=80, samples=1000)
    books = a.BooksTaken((a.Book(0, 0, "", 1, (Counted((0,), 1060, 9),)),), None)
    told = a.close_books(0, completed, books)  # of data that grew: the ledger's own total
    assert (told.samples_expected, told.samples_lost, told.samples_repeated) == (1000, 0, 0)
    more = a.BooksTaken((a.Book(0, 0, "", 1, (Counted((0,), 1100, 9),)),), None)
    assert a.close_books(0, completed, more).samples_repeated == 20
