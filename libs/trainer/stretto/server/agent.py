"""The agent of a parameter server: it answers requests of services on the bus, and reports.

The server's own vectors are the only record of what it owns; the answers here are read from them.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable

import numpy as np
from stretto_messages.actuator import PodResized
from stretto_messages.books import AppliedBooks, ColumnBooks, RowBooks, ShardApplied, gathered
from stretto_messages.pods import (
    BucketMove,
    ClaimBuckets,
    ClaimBucketsReply,
    EmptyServer,
    EmptyServerReply,
    ExportState,
    ExportStateReply,
    GetBooks,
    GetBooksReply,
    GetExportStatus,
    GetExportStatusReply,
    GetMoveStatus,
    GetMoveStatusReply,
    GetOwnership,
    GetOwnershipReply,
    ImportState,
    ImportStateReply,
    PsReported,
    TakeBuckets,
    TakeBucketsReply,
)
from stretto_messages.values import BUCKETS, SLICES
from stretto_parameters import Applied, LogDamaged

from ..engine import LockedStore, ParameterServer, move
from ..engine.layout import I64
from ..errors import ImageDamaged, LayoutError, NoRoom, PodError, StrettoError
from ..pod.process import EXIT_OK, Pod, resident_bytes, run_pod
from .cold_rows import Checksum, ColdRows
from .flash_checkpoint import Exports

log = logging.getLogger("stretto.server")

_BOOKS_READINGS = 20
_REPORT_PAUSE = 10
_REPORT_PAUSE_MOST_S = 4.0
"""Pause between two reports: _REPORT_PAUSE times the duration of the last one, at most _REPORT_PAUSE_MOST_S."""


class Agent:
    """Answers requests for one parameter server."""

    def __init__(self, pod: Pod) -> None:
        self._pod = pod
        self._job = pod.settings.job
        self._cpu_cores, self._memory_bytes = pod.settings.cpu_cores, pod.settings.memory_bytes
        self._last_stats = (0, 0.0)
        self._checksum = Checksum(self._damaged)
        self._cold_rows = ColdRows(pod.settings, lambda: self._memory_bytes)
        self._report_next_s = 0.0
        self._damage = ""

    def run(self) -> int:
        """Serve until asked to leave. The first worker, another server or an image gives the layout."""
        settings = self._pod.settings
        self._server = ParameterServer(
            settings.index,
            address=settings.plane_address,
            key=self._pod.access.key,
            encrypted=self._pod.access.encrypted,
            spill=self._cold_rows.spill(),
            on_damage=self._damaged,
        )
        self._emptied_version, self._emptying = 0, threading.Lock()
        self._exports = Exports(self._job, settings.pod, self._store, settings.pod_folder)
        self._move = Move(self._server)
        self._imports = Imports(self._job, self._server, self._exports, lambda: self._memory_bytes)
        bus = self._pod.bus
        bus.follow(PodResized, self._resized)
        bus.serve(ClaimBuckets, self._claim)
        bus.serve(TakeBuckets, self._take)
        bus.serve(GetMoveStatus, lambda request: self._move.status(request))
        bus.serve(GetOwnership, self._ownership)
        bus.serve(EmptyServer, self._empty)
        bus.serve(ExportState, self._export)
        bus.serve(GetExportStatus, self._export_status)
        bus.serve(ImportState, lambda asked: self._imports.load(asked, self._columns(asked.buckets, asked.slices)))
        bus.serve(GetBooks, self._books)
        self._pod.ready(self._server.address)
        self._pod.report_by(self._report)
        log.info("serving at %s", self._server.address)
        self._pod.leaving.wait()
        self._exports.close()
        if self._damage:
            raise PodError(self._damage)
        return EXIT_OK

    def _damaged(self, reason: str) -> None:
        """Leave as a killed server would: its rows are lost, and the job goes back to its last checkpoint."""
        self._damage = self._damage or f"rows are lost: {reason}"
        self._pod.leaving.set()

    @property
    def _store(self) -> LockedStore:
        """The store of the server's current life."""
        return self._server.store

    def _resized(self, event: PodResized) -> None:
        """Take the limits that this pod has now: its environment names the limits of its start."""
        if event.pod == self._pod.settings.pod:
            self._cpu_cores, self._memory_bytes = event.cpu_cores, event.memory_bytes

    # --- ownership ----------------------------------------------------------------------------------------

    def _empty(self, request: EmptyServer) -> EmptyServerReply:
        with self._emptying:
            if request.version > self._emptied_version:
                self._emptied_version = request.version
                self._server.empty()
                self._exports.follow(self._store)
                log.info("emptied in place: the job goes back to a checkpoint")
            elif owned := len(self._store.columns()):
                # the request repeated or late, or of an installation that was restored from a backup
                detail = f"owns {owned} columns since return {self._emptied_version}; {request.version} is late"
                return EmptyServerReply(job=self._job, accepted=False, detail=detail)
        return EmptyServerReply(job=self._job, accepted=True)

    def _columns(self, buckets: Iterable[int], slices: Iterable[int]) -> list[int]:
        columns = [*buckets, *(BUCKETS + s for s in slices)]
        wrong = [c for c in buckets if c >= BUCKETS] + [s for s in slices if s >= SLICES]
        if wrong:
            raise LayoutError(
                f"bucket or slice {wrong[0]} does not exist: there are {BUCKETS} buckets and {SLICES} slices"
            )
        return sorted(columns)

    def _claim(self, request: ClaimBuckets) -> ClaimBucketsReply:
        wanted = self._columns(request.buckets, request.slices)
        has = self._store.columns()
        if has and has != wanted:
            detail = f"owns {len(has)} columns already, not the {len(wanted)} claimed: send TakeBuckets instead"
            return ClaimBucketsReply(job=self._job, accepted=False, detail=detail)
        if not has:
            self._server.own(wanted)
            log.info("owns %d columns, empty", len(wanted))
        return ClaimBucketsReply(job=self._job, accepted=True)

    def _ownership(self, request: GetOwnership) -> GetOwnershipReply:
        own = self._store.own().tolist()
        return GetOwnershipReply(
            job=self._job,
            buckets=tuple(own[:BUCKETS]),
            slices=tuple(own[BUCKETS:]),
            bucket_rows=tuple(self._store.sizes().tolist()),
            applied_samples=self._applied_samples(),
            image_bytes=self._exports.room_bytes(request.base_id),
        )

    def _take(self, request: TakeBuckets) -> TakeBucketsReply:
        addresses = {server.index: server.address for server in request.servers}
        detail = self._move.begin(request.moves, addresses)
        return TakeBucketsReply(job=self._job, accepted=not detail, detail=detail)

    # --- accounts -----------------------------------------------------------------------------------------

    def _applied_samples(self) -> int:
        """Return the samples that this server has applied, as its columns count them.

        Every column counts every push, so all agree. If one column differs, its count is returned: it shows the fault.
        """
        counts = self._store.applied().samples[self._store.own() != 0]
        if not len(counts):
            return 0
        middle = np.median(counts)
        return int(counts[int(np.argmax(np.abs(counts - middle)))])

    def _columns_applied(self, shards: set[int]) -> tuple[AppliedBooks, bool]:
        """Return the counters of each column, equal ones together, and True if no push came between the readings."""
        own, before, ids, records, steady = self._reading()
        for _ in range(_BOOKS_READINGS):
            if steady:
                break
            own, before, ids, records, steady = self._reading()
        counted: dict[tuple[int, int], list[int]] = {}
        far: dict[tuple[int, int], list[int]] = {}
        rows = {int(i): record for i, record in zip(ids, records, strict=True) if int(i) in shards}
        for column in (int(c) for c in np.flatnonzero(own != 0)):
            counted.setdefault((int(before.samples[column]), int(before.fingerprints[column])), []).append(column)
            for shard, record in rows.items():
                far.setdefault((shard, int(record[column])), []).append(column)
        applied = AppliedBooks(
            columns_total=BUCKETS + SLICES,
            columns=tuple(
                ColumnBooks(columns=tuple(columns), samples=samples, fingerprint=f"{prints % 2**64:016x}")
                for (samples, prints), columns in counted.items()
            ),
            shards=gathered(
                (
                    ShardApplied(shard=shard, columns=tuple(columns), samples=samples)
                    for (shard, samples), columns in far.items()
                ),
                int(np.count_nonzero(own)),
            ),
            rows=self._row_books(),
        )
        return applied, steady

    def _row_books(self) -> RowBooks:
        account = self._store.row_account()
        return RowBooks(
            gradients_left_out=account.kept_out,
            keys_without_row=account.without_row,
            rows_expired=account.expired,
        )

    def _reading(self) -> tuple[I64, Applied, I64, I64, bool]:
        """Read ownership, counters and records; the last value is True if none of them changed meanwhile."""
        own = self._store.own()
        before = self._store.applied()
        ids, records = self._store.records()
        after = self._store.applied()
        steady = bool((before.fingerprints == after.fingerprints).all() and (own == self._store.own()).all())
        return own, before, ids, records, steady

    def _books(self, request: GetBooks) -> GetBooksReply:
        stats, own = self._store.stats(), self._store.own()
        applied, steady = self._columns_applied(set(request.shards))
        return GetBooksReply(
            job=self._job,
            applied_samples=self._applied_samples(),
            skipped_repeats=stats.repeated_samples,
            rejected_pushes=stats.rejected,
            owns_dense=bool((own[BUCKETS:] != 0).any()),
            rows=self._store.categories(),
            checksum=self._checksum.of(self._store) if request.checksum else "",
            applied=applied,
            steady=steady,
        )

    def _report(self) -> None:
        begun = time.monotonic()
        if begun < self._report_next_s:
            return
        used = self._pod.usage.measure()
        stats = self._store.stats()
        updates = stats.updates - self._last_stats[0]
        seconds = stats.update_seconds - self._last_stats[1]
        self._last_stats = (stats.updates, stats.update_seconds)
        self._pod.bus.report(
            PsReported(
                job=self._job,
                pod=self._pod.settings.pod,
                ended_at_s=time.time(),
                window_s=used.window_s,
                updates=max(0, updates),  # they are counted anew once the server was emptied
                update_time_s=max(0.0, seconds) / max(1, updates),
                applied_samples_total=self._applied_samples(),
                categories=self._store.categories(),
                row_bytes=self._store.row_bytes(),
                table_bytes=self._store.memory_bytes(),
                rows=self._row_books(),
                buckets=int((self._store.own()[:BUCKETS] != 0).sum()),
                cpu_used_cores=used.cpu_cores,
                cpu_limit_cores=self._cpu_cores,
                memory_used_bytes=used.memory_bytes,
                memory_limit_bytes=self._memory_bytes,
                **self._cold_rows.told(self._server),
            )
        )
        # if CPU is short, most of it belongs to the workers
        ended = time.monotonic()
        self._exports.tidy()
        self._report_next_s = ended + min(_REPORT_PAUSE * (ended - begun), _REPORT_PAUSE_MOST_S)

    # --- checkpoints --------------------------------------------------------------------------------------

    def _export(self, request: ExportState) -> ExportStateReply:
        try:
            export = self._exports.begin(
                request.checkpoint_id, request.cache_url, request.store_url, request.memory_path, request.base_id
            )
        except StrettoError as error:
            return ExportStateReply(job=self._job, accepted=False, detail=str(error)[:2000])
        except LogDamaged as error:
            self._damaged(str(error))
            return ExportStateReply(job=self._job, accepted=False, detail=str(error)[:2000])
        return ExportStateReply(
            job=self._job,
            accepted=True,
            size_bytes=export.part.size_bytes,
            in_memory=export.memory is not None,
            difference=bool(export.part.bases),
            digest=f"sha256:{export.part.description_sha256}",
            pause_s=export.pause_s,
        )

    def _export_status(self, request: GetExportStatus) -> GetExportStatusReply:
        stage, part, detail = self._exports.status(request.checkpoint_id)
        return GetExportStatusReply(job=self._job, stage=stage, part=part, detail=detail[:2000])


class Imports:
    """Imports of columns from checkpoints into this server, one at a time.

    memory_limit_bytes: returns the limit of the pod now.
    """

    def __init__(
        self, job: str, server: ParameterServer, exports: Exports, memory_limit_bytes: Callable[[], int]
    ) -> None:
        self._job = job
        self._memory_limit_bytes = memory_limit_bytes
        self._server = server
        self._store = server.store  # of the life that the fields below are about
        self._exports = exports
        self._lock = threading.Lock()
        self._restored = ""  # the manifest of the last import of everything, successful or not
        self._number = 0

    def load(self, request: ImportState, wanted: list[int]) -> ImportStateReply:
        """Own the columns ``wanted``, as the checkpoint has them."""
        with self._lock:  # a restarted service may repeat the request while the first one runs
            if self._store is not self._server.store:  # emptied: whatever runs in the life before, fails
                self._store = self._server.store
                self._restored = ""
                self._number = 0
            return self._load_alone(request, wanted)

    def _load_alone(self, request: ImportState, wanted: list[int]) -> ImportStateReply:
        has = self._store.columns()
        url = request.checkpoint.url
        if request.number < self._number:
            # from a service that was frozen while its successor went on, or delayed in a queue
            detail = f"restore {request.number} from {url} is late: restore {self._number} was requested since"
            return ImportStateReply(job=self._job, accepted=False, detail=detail)
        self._number = request.number
        if request.beside:
            return self._load_beside(request, sorted({*wanted} - {*has}))
        if has == wanted and url == self._restored and not self._store.stats().updates:
            self._store.set_lineage(request.lineage)
            return ImportStateReply(job=self._job, accepted=True)  # the request repeated
        if has and (not self._restored or self._store.stats().updates):
            detail = f"owns {len(has)} columns already; import into a new parameter server"
            return ImportStateReply(job=self._job, accepted=False, detail=detail)
        if self._restored:
            # another server could not read its part, and the job goes back to an older checkpoint: no record of the
            # newer one may stay, or samples between the two would be applied here twice, or never
            self._store.clear()
        self._restored = url
        self._store.set_lineage(request.lineage)
        return self._load(request, wanted)

    def _load_beside(self, request: ImportState, missing: list[int]) -> ImportStateReply:
        """Load lost columns while this server goes on with its own; a column that it owns stays as it is."""
        if not missing:
            return ImportStateReply(job=self._job, accepted=True)  # the request repeated, or none named
        lineage = self._store.lineage()
        if lineage != request.lineage and self._store.columns():
            detail = f"its columns come from return {lineage} to a checkpoint, not from {request.lineage}"
            return ImportStateReply(job=self._job, accepted=False, damaged=True, detail=detail)
        self._store.set_lineage(request.lineage)
        tiers = self._store.unlocked.tiers
        room_bytes = tiers.spare_bytes() if tiers else self._memory_limit_bytes() - resident_bytes()
        return self._load(request, missing, room_bytes)

    def _load(self, request: ImportState, columns: list[int], room_bytes: float = math.inf) -> ImportStateReply:
        url = request.checkpoint.url
        begun = time.monotonic()
        try:
            size = self._exports.load(url, columns, request.cache_url, room_bytes, self._store)
        except StrettoError as error:
            damaged = isinstance(error, (ImageDamaged, NoRoom))
            return ImportStateReply(job=self._job, accepted=False, damaged=damaged, detail=str(error)[:2000])
        took_s = time.monotonic() - begun
        log.info("owns %d columns from %s (%d bytes, %.2f s)", len(columns), url, size, took_s)
        return ImportStateReply(job=self._job, accepted=True, size_bytes=size)


class Move:
    """Migrations into this server, one at a time, in a thread."""

    def __init__(self, server: ParameterServer) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._running = False
        self._done = self._total = self._moved_bytes = 0
        self._longest_freeze_s = 0.0
        self._error: str | None = None

    def begin(self, moves: tuple[BucketMove, ...], addresses: dict[int, str]) -> str:
        """Start a move; return the reason if it cannot begin, else "". A request during a move is its repetition."""
        unknown = sorted({move.source for move in moves} - set(addresses))
        if unknown:
            return f"source ps-{unknown[0]} is not among the servers {sorted(addresses)}: send the addresses of all"
        with self._lock:
            if self._running:
                return ""
            self._running = True
            self._error = None
            self._done = 0
            self._total = len(moves)
            self._moved_bytes = 0
            self._longest_freeze_s = 0.0
        threading.Thread(target=self._run, args=(moves, addresses), name="move", daemon=True).start()
        return ""

    def _run(self, moves: tuple[BucketMove, ...], addresses: dict[int, str]) -> None:
        error = None
        try:
            for step in move(self._server, {m.bucket: m.source for m in moves}, addresses):
                with self._lock:
                    self._done = step.done
                    self._total = step.total
                    self._moved_bytes += step.moved_bytes
                    self._longest_freeze_s = max(self._longest_freeze_s, step.frozen_seconds)
        except Exception as failure:
            log.exception("the move failed")
            error = f"{type(failure).__name__}: {failure}"[:2000]
        with self._lock:
            self._running = False
            self._error = error
            if error is None:
                self._done = self._total
        log.info("moved %d bytes, longest freeze %.3f s", self._moved_bytes, self._longest_freeze_s)

    def status(self, request: GetMoveStatus) -> GetMoveStatusReply:
        with self._lock:
            return GetMoveStatusReply(
                job=request.job,
                running=self._running,
                done=self._done,
                total=self._total,
                moved_bytes=self._moved_bytes,
                longest_freeze_s=self._longest_freeze_s,
                error=self._error,
            )


def main() -> None:
    run_pod("ps", lambda pod: Agent(pod).run())
