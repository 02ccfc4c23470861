"""Names of checkpoints. Other services recognise the last checkpoint and a return to one by its name."""

from __future__ import annotations

FINAL = "-final"
"""Suffix of the checkpoint after the last shard."""
RESTORE = "-restore-"
"""Part of the name of a return to a checkpoint; a number follows that grows within the job."""
COLUMNS = "-columns-"
"""Part of the name of a return of lost columns to a checkpoint; a number follows that grows within the job."""


def is_final(name: str) -> bool:
    """Return True if this checkpoint was taken after the last shard."""
    return name.endswith(FINAL)


def number_of(name: str) -> int:
    """Return the number of a checkpoint, which grows within its job; 0 for a name of another form."""
    number = name.removesuffix(FINAL).rpartition("-")[2]
    return int(number) if number.isdecimal() else 0


def is_restore(name: str) -> bool:
    """Return True if this names a return of a whole job to a checkpoint."""
    return RESTORE in name


def is_column_restore(name: str) -> bool:
    """Return True if this names a return of lost columns to a checkpoint."""
    before, part, number = name.rpartition(COLUMNS)
    return bool(before and part) and number.isdecimal()


def restore_number(name: str) -> int:
    """Return the number of a return of a whole job to a checkpoint; 0 for a name of another form."""
    number = name.rpartition(RESTORE)[2]
    return int(number) if is_restore(name) and number.isdecimal() else 0
