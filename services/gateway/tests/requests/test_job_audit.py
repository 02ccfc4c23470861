"""The audit shows what is wrong where it is wrong, of a job that trains and of one that is over."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest
from stretto_bus import CallTimeout
from stretto_core.dispatcher.book import fingerprint_of
from stretto_gateway.problems import Problem
from stretto_gateway.read_model.folds.fold import Returned
from stretto_gateway.requests import job_audit
from stretto_messages.actuator import GetServers, GetServersReply
from stretto_messages.base import Message
from stretto_messages.books import (
    AppliedBooks,
    ColumnBooks,
    CompletedBooks,
    GivenUp,
    Lease,
    LedgerBooks,
    PartialShard,
    RowBooks,
    ShardApplied,
)
from stretto_messages.dispatcher import AuditLedgerReply, LedgerReturn
from stretto_messages.pods import GetBooks, GetBooksReply
from stretto_messages.values import ParameterServer, Shard
from stretto_runtime.restorations import Restoration

from tests.live_bus import completed, finished

JOB = "ctr"
DONE = {0: 80, 1: 80}
OPEN = Shard(id=2, attempt=1, epoch=0, start=160, length=80, offset=0)


def prints(*parts: tuple[int, int]) -> str:
    return f"{sum(fingerprint_of(*part) for part in parts) % 2**64:016x}"


def column(number: int, samples: int, *parts: tuple[int, int]) -> ColumnBooks:
    return ColumnBooks(columns=(number,), samples=samples, fingerprint=prints(*parts))


def far(number: int, samples: int) -> ShardApplied:
    return ShardApplied(shard=2, columns=(number,), samples=samples)


def ledger(open_: tuple[Lease, ...] = (), waiting: int = 80, **more: Any) -> LedgerBooks:
    return LedgerBooks(
        samples_total=240, epoch_samples=240, samples_done=160, samples_given_up=0, samples_waiting=waiting,
        epochs=(), open=open_, books=CompletedBooks(fingerprint=prints(*DONE.items())), **more,
    )  # fmt: skip


GOOD = AppliedBooks(columns_total=2, columns=(column(0, 160, *DONE.items()), column(1, 160, *DONE.items())))


class FakeBus:
    """A dispatcher whose books change ``moves`` times, and one parameter server."""

    def __init__(self, moves: int = 0, silent: bool = False) -> None:
        self.moves, self.silent, self.asked = moves, silent, list[Message]()

    async def call(self, request: Message, timeout_s: float) -> Message:
        self.asked.append(request)
        if isinstance(request, GetServers):
            return GetServersReply(job=JOB, answer="ok", servers=(ParameterServer(index=3, address="a:1"),))
        self.moves -= 1
        attempt = 1 + max(0, self.moves)
        lease = Lease(pod="worker-0", shard=replace(OPEN, attempt=attempt))
        return AuditLedgerReply(job=JOB, answer="ok", ledger=ledger((lease,), 0))

    async def call_pod(self, pod: str, request: Message, timeout_s: float) -> Message:
        if self.silent:
            raise CallTimeout("ps-3 is not there")
        assert pod == "ps-3"
        assert isinstance(request, GetBooks)
        assert (request.shards, request.checksum) == ((2,), False)
        columns = (column(0, 170, *DONE.items(), (2, 10)), column(1, 180, *DONE.items(), (2, 20)))
        applied = AppliedBooks(columns_total=2, columns=columns, shards=(far(0, 10), far(1, 20)))
        return GetBooksReply(job=JOB, applied_samples=170, skipped_repeats=0, rejected_pushes=0, owns_dense=True,
                               rows=1, applied=applied)  # fmt: skip


def test_exact_and_quiet() -> None:
    found = job_audit.audit(JOB, "training", ledger(), [GOOD])
    assert (found.exact, found.quiet, found.columns_exact, found.samples_assigned) == (True, True, 2, 160)


def test_rows_left_out_and_expired_are_added_over_the_servers() -> None:
    parts = [replace(GOOD, columns=(column,), rows=RowBooks(gradients_left_out=5, keys_without_row=3, rows_expired=n))
             for n, column in enumerate(GOOD.columns)]  # fmt: skip
    found = job_audit.audit(JOB, "training", ledger(), parts)
    assert found.exact
    assert found.rows == RowBooks(gradients_left_out=10, keys_without_row=6, rows_expired=1)


def test_opposite_errors_of_two_columns_both_show() -> None:
    wrong = AppliedBooks(columns_total=2, columns=(column(0, 150, (0, 70), (1, 80)), column(1, 170, (0, 90), (1, 80))))
    found = job_audit.audit(JOB, "training", ledger(), [wrong])
    assert (found.exact, found.samples_lost, found.samples_repeated, found.columns_exact) == (False, 10, 10, 0)
    assert found.findings == ("1 columns (1): 10 samples repeated", "1 columns (0): 10 samples lost")


def test_opposite_errors_of_two_shards_show_in_one_column() -> None:
    wrong = AppliedBooks(columns_total=2, columns=(GOOD.columns[0], column(1, 160, (0, 70), (1, 90))))
    found = job_audit.audit(JOB, "training", ledger(), [wrong])
    assert not found.exact
    assert (found.columns_exact, found.samples_lost, found.samples_repeated) == (1, 1, 1)


def test_books_that_do_not_add_up_and_servers_that_tell_nothing_are_not_exact() -> None:
    assert job_audit.audit(JOB, "training", ledger(waiting=79), [GOOD]).findings[0].startswith("the ledger's own books")
    unknown = job_audit.audit(JOB, "training", ledger(), [])
    assert (unknown.exact, unknown.columns, unknown.samples_lost) == (False, 0, 0), "nothing is known to be lost"


async def test_a_job_in_training_is_read_until_the_ledger_stood_still() -> None:
    bus = FakeBus(moves=3)
    found = await job_audit.running(bus, JOB, "training", 1.0, 7)
    assert (found.exact, found.quiet, found.samples_in_flight) == (True, False, 80)
    assert (found.open[0].applied_least, found.open[0].applied_most, found.open[0].pod) == (10, 20, "worker-0")
    assert [r.request_id for r in bus.asked if isinstance(r, GetServers)] == ["gateway-audit.7", "gateway-audit.8"]
    assert "went on" in (await job_audit.running(FakeBus(moves=99), JOB, "training", 1.0, 7)).findings[0]
    with pytest.raises(Problem, match="does not answer"):
        await job_audit.running(FakeBus(silent=True), JOB, "training", 1.0, 7)


def test_a_finished_job_is_proved_by_its_last_facts() -> None:
    given_up = GivenUp(shard=2, offset=10, epoch=0, start=170, length=70, reason="row 24")
    books = CompletedBooks(fingerprint=prints(*DONE.items(), (2, 10)), given_up=(given_up,))
    done = completed(JOB, 170, 70, shards=2, books=books)
    columns = (column(0, 170, *DONE.items(), (2, 10)), column(1, 180, *DONE.items(), (2, 20)))
    torn = AppliedBooks(columns_total=2, columns=columns, shards=(far(0, 10), far(1, 20)))
    found = job_audit.finished(done, finished(JOB, 170, applied=torn), "finished")
    assert (found.exact, found.quiet, found.samples_given_up) == (True, True, 70)
    assert found.epochs[0].given_up == 70
    assert found.given_up == (given_up,)


def test_what_was_in_flight_in_the_checkpoint_a_job_came_from_is_asked_for_and_accounted_for() -> None:
    """Both columns have 30 samples of shard 7 of the other data: told once for all columns."""
    books = CompletedBooks(
        fingerprint=prints(*DONE.items()), partial=(PartialShard(shard=7, known=0),), samples_before=0
    )
    columns = tuple(column(n, 190, *DONE.items(), (7, 30)) for n in range(2))
    shards = (ShardApplied(shard=7, columns=(), samples=30),)
    applied = AppliedBooks(columns_total=2, columns=columns, shards=shards)
    found = job_audit.audit(JOB, "training", replace(ledger(), books=books), [applied])
    assert found.exact, found.findings


def test_more_given_up_shards_than_the_books_name_are_called_not_provable() -> None:
    books = CompletedBooks(fingerprint=prints(*DONE.items()), unproven=50)
    columns = tuple(column(n, 190, *DONE.items(), (7, 30)) for n in range(2))
    applied = AppliedBooks(columns_total=2, columns=columns)
    found = job_audit.audit(JOB, "training", replace(ledger(), books=books), [applied])
    assert (found.exact, found.samples_lost, found.samples_repeated) == (False, 0, 0)
    (finding,) = found.findings
    assert "30 samples more than in the books; not provable" in finding


def test_the_first_return_after_the_moment_of_a_backup_is_that_of_its_restoration() -> None:
    """A server lost before and after, two restorations in a row before one return, and a job submitted later."""
    change = LedgerReturn(checkpoint="c", samples_before=5, samples_gained=3, samples_undone=1)
    known = [Returned(seq, seq * 10.0, change) for seq in (4, 20, 30)]
    restorations = [
        Restoration(log_seq=seq, taken_at_s=seq * 10.0, restored_at_s=seq * 10.0 + 5) for seq in (9, 12, 40)
    ]
    found = job_audit.returns(known, restorations, submitted_at_s=10.0)
    assert [each.backup_at_s for each in found] == [None, 120.0, None]
    assert asdict(found[1]) == {**asdict(change), "at_s": 200.0, "backup_at_s": 120.0}
    assert {each.backup_at_s for each in job_audit.returns(known, restorations, submitted_at_s=150.0)} == {None}
