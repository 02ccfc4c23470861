"""Decisions at the dispatcher's edge: the opening of a job, and the document of a mark."""

import tracemalloc
import zlib
from base64 import b64encode
from typing import Any, get_args

import pytest
from stretto_core.dispatcher.book import Book, Shard
from stretto_core.dispatcher.events import JobOpened, LedgerMark, LedgerRestored, ReturnAsked
from stretto_core.dispatcher.machine import COMPLETED, LedgerEvent, ShardLedger
from stretto_core.dispatcher.source import DataSpec, Source
from stretto_core.dispatcher.state import LedgerState
from stretto_core.machine import Reply, Tick
from stretto_dispatcher.document import written
from stretto_dispatcher.service import Dispatcher
from stretto_dispatcher.settings import DispatcherSettings
from stretto_messages.checkpoints import CheckpointRestored
from stretto_messages.dispatcher import AuditLedger, MarkLedgerReply, ReturnLedger
from stretto_messages.values import PARTITIONS_MAX, CheckpointRef, DataPartition
from stretto_runtime import Meta
from stretto_wire.codec import decode, encode
from stretto_wire.contract.submission import JobSubmitted
from stretto_wire.errors import WireError
from stretto_wire.jobspec.spec import JobSpec

SERVICE = Dispatcher(DispatcherSettings())
META = Meta(seq=1, time_s=1e9, subject="", headers={}, key="j")


def test_every_input_and_request_is_an_event_of_the_ledger() -> None:
    read = {entry.message for entry in Dispatcher.inputs} | set(Dispatcher.rpcs)
    own = {JobOpened, LedgerRestored, ReturnAsked, Tick}
    assert read - {JobSubmitted, CheckpointRestored, ReturnLedger} == {*get_args(LedgerEvent)} - own


def test_the_audit_shows_the_books_as_they_are() -> None:
    book = Book(Source.begin(DataSpec(1280, 10, 8), 2))
    book.requeued.append(Shard(3, 2, 0, 640, 64, 32, 1))
    book.source.opened = 64
    (reply,) = ShardLedger(LedgerState(job="j", book=book)).handle(AuditLedger(job="j"), 1.0)
    assert isinstance(reply, Reply)
    shown = decode(type(reply.body), encode(reply.body)).ledger
    assert shown == reply.body.ledger
    assert (shown.samples_total, shown.epoch_samples, shown.samples_waiting) == (2560, 1280, 2560)
    ((lease),) = shown.open
    assert (lease.pod, lease.shard.id, lease.shard.attempt, lease.shard.offset) == ("", 3, 2, 32)
    assert (lease.shard.kind, lease.shard.partition) == ("train", "")


def restored(document: str) -> Book:
    reference = CheckpointRef(id="c1", url="file:///c1", samples=0, size_bytes=1, ps=1)
    message = CheckpointRestored(job="j", checkpoint=reference, ps=1, ledger=document, request_id="r")
    return SERVICE.to_event(message, META).book


def test_the_books_that_a_program_goes_back_to_are_read_and_checked() -> None:
    book = Book(Source.begin(DataSpec(1280, 10, 8), 2))
    asked = ReturnLedger(job="j", request_id="r", pod="worker-1", checkpoint="j-000002", ledger=written(book))
    event = SERVICE.to_event(asked, META)
    assert event == ReturnAsked("j", "worker-1", LedgerRestored(book, "j-000002"))
    over = (LedgerState(closed=closed, returns=True) for closed in ("failed: no", COMPLETED))
    for state in (*over, LedgerState(exited={"worker-1": 0.5}, returns=True)):
        state.job, state.book = "j", book
        (reply,) = ShardLedger(state).handle(event, 1.0)
        assert isinstance(reply, Reply)
        assert reply.body.answer == "unknown", "the books stay as they are"


def test_books_with_a_sample_in_two_places_are_refused() -> None:
    """A document lies where the job's own code can write."""
    book = Book(Source.begin(DataSpec(1280, 10, 8), 2))
    book.requeued.append(Shard(3, 2, 0, 640, 64, 32, 1))
    with pytest.raises(WireError, match="each of 0 opened samples is in one place"):
        restored(written(book))


@pytest.mark.parametrize("partitions", [3, PARTITIONS_MAX])
def test_a_mark_comes_back_as_it_was_however_many_partitions_it_has(partitions: int) -> None:
    """With as many as may be, given-up shards and shards in flight beside, it is packed to fit into a message."""
    arrivals = [DataPartition(name=f"{n:060d}", samples=10**12 + n, priority=n % 1000) for n in range(partitions)]
    book = Book(Source.begin(DataSpec(0, 10, 8, growing=True), 1, arrivals))
    for number in range(partitions):
        lost = Shard(number, 1, 0, number, 8, 2, 3, f"{number:060d}")
        book.abandon(lost, f"failed 3 times, last in worker-{number}: row {number * 7919} has 38 columns instead of 39")
        book.requeued.append(lost)
    book.source.opened = book.samples_placed
    reply = SERVICE.to_message("j", LedgerMark("j", book, 5))
    assert isinstance(reply, MarkLedgerReply)
    document = reply.ledger
    assert document.startswith("{") == (partitions == 3)
    assert restored(document) == book


def test_a_document_that_unfolds_to_a_thousand_times_its_size_is_refused() -> None:
    """The dispatcher would end for lack of memory, for all jobs, and again whenever it reads the event."""
    bomb = b64encode(zlib.compress(b"[" + b"{}," * 40_000_000 + b"{}]", 9)).decode()
    assert len(bomb) < 200_000
    tracemalloc.start()
    with pytest.raises(WireError, match="ledger"):
        restored(bomb)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 50 << 20


def test_a_document_of_nobody_is_refused() -> None:
    for document in ("", "{}", "{", "[]", "AAAA", "not base64 at all", b64encode(zlib.compress(b"[" * 10**6)).decode()):
        with pytest.raises(WireError, match="ledger"):
            restored(document)


def test_the_dataset_s_name_says_whose_data_are_the_same_and_without_one_they_are_the_job_s_own() -> None:
    def opened(job: str, at_s: float = 1e9, **dataset: Any) -> DataSpec:
        document = {"name": job, "model": {"entry": "m:M"}, "dataset": {"samples": 4096, **dataset}}
        return SERVICE.to_event(JobSubmitted(job=job, spec=JobSpec.parse(document)), META._replace(time_s=at_s)).data

    assert opened("monday") == opened("monday") != opened("tuesday")
    assert opened("monday") != opened("monday", 1e9 + 60), "a job of that name in another installation"
    assert opened("monday", name="clicks/1") == opened("tuesday", name="clicks/1") != opened("monday", name="clicks/2")
