"""The edge of one job: take, store and read checkpoints as the state says; level-triggered.

The ledger is marked before the first image and after the last. Each server copies its columns one by one, each
together with its own progress records, so pushes go on: the second mark lists, under their ids, all shards that were
not complete at the first or were leased since; after a restore they are handed out again, and each column skips what
it has.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import structlog
from stretto_bus.faults import Fault
from stretto_bus.tasks import end
from stretto_core.actuator.placement import claim
from stretto_core.checkpoints.chains import newest_chain
from stretto_core.checkpoints.observations import ImagesFlushed, ImagesSaved, ParametersRestored, StepFailed
from stretto_core.checkpoints.state import Attempt, CheckpointState, ColumnRestore, Restore
from stretto_messages.base import Message, bounded
from stretto_messages.dispatcher import MarkLedger
from stretto_messages.pods import ExportState, GetExportStatus, GetOwnership, ImportState
from stretto_messages.values import BUCKETS, SLICES
from stretto_runtime import PartitionLost

from . import manifest
from .columns import ColumnsError, bring_back
from .manifest import CheckpointManifest, ManifestDamaged, ManifestError
from .removal import Removal
from .settings import CheckpointsSettings

CALL_S = 60.0
REPORT_PAUSE_MAX_S = 30.0
HANGS_S = 60.0
"""A thread that still runs so long after its step was cancelled hangs in the store or in shared memory, perhaps for
ever. Its later effects do no harm: an attempt's names are its own, and unwanted memory is freed."""

log = structlog.get_logger("stretto.checkpoints")


class TakingError(Exception):
    """A step of a checkpoint failed; the text names the step and the reason."""


class ImageDamaged(TakingError):
    """No copy of an image is whole: reading this checkpoint again will not help."""


class CheckpointsEdge(Protocol):
    """The part of the service that a taker uses."""

    async def observe(self, key: str, message: Message, trace: str = "") -> None: ...
    async def call(self, request: Message, timeout_s: float = 15.0, trace: str = "") -> Any: ...
    async def call_pod(self, pod: str, request: Message, timeout_s: float = 5.0, trace: str = "") -> Any: ...
    def server_now(self) -> float: ...


class Taker:
    """One job's checkpoints follow its state.

    Larger than 250 lines: taking and restoring share the one work that a job has at a time, and its places.
    """

    def __init__(self, job: str, state: CheckpointState, edge: CheckpointsEdge, settings: CheckpointsSettings) -> None:
        self.job = job
        self.state = state
        self._edge = edge
        self._settings = settings
        self._memory = settings.memory
        self._cache = settings.cache
        self._stores = settings.stores
        self._wake = asyncio.Event()
        self._work: tuple[tuple[str, str], asyncio.Task[None]] | None = None
        self._removal = Removal(job, settings.stores, settings.store_timeout_s)
        self._tried: set[str] = set()
        """Checkpoints later than the state knows, from which a restore has begun."""

    def follow(self, state: CheckpointState) -> None:
        """Take the state of the machine after a change."""
        self.state = state
        self._wake.set()

    async def run(self) -> None:
        """Keep exactly the work going that the state wants, until the job has ended and wants none."""
        if not self.state.ended:
            await asyncio.to_thread(self._open_folder)
        try:
            while True:
                self._wake.clear()
                step_begins = await self._reconcile()
                attempt = self.state.attempt
                self._removal.follow(self.state.expired, attempt.url if attempt else "", step_begins=step_begins)
                await asyncio.to_thread(self._memory.free, self.job, self._in_memory())
                if self.state.ended and self._work is None and not self._wake.is_set():
                    await self._removal.finish()
                    await asyncio.to_thread(self._cache.close_to, self.job)
                    await asyncio.to_thread(self._memory.end, self.job)
                    return
                await self._wake.wait()
        finally:
            await self._stop_work()
            await self._removal.stop()

    def _open_folder(self) -> None:
        """Make the job's folder in a local store: a pod that mounts it would find one that it cannot write to."""
        folder = self.state.folder
        try:
            self._stores.check_own(self.job, f"{folder}/-/-")
            manifest.open_folder(folder)
        except (ManifestError, OSError) as error:  # each checkpoint will say so
            log.warning("no folder for checkpoints", job=self.job, folder=folder, error=str(error))

    async def _stop_work(self) -> None:
        """Cancel the step under way and wait for its end, so that nothing of it runs beside the next step."""
        if self._work is not None:
            _, task = self._work
            self._work = None
            await end(task)

    def _in_memory(self) -> tuple[str, ...]:
        """Name the checkpoints that stay in memory: the newest complete one with its chain, and the one on its way."""
        state = self.state
        newest = [] if state.ended else newest_chain(state)
        return (*newest, *(attempt.id for attempt in filter(None, [state.attempt])))

    async def _reconcile(self) -> bool:
        """Keep the step going that the state wants. Return True if another one begins."""
        attempt = self.state.attempt
        restore = self.state.restore
        columns = self.state.columns
        wanted: tuple[str, str] | None = None
        if attempt is not None:
            wanted = (attempt.id, attempt.stage)
        elif restore is not None:
            wanted = (restore.id, "loading")
        elif columns is not None and columns.stage == "loading":
            wanted = (columns.id, "loading")
        if self._work is not None and (self._work[0] == wanted):
            return False
        await self._stop_work()
        if wanted is not None:
            if attempt is not None:
                step = self._advance(attempt)
            else:
                step = self._load(restore) if restore is not None else self._bring_back(columns)
            self._work = wanted, asyncio.create_task(self._guard(wanted[0], step))
        return wanted is not None

    async def _guard(self, name: str, step: Awaitable[None]) -> None:
        """Report every failure; the machine decides how to go on."""
        try:
            await step
        except PartitionLost:
            return
        except (TakingError, ManifestError, ColumnsError, Fault, TimeoutError) as error:
            log.warning("checkpoint failed", job=self.job, id=name, reason=str(error))
            hopeless = isinstance(error, ColumnsError) and error.damaged
            damaged = hopeless or isinstance(error, ManifestDamaged | ImageDamaged)
            await self._report_failure(name, str(error) or "it took too long", damaged)
        except Exception as error:  # nothing else would end the attempt, and no other would follow
            log.exception("checkpoint failed", job=self.job, id=name)
            await self._report_failure(name, f"unforeseen {type(error).__name__}: {error}", False)

    async def _report_failure(self, name: str, reason: str, damaged: bool) -> None:
        """Repeat until it is journalled: the machine waits for it."""
        failure = StepFailed(job=self.job, id=name, reason=bounded(reason), damaged=damaged)
        delay_s = 1.0
        while True:
            try:
                return await self._edge.observe(self.job, failure)
            except PartitionLost:  # the next owner will find the same failure
                return
            except Exception as error:
                log.warning("will report again", job=self.job, id=name, error=str(error), after_s=delay_s)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, REPORT_PAUSE_MAX_S)

    async def _bring_back(self, columns: ColumnRestore | None) -> None:
        """Bring lost columns back while all others go on."""
        if columns is None:
            return
        self._stores.check_start(self.job, columns.checkpoint.url)
        limit_s = self._settings.restore_timeout_s
        async with asyncio.timeout(limit_s):
            cache_url = await asyncio.to_thread(self._cache.open_to, self.job)
            imported = await bring_back(self.job, columns, self._edge, cache_url, limit_s)
        await self._edge.observe(self.job, imported)

    async def _advance(self, attempt: Attempt) -> None:
        self._stores.check_own(self.job, attempt.url)
        if attempt.stage == "taking":
            async with asyncio.timeout(self._settings.take_timeout_s):
                await self._take(attempt)
        else:
            async with asyncio.timeout(self._settings.store_timeout_s):
                await self._store(attempt)

    async def _take(self, attempt: Attempt) -> None:
        began_s = self._edge.server_now()
        # one lane each: the dispatcher remembers the last reply of a lane. Taken again after our own restart, the first
        # mark is the remembered one; the second is always new, and refused if it had been given before
        first = MarkLedger(job=self.job, request_id=f"mark-first.{attempt.id}", checkpoint=attempt.id)
        mark = await self._edge.call(first)
        if mark.answer != "ok":
            raise TakingError(f"the dispatcher does not know {self.job}; nothing can be marked")
        replies = await self._export(attempt)
        for number, reply in zip(attempt.servers, replies, strict=True):
            if not reply.accepted:
                raise TakingError(f"ps-{number} could not copy its state: {reply.detail}")
        again = f"mark-second.{attempt.id}-{uuid.uuid4().hex[:8]}"
        second = MarkLedger(job=self.job, request_id=again, after=first.request_id)
        whole = await self._edge.call(second)
        taken = ImagesSaved(
            job=self.job,
            id=attempt.id,
            ledger=whole.ledger,
            samples=mark.samples_done,
            size_bytes=sum(reply.size_bytes for reply in replies),
            memory_bytes=sum(reply.size_bytes for reply in replies if reply.in_memory),
            difference=any(reply.difference for reply in replies),
            pause_s=max(reply.pause_s for reply in replies),
            took_s=max(self._edge.server_now() - began_s, 0.0),
        )
        await self._edge.observe(self.job, taken)

    async def _export(self, attempt: Attempt) -> list[Any]:
        """Let every server write its image to the memory reserved for it here, or to its disk."""
        owned = await self._ask_all(attempt.servers, GetOwnership(job=self.job, base_id=attempt.base))
        columns = zip(*((*reply.buckets, *reply.slices) for reply in owned), strict=True)
        if nobodys := [number for number, states in enumerate(columns) if not any(states)]:
            raise TakingError(f"columns {nobodys[:8]} have no owner among servers {attempt.servers}")

        rooms = {f"ps-{number}": reply.image_bytes for number, reply in zip(attempt.servers, owned, strict=True)}
        reserved = await _to_its_end(self._memory.reserve, self.job, attempt.id, rooms)
        cache_url = await asyncio.to_thread(self._cache.open_to, self.job)
        requests = {
            pod: ExportState(
                job=self.job,
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
        """Wait for the copies, then write the manifest that makes them one checkpoint."""
        request = GetExportStatus(job=self.job, checkpoint_id=attempt.id)
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
                break
            await asyncio.sleep(self._settings.poll_s)
        parts = tuple(json.loads(reply.part) for reply in replies)
        _check_columns(attempt.servers, parts)
        whole = CheckpointManifest(attempt.reference, self.job, attempt.began_at_s, attempt.ledger, parts)
        await _to_its_end(whole.write)
        took_s = max(self._edge.server_now() - attempt.began_at_s, 0.0)
        await self._edge.observe(self.job, ImagesFlushed(job=self.job, id=attempt.id, took_s=took_s))

    async def _load(self, restore: Restore) -> None:
        """Let each server import an even part of the buckets from all files, at any number of servers.

        After a failure, servers that have their part already accept again.
        """
        await asyncio.sleep(restore.failures * self._settings.restore_pause_s)
        self._stores.check_start(self.job, restore.url)
        async with asyncio.timeout(self._settings.restore_timeout_s):
            whole = await asyncio.to_thread(self._chosen, restore, self.state)
            cache_url = await asyncio.to_thread(self._cache.open_to, self.job)
            parts = claim(restore.servers)
            requests = {
                number: ImportState(
                    job=self.job,
                    checkpoint=whole.checkpoint,
                    number=restore.number,
                    buckets=tuple(buckets),
                    slices=tuple(slices),
                    cache_url=cache_url,
                    lineage=restore.number,
                )
                for number, (buckets, slices) in parts.items()
            }
            replies = await asyncio.gather(
                *(
                    self._edge.call_pod(f"ps-{n}", request, self._settings.restore_timeout_s)
                    for n, request in requests.items()
                )
            )
        for number, reply in zip(requests, replies, strict=True):
            if not reply.accepted:
                kind = ImageDamaged if reply.damaged else TakingError
                raise kind(f"ps-{number} could not load {restore.url}: {reply.detail}")
        loaded = ParametersRestored(
            job=self.job,
            id=restore.id,
            checkpoint=whole.checkpoint,
            ledger=whole.ledger,
            servers=tuple(restore.servers),
            bases=whole.bases if whole.checkpoint.url.startswith(f"{self.state.folder}/") else (),
        )
        await self._edge.observe(self.job, loaded)

    def _chosen(self, restore: Restore, state: CheckpointState) -> CheckpointManifest:
        """Return the manifest to restore: the one of ``restore``, or a later one that the state does not know.

        A later manifest was begun after everything in the state: the installation was restored from an older backup,
        and the job's later checkpoints are whole. Each is tried once. Raises ManifestError, ManifestDamaged.
        """
        for url in manifest.taken_after(state.folder, state.last_began_at_s) if state.complete else ():
            if url in self._tried or url in state.expired:
                continue
            self._tried.add(url)
            with contextlib.suppress(ManifestDamaged):  # it was sound a moment ago
                later = manifest.read(url)
                if later.job == self.job:
                    log.warning("a later checkpoint than the state knows is restored", job=self.job, url=url)
                    return later
        return manifest.read(restore.url)

    async def _ask_all(self, servers: list[int], request: Message) -> list[Any]:
        return await asyncio.gather(*(self._edge.call_pod(f"ps-{number}", request, CALL_S) for number in servers))


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
