"""What a completed job has applied, counted where gradients land and not by the ledger's word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stretto_core.actuator.state import BooksTaken, JobCompleted, JobFinished
from stretto_core.dispatcher.audit import prove


def close_books(samples_total: int, completed: JobCompleted, taken: BooksTaken) -> JobFinished:
    """Every push touches every column, so each has counted every sample once; they are compared one by one."""
    books, known = taken.books, dict(completed.given_up)
    counted = tuple(part for book in books for part in book.counted)
    applied = tuple(
        replace(part, known=known[part.shard]) for book in books for part in book.applied if part.shard in known
    )
    columns = max((book.columns_total for book in books), default=0)
    expected = samples_total - completed.samples_abandoned if samples_total else completed.samples
    before = completed.samples_before
    proof = prove(before + expected, completed.fingerprint, columns, counted, applied, completed.unproven)
    least = min((part.samples for part in counted), default=completed.samples_before)
    return JobFinished(
        samples_expected=expected,
        samples_applied=max(0, least - completed.samples_before),
        samples_lost=proof.lost if columns else expected,
        samples_repeated=proof.repeated,
        repeats_recognised=max((book.skipped_repeats for book in books), default=0),
        rows=sum(book.rows for book in books),
        checksum=_sum([book.checksum for book in books]),
        evaluation=taken.evaluation,
        columns_total=columns,
        counted=counted,
        applied=applied,
    )


def _sum(checksums: Sequence[str]) -> str:
    """The sum modulo 2^64; empty when a server gave none."""
    try:
        return f"{sum(int(checksum, 16) for checksum in checksums) % 2**64:016x}" if checksums else ""
    except ValueError:
        return ""
