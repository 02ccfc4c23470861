"""The document that each key is continued from, chosen from what the bucket holds.

A side of a key is whole if its document is sound and the digest of its parts fits. The whole side with the higher
ordinal is continued. If the other side may have held a later snapshot (it is damaged or missing, or its parts are), the
inputs after the chosen document are replayed: their outputs were stored after it, so scanning the published ids from
its sequence on finds all of them; other keys skip the inputs that their documents contain. That needs all of these
inputs, so the chosen document may be no older than the shortest-lived of them.

A key without a usable side is lost. Its inputs are not handled as if it were new, because its decisions could
contradict those that it has published.

An ended key whose inputs have all aged out loses both sides, the older one first. If its owner died in between, the
next one finds the newer side alone, and removes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import structlog
from stretto_bus.faults import BusFault
from stretto_bus.reading.lost_end import LogPlace
from stretto_bus.reading.ordered_consumer import Stored
from stretto_wire.contract.excerpts import Excerpt, Stream
from stretto_wire.contract.registry import CHANNELS, EVENTS_KEPT_S, STATE_PREFIX, channel_of

from stretto_runtime.owner.state.seals import Damage, Damaged, unseal
from stretto_runtime.owner.state.snapshots import (
    SIDES,
    Cursor,
    Document,
    Saved,
    Snapshots,
    cursor_in,
    digest,
    is_removed,
)
from stretto_runtime.service import Service
from stretto_runtime.streams import Streams, read

REPLAYABLE_SHARE = 0.9
"""Share of the time for which inputs are kept: a takeover needs some of it until it has read them."""
READINGS = 8
"""Attempts to read a document that its owner replaces every second"""

log = structlog.get_logger("stretto.recovery")


@dataclass(slots=True, eq=False)
class Side:
    """One stored side of a key: its document, the sound parts, and the names of the damaged ones."""

    document: Document | None = None
    parts: dict[str, bytes] = field(default_factory=dict[str, bytes])
    damaged_parts: set[str] = field(default_factory=set[str])
    damages: list[Damage] = field(default_factory=list[Damage])
    subjects: list[str] = field(default_factory=list[str])
    """Subjects of the sound parts."""
    damaged: bool = False
    """True if the document is there and cannot be read."""
    seq: int = 0
    """Sequence of the document in the bucket"""

    @property
    def whole(self) -> bool:
        """True if the state can be continued from this side alone."""
        return self.document is not None and (not self.document.parted or digest(self.parts) == self.document.digest)

    def add(self, stored: Stored, part: str | None) -> None:
        """Add a message of this side. Raises Refusal: another version of this code wrote the document."""
        try:
            if part is not None:
                self.parts[part] = unseal(stored.subject, stored.data)
                self.subjects.append(stored.subject)
            else:
                self.seq = stored.seq
                self.document = Document.decode(stored.subject, stored.data)
        except Damaged as damage:
            self.damages.append(Damage(stored.subject, stored.seq, str(damage), stored.data))
            if part is not None:
                self.damaged_parts.add(part)
            else:
                self.damaged = True


@dataclass(slots=True)
class Recovered:
    """Result of a scan of documents, by (partition, key).

    ``uncertain``: a later snapshot may have been there. ``halved``: of an ended key only this side is there.
    ``strays``: subjects of parts that belong to no document.
    """

    documents: dict[tuple[str, str], Document] = field(default_factory=dict[tuple[str, str], Document])
    uncertain: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    lost: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    halved: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    damages: list[Damage] = field(default_factory=list[Damage])
    strays: list[str] = field(default_factory=list[str])


def recovered(entries: Iterable[Stored]) -> Recovered:
    """Choose a document for every key. Raises Refusal: another version of this code wrote a document."""
    keys: dict[tuple[str, str], dict[str, Side]] = {}
    found = Recovered()
    for stored in entries:
        if is_removed(stored):
            continue
        tokens = stored.subject.removeprefix(f"{STATE_PREFIX}snap.").split(".")
        if len(tokens) not in (4, 5) or tokens[3] not in SIDES:
            found.damages.append(Damage(stored.subject, stored.seq, "no place of a snapshot", stored.data))
            continue
        _, partition, key, side, *part = tokens
        sides = keys.setdefault((partition, key), {side: Side() for side in SIDES})
        sides[side].add(stored, part[0] if part else None)
    for place, sides in keys.items():
        _choose(found, place, [sides[side] for side in SIDES])
    return found


def _choose(found: Recovered, place: tuple[str, str], sides: list[Side]) -> None:
    for side in sides:
        found.damages += side.damages
    whole = [side for side in sides if side.whole]
    if not whole:
        if any(side.damaged or side.document for side in sides):
            found.lost.add(place)
        else:  # an owner died before its first document: a later one would take them for its own
            found.strays += [subject for side in sides for subject in side.subjects]
        return
    chosen = max(whole, key=lambda side: side.document.ordinal if side.document else 0)
    other = sides[1 - sides.index(chosen)]
    document = chosen.document
    assert document is not None
    later = other.seq > chosen.seq if other.damaged else not _precedes(other.document, document)
    if later:
        found.uncertain.add(place)
    if later and document.ended and other.document is None and not other.damaged:
        found.halved.add(place)
    parts = chosen.parts if document.parted else {}
    behind = (set[str](), set[str]())
    for names, side in zip(behind, sides, strict=True):
        present = {**side.parts, **dict.fromkeys(side.damaged_parts, b"")}
        names |= {name for name in {*present, *parts} if present.get(name) != parts.get(name)}
    found.documents[place] = replace(document, parts=parts, behind=behind)


def _precedes(other: Document | None, chosen: Document) -> bool:
    """Return whether the ``other`` side held the snapshot before the ``chosen`` one, or nothing before the first."""
    return chosen.ordinal == 0 if other is None else other.ordinal == chosen.ordinal - 1


def replayable_s(service: Service, facts_kept_s: float = EVENTS_KEPT_S) -> float:
    """Seconds for which the stream holds all inputs and outputs of a service."""
    kept = [facts_kept_s, *(channel_of(entry.message).kept_s for entry in service.inputs)]
    kept += [channel.kept_s for channel in CHANNELS if channel.kind == "evt" and channel.service == service.name]
    if service.tick_s is not None or service.rpcs or service.has_side_effects:
        kept.append(service.settings.journal_ttl_s)
    return min(kept_s for kept_s in kept if kept_s is not None)


@dataclass(slots=True)
class Loaded:
    """The state that a partition is continued from.

    ``attempt``: owners before us that may have handled the inputs after the cursor.

    ``lost``: keys that cannot be continued. ``uncertain``: keys that fell back to an earlier document. ``fell_back``:
    inputs are replayed that were handled before the last snapshot.
    """

    cursor: Cursor
    documents: dict[str, Document]
    attempt: int
    lost: frozenset[str] = frozenset()
    uncertain: frozenset[str] = frozenset()
    fell_back: bool = False
    damages: list[Damage] = field(default_factory=list[Damage])

    @property
    def reached(self) -> int:
        """Return the highest sequence of the log that the state knows."""
        return max(self.cursor.seq, self.cursor.out_seq, *(document.seq for document in self.documents.values()))

    @property
    def place(self) -> LogPlace:
        """Return the place of the last input that the cursor contains."""
        return LogPlace(self.cursor.seq, self.cursor.time_us / 1e6)

    def last_input(self, journal: str) -> LogPlace:
        """Return the place of the last input that the state contains. ``journal``: the subject of its frames."""
        last = max(self.documents.values(), key=lambda document: document.seq, default=None)
        if last is not None and last.seq > self.cursor.seq:
            return LogPlace(last.seq, last.time_s, journal)
        return self.place

    def rewound(self, kept: int) -> Loaded:
        """The same where the log lost everything behind ``kept``: what is stored there now has not been handled."""
        documents = {
            key: replace(document, seq=min(document.seq, kept), ordinal=document.ordinal + 1, is_saved=False)
            for key, document in self.documents.items()
        }
        cursor, out_seq = self.cursor, min(self.cursor.out_seq, kept)
        if kept < cursor.seq:
            cursor = replace(cursor, seq=kept, time_us=0)
        return replace(self, documents=documents, cursor=replace(cursor, out_seq=out_seq))

    def without(self, key: str) -> Loaded:
        """The same with ``key`` lost, which fell back to an earlier document."""
        log.error("the inputs since an earlier document cannot be decided again", lost=key)
        documents = {name: document for name, document in self.documents.items() if name != key}
        return replace(self, documents=documents, lost=self.lost | {key}, uncertain=self.uncertain - {key})


async def load(snapshots: Snapshots, service: Service, fence_seq: int, facts_kept_s: float = EVENTS_KEPT_S) -> Loaded:
    """Load everything of a partition, then mark it: that proves that we still owned it after our fence.

    Raises:
        Fenced: we are not the owner any more.
        Refusal: another version of this code wrote a document.
    """
    saved = await snapshots.saved(fence_seq)
    found = recovered(saved.snaps)
    if found.strays:
        await snapshots.remove(found.strays)
    documents = {key: document for (_, key), document in found.documents.items()}
    lost, uncertain = {key for _, key in found.lost}, {key for _, key in found.uncertain}
    halved = {
        key: documents.pop(key)
        for _, key in found.halved
        if saved.now_s - documents[key].time_s > service.forgotten_after_s
    }
    uncertain -= halved.keys()
    await snapshots.forget(halved)
    for key in sorted(uncertain):
        if saved.now_s - documents[key].time_s > REPLAYABLE_SHARE * replayable_s(service, facts_kept_s):
            log.error("the inputs since an earlier document are not kept any more", key=key)
            del documents[key]
            lost.add(key)
    uncertain -= lost
    cursor, lowered = _cursor(saved, [documents[key].seq for key in uncertain])
    if lost or uncertain or saved.damages or found.damages:
        log.error(
            "saved state is damaged",
            places=[damage.subject for damage in (*saved.damages, *found.damages)],
            lost=sorted(lost),
            replayed=sorted(uncertain),
            replayed_after=cursor.seq,
        )
    mark, damaged = saved.mark, any(damage.subject.startswith(f"{STATE_PREFIX}mark.") for damage in saved.damages)
    again = mark is not None and not mark.clean and mark.cursor == cursor.seq
    attempt = mark.attempt + 1 if mark is not None and again else int(damaged or (mark is not None and not mark.clean))
    await snapshots.mark(cursor, attempt)
    return Loaded(
        cursor, documents, attempt, frozenset(lost), frozenset(uncertain), lowered, [*saved.damages, *found.damages]
    )


def _cursor(saved: Saved, uncertain: list[int]) -> tuple[Cursor, bool]:
    """Return the cursor to begin from, and whether it is an earlier one than the last that was written.

    Without a sound cursor that of the last takeover is safe, and without that the beginning of the stream.
    """
    earlier = saved.mark.cursor if saved.mark is not None else 0
    cursor = saved.cursor or Cursor(earlier, earlier, reports=None if earlier else 0)
    damaged = any(damage.subject.startswith(f"{STATE_PREFIX}cursor.") for damage in saved.damages)
    seq = min([cursor.seq, *uncertain])
    if (
        seq < cursor.seq or damaged or (saved.cursor is None and earlier > 0)
    ):  # under fence 0, of nobody: ``finish`` then looks at every term since
        return Cursor(seq, min(cursor.out_seq, seq), cursor.version, reports=cursor.reports), True
    return cursor, False


async def cursor_of(streams: Streams, service: str, partition: int) -> Cursor:
    """The cursor of a partition as it is saved now; one before every input if there is none. Raises Fault."""
    subjects = tuple(f"{STATE_PREFIX}cursor.{service}.{partition}.{side}" for side in SIDES)
    return cursor_in(await read(streams, Excerpt(stream=Stream.STATE, subject=subjects, last=True)))[0] or Cursor()


async def document_of(streams: Streams, service: str, partition: int, key: str) -> Document | None:
    """The last saved document of one key, consistent with its parts even while its owner writes; None: no sound one.

    Raises:
        Fault: it cannot be read, or was replaced during every reading.
        Refusal: another version of this code wrote it.
    """
    subject = f"{STATE_PREFIX}snap.{service}.{partition}.{key}"
    saved = Excerpt(stream=Stream.STATE, subject=(f"{subject}.>",), last=True)
    before: list[int] = []
    for _ in range(READINGS):
        entries = await read(streams, saved)
        document = recovered(entries).documents.get((str(partition), key))
        seen = [stored.seq for stored in entries]
        if document is not None or seen in ([], before):  # read twice without a change: it is damaged
            return document
        before = seen
    raise BusFault(f"{subject} was replaced {READINGS} times while it was read; ask again")
