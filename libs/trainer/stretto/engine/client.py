"""The worker's view of the parameters: pull, and push exactly once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import (
    BatchMisaligned,
    LayoutError,
    OwnershipUnknown,
    ProgressGap,
    ServersReplaced,
    StaleAttempt,
)
from .graph import APPLIED, GAP, MISALIGNED, NOT_OWNED, STALE
from .layout import F32, I64, KeyBatch, Layout
from .ownership import Own
from .routing import FIRST_BACKOFF_S, LAST_BACKOFF_S, Part, Route, Routes
from .state import state_length

_BACKOFF_SHARE = 0.2
"""Pause before a push is repeated, as a share of the time since its first rejection."""
_BACKOFF_MOST_S = 0.5
FINISHED = 2**62  # the progress of a shard whose records were deleted


@dataclass(frozen=True, slots=True)
class Pulled:
    """The pulled parameters: rows [n, dimension] in the order of the key batch, dense [dense_size], state [state_size].

    seconds: duration of the whole pull. rows_seconds: the share of the rows, by bytes (both travel together).
    """

    rows: F32
    dense: F32
    state: F32
    seconds: float
    rows_seconds: float


@dataclass(frozen=True, slots=True)
class PushResult:
    """The timing of a push that every column has.

    seconds: duration of the call. update_seconds: the largest time inside one server, queueing included.
    retries: rounds rejected because a column was moving. applied: columns that this call applied (the others had the
    batch already).
    """

    seconds: float
    update_seconds: float
    retries: int
    applied: int


class Parameters:
    """The parameters of a job, as one worker sees them.

    servers: id -> "host:port". worker: the n of pod `worker-<n>`. refresh_servers: returns the current servers; called
    when the route turns out to be outdated. timeout_s: limit of one operation on one server. patience_s: how long
    columns may be without an owner before `OwnershipUnknown`.

    Threads: any number of pulls at a time, one push at a time. After `ServerLost` the same call may be repeated.
    """

    def __init__(
        self,
        layout: Layout,
        servers: dict[int, str],
        *,
        worker: int,
        refresh_servers: Callable[[], dict[int, str]] | None = None,
        timeout_s: float = 20.0,
        patience_s: float = 60.0,
    ) -> None:
        self.layout = layout
        self.worker = worker
        self._patience_s = patience_s
        self._routes = Routes(layout, refresh_servers, timeout_s, patience_s)
        self._pool = self._routes.pool
        self._pulls = ThreadPoolExecutor(4, thread_name_prefix="pull")
        self.connect(servers, wait=True)

    def connect(self, servers: dict[int, str], *, wait: bool = False) -> None:
        """Make `servers` the ones in use. New ones are opened and warmed in a thread while training goes on.

        Servers that left the list are dropped as soon as they own nothing.
        """
        self._routes.connect(servers, wait=wait)

    @property
    def generation(self) -> int:
        """A number that rises whenever lost servers were replaced, be it by the same ones restarted.

        The state that a lease referred to is then outdated: see `push`.
        """
        return self._routes.generation

    # --- values -------------------------------------------------------------------------------------------

    def seed(self, dense: F32, state: F32 | None = None) -> None:
        """Offer initial dense values. Slices that have values keep them, so every worker may call this."""
        values = self.layout.split_dense(dense)
        extra = self._state(state)
        deadline = time.monotonic() + self._patience_s
        while True:
            answers = self._routes.on_all(lambda link: link.seed(values, extra))
            slices = self.layout.slices
            own = {s: a[slices:][self.layout.buckets :] for s, a in answers.items()}
            seeded = [((own[s] != Own.NOT_MINE) & (a[:slices] == 1)) for s, a in answers.items()]
            if np.any(seeded, axis=0).all():
                return
            if time.monotonic() > deadline:
                raise OwnershipUnknown(f"dense slices could not be seeded for {self._patience_s:.0f} s")
            time.sleep(LAST_BACKOFF_S)

    def _state(self, state: F32 | None) -> F32:
        size = self.layout.state_size
        if state is None:
            return np.zeros(state_length(self.layout), np.float32)
        if state.shape != (size,):
            raise LayoutError(f"state has shape {state.shape}, the layout wants ({size},)")
        return state if size else np.zeros(1, np.float32)

    def begin_pull(self, keys: KeyBatch) -> Future[Pulled]:
        """Run `pull` in a thread, to overlap it with the step before."""
        return self._pulls.submit(self.pull, keys)

    def pull(self, keys: KeyBatch) -> Pulled:
        """Read the current rows of the keys and the whole dense vector. Raises ServerLost, OwnershipUnknown."""
        begun = time.perf_counter()
        layout = self.layout
        rows = layout.initial_rows(keys.stored)
        dense = np.empty((layout.slices, layout.slice_length), np.float32)
        while True:
            route = self._routes.current()
            chosen = _keys_by_server(route, keys)
            answers = self._routes.gather(
                {
                    server: self._pool.submit(
                        part.link.pull,
                        np.concatenate([np.where(part.buckets, keys.counts, 0), part.slices]),
                        keys.stored[chosen[server]],
                    )
                    for server, part in route.parts.items()
                }
            )
            if all((answers[s][3][part.claim] != Own.NOT_MINE).all() for s, part in route.parts.items()):
                break
            self._routes.refresh()
        state = np.zeros(0, np.float32)
        for server, part in route.parts.items():
            deltas, slices, extra, _ = answers[server]
            rows[chosen[server]] += deltas
            dense[part.slices] = slices
            if layout.state_size and part.claim[layout.buckets]:
                state = extra
        seconds = time.perf_counter() - begun
        share = rows.nbytes / max(1, rows.nbytes + dense.nbytes)
        return Pulled(rows, layout.join_dense(dense), state, seconds, seconds * share)

    # --- push ---------------------------------------------------------------------------------------------

    def push(
        self,
        keys: KeyBatch,
        row_gradients: F32,
        dense_gradient: F32,
        *,
        shard: int,
        attempt: int,
        start: int,
        stop: int,
        state_delta: F32 | None = None,
        generation: int | None = None,
    ) -> PushResult:
        """Apply one batch exactly once: samples start..stop of the shard, counted from the shard's beginning.

        A server applies a column only if its record says `start`, and skips it if the record is at `stop` or later,
        so that repeating a push is harmless. Returns when every column has the batch.
        generation: the generation of the servers when the shard was requested. Under a later one nothing is sent:
        restored servers may not know this shard any more, and would apply samples again that have another shard id now.
        Raises StaleAttempt, ProgressGap, BatchMisaligned, ServersReplaced (give the batch up), ServerLost,
        OwnershipUnknown (repeat it).
        """
        begun = time.perf_counter()
        layout = self.layout
        _check_push(layout, keys, row_gradients, start, stop)
        head = np.array([shard, attempt, start, stop, self.worker], np.int64)
        slices = layout.split_dense(dense_gradient)
        delta = self._state(state_delta)
        pending = np.ones(layout.columns, np.bool_)
        retries = 0
        applied = 0
        update_seconds = 0.0
        backoff = _Backoff()
        while True:
            route = self._routes.current()
            if generation is not None and route.generation != generation:
                raise ServersReplaced(
                    f"push of shard {shard} attempt {attempt} samples {start}..{stop}: parameter servers were lost and "
                    "replaced since the shard was leased; ask the dispatcher whether the lease still holds"
                )
            chosen = _keys_by_server(route, keys)
            claims = {server: part.claim & pending & ~route.frozen for server, part in route.parts.items()}
            answers = self._routes.gather(
                {
                    server: self._pool.submit(
                        self._push_part, part, claims[server], chosen[server], head, keys, row_gradients, slices, delta
                    )
                    for server, part in route.parts.items()
                    if claims[server].any()
                }
            )
            for server, answer in answers.items():
                code = int(answer[0])
                update_seconds = max(update_seconds, int(answer[2]) / 1e6)
                if code == APPLIED:
                    pending &= ~claims[server]
                    applied += int(answer[1])
                elif code != NOT_OWNED:
                    raise _refusal(code, server, shard, attempt, start, stop)
            if not pending.any():
                return PushResult(time.perf_counter() - begun, update_seconds, retries, applied)
            if time.perf_counter() > begun + self._patience_s:
                raise OwnershipUnknown(
                    f"push of shard {shard} samples {start}..{stop} was rejected for {self._patience_s:.0f} s by the "
                    f"owners of columns {np.flatnonzero(pending)[:8].tolist()}: a move did not finish; "
                    "should it last, stop the job and submit it again from its last checkpoint"
                )
            retries += 1
            backoff.wait()
            self._routes.refresh()

    def _push_part(
        self,
        part: Part,
        claim: Any,
        chosen: Any,
        head: I64,
        keys: KeyBatch,
        row_gradients: F32,
        slices: F32,
        delta: F32,
    ) -> I64:
        buckets = self.layout.buckets
        if not np.array_equal(claim, part.claim):  # a retry: some columns of this server have it already
            owner = np.repeat(claim[:buckets], keys.counts)
            chosen = np.flatnonzero(owner)
        full_head = np.concatenate([head, claim, np.where(claim[:buckets], keys.counts, 0)])
        ids: Any = np.flatnonzero(claim[buckets:])
        if len(ids) and ids[-1] - ids[0] + 1 == len(ids):
            ids = slice(int(ids[0]), int(ids[-1]) + 1)
        return part.link.push(full_head, keys.stored[chosen], row_gradients[chosen], slices[ids], delta)

    # --- progress -----------------------------------------------------------------------------------------

    def progress(self, shard: int, attempt: int = 0) -> int:
        """Return the samples of the shard that every column has: a new attempt resumes there. FINISHED if forgotten.

        The call raises the fence to `attempt` on every server: pushes of lower attempts are refused from then on.
        """
        head = np.array([shard, attempt], np.int64)
        columns = self.layout.columns
        deadline = time.monotonic() + self._patience_s
        while True:
            self._routes.current()
            answers = self._routes.on_all(lambda link: link.progress(head))
            offsets = np.full(columns, -1, np.int64)
            for answer in answers.values():
                done = answer[0]
                own = answer[1 : 1 + columns]
                record = answer[1 + columns :]
                seen = np.where(done == 1, FINISHED, record[:columns])
                # between two steps of a move two servers have the column: the new owner is ahead
                offsets = np.where(own != Own.NOT_MINE, np.maximum(offsets, seen), offsets)
            if (offsets >= 0).all():
                return int(offsets.min())
            if time.monotonic() > deadline:
                raise OwnershipUnknown(f"progress of shard {shard}: some columns have no owner")
            time.sleep(FIRST_BACKOFF_S)
            self._routes.refresh()

    def forget(self, shards: Iterable[int]) -> None:
        """Delete the progress records of finished shards on all servers (about 0.6 kB each); a mark stays."""
        ids = np.fromiter(shards, np.int64)
        if len(ids):
            self._routes.on_all(lambda link: link.finish(ids))

    def close(self) -> None:
        self._pulls.shutdown(wait=False, cancel_futures=True)
        self._routes.close()


def _keys_by_server(route: Route, keys: KeyBatch) -> dict[int, Any]:
    """Return server -> its keys in the batch: a slice (no copy) if its buckets are adjacent, else an index."""
    ends = np.cumsum(keys.counts)
    chosen: dict[int, Any] = {}
    for server, part in route.parts.items():
        held = np.flatnonzero(part.buckets)
        if not len(held):
            chosen[server] = slice(0, 0)
        elif held[-1] - held[0] + 1 == len(held):
            chosen[server] = slice(int(ends[held[0]] - keys.counts[held[0]]), int(ends[held[-1]]))
        else:
            chosen[server] = np.flatnonzero(np.repeat(part.buckets, keys.counts))
    return chosen


class _Backoff:
    """The pauses before a rejected push is repeated.

    A server that takes long to give a column away is short of CPU, and frequent requests would take what it has.
    """

    def __init__(self) -> None:
        self._pause_s = FIRST_BACKOFF_S
        self._first_s: float | None = None  # when the first pause ended

    def wait(self) -> None:
        time.sleep(self._pause_s)
        now = time.perf_counter()
        if self._first_s is None:
            self._first_s = now
        longest_s = max(LAST_BACKOFF_S, _BACKOFF_SHARE * (now - self._first_s))
        self._pause_s = min(2 * self._pause_s, longest_s, _BACKOFF_MOST_S)


def _check_push(layout: Layout, keys: KeyBatch, row_gradients: F32, start: int, stop: int) -> None:
    """Raise LayoutError for a push that no server could apply."""
    if not 0 <= start < stop:
        raise LayoutError(f"push of samples {start}..{stop}: wanted 0 <= start < stop")
    if row_gradients.shape != (len(keys), layout.dimension):
        raise LayoutError(f"row gradients have shape {row_gradients.shape}, wanted {(len(keys), layout.dimension)}")


def _refusal(code: int, server: int, shard: int, attempt: int, start: int, stop: int) -> Exception:
    what = f"ps-{server} refused shard {shard} attempt {attempt} samples {start}..{stop}"
    if code == STALE:
        return StaleAttempt(f"{what}: a higher attempt holds the shard, or it is finished; drop it and ask for another")
    if code == GAP:
        return ProgressGap(f"{what}: samples before {start} are missing there; resume at progress({shard})")
    assert code == MISALIGNED
    return BatchMisaligned(f"{what}: applied up to the middle of it; replay with the batch boundaries used before")
