"""The audit log: entries in one order, each with the SHA-256 of the one before.

A change, a gap or another order within it breaks the chain. Who may write the whole stream can make another whole
chain: that shows only beside an export, or a hash kept elsewhere. An entry is one line of JSON; what is stored,
exported and hashed is the same text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError
from stretto_messages.gateway import ChangeAudited

from ..codec import encode
from ..errors import WireError

FIRST = "0" * 64
"""Stands for the hash of the entry before the first one of an installation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """A change, when the gateway answered it (seconds since the epoch), and the hash of the entry before."""

    previous: str
    time_s: float
    change: ChangeAudited


@dataclass(frozen=True, slots=True)
class Verified:
    """Outcome of a verification. ``first`` is False if entries before the first one here are kept no longer."""

    entries: int
    first: bool
    last_hash: str


_PREVIOUS: TypeAdapter[dict[str, object]] = TypeAdapter(dict[str, object])


def hash_of(line: bytes) -> str:
    """Return the hash by which the next entry names this one."""
    return hashlib.sha256(line).hexdigest()


def line_of(entry: AuditEntry) -> bytes:
    """Return the text that is stored: one line, without its end."""
    head = f'{{"previous":"{entry.previous}","time_s":{entry.time_s!r},"change":'
    return head.encode() + encode(entry.change) + b"}"


def verify(lines: Iterable[bytes]) -> Verified:
    """Check that each line names the hash of the one before. Raises WireError at the first that does not."""
    count, known, first = 0, "", True
    for count, line in enumerate(lines, 1):
        try:
            previous = _PREVIOUS.validate_json(line).get("previous")
        except ValidationError:
            raise WireError(f"line {count}", line[:60].decode(errors="replace"), "an entry in JSON") from None
        if count == 1:
            first = previous == FIRST
        elif previous != known:
            raise WireError(
                f"line {count}.previous",
                str(previous),
                f"{known}, the hash of the line before: one was changed or lost",
            )
        known = hash_of(line)
    return Verified(count, first, known)
