"""The worker's view of the parameters: pull, and push exactly once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from stretto_parameters import Code, Own

from ..errors import (
    BatchMisaligned,
    LayoutError,
    OwnershipUnknown,
    ProgressGap,
    ServersReplaced,
    StaleAttempt,
)
from . import codec, protocol
from .layout import F32, I64, U64, Bools, KeyBatch, Layout
from .link import Access, Link
from .protocol import Kind, Transfer
from .routing import FIRST_BACKOFF_S, LAST_BACKOFF_S, Part, Route, Routes

_BACKOFF_SHARE = 0.2
"""Pause before a push is repeated, as a share of the time since its first rejection."""
_BACKOFF_MOST_S = 0.5
FINISHED = 2**62  # the progress of a shard whose records were deleted
_NOTHING: F32 = np.zeros(0, np.float32)


@dataclass(frozen=True, slots=True)
class Pulled:
    """The pulled parameters: rows [n, dimension] of each table in the order of its keys, dense [dense_size], and the
    state [state_size].

    seconds: duration of the whole pull. rows_seconds: the share of the rows, by bytes (both travel together).
    """

    rows: tuple[F32, ...]
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

    servers: id -> address. access: the key of the job. worker: the n of pod `worker-<n>`. refresh_servers: returns the
    current servers; called when the route turns out to be outdated. timeout_s: limit of one operation on one server.
    patience_s: how long columns may be without an owner before `OwnershipUnknown`. transfer: the type in which rows
    and their gradients travel; bfloat16 halves their bytes and rounds both to 8 bits.

    Threads: any number of pulls at a time, one push at a time. After `ServerLost` the same call may be repeated.
    """

    def __init__(
        self,
        layout: Layout,
        servers: dict[int, str],
        *,
        worker: int,
        access: Access,
        refresh_servers: Callable[[], dict[int, str]] | None = None,
        timeout_s: float = 20.0,
        patience_s: float = 60.0,
        transfer: Literal["float32", "bfloat16"] = "float32",
    ) -> None:
        self.layout = layout
        self._transfer = Transfer[transfer.upper()]
        self.worker = worker
        self._patience_s = patience_s
        self._routes = Routes(layout, access, refresh_servers, timeout_s, patience_s)
        self._pulls = ThreadPoolExecutor(4, thread_name_prefix="pull")
        self.connect(servers, wait=True)

    def connect(self, servers: dict[int, str], *, wait: bool = False) -> None:
        """Make `servers` the ones in use. New ones are opened in a thread while training goes on.

        A server that left the list counts as lost.
        """
        self._routes.connect(servers, wait=wait)

    @property
    def generation(self) -> int:
        """A number that rises whenever lost servers were replaced, be it by the same ones restarted.

        The state that a lease referred to is then outdated: see `push`.
        """
        return self._routes.generation

    def is_of(self, lineage: int) -> bool:
        """Return True if the parameters come from this return to a checkpoint. Raises ServerLost, OwnershipUnknown."""
        return self._routes.current().lineage == lineage or self._routes.refresh().lineage == lineage

    # --- values -------------------------------------------------------------------------------------------

    def seed(self, dense: F32, state: F32 | None = None) -> None:
        """Offer initial dense values. Slices that have values keep them, so every worker may call this."""
        values = self.layout.split_dense(dense)
        extra = self._state(state)
        deadline = time.monotonic() + self._patience_s
        while True:
            answers: dict[int, tuple[I64, I64]] = self._routes.call_all("seed", values, extra)
            seeded = [(own[self.layout.buckets :] != Own.NOT_MINE) & (marks == 1) for marks, own in answers.values()]
            if np.any(seeded, axis=0).all():
                return
            if time.monotonic() > deadline:
                raise OwnershipUnknown(f"dense slices could not be seeded for {self._patience_s:.0f} s")
            time.sleep(LAST_BACKOFF_S)

    def _state(self, state: F32 | None) -> F32:
        size = self.layout.state_size
        if state is None:
            return np.zeros(size, np.float32)
        if state.shape != (size,):
            raise LayoutError(f"state has shape {state.shape}, the layout wants ({size},)")
        return state

    def begin_pull(self, keys: KeyBatch) -> Future[Pulled]:
        """Run `pull` in a thread, to overlap it with the step before."""
        return self._pulls.submit(self.pull, keys)

    def pull(self, keys: KeyBatch) -> Pulled:
        """Read the current rows of the keys and the whole dense vector. Raises ServerLost, OwnershipUnknown."""
        begun = time.perf_counter()
        layout = self.layout
        while True:
            route = self._routes.current()
            chosen = {server: _chosen(part.buckets, keys) for server, part in route.parts.items()}
            requests: dict[int, tuple[Link, Kind, Sequence[Any]]] = {
                server: (part.link, Kind.PULL, self._pull_part(part, keys, chosen[server]))
                for server, part in route.parts.items()
            }
            answers = {
                s: protocol.read_pulled(layout, requests[s][2], parts)
                for s, parts in self._routes.ask(requests).items()
            }
            if all((answers[s].own[part.claim] != Own.NOT_MINE).all() for s, part in route.parts.items()):
                break
            self._routes.refresh()
        tables = zip(layout.tables, keys.tables, strict=True)
        rows = tuple(np.empty((len(of), table.dimension), np.float32) for table, of in tables)
        dense = np.empty((layout.slices, layout.slice_length), np.float32)
        state = _NOTHING
        for server, part in route.parts.items():
            for table, given, at in zip(rows, answers[server].rows, chosen[server], strict=True):
                table[at] = given
            dense[part.slices] = answers[server].slices
            if layout.state_size and part.claim[layout.buckets]:
                state = answers[server].state
        seconds = time.perf_counter() - begun
        row_bytes = sum(table.nbytes for table in rows)
        share = row_bytes / max(1, row_bytes + dense.nbytes)
        return Pulled(rows, layout.join_dense(dense), state, seconds, seconds * share)

    def _pull_part(self, part: Part, keys: KeyBatch, chosen: Sequence[Any]) -> list[Any]:
        return protocol.pull_request(part.slices, _keys_at(keys, chosen), self._transfer)

    # --- push ---------------------------------------------------------------------------------------------

    def push(
        self,
        keys: KeyBatch,
        row_gradients: Sequence[F32],
        dense_gradient: F32,
        *,
        shard: int,
        attempt: int,
        start: int,
        stop: int,
        row_squares: Sequence[F32 | None] = (),
        dense_squares: F32 | None = None,
        state_delta: F32 | None = None,
        generation: int | None = None,
        lineage: int | None = None,
    ) -> PushResult:
        """Apply one batch exactly once: samples start..stop of the shard, counted from the shard's beginning.

        row_gradients: of each table, [keys, dimension]; row_squares, dense_squares: the squares of these and of the
        dense gradient, as an optimizer takes them (see `stretto_parameters.Push`).
        A server applies a column only if its record says `start`, and skips it if the record is at `stop` or later,
        so that repeating a push is harmless. Returns when every column has the batch.
        generation: the generation of the servers when the shard was requested. Under a later generation nothing is
        sent: restored servers may have forgotten this shard, and samples with another shard id now would count twice.
        lineage: the lineage of the ledger that leased the shard. Parameters of another lineage belong to other books.
        Raises StaleAttempt, ProgressGap, BatchMisaligned, ServersReplaced (give the batch up), ServerLost,
        OwnershipUnknown (repeat it).
        """
        begun = time.perf_counter()
        layout = self.layout
        _check_push(layout, keys, row_gradients, start, stop)
        head = np.array([shard, attempt, start, stop, self.worker], np.int64)
        of_slices = None if dense_squares is None else layout.split_dense(dense_squares)
        slices, delta = layout.split_dense(dense_gradient), self._state(state_delta)
        gradients = (row_gradients, row_squares or [None] * len(row_gradients), slices, of_slices, delta)
        pending = np.ones(layout.columns, np.bool_)
        retries = 0
        applied = 0
        update_seconds = 0.0
        backoff = _Backoff()
        while True:
            route = self._routes.current()
            _check_books(route, generation, lineage, f"push of shard {shard} attempt {attempt} samples {start}..{stop}")
            claims = {server: part.claim & pending & ~route.frozen for server, part in route.parts.items()}
            answers = self._routes.ask(
                {
                    server: (part.link, Kind.PUSH, self._push_part(part, claims[server], head, keys, gradients))
                    for server, part in route.parts.items()
                    if claims[server].any()
                }
            )
            for server, answer in answers.items():
                code, columns, spent_s = protocol.read_push_answer(answer, int(claims[server].sum()))
                update_seconds = max(update_seconds, spent_s)
                if code is Code.APPLIED:
                    pending &= ~claims[server]
                    applied += columns
                elif code is not Code.NOT_OWNED:
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
        claim: Bools,
        head: I64,
        keys: KeyBatch,
        gradients: tuple[Sequence[F32], Sequence[F32 | None], F32, F32 | None, F32],
    ) -> list[Any]:
        """Return the parts of a push to one server. gradients: of rows, their squares, of slices, their squares, the
        state's delta."""
        rows, squares, slices, slice_squares, delta = gradients
        buckets = self.layout.buckets
        chosen = _chosen(claim[:buckets], keys)
        ids: Any = np.flatnonzero(claim[buckets:])
        if len(ids) and ids[-1] - ids[0] + 1 == len(ids):
            ids = slice(int(ids[0]), int(ids[-1]) + 1)
        of_rows = [np.ascontiguousarray(given[at], np.float32) for given, at in zip(rows, chosen, strict=True)]
        of_squares = [None if given is None else given[at] for given, at in zip(squares, chosen, strict=True)]
        sent = (head, claim, _keys_at(keys, chosen), of_rows, slices[ids], delta)
        chosen_squares = None if slice_squares is None else slice_squares[ids]
        return protocol.push_request(*sent, self._transfer, of_squares, chosen_squares)

    # --- progress -----------------------------------------------------------------------------------------

    def progress(self, shard: int, attempt: int = 0) -> int:
        """Return the samples of the shard that every column has: a new attempt resumes there. FINISHED if forgotten.

        The call raises the fence to `attempt` on every server: pushes of lower attempts are refused from then on.
        """
        deadline = time.monotonic() + self._patience_s
        while True:
            self._routes.current()
            answers = self._routes.call_all("progress", shard, attempt)
            offsets = np.full(self.layout.columns, -1, np.int64)
            for is_finished, own, record in answers.values():
                seen = FINISHED if is_finished else record[: self.layout.columns]
                # between two steps of a move two servers have the column: the new owner is ahead
                offsets = np.where(own != Own.NOT_MINE, np.maximum(offsets, seen), offsets)
            if (offsets >= 0).all():
                return int(offsets.min())
            if time.monotonic() > deadline:
                raise OwnershipUnknown(f"progress of shard {shard}: some columns have no owner")
            time.sleep(FIRST_BACKOFF_S)
            self._routes.refresh()

    def forget(self, shards: Iterable[int], lineage: int | None = None) -> None:
        """Delete the progress records of finished shards on all owners (about 0.6 kB each); a mark stays.

        lineage: of the ledger that names the shards. Parameters of another lineage keep their records, as the shards
        may be open there.
        """
        ids = [int(shard) for shard in shards]
        route = self._routes.current()
        if not ids or (lineage is not None and route.lineage != lineage):
            return
        parts = codec.pack(["finish", [ids], {}])
        self._routes.ask({server: (part.link, Kind.CALL, parts) for server, part in route.parts.items()})

    def close(self) -> None:
        self._pulls.shutdown(wait=False, cancel_futures=True)
        self._routes.close()


def _chosen(buckets: Bools, keys: KeyBatch) -> list[Any]:
    """Return the keys of these buckets in each table: a slice (no copy) if they are adjacent, else an index."""
    held = np.flatnonzero(buckets)
    if not len(held):
        return [slice(0, 0)] * len(keys.tables)
    adjacent = held[-1] - held[0] + 1 == len(held)
    chosen: list[Any] = []
    for table in keys.tables:
        if adjacent:
            begin = int(table.counts[: held[0]].sum())
            chosen.append(slice(begin, begin + int(table.counts[held[0] : held[-1] + 1].sum())))
        else:
            chosen.append(np.flatnonzero(np.repeat(buckets, table.counts)))
    return chosen


def _keys_at(keys: KeyBatch, chosen: Sequence[Any]) -> list[U64]:
    return [table.stored[at] for table, at in zip(keys.tables, chosen, strict=True)]


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


def _check_push(layout: Layout, keys: KeyBatch, row_gradients: Sequence[F32], start: int, stop: int) -> None:
    """Raise LayoutError for a push that no server could apply."""
    if not 0 <= start < stop:
        raise LayoutError(f"push of samples {start}..{stop}: wanted 0 <= start < stop")
    found = [tuple(given.shape) for given in row_gradients]
    wanted = [(len(of), table.dimension) for table, of in zip(layout.tables, keys.tables, strict=True)]
    if found != wanted:
        raise LayoutError(f"row gradients have shapes {found[:8]}, wanted {wanted[:8]}, one array for each table")


def _check_books(route: Route, generation: int | None, lineage: int | None, what: str) -> None:
    """Raise ServersReplaced if the parameters may belong to other books than the lease."""
    if generation is not None and route.generation != generation:
        raise ServersReplaced(
            f"{what}: parameter servers were lost and replaced since the shard was leased; ask the dispatcher whether "
            "the lease still holds"
        )
    if lineage is not None and route.lineage != lineage:
        raise ServersReplaced(
            f"{what}: the parameters come from return {route.lineage} to a checkpoint, the lease from {lineage}; ask "
            "the dispatcher for another"
        )


def _refusal(code: Code, server: int, shard: int, attempt: int, start: int, stop: int) -> Exception:
    what = f"ps-{server} refused shard {shard} attempt {attempt} samples {start}..{stop}"
    if code is Code.STALE:
        return StaleAttempt(f"{what}: a higher attempt holds the shard, or it is finished; drop it and ask for another")
    if code is Code.GAP:
        return ProgressGap(f"{what}: samples before {start} are missing there; resume at progress({shard})")
    assert code is Code.MISALIGNED
    return BatchMisaligned(f"{what}: applied up to the middle of it; replay with the batch boundaries used before")
