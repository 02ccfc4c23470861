"""The steps of an attempt at a checkpoint: take the images, mark the ledger, store what was copied.

The ledger is marked before the first image and after the last. Each server copies its columns one by one, each
together with its own progress records, so pushes go on: the second mark lists, under their ids, all shards that were
not complete at the first or were leased since; after a restore they are handed out again, and each column skips what
it has.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import structlog
from stretto_core.checkpoints.names import number_of
from stretto_core.checkpoints.observations import ImagesFlushed, ImagesSaved
from stretto_core.checkpoints.state import Attempt
from stretto_messages.base import Message
from stretto_messages.dispatcher import MarkLedger
from stretto_messages.pods import ExportState, GetExportStatus, GetOwnership
from stretto_messages.values import BUCKETS, SLICES
from stretto_wire.surroundings import new_id

from . import manifest
from .manifest import CheckpointManifest, ManifestError
from .settings import CheckpointsSettings

CALL_S = 60.0
HANGS_S = 60.0
"""A thread that still runs so long after its step was cancelled hangs in the store or in shared memory, perhaps for
ever. Its later effects do no harm: an attempt's names are its own, and unwanted memory is freed."""

log = structlog.get_logger("stretto.checkpoints")


class TakingError(Exception):
    """A step of a checkpoint failed; the text names the step and the reason."""


class ImageDamaged(TakingError):
    """No copy of an image is whole: reading this checkpoint again will not help."""


class NameTaken(TakingError):
    """The store has checkpoints that the state does not know, up to the number ``highest``."""

    def __init__(self, highest: int) -> None:
        super().__init__(f"the store has later checkpoints, up to number {highest}: it is taken under the next one")
        self.highest = highest


class CheckpointsEdge(Protocol):
    """The part of the service that a taker uses."""

    async def observe(self, key: str, message: Message, trace: str = "") -> None: ...
    async def call(self, request: Message, timeout_s: float = 15.0, trace: str = "") -> Any: ...
    async def call_pod(self, pod: str, request: Message, timeout_s: float = 5.0, trace: str = "") -> Any: ...
    def server_now(self) -> float: ...


class Steps:
    """The steps of one job's attempts."""

    def __init__(self, job: str, edge: CheckpointsEdge, settings: CheckpointsSettings) -> None:
        self._job = job
        self._edge = edge
        self._settings = settings
        self._memory = settings.memory
        self._cache = settings.cache
        self._stores = settings.stores
        self._has_looked = False
        """The store was looked through for later checkpoints than the state knows."""

    async def advance(self, attempt: Attempt) -> None:
        """Carry out the step at which an attempt is."""
        self._stores.check_own(self._job, attempt.url)
        if attempt.stage == "taking":
            async with asyncio.timeout(self._settings.take_timeout_s):
                await self._take(attempt)
        else:
            async with asyncio.timeout(self._settings.store_timeout_s):
                await self._store(attempt)

    async def _take(self, attempt: Attempt) -> None:
        """Raises NameTaken where the attempt would write over a checkpoint of after the backup that was restored."""
        began_s = self._edge.server_now()
        if not self._has_looked:
            await self._look(attempt)
        # one lane each: the dispatcher remembers the last reply of a lane. Taken again after our own restart, the first
        # mark is the remembered one; the second is always new, and refused if it had been given before
        first = MarkLedger(job=self._job, request_id=f"mark-first.{attempt.id}", checkpoint=attempt.id)
        mark = await self._edge.call(first)
        if mark.answer != "ok":
            raise TakingError(f"the dispatcher does not know {self._job}; nothing can be marked")
        replies = await self._export(attempt)
        for number, reply in zip(attempt.servers, replies, strict=True):
            if not reply.accepted:
                raise TakingError(f"ps-{number} could not copy its state: {reply.detail}")
        again = f"mark-second.{attempt.id}-{new_id(8)}"
        second = MarkLedger(job=self._job, request_id=again, after=first.request_id)
        whole = await self._edge.call(second)
        taken = ImagesSaved(
            job=self._job,
            id=attempt.id,
            ledger=whole.ledger,
            samples=mark.samples_done,
            size_bytes=sum(reply.size_bytes for reply in replies),
            memory_bytes=sum(reply.size_bytes for reply in replies if reply.in_memory),
            difference=any(reply.difference for reply in replies),
            pause_s=max(reply.pause_s for reply in replies),
            took_s=max(self._edge.server_now() - began_s, 0.0),
        )
        await self._edge.observe(self._job, taken)

    async def _look(self, attempt: Attempt) -> None:
        """Look for checkpoints that the state does not know, until there are none. Raises NameTaken."""
        highest = await asyncio.to_thread(_highest, attempt)
        if highest:  # the next attempt looks again: this answer may be lost
            raise NameTaken(highest)
        self._has_looked = True

    async def _export(self, attempt: Attempt) -> list[Any]:
        """Let every server write its image to the memory reserved for it here, or to its disk."""
        owned = await self._ask_all(attempt.servers, GetOwnership(job=self._job, base_id=attempt.base))
        columns = zip(*((*reply.buckets, *reply.slices) for reply in owned), strict=True)
        if nobodys := [number for number, states in enumerate(columns) if not any(states)]:
            raise TakingError(f"columns {nobodys[:8]} have no owner among servers {attempt.servers}")

        rooms = {f"ps-{number}": reply.image_bytes for number, reply in zip(attempt.servers, owned, strict=True)}
        reserved = await _to_its_end(self._memory.reserve, self._job, attempt.id, rooms)
        cache_url = await asyncio.to_thread(self._cache.open_to, self._job)
        requests = {
            pod: ExportState(
                job=self._job,
                checkpoint_id=attempt.id,
                cache_url=cache_url,
                store_url=attempt.url.rpartition("/")[0],
                memory_path=reserved.get(pod, ""),
                base_id=attempt.base,
            )
            for pod in rooms
        }
        limit_s = self._settings.take_timeout_s
        return await asyncio.gather(*(self._edge.call_pod(pod, asked, limit_s) for pod, asked in requests.items()))

    async def _store(self, attempt: Attempt) -> None:
        """Wait for the copies, then write the manifest that makes them one checkpoint, unless it is there already."""
        if not await asyncio.to_thread(_is_whole, attempt):
            parts = await self._copied(attempt)
            _check_columns(attempt.servers, parts)
            whole = CheckpointManifest(attempt.reference, self._job, attempt.began_at_s, attempt.ledger, parts)
            await _to_its_end(whole.write)
        took_s = max(self._edge.server_now() - attempt.began_at_s, 0.0)
        await self._edge.observe(self._job, ImagesFlushed(job=self._job, id=attempt.id, took_s=took_s))

    async def _copied(self, attempt: Attempt) -> tuple[Any, ...]:
        """Return the parts of the manifest once all copies are in the store."""
        request = GetExportStatus(job=self._job, checkpoint_id=attempt.id)
        while True:
            replies = await self._ask_all(attempt.servers, request)
            failed = [
                f"ps-{number}: {reply.detail or reply.stage}"
                for number, reply in zip(attempt.servers, replies, strict=True)
                if reply.stage in ("failed", "unknown")
            ]
            if failed:
                raise TakingError(f"not stored: {'; '.join(failed)}")
            if all(reply.stage == "stored" for reply in replies):
                return tuple(json.loads(reply.part) for reply in replies)
            await asyncio.sleep(self._settings.poll_s)

    async def _ask_all(self, servers: list[int], request: Message) -> list[Any]:
        return await asyncio.gather(*(self._edge.call_pod(f"ps-{number}", request, CALL_S) for number in servers))


def _highest(attempt: Attempt) -> int:
    """Return the highest number of a whole checkpoint from this attempt's on; 0: there is none.

    Where the store does not list its folders, that of the attempt is looked at: whoever may write need not list.
    """
    try:
        folder = attempt.url.rpartition("/")[0].rpartition("/")[0]
        newest = next(manifest.later(folder, number_of(attempt.id) - 1), None)
    except ManifestError as error:
        log.warning("not known whether there are later checkpoints", url=attempt.url, error=str(error))
        with contextlib.suppress(ManifestError):
            manifest.read(attempt.url)
            return number_of(attempt.id)
        return 0
    return number_of(newest.checkpoint.url.split("/")[-2]) if newest is not None else 0


def _is_whole(attempt: Attempt) -> bool:
    """Return True if a service has written the manifest of this attempt, and ended before it could tell it."""
    with contextlib.suppress(ManifestError):
        return manifest.read(attempt.url).ledger == attempt.ledger
    return False


def _check_columns(servers: list[int], parts: Sequence[Any]) -> None:
    """Raise TakingError unless each column is in exactly one image: no restore could read another checkpoint.

    Each server compares only its own columns during its export. A column that moves from one server to another between
    their exports is in two images, or in none, and an emptied server writes an image of none.
    """
    holders: dict[int, list[int]] = {column: [] for column in range(BUCKETS + SLICES)}
    try:
        for number, part in zip(servers, parts, strict=True):
            for column in part["columns"]:
                holders[column].append(number)
    except (TypeError, KeyError) as error:
        raise TakingError(f"the parts of the images do not name their columns ({error!r})") from error
    if wrong := [f"{column} (of ps {numbers})" for column, numbers in holders.items() if len(numbers) != 1]:
        raise TakingError(
            f"{len(wrong)} columns are not in exactly one image: {', '.join(wrong[:4])}; they moved during the exports"
        )


async def _to_its_end(work: Callable[..., Any], *args: Any) -> Any:
    """Run in a thread and wait for its end even when cancelled, since a thread cannot be stopped; unless it hangs."""
    task = asyncio.ensure_future(asyncio.to_thread(work, *args))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        _, hanging = await asyncio.wait([task], timeout=HANGS_S)
        if hanging:
            log.error("hangs; left alone: look at the store and the memory", step=work.__qualname__, after_s=HANGS_S)
        raise
