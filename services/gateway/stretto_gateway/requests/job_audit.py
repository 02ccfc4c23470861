"""The audit of a job: the ledger's books against the counts of every column of the parameters."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from stretto_bus import CallTimeout
from stretto_core.dispatcher.audit import Applied, Counted, prove
from stretto_messages.actuator import GetServers, GetServersReply, JobFinished
from stretto_messages.books import (
    AppliedBooks,
    CompletedBooks,
    EpochBooks,
    Fault,
    Lease,
    LedgerBooks,
    partly_done,
    spread,
    total_rows,
)
from stretto_messages.dispatcher import AuditLedger, AuditLedgerReply, JobCompleted
from stretto_messages.pods import GetBooks, GetBooksReply
from stretto_runtime.restorations import Restoration
from stretto_wire.rest.audits import JobAudit, OpenShard, Return
from stretto_wire.rest.views import Status

from ..problems import Problem
from ..read_model.folds.fold import Returned
from .bus_roles import PodAsker

READINGS = 5


def returns(
    known: Sequence[Returned], restorations: Sequence[Restoration], submitted_at_s: float
) -> tuple[Return, ...]:
    """Return how a job returned to checkpoints. The first return after the moment of a backup belongs to its
    restoration."""
    moments: dict[int, float] = {}
    for restoration in restorations:
        after = [number for number, one in enumerate(known) if one.seq > restoration.log_seq]
        if after and submitted_at_s <= restoration.taken_at_s:
            moments[after[0]] = restoration.taken_at_s
    return tuple(
        Return(at_s=one.time_s, backup_at_s=moments.get(number), **asdict(one.change))
        for number, one in enumerate(known)
    )


async def running(
    asker: PodAsker, job: str, status: Status, timeout_s: float, number: int, runs_program: bool = False
) -> JobAudit:
    """Audit a job that trains: read ledger and servers again until no shard was leased or completed in between.

    Raises Problem 503 if the ledger or a server does not answer. ``number`` has to differ between audits, since replies
    are remembered by the id of their request.
    """
    read = await _reading(asker, job, timeout_s, number)
    for again in range(1, READINGS):
        if read.still:
            break
        read = await _reading(asker, job, timeout_s, number + again)
    found = audit(job, status, read.ledger, [reply.applied for reply in read.servers], runs_program)
    if not read.still or not all(reply.steady for reply in read.servers):
        moved = "training went on while the books were read; ask again, or when the job has finished"
        found = replace(found, quiet=False, findings=(moved, *found.findings))
    return found


@dataclass(frozen=True, slots=True)
class _Reading:
    """Books of the ledger and of the servers. ``still``: no shard was leased or completed between the two."""

    ledger: LedgerBooks
    servers: list[GetBooksReply]
    still: bool


async def _reading(asker: PodAsker, job: str, timeout_s: float, number: int) -> _Reading:
    before = await _ledger(asker, job, timeout_s)
    servers = await asker.call(GetServers(job=job, request_id=f"gateway-audit.{number}", pod="ps-0"), timeout_s)
    assert isinstance(servers, GetServersReply)
    shards = [lease.shard.id for lease in before.open] + [shard for shard, _ in partly_done(before.books)]
    request = GetBooks(job=job, shards=tuple(shards), checksum=False)
    try:
        replies = await asyncio.gather(
            *(asker.call_pod(f"ps-{server.index}", request, timeout_s) for server in servers.servers)
        )
    except CallTimeout as silent:
        raise Problem(
            503,
            "not-readable",
            f"a parameter server does not answer: {silent}",
            field="job",
            value=job,
            remedy="ask again while it trains; `stretto watch` shows its pods",
        ) from silent
    after = await _ledger(asker, job, timeout_s)
    books = [reply for reply in replies if isinstance(reply, GetBooksReply)]
    return _Reading(before, books, _still(before) == _still(after))


async def _ledger(asker: PodAsker, job: str, timeout_s: float) -> LedgerBooks:
    reply = await asker.call(AuditLedger(job=job), timeout_s)
    assert isinstance(reply, AuditLedgerReply)
    if reply.ledger is None:
        raise Problem(
            503,
            "unknown",
            f"the dispatcher has no books of {job}",
            field="job",
            value=job,
            remedy="ask again in a second",
        )
    return reply.ledger


def _still(ledger: LedgerBooks) -> object:
    """Return the part of the books that must not change during a reading; progress within a shard may."""
    return ledger.books, sorted((lease.pod, lease.shard.id, lease.shard.attempt) for lease in ledger.open)


def finished(completed: JobCompleted, ended: JobFinished, status: Status, runs_program: bool = False) -> JobAudit:
    """Audit a finished job, whose servers are gone, from its two last events."""
    books = completed.books or CompletedBooks(fingerprint="0" * 16)
    ledger = LedgerBooks(
        samples_total=completed.samples + completed.samples_abandoned,
        epoch_samples=(completed.samples + completed.samples_abandoned) // max(1, completed.epochs),
        samples_done=completed.samples,
        samples_given_up=completed.samples_abandoned,
        samples_waiting=0,
        epochs=_given_up_by_epoch(completed, books),
        open=(),
        books=books,
        closed="completed",
    )
    return audit(completed.job, status, ledger, [ended.applied], runs_program)


def _given_up_by_epoch(completed: JobCompleted, books: CompletedBooks) -> tuple[EpochBooks, ...]:
    """Return the epochs that lack samples; none where training stopped early, in the middle of one."""
    if completed.stopped:
        return ()
    samples = (completed.samples + completed.samples_abandoned) // max(1, completed.epochs)
    lost: dict[int, int] = {}
    for entry in books.given_up:
        lost[entry.epoch] = lost.get(entry.epoch, 0) + entry.length
    return tuple(
        EpochBooks(epoch=epoch, waiting=0, in_flight=0, given_up=given_up, done=samples - given_up)
        for epoch, given_up in sorted(lost.items())[:64]
    )


def audit(
    job: str, status: Status, ledger: LedgerBooks, applied: list[AppliedBooks], runs_program: bool = False
) -> JobAudit:
    """Compare the ledger's books with the servers' counts, column by column.

    ``runs_program``: there are no servers, and a shard is done when its worker says so.
    """
    books = ledger.books
    known = dict(partly_done(books))
    rest = [
        Applied(part.shard, part.columns, part.samples, known.get(part.shard, 0))
        for server in applied
        for part in spread(server)
    ]
    counted = [
        Counted(part.columns, part.samples, int(part.fingerprint, 16)) for server in applied for part in server.columns
    ]
    columns = max((server.columns_total for server in applied), default=0)
    expected = books.samples_before + ledger.samples_done
    proof = prove(expected, int(books.fingerprint, 16), columns, counted, rest, books.unproven)
    flying = sum(lease.shard.length for lease in ledger.open if lease.pod)
    total = ledger.samples_done + ledger.samples_given_up + ledger.samples_waiting + flying
    findings = [_words(fault) for fault in proof.faults]
    if not columns and not runs_program:
        findings.append(
            "no parameter server says what it applied: they start, or the job returns to a checkpoint; ask again"
        )
    if total != ledger.samples_total:
        findings.append(f"the ledger's own books do not add up: {total:,} of {ledger.samples_total:,} samples")
    return JobAudit(
        job=job,
        status=status,
        exact=not findings,
        quiet=not flying,
        findings=tuple(findings),
        samples_total=ledger.samples_total,
        samples_assigned=ledger.samples_total - ledger.samples_waiting,
        samples_done=ledger.samples_done,
        samples_given_up=ledger.samples_given_up,
        samples_in_flight=flying,
        samples_waiting=ledger.samples_waiting,
        samples_before=books.samples_before,
        samples_recomputed=books.samples_recomputed,
        samples_lost=proof.lost if columns else 0,  # without servers, no sample is known to be lost
        samples_repeated=proof.repeated,
        fingerprint=books.fingerprint,
        columns=columns,
        columns_exact=columns - len({column for fault in proof.faults for column in fault.columns}),
        faults=proof.faults,
        epochs=ledger.epochs,
        open=tuple(_open(lease, rest) for lease in ledger.open),
        given_up=books.given_up,
        rows=total_rows(server.rows for server in applied),
    )


def _open(lease: Lease, applied: list[Applied]) -> OpenShard:
    far = [part.samples for part in applied if part.shard == lease.shard.id]
    return OpenShard(lease.pod, lease.shard, min(far, default=0), max(far, default=0))


def _words(fault: Fault) -> str:
    columns = ", ".join(map(str, fault.columns[:8])) + (" …" if len(fault.columns) > 8 else "")
    where = f"{len(fault.columns)} columns ({columns})"
    if fault.servers != 1:
        return f"{where} are owned by {fault.servers} parameter servers"
    if fault.unproven and not fault.repeated:
        return (
            f"{where}: {fault.unproven:,} samples more than in the books; not provable, because so many shards are "
            "open or were given up that the books do not list all of them"
        )
    if fault.lost and fault.repeated:
        return f"{where}: as many samples lost as repeated, or samples that the ledger does not have"
    return f"{where}: " + (f"{fault.lost:,} samples lost" if fault.lost else f"{fault.repeated:,} samples repeated")
