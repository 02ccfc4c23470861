"""Bring lost columns back on servers that go on with theirs.

Steps: 1. every server ends the imports of earlier attempts, and refuses them from then on; 2. each says what it owns;
3. columns that nobody owns are imported; 4. every column has exactly one owner now. The taker of a column depends on
nothing but the list of takers: a request that is repeated, or comes late, never gives a column a second owner.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from stretto_core.checkpoints.observations import ColumnsImported
from stretto_core.checkpoints.state import ColumnRestore
from stretto_messages.base import Message
from stretto_messages.pods import GetOwnership, GetOwnershipReply, ImportState

CALL_S = 15.0
PAUSE_S = 1.0
"""Pause before the return is tried again, times the failures so far: the other pods wait for it."""


class ColumnsError(Exception):
    """Columns could not be brought back; the text says why. ``damaged``: trying again will not help."""

    def __init__(self, text: str, damaged: bool = False) -> None:
        super().__init__(text)
        self.damaged = damaged


class Pods(Protocol):
    """Requests to the pods of a job."""

    async def call_pod(self, pod: str, request: Message, timeout_s: float = 5.0, trace: str = "") -> Any: ...


async def bring_back(job: str, restore: ColumnRestore, pods: Pods, cache_url: str, timeout_s: float) -> ColumnsImported:
    """Import the columns that nobody owns. Raises ColumnsError; CallTimeout and CallRefused for a silent server."""
    await asyncio.sleep(restore.failures * PAUSE_S)
    nothing = _request(job, restore, [], [], cache_url)
    await asyncio.gather(*(pods.call_pod(f"ps-{number}", nothing, timeout_s) for number in restore.servers))
    owned = await _owned(job, restore, pods)
    parts = assigned([column for column, count in enumerate(_owners(owned)) if not count], restore.takers)
    buckets = len(owned[0].buckets)
    numbers = sorted(parts)
    replies = await asyncio.gather(
        *(
            pods.call_pod(
                f"ps-{number}",
                _request(
                    job,
                    restore,
                    [column for column in parts[number] if column < buckets],
                    [column - buckets for column in parts[number] if column >= buckets],
                    cache_url,
                ),
                timeout_s,
            )
            for number in numbers
        )
    )
    for number, reply in zip(numbers, replies, strict=True):
        if not reply.accepted:
            text = f"ps-{number} could not load its part of {restore.checkpoint.url}: {reply.detail}"
            raise ColumnsError(text, reply.damaged)
    if parts:
        counts = _owners(await _owned(job, restore, pods))
        if wrong := [column for column, count in enumerate(counts) if count != 1]:
            raise ColumnsError(f"columns {wrong[:8]} have another number of owners than one", damaged=True)
    return ColumnsImported(
        job=job,
        id=restore.id,
        columns=sum(map(len, parts.values())),
        size_bytes=sum(reply.size_bytes for reply in replies),
    )


def assigned(columns: list[int], takers: list[int]) -> dict[int, list[int]]:
    """Deal columns to the servers that take some: each column always to the same one of them."""
    parts: dict[int, list[int]] = {}
    for column in columns:
        parts.setdefault(takers[column % len(takers)], []).append(column)
    return parts


def _request(job: str, restore: ColumnRestore, buckets: list[int], slices: list[int], cache_url: str) -> ImportState:
    return ImportState(
        job=job,
        checkpoint=restore.checkpoint,
        number=restore.number,
        buckets=tuple(buckets),
        slices=tuple(slices),
        cache_url=cache_url,
        beside=True,
        lineage=restore.lineage,
    )


async def _owned(job: str, restore: ColumnRestore, pods: Pods) -> list[GetOwnershipReply]:
    request = GetOwnership(job=job)
    return await asyncio.gather(*(pods.call_pod(f"ps-{number}", request, CALL_S) for number in restore.servers))


def _owners(owned: list[GetOwnershipReply]) -> list[int]:
    """Count the owners of each column."""
    columns = zip(*((*reply.buckets, *reply.slices) for reply in owned), strict=True)
    return [sum(state != 0 for state in states) for states in columns]
