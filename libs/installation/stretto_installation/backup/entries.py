"""Entries of the bucket in a backup: read at one moment, kept as lines of JSON, and changed for their restoration."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError
from stretto_bus.bus import Bus
from stretto_bus.reading.ordered_consumer import OrderedConsumer, Stored
from stretto_runtime.owner.state.seals import Damaged
from stretto_runtime.owner.state.snapshots import Cursor, Mark, is_removed
from stretto_wire.contract.registry import STATE, STATE_PREFIX

from ..errors import BackupError

LEASES = ("member", "owner")
"""Entries that belong to a running process"""
REVISIONS_AHEAD = 1 << 40
"""Distance of the first restored revision from the last of the backup; no installation writes so often"""


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    seq: int
    time_s: float
    subject: str
    headers: dict[str, str]
    data: str


class Moment(NamedTuple):
    """The bucket at one moment: the last message of every subject, in stored order; ``seq`` is the last revision."""

    entries: list[Stored]
    seq: int


class Restorable(NamedTuple):
    """An entry as it is stored again."""

    subject: str
    data: bytes


async def read_moment(bus: Bus) -> Moment:
    """Read the bucket as it was at one moment while others write to it.

    A message that comes when nothing is pending was the last of the bucket. Of every subject the last message up to it
    has come by then: one that was replaced before it came was replaced by a message that came, too.
    """
    consumer = await OrderedConsumer.open(bus, STATE, [f"{STATE_PREFIX}>"])
    last: dict[str, Stored] = {}
    seq = 0
    try:
        ended = consumer.backlog == 0
        while not ended:
            for stored in await consumer.batch():
                last[stored.subject] = stored
                seq = stored.seq
            ended = consumer.pending == 0 and not consumer.ready()
    finally:
        await consumer.close()
    return Moment(sorted(last.values(), key=lambda stored: stored.seq), seq)


def line_of(stored: Stored) -> bytes:
    """Return the line of an entry."""
    data = b64encode(stored.data).decode()
    line = _Line(seq=stored.seq, time_s=stored.time_s, subject=stored.subject, headers=dict(stored.headers), data=data)
    return line.model_dump_json().encode() + b"\n"


def read_lines(path: Path) -> Iterator[Stored]:
    """Yield the entries of a file. Raises BackupError, which names the line that is none."""
    with path.open("rb") as file:
        for number, text in enumerate(file, start=1):
            try:
                line = _Line.model_validate_json(text)
                data = b64decode(line.data, validate=True)
            except (ValidationError, ValueError) as error:
                raise BackupError(f"{path}: line {number} is no entry of a bucket; use another backup") from error
            yield Stored(line.seq, line.time_s, line.subject, line.headers, data)


def restored(stored: Stored) -> Restorable | None:
    """Return the entry as it is stored again (the package's docstring says why); None: it is left out.

    Headers are those of one writing (its fence, its lifetime); what an entry means is in its body.
    """
    kind = stored.subject.removeprefix(STATE_PREFIX).partition(".")[0]
    if kind in LEASES or is_removed(stored):
        return None
    if kind != "mark":
        return Restorable(stored.subject, stored.data)
    try:
        mark = replace(Mark.decode(stored.subject, stored.data), clean=False)
    except Damaged:  # counts as no clean shutdown wherever it is read
        return Restorable(stored.subject, stored.data)
    return Restorable(stored.subject, mark.encode(stored.subject))


def cursors(entries: Iterable[Stored]) -> Iterator[tuple[str, str, Cursor]]:
    """Yield subject, service and content of every sound cursor."""
    for stored in entries:
        kind, service, *_ = stored.subject.removeprefix(STATE_PREFIX).split(".")
        if kind == "cursor" and not is_removed(stored):
            try:
                yield stored.subject, service, Cursor.decode(stored.subject, stored.data)
            except Damaged:
                continue


def versions(entries: Iterable[Stored]) -> dict[str, tuple[int, ...]]:
    """Return the versions of each service's machine that wrote its cursors."""
    found: dict[str, set[int]] = defaultdict(set)
    for _, service, cursor in cursors(entries):
        found[service].add(cursor.version)
    return {service: tuple(sorted(found[service])) for service in sorted(found)}


def check_within(entries: Iterable[Stored], last_seq: int) -> None:
    """Check that no cursor is beyond ``last_seq``, the end of the log. Raises BackupError."""
    for subject, _, cursor in cursors(entries):
        if max(cursor.seq, cursor.out_seq) > last_seq:
            seq = max(cursor.seq, cursor.out_seq)
            why = f"{subject} is at {seq}, and the log of the backup ends at {last_seq}"
            raise BackupError(f"{why}: they are of different moments; take another backup")
