"""The samples that a completed job has applied: the parameters' own counts, against the ledger's books."""

from __future__ import annotations

from collections.abc import Sequence

from stretto_messages.actuator import JobFinished
from stretto_messages.books import AppliedBooks, gathered, partly_done, spread, total_rows
from stretto_messages.dispatcher import JobCompleted

from stretto_core.actuator.observations import CountsTaken
from stretto_core.dispatcher.audit import Applied, Counted, prove


def incomplete_shards(completed: JobCompleted | None) -> dict[int, int]:
    """Return the shards that nobody will complete, and how many samples of each count as done."""
    books = completed.books if completed else None
    return dict(partly_done(books)) if books else {}


def job_finished(samples_total: int, completed: JobCompleted, taken: CountsTaken) -> JobFinished:
    """Compare the columns one by one: every push touches every column, so each has counted every sample once.

    ``samples_total``: of the job's specification; 0 when only the ledger knows.
    """
    known = incomplete_shards(completed)
    servers = taken.servers
    books = completed.books
    columns = tuple(part for server in servers for part in server.applied.columns)
    shards = tuple(part for server in servers for part in spread(server.applied) if part.shard in known)
    columns_total = max((server.applied.columns_total for server in servers), default=0)
    before = books.samples_before if books else 0
    total = samples_total - completed.samples_left
    expected = total - completed.samples_abandoned if samples_total else completed.samples
    proof = prove(
        before + expected,
        int(books.fingerprint, 16) if books else None,
        columns_total,
        [Counted(part.columns, part.samples, int(part.fingerprint, 16)) for part in columns],
        [Applied(part.shard, part.columns, part.samples, known[part.shard]) for part in shards],
        books.unproven if books else 0,
    )
    least = min((part.samples for part in columns), default=before)
    applied = AppliedBooks(
        columns_total=columns_total,
        columns=columns,
        shards=gathered(shards, sum(len(part.columns) for part in columns)),
        rows=total_rows(server.applied.rows for server in servers),
    )
    return JobFinished(
        job=completed.job,
        samples_expected=expected,
        samples_applied=max(0, least - before),
        samples_lost=proof.lost if columns_total else expected,
        samples_repeated=proof.repeated,
        repeats_recognised=max((server.skipped_repeats for server in servers), default=0),
        rows=sum(server.rows for server in servers),
        checksum=_sum([server.checksum for server in servers]),
        evaluation=taken.evaluation,
        applied=applied,
    )


def job_finished_of_program(samples_total: int, completed: JobCompleted, taken: CountsTaken) -> JobFinished:
    """Take the ledger's word: a shard is done when its worker says so, and nothing else counts samples.

    ``samples_total``: of the job's specification. The samples that lost workers may have trained twice are in the
    completed job's books.
    """
    expected = samples_total - completed.samples_abandoned
    return JobFinished(
        job=completed.job,
        samples_expected=expected,
        samples_applied=completed.samples,
        samples_lost=max(0, expected - completed.samples),
        samples_repeated=0,
        repeats_recognised=0,
        rows=0,
        evaluation=taken.evaluation,
    )


def _sum(checksums: Sequence[str]) -> str:
    """Add hexadecimal checksums modulo 2^64; empty when a server gave none."""
    try:
        return f"{sum(int(checksum, 16) for checksum in checksums) % 2**64:016x}" if checksums else ""
    except ValueError:
        return ""
