"""Every message that the registry routes to the dispatcher has a translation, there and back."""

from types import SimpleNamespace
from typing import Any

import pytest
from stretto_core import dispatcher as ledger
from stretto_dispatcher import handlers
from stretto_dispatcher.service import Dispatcher
from stretto_messages.checkpoints import CheckpointRestored
from stretto_messages.values import CheckpointRef
from stretto_wire import document_of
from stretto_wire.errors import WireError
from stretto_wire.registry import CHANNELS
from stretto_wire.spec import JobSpec
from stretto_wire.submission import JobSubmitted

SHARD = ledger.Shard(3, 2, 1, 640, 64, 32, 1)


def test_every_input_and_request_is_translated() -> None:
    heard = {entry.message for entry in Dispatcher.inputs} | set(Dispatcher.rpcs)
    assert heard == {JobSubmitted, *handlers._EVENTS}
    answered = {c.message for c in CHANNELS if c.kind == "rpc" and c.service == "dispatcher"}
    assert answered == set(Dispatcher.rpcs)


def test_every_fact_has_a_message_of_the_dispatcher() -> None:
    facts = [
        ledger.ShardLeased(SHARD, "worker-1"),
        ledger.ShardCompleted(SHARD, "worker-1"),
        ledger.ShardRequeued(SHARD, "worker-1", "pod-exited"),
        ledger.ShardAbandoned(SHARD, "x" * 5000),
        ledger.JobProgressed(5, 10, 0, 2.5, 1, 0),
        ledger.EvaluationMeasured(5, 7, 100, 0.6, 0.7),
        ledger.JobCompleted(10, 0, 1, 2, 0, 1.7e9),
    ]
    published = {c.message for c in CHANNELS if c.kind == "evt" and c.service == "dispatcher"}
    assert {type(handlers.to_message("job-1", fact)) for fact in facts} == published


def test_replies_keep_what_the_ledger_said() -> None:
    reply = handlers.to_message("job-1", ledger.NextReply("shard", SHARD, stale=True, forget=[1, 2]))
    assert document_of(reply) == {
        "job": "job-1",
        "answer": "shard",
        "shard": {
            "id": 3,
            "attempt": 2,
            "epoch": 1,
            "start": 640,
            "length": 64,
            "offset": 32,
            "partition": "",
            "kind": "train",
        },
        "wait_s": 0.0,
        "stale": True,
        "forget": [1, 2],
    }


def restored(document: str) -> ledger.Book:
    reference = CheckpointRef(id="c1", url="file:///c1", samples=0, size_bytes=1, ps=1)
    message = CheckpointRestored(job="j", checkpoint=reference, ps=1, ledger=document, request_id="r")
    meta: Any = None
    return handlers.to_event(message, meta).book


@pytest.mark.parametrize("partitions", [3, ledger.PARTITIONS_MAX])
def test_a_mark_comes_back_as_it_was_however_many_partitions_it_has(partitions: int) -> None:
    """With as many as may be, given-up shards and shards in flight beside, it is packed to fit into a message."""
    arrivals = [ledger.Arrival(f"{n:060d}", 10**12 + n, n % 1000) for n in range(partitions)]
    book = ledger.Book(ledger.Source.begin(ledger.DataSpec(0, 10, 8, growing=True), 1, arrivals))
    for number in range(partitions):
        lost = ledger.Shard(number, 1, 0, number, 8, 2, 3, f"{number:060d}")
        book.abandon(lost, f"failed 3 times, last in worker-{number}: row {number * 7919} has 38 columns instead of 39")
        book.requeued.append(lost)
    document = handlers.to_message("j", ledger.MarkReply(book, 5)).ledger  # type: ignore[attr-defined]
    assert document.startswith("{") == (partitions == 3)
    assert restored(document) == book


def test_a_document_of_the_version_before_is_read_and_one_of_nobody_is_refused() -> None:
    old = (
        '{"data": {"samples": 300, "batch_size": 10, "batches_per_shard": 8, "shuffle": true, "seed": 3}, "epochs": 2,'
        ' "epoch": 1, "position": 0, "samples_opened": 300, "next_id": 4, "samples_done": 300}'
    )
    book = restored(old)
    assert (book.samples_total, book.samples_waiting, book.epoch, book.next_id) == (600, 300, 1, 4)
    for document in ("", "{}", "{", "[]", "AAAA", "not base64 at all"):
        with pytest.raises(WireError, match="ledger"):
            restored(document)


def test_the_dataset_s_name_says_whose_data_are_the_same_and_without_one_they_are_the_job_s_own() -> None:
    def opened(job: str, at_s: float = 1e9, **dataset: Any) -> ledger.DataSpec:
        document = {"name": job, "model": {"entry": "m:M"}, "dataset": {"samples": 4096, **dataset}}
        meta: Any = SimpleNamespace(time_s=at_s)
        return handlers.to_event(JobSubmitted(job=job, spec=JobSpec.parse(document)), meta).data

    assert opened("monday") == opened("monday") != opened("tuesday")
    assert opened("monday") != opened("monday", 1e9 + 60), "a job of that name in another installation"
    assert opened("monday", name="clicks/1") == opened("tuesday", name="clicks/1") != opened("monday", name="clicks/2")
