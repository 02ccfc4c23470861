"""The parts of a job's view, so that a client asks only for what it shows, and the events that change each part.

A part is a field of :class:`JobView`. The part ``head`` has all fields that are no part of their own; ``name`` and
``last_seq`` are in every answer. For an event, :data:`PARTS_OF` names the parts that a client has to read again; a
client never folds events itself.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from typing import Any

from stretto_messages.base import Message
from stretto_wire.codec import adapter_of
from stretto_wire.contract.registry import channel_of
from stretto_wire.rest.parts import PARTS, Part
from stretto_wire.rest.views import JobView

LISTED: frozenset[Part] = frozenset(
    {
        "decisions", "refusals", "requests", "replacements", "phases", "migrations", "resizes", "losses", "checkpoints",
        "forecasts",
    }
)  # fmt: skip
"""Parts that are lists of happenings, whose latest entries may be enough. Histories always span the whole job."""
ALWAYS = frozenset({"name", "last_seq"})
HEAD = tuple(one.name for one in fields(JobView) if one.name not in {*PARTS, *ALWAYS})
"""Fields of the part ``head``."""
PARTS_OF: Mapping[str, tuple[Part, ...]] = {
    "job-submitted": PARTS,
    "job-cancelled": ("head", "phases", "shards"),
    "plan-requested": ("requests",),
    "data-workers-requested": ("requests",),
    "data-arrived": (
        "head",
        "data",
    ),
    "profile-measured": ("throughput", "pods", "decisions", "feeding"),
    "straggler-detected": ("pods",),
    "straggler-cleared": ("pods",),
    "hot-ps-detected": ("pods",),
    "hot-ps-cleared": ("pods",),
    "model-fitted": ("model", "fits"),
    "history-recorded": (),
    "history-matched": (),
    "plan-proposed": (),
    "candidates-computed": ("front",),
    "data-workers-proposed": (),
    "plan-decided": ("head", "decisions", "phases"),
    "plan-refused": (
        "head",
        "refusals",
    ),
    "replacement-decided": ("replacements",),
    "object-adopted": PARTS,
    "size-decided": (),
    "size-settled": ("head", "decisions", "phases"),
    "object-released": ("head", "phases", "shards"),
    "data-workers-decided": (
        "head",
        "feeding",
    ),
    "pod-started": ("head", "pods", "phases"),
    "pod-pending": (
        "head",
        "pods",
    ),
    "pod-exited": ("head", "pods", "phases"),
    "pod-resized": ("pods", "resizes"),
    "plan-applied": ("head", "decisions", "phases"),
    "servers-changed": (),
    "data-workers-changed": (),
    "group-changed": (),
    "parameters-lost": ("losses",),
    "migration-started": ("migrations", "phases"),
    "migration-finished": ("migrations", "phases"),
    "replacement-asked": ("replacements",),
    "replacement-ended": ("replacements",),
    "job-finished": ("head", "books", "phases", "shards"),
    "job-failed": ("head", "phases", "shards"),
    "shard-leased": (
        "head",
        "shards",
    ),
    "shard-completed": ("shards",),
    "shard-requeued": ("shards",),
    "shard-abandoned": ("shards", "data"),
    "job-progressed": (
        "head",
        "shards",
    ),
    "job-completed": (
        "head",
        "phases",
    ),
    "evaluation-measured": (
        "head",
        "learning",
    ),
    "recomputation-decided": ("losses", "phases"),
    "checkpoint-saved": ("checkpoints",),
    "checkpoint-flushed": (
        "head",
        "checkpoints",
    ),
    "checkpoint-restored": ("checkpoints", "losses"),
    "columns-restored": ("losses",),
    "checkpoint-failed": (
        "head",
        "checkpoints",
    ),
    "oom-forecast": ("forecast", "forecasts", "memory"),
}
"""The parts that an event may change."""
REPORTED: frozenset[Part] = frozenset({"pods", "phases", "migrations"})
"""The parts that telemetry changes. Telemetry is no event and has no sequence."""
_TAG = re.compile(r'\s*(?:W/)?"([^"]*)"\s*')


class Revisions:
    """The revision of each part of a job: the sequence of the event that changed it last, and a count of telemetry."""

    def __init__(self) -> None:
        self.seqs: dict[Part, int] = {}
        self._reports = 0

    def note(self, message: Message, seq: int) -> None:
        """Note an event that was folded in."""
        for part in PARTS_OF.get(channel_of(message).name, PARTS):
            self.seqs[part] = seq

    def note_report(self) -> None:
        """Note that telemetry was folded in."""
        self._reports += 1

    def tag(self, parts: Collection[Part], boot: str, as_of: str = "") -> str:
        """Return the ETag of some parts.

        ``boot``: mark of this process, because every process counts telemetry for itself; ``as_of``: mark of what
        depends on the present time.
        """
        seq = max((self.seqs.get(part, 0) for part in parts), default=0)
        reported = f"-{boot}-{self._reports}" if self._reports and not REPORTED.isdisjoint(parts) else ""
        return f'"{seq}{reported}{as_of}"'


def fields_of(parts: Iterable[Part]) -> set[str]:
    """Return the fields of :class:`JobView` that an answer with these parts has."""
    return set(ALWAYS).union(*(HEAD if part == "head" else (part,) for part in parts))


def dumped(view: JobView, parts: Collection[Part], last: int | None = None) -> bytes:
    """Return some parts of a view as JSON, of lists of happenings only the ``last`` entries."""
    wanted: dict[str, Any] = {name: True for name in fields_of(parts)}
    if last is not None:
        for part in LISTED.intersection(parts):
            if count := len(getattr(view, part)):
                wanted[part] = set(range(max(0, count - last), count))
    return adapter_of(JobView).dump_json(view, include=wanted)


def matches(if_none_match: str | None, tag: str) -> bool:
    """Return whether a client holds the answer with this ETag (RFC 9110, section 13.1.2)."""
    if if_none_match is None:
        return False
    held = {found.group(1) for one in if_none_match.split(",") if (found := _TAG.fullmatch(one))}
    return if_none_match.strip() == "*" or tag.strip('"') in held
