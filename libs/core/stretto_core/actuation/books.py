"""What a completed job has applied, counted where gradients land and not by the ledger's word."""

from __future__ import annotations

from collections.abc import Sequence

from stretto_core.actuation.state import Book, JobFinished


def close_books(expected: int, books: Sequence[Book], evaluation: tuple[int, float, float] | None) -> JobFinished:
    """Every push touches all dense slices, so each server that owns some has counted every sample once.

    The smallest count shows what was lost, the largest what was applied twice; both are exact when all agree.
    """
    counts = [book.applied_samples for book in books if book.owns_dense or book.rows] or [0]
    return JobFinished(
        samples_expected=expected,
        samples_applied=min(counts),
        samples_lost=max(expected - min(counts), 0),
        samples_repeated=max(max(counts) - expected, 0),
        repeats_recognised=max((book.skipped_repeats for book in books), default=0),
        rows=sum(book.rows for book in books),
        checksum=_sum([book.checksum for book in books]),
        evaluation=evaluation,
    )


def _sum(checksums: Sequence[str]) -> str:
    """The sum modulo 2^64; empty when a server gave none."""
    try:
        return f"{sum(int(checksum, 16) for checksum in checksums) % 2**64:016x}" if checksums else ""
    except ValueError:
        return ""
