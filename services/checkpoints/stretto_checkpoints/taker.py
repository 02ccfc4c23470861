"""The edge of one job: take, store and read checkpoints as the state says; level-triggered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import structlog
from stretto_bus.faults import Fault
from stretto_bus.tasks import end
from stretto_core.actuator.placement import claim
from stretto_core.checkpoints.chains import newest_chain
from stretto_core.checkpoints.machine import RESTORE_TRIES
from stretto_core.checkpoints.names import is_restore, number_of
from stretto_core.checkpoints.observations import ParametersRestored, StepFailed
from stretto_core.checkpoints.state import CheckpointState, ColumnRestore, Restore
from stretto_messages.base import bounded
from stretto_messages.pods import ImportState
from stretto_runtime import PartitionLost

from . import manifest
from .columns import ColumnsError, bring_back
from .manifest import CheckpointManifest, ManifestDamaged, ManifestError
from .removal import Removal
from .settings import CheckpointsSettings
from .taking import CheckpointsEdge, ImageDamaged, NameTaken, Steps, TakingError

REPORT_PAUSE_MAX_S = 30.0

log = structlog.get_logger("stretto.checkpoints")


class Taker:
    """One job's checkpoints follow its state."""

    def __init__(self, job: str, state: CheckpointState, edge: CheckpointsEdge, settings: CheckpointsSettings) -> None:
        self.job = job
        self.state = state
        self._edge = edge
        self._settings = settings
        self._memory = settings.memory
        self._cache = settings.cache
        self._stores = settings.stores
        self._steps = Steps(job, edge, settings)
        self._wake = asyncio.Event()
        self._work: tuple[tuple[str, str], asyncio.Task[None]] | None = None
        self._removal = Removal(job, settings.stores, settings.store_timeout_s)
        self._later_url = ""
        """The manifest that a return reads, where it is later than the state knows."""

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
                self._removal.follow(self.state, attempt.url if attempt else "", step_begins=step_begins)
                await asyncio.to_thread(self._memory.free, self.job, self._in_memory())
                if self.state.ended and self._work is None and not self._wake.is_set():
                    await asyncio.to_thread(self._cache.close_to, self.job)  # first: a store may take minutes
                    await self._removal.finish()
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
                step = self._steps.advance(attempt)
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
            beyond = error.highest if isinstance(error, NameTaken) else 0
            await self._report_failure(name, str(error) or "it took too long", damaged, beyond)
        except Exception as error:  # nothing else would end the attempt, and no other would follow
            log.exception("checkpoint failed", job=self.job, id=name)
            await self._report_failure(name, f"unforeseen {type(error).__name__}: {error}")

    async def _report_failure(self, name: str, reason: str, damaged: bool = False, beyond: int = 0) -> None:
        """Repeat until it is journalled: the machine waits for it."""
        url = self._later_url if is_restore(name) else ""
        failure = StepFailed(job=self.job, id=name, reason=bounded(reason), damaged=damaged, beyond=beyond, url=url)
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

    async def _load(self, restore: Restore) -> None:
        """Let each server import an even part of the buckets from all files, at any number of servers.

        After a failure, servers that have their part already accept again.
        """
        self._later_url = ""
        await asyncio.sleep(restore.failures * self._settings.restore_pause_s)
        self._stores.check_start(self.job, restore.url)
        async with asyncio.timeout(self._settings.restore_timeout_s):
            whole = await asyncio.to_thread(self._chosen, restore, self.state)
            self._later_url = "" if whole.checkpoint.url == restore.url else whole.checkpoint.url
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
                raise kind(f"ps-{number} could not load {whole.checkpoint.url}: {reply.detail}")
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

        A later manifest has a higher number than all that are complete: the installation was restored from an older
        backup, and the job's later checkpoints are whole. No more are tried once ``LATER_MAX`` could not be read.
        Raises ManifestError, ManifestDamaged.
        """
        gone = {*state.expired} - {*state.given_up} | {*state.unreadable}
        tries_later = bool(state.complete) and len(state.unreadable) < manifest.LATER_MAX
        try:
            for later in manifest.later(state.folder, number_of(state.complete[-1].id)) if tries_later else ():
                url = later.checkpoint.url
                if later.job == self.job and url not in gone:
                    log.warning("a later checkpoint than the state knows is restored", job=self.job, url=url)
                    return later
        except ManifestError as error:
            if restore.failures + 1 < RESTORE_TRIES:  # a store that does not answer now may list it soon
                raise
            log.warning("not known whether there are later checkpoints", job=self.job, error=str(error))
        return manifest.read(restore.url)
