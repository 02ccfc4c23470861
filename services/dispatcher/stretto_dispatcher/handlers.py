"""Wire message <-> ledger event, fact and reply. Nothing is decided here."""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable
from dataclasses import asdict
from itertools import islice
from typing import Any

from pydantic import TypeAdapter, ValidationError
from stretto_core import dispatcher as ledger
from stretto_messages.actuator import JobFailed, PodExited
from stretto_messages.base import Message
from stretto_messages.books import CompletedBooks, EpochBooks, GivenUp, Lease, LedgerBooks, PartialShard, PartitionBooks
from stretto_messages.checkpoints import CheckpointRestored
from stretto_messages.dispatcher import (
    AuditLedger,
    AuditLedgerReply,
    EvaluationMeasured,
    JobCompleted,
    JobProgressed,
    MarkLedger,
    MarkLedgerReply,
    NextShard,
    NextShardReply,
    ReleaseShard,
    ReleaseShardReply,
    ShardAbandoned,
    ShardCompleted,
    ShardHeartbeat,
    ShardHeartbeatReply,
    ShardLeased,
    ShardRequeued,
)
from stretto_messages.gateway import DataArrived, JobCancelled
from stretto_messages.profiler import StragglerCleared, StragglerDetected
from stretto_messages.values import DataPartition, Evaluation, Shard
from stretto_runtime import Meta
from stretto_wire.errors import WireError
from stretto_wire.spec import JobSpec
from stretto_wire.submission import JobSubmitted

_BOOK = TypeAdapter(ledger.Book)
EPOCHS_MAX, OPEN_MAX, PARTITIONS_TOLD = 64, 500, 200
PACKED_OVER = 150_000


def _opened(message: JobSubmitted, time_s: float) -> ledger.JobOpened:
    spec, data = message.spec, message.spec.dataset
    samples = 0 if data.growing else data.samples
    # with blanks, which no name has: without one, no other job's data, be it of that name in another installation
    name = data.name or f"of job {message.job} at {time_s:.6f}"
    cut = (data.batch_size, data.batches_per_shard, data.shuffle, data.seed)
    return ledger.JobOpened(
        ledger.DataSpec(samples, *cut, data.growing, name),
        data.epochs,
        spec.restarts.shard_failures,
        _arrivals(data.partitions),
        _held_out(spec),
    )


def _held_out(spec: JobSpec) -> ledger.HeldOut | None:
    """Without partitions, what is held out are the samples behind those that train."""
    if spec.evaluate_every_samples is None or not spec.evaluate:
        return None
    start = 0 if spec.dataset.partitioned else spec.dataset.samples
    return ledger.HeldOut(spec.evaluate, spec.evaluate_every_samples, start, spec.dataset.held_out or "")


def _arrivals(partitions: Iterable[DataPartition]) -> tuple[ledger.Arrival, ...]:
    return tuple(ledger.Arrival(part.name, part.samples, part.priority) for part in partitions)


def _worker(pod: str) -> str:
    if not pod.startswith("worker-"):
        raise WireError("pod", pod, "the name of a worker; no other pod leases shards")
    return pod


def _next(message: NextShard) -> ledger.NextRequested:
    worker, done = _worker(message.pod), message.complete
    if done is None:
        return ledger.NextRequested(worker, message.request_id)
    if done.evaluation is None:
        return ledger.NextRequested(worker, message.request_id, done.id, done.attempt)
    found = done.evaluation
    of_shard = ledger.Found(found.samples, found.loss_sum, found.positives, found.negatives)
    return ledger.NextRequested(worker, message.request_id, done.id, done.attempt, of_shard)


def _restored(message: CheckpointRestored) -> ledger.LedgerRestored:
    try:
        return ledger.LedgerRestored(_BOOK.validate_python(ledger.migrated_book(_unpacked(message.ledger))))
    except ValidationError as error:
        raise WireError.of(error, "ledger") from error


def _packed(book: ledger.Book) -> str:
    """The document of a mark: JSON, and no longer than a message may carry."""
    document = _BOOK.dump_json(book)
    if len(document) <= PACKED_OVER:
        return document.decode()
    return b64encode(zlib.compress(document)).decode()


def _unpacked(document: str) -> Any:
    try:
        plain = document if document.startswith("{") else zlib.decompress(b64decode(document, validate=True))
        return json.loads(plain)
    except (ValueError, zlib.error) as error:
        raise WireError("ledger", document[:100], "the document that MarkLedger gave") from error


_EVENTS: dict[type[Message], Callable[[Any], Any]] = {
    DataArrived: lambda m: ledger.DataArrived(_arrivals(m.partitions), m.closed),
    JobCancelled: lambda m: ledger.JobClosed(f"cancelled by {m.by}"),
    JobFailed: lambda m: ledger.JobClosed(f"failed: {m.reason}"),
    PodExited: lambda m: ledger.WorkerExited(m.pod),
    StragglerDetected: lambda m: ledger.StragglerNamed(m.pod, m.slowdown),
    StragglerCleared: lambda m: ledger.StragglerNamed(m.pod, 1.0),
    CheckpointRestored: _restored,
    NextShard: _next,
    ShardHeartbeat: lambda m: ledger.HeartbeatReceived(_worker(m.pod), m.shard, m.attempt, m.offset),
    ReleaseShard: lambda m: ledger.ShardReturned(_worker(m.pod), m.shard, m.attempt, m.offset, m.failure),
    AuditLedger: lambda m: ledger.AuditRequested(),
    MarkLedger: lambda m: ledger.MarkRequested(m.request_id, m.after),
}


def to_event(message: Message, meta: Meta) -> Any:
    """The ledger's event of a message. WireError for a pod that is no worker, or a document that is no ledger's."""
    if isinstance(message, JobSubmitted):
        return _opened(message, meta.time_s)
    return _EVENTS[type(message)](message)


def _shard(shard: ledger.Shard) -> Shard:
    return Shard(
        id=shard.id,
        attempt=shard.attempt,
        epoch=shard.epoch,
        start=shard.start,
        length=shard.length,
        offset=shard.offset,
        partition=shard.partition,
        kind="evaluate" if shard.held_out else "train",
    )


def _next_reply(job: str, body: ledger.NextReply) -> Message:
    return NextShardReply(
        job=job,
        answer=body.answer,  # type: ignore[arg-type]
        shard=_shard(body.shard) if body.shard else None,
        wait_s=body.wait_s,
        stale=body.stale,
        forget=tuple(body.forget or ()),
    )


def _mark_reply(job: str, body: ledger.MarkReply) -> Message:
    if body.book is None:
        return MarkLedgerReply(job=job, answer="unknown")
    return MarkLedgerReply(job=job, answer="ok", ledger=_packed(body.book), samples_done=body.samples_done)


def _progressed(job: str, fact: ledger.JobProgressed) -> Message:
    return JobProgressed(
        job=job,
        samples_done=fact.samples_done,
        samples_total=fact.samples_total,
        epoch=fact.epoch,
        samples_per_s=fact.samples_per_s,
        shards_leased=fact.shards_leased,
        shards_requeued_total=fact.shards_requeued_total,
    )


def _measured(job: str, fact: ledger.EvaluationMeasured) -> Message:
    return EvaluationMeasured(
        job=job,
        samples_done=fact.samples_done,
        samples_done_after=fact.samples_done_after,
        evaluation=Evaluation(samples=fact.samples, loss=fact.loss, auc=fact.auc),
    )


def _completed(job: str, fact: ledger.JobCompleted) -> Message:
    return JobCompleted(
        job=job,
        samples=fact.samples,
        samples_abandoned=fact.samples_abandoned,
        epochs=fact.epochs,
        shards=fact.shards,
        requeued=fact.requeued,
        started_at_s=fact.started_at_s,
        books=_completed_books(fact),
    )


def _completed_books(said: ledger.JobCompleted | ledger.Book) -> CompletedBooks:
    return CompletedBooks(
        samples_before=said.samples_before,
        fingerprint=f"{said.fingerprint:016x}",
        given_up=tuple(GivenUp(**asdict(entry)) for entry in said.given_up),
        partial=tuple(PartialShard(shard=shard, known=known) for shard, known in said.partial),
        unproven=said.unproven,
    )


def _audit_reply(job: str, body: ledger.AuditReply) -> Message:
    book = body.book
    if book is None:
        return AuditLedgerReply(job=job, answer="unknown")
    leases = [Lease(pod=pod, shard=_shard(shard)) for pod, shard in body.leased.items()]
    returned = [Lease(shard=_shard(shard)) for shard in book.requeued]
    found = LedgerBooks(
        samples_total=book.samples_total,
        epoch_samples=book.source.samples,
        samples_done=book.samples_done,
        samples_given_up=book.samples_abandoned,
        samples_waiting=book.samples_waiting,
        epochs=tuple(EpochBooks(**asdict(e)) for e in ledger.epochs_of(book, body.leased)[:EPOCHS_MAX]),
        open=tuple((*leases, *returned)[:OPEN_MAX]),
        books=_completed_books(book),
        closed=body.closed,
        growing=not book.source.complete,
        partitions=_partitions(book.source),
    )
    return AuditLedgerReply(job=job, answer="ok", ledger=found)


def _partitions(source: ledger.Source) -> tuple[PartitionBooks, ...]:
    left = ((name, part) for name, part in source.partitions.items() if name and part.opened < part.samples)
    return tuple(
        PartitionBooks(name=name, samples=part.samples, priority=part.priority, opened=part.opened)
        for name, part in islice(left, PARTITIONS_TOLD)
    )


_MESSAGES: dict[type, Callable[[str, Any], Message]] = {
    ledger.NextReply: _next_reply,
    ledger.MarkReply: _mark_reply,
    ledger.AuditReply: _audit_reply,
    ledger.HeartbeatReply: lambda job, r: ShardHeartbeatReply(job=job, answer=r.answer),
    ledger.ReturnReply: lambda job, r: ReleaseShardReply(job=job, answer=r.answer),
    ledger.JobProgressed: _progressed,
    ledger.EvaluationMeasured: _measured,
    ledger.JobCompleted: _completed,
    ledger.ShardLeased: lambda job, f: ShardLeased(job=job, shard=_shard(f.shard), pod=f.worker),
    ledger.ShardCompleted: lambda job, f: ShardCompleted(job=job, shard=_shard(f.shard), pod=f.worker),
    ledger.ShardRequeued: lambda job, f: ShardRequeued(job=job, shard=_shard(f.shard), pod=f.worker, reason=f.reason),
    ledger.ShardAbandoned: lambda job, f: ShardAbandoned(job=job, shard=_shard(f.shard), reason=f.reason[:2000]),
}


def to_message(job: str, fact: Any) -> Message:
    """The message of a ledger's fact or reply."""
    return _MESSAGES[type(fact)](job, fact)
