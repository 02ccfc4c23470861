"""Terms of code and settings. Every owner records them in its fence, before its first decision.

A term lasts from one owner to the next. After a clean shutdown the next term begins where the predecessor stopped.
Otherwise it begins at the new fence, because the inputs before it may have been decided. Each input is decided under
the settings of its term, both by a successor that finishes what a dead owner began and by a later replay.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import structlog
from pydantic import ValidationError
from pydantic_core import from_json
from stretto_bus.reading.ordered_consumer import Stored

from stretto_runtime.service import Service

log = structlog.get_logger("stretto.terms")


def fence_subject(service: str, partition: int) -> str:
    """The subject of the fences of a partition."""
    return f"fence.{service}.{partition}"


@dataclass(frozen=True, slots=True)
class Term:
    """The term of every input after ``seq``, until the next term. None: no owner has recorded one."""

    seq: int = 0
    version: int | None = None
    settings: dict[str, Any] | None = None
    fence: int = 0
    """Sequence of the fence that records the term."""

    @classmethod
    def of(cls, service: Service, seq: int = 0) -> Term:
        """The term of this process."""
        return cls(seq, service.version, service.deciding())

    def body(self, owner: str, epoch: int, after: int | None) -> bytes:
        """Body of a fence. ``after`` is the last input of the predecessor, if it shut down cleanly."""
        record = {"owner": owner, "epoch": epoch, "version": self.version, "settings": self.settings}
        if after is not None:
            record["after"] = after
        return json.dumps(record, separators=(",", ":")).encode()

    def decides_as(self, other: Term) -> bool:
        """True if the same inputs give the same outputs."""
        return (self.version, self.settings) == (other.version, other.settings)

    @classmethod
    def read(cls, fence: Stored) -> Term:
        """The term that a fence records; one without recorded settings if the fence cannot be read."""
        try:
            record: Any = from_json(fence.data)
        except ValueError:
            record = None
        fields = cast("dict[str, Any]", record) if isinstance(record, dict) else {}
        after, version, settings = fields.get("after", fence.seq), fields.get("version"), fields.get("settings")
        sound = type(after) is int and 0 <= after <= fence.seq and type(version) is int and isinstance(settings, dict)
        if not sound:
            log.error(
                "a fence cannot be read; its term counts as one without recorded settings",
                subject=fence.subject,
                seq=fence.seq,
                data=repr(fence.data[:100]),
            )
            return cls(fence.seq, None, None, fence.seq)
        return cls(after, version, settings, fence.seq)

    def service(self, own: Service) -> Service | None:
        """``own`` under the settings of this term; None if there are none, or this code cannot read them."""
        if self.settings is None:
            return None
        if self.settings == own.deciding():
            return own
        try:
            return type(own)(type(own.settings)(**{**dict(own.settings), **self.settings}))
        except (ValidationError, TypeError):
            return None


def terms(fences: Iterable[Stored]) -> list[Term]:
    """Every term that the fences of a partition record, in order."""
    return [Term.read(fence) for fence in fences]


def term_at(known: Sequence[Term], seq: int) -> Term:
    """The term of input ``seq``; inputs before every owner belong to the first one."""
    earlier = [term for term in known if term.seq < seq] or known[:1] or [Term()]
    return earlier[-1]
