"""The journal of a job: stored messages that a replay of the job's decisions reads, as lines of JSON.

The messages are sent while they are read, at the reader's pace; the bus sends at most 32 MiB ahead.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from itertools import combinations

import structlog
from pydantic import TypeAdapter
from stretto_bus.faults import Fault
from stretto_messages.base import CLUSTER
from stretto_runtime.streams import Streams
from stretto_wire.contract.excerpts import Excerpt, Stream, StreamFacts
from stretto_wire.contract.registry import CHANNELS, STATE_PREFIX, ChannelReader, partition_of
from stretto_wire.rest.journal import JournalEnd, StoredMessage

from ..problems import Problem

PART_BYTES = 64 << 10
"""Bytes that are sent at once: sending each line by itself would cost more than making the line (taste)."""
OF_CLUSTER = tuple(
    f"*.{channel.pattern}"
    for channel in CHANNELS
    if any(isinstance(each, ChannelReader) and each.scope == "cluster" for each in channel.consumers)
)
"""Subjects of events of all jobs by which the machines of the cluster decide."""
_FACTS, _MESSAGE, _END = TypeAdapter(StreamFacts), TypeAdapter(StoredMessage), TypeAdapter(JournalEnd)
log = structlog.get_logger("stretto.gateway")


def readable(job: str) -> dict[Stream, tuple[str, ...]]:
    """Return the patterns of the subjects, by stream, that a replay of a job's decisions may need."""
    own, cluster = partition_of(job), partition_of(CLUSTER)
    both = sorted({own, cluster})
    state = f"{STATE_PREFIX}snap.*"
    return {
        Stream.FACTS: (
            *(f"{kind}.*.{number}" for kind in ("journal", "fence") for number in both),
            f"*.evt.v1.*.*.{job}",
            *OF_CLUSTER,
        ),
        Stream.REPORTS: (f"*.tel.v1.*.*.{job}",),
        Stream.STATE: (
            f"{state}.{own}.{job}.>",
            f"{state}.{cluster}.{CLUSTER}.>",
            *(f"{STATE_PREFIX}cursor.*.{number}.*" for number in both),
        ),
    }


def covers(pattern: str, subject: str) -> bool:
    """Return whether ``pattern`` matches every subject that ``subject`` matches; either may have wildcards."""
    own, asked = pattern.split("."), subject.split(".")
    if own[-1] == ">":
        own.pop()
        if len(asked) <= len(own):
            return False
        del asked[len(own) :]
    if len(own) != len(asked) or ">" in asked:
        return False
    return all(one in ("*", other) for one, other in zip(own, asked, strict=True))


def overlap(one: str, other: str) -> bool:
    """Return whether a subject matches both filters."""
    for own, its in zip(one.split("."), other.split("."), strict=False):
        if ">" in (own, its):
            return True
        if own != its and "*" not in (own, its):
            return False
    return one.count(".") == other.count(".")


def check(job: str, excerpt: Excerpt) -> None:
    """Check that a replay of the job may need each subject, and that no message is asked for twice. Raises Problem
    400."""
    patterns = readable(job)[excerpt.stream]
    for subject in excerpt.subject:
        if not any(covers(pattern, subject) for pattern in patterns):
            text = f"a replay of {job} reads no {subject} in the stream {excerpt.stream}"
            raise _unusable(text, subject, f"subjects within {', '.join(patterns)}")
    for one, other in combinations(excerpt.subject, 2):
        if overlap(one, other):
            raise _unusable(f"{one} and {other} overlap", other, "subjects of which none matches what another does")


def _unusable(text: str, subject: str, remedy: str) -> Problem:
    return Problem(400, "bad-request", text, field="subject", value=subject, remedy=remedy)


async def lines(streams: Streams, excerpt: Excerpt, unreadable: str = "") -> AsyncGenerator[bytes]:
    """Yield an excerpt in parts of whole lines: the stream's facts, the messages, the end. Only the facts raise
    Fault. ``unreadable``: what is known to be damaged, in words."""
    facts = replace(await streams.facts(excerpt.stream), unreadable=unreadable)
    part = bytearray(_FACTS.dump_json(facts) + b"\n")
    count, reason = 0, None
    try:
        async with aclosing(streams.scan(excerpt)) as source:
            async for stored in source:
                message = StoredMessage(stored.seq, stored.time_s, stored.subject, dict(stored.headers), stored.data)
                part += _MESSAGE.dump_json(message) + b"\n"
                count += 1
                if len(part) >= PART_BYTES:
                    yield bytes(part)
                    part.clear()
                    await asyncio.sleep(0)  # a connection that takes all at once must not keep others waiting
    except Fault as fault:
        log.warning("a journal is incomplete", stream=excerpt.stream, messages=count, fault=str(fault))
        reason = str(fault)
    yield bytes(part + _END.dump_json(JournalEnd(count, reason)) + b"\n")
