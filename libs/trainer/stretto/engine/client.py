"""The worker's view of the parameters: pull, and push exactly once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
from stretto_parameters import Claim, Code, Own

from ..errors import (
    BatchMisaligned,
    LayoutError,
    OwnershipUnknown,
    ProgressGap,
    ServersReplaced,
    StaleAttempt,
)
from . import codec, protocol
from .layout import F32, I64, Bools, KeyBatch, Layout
from .link import Access
from .protocol import Gradients, Kind
from .pulling import Along, Pulled, Puller, WantedPull, chosen_of, exchanged
from .routing import FIRST_BACKOFF_S, LAST_BACKOFF_S, Route, Routes
from .transfer import EXACT, Debt, Transfer, Wire

_BACKOFF_SHARE = 0.2
"""Pause before a push is repeated, as a share of the time since its first rejection."""
_BACKOFF_MOST_S = 0.5
_Given = tuple[Sequence[F32], F32, Sequence[F32 | None], F32 | None, F32 | None]
"""Gradients of rows and of the dense parameters, the squares of both, and the change of the state."""
FINISHED = 2**62  # the progress of a shard whose records were deleted


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


class DenseGroup(Protocol):
    """Workers that average their dense gradients (`stretto.group`)."""

    @property
    def is_alone(self) -> bool:
        """True while there is no other member."""
        ...

    def attach(self, routes: Routes, puller: Puller) -> None:
        """Push by these routes, and give the dense parameters to this puller."""
        ...

    def give(self, claim: Claim, slices: F32, state_delta: F32, generation: int | None) -> Bools:
        """Give a batch's dense gradient [slices, slice_length] to the group; return which slices have the batch by
        that: [slices]."""
        ...

    def close(self) -> None:
        """Leave the group."""
        ...


class Parameters:
    """The parameters of a job, as one worker sees them.

    servers: id -> address. access: the key of the job. worker: the n of pod `worker-<n>`. refresh_servers: returns the
    current servers; called when the route turns out to be outdated. timeout_s: limit of one operation on one server.
    patience_s: how long columns may be without an owner before `OwnershipUnknown`. wire: how values travel in training.

    Threads: any number of pulls at a time; one push at a time, or any number that each state their `columns`. After
    `ServerLost` the same call may be repeated.
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
        wire: Wire | None = None,
    ) -> None:
        self.layout = layout
        wire = wire or Wire()
        self.push_every = wire.push_every
        """Batches whose gradients are to be pushed at once."""
        self._pushed = wire.push
        self._debt = Debt()
        self.carries_debt = self._pushed.slices is not Transfer.FLOAT32
        """A push leaves to the next what rounding takes from its dense gradient, unless it `pays`."""
        self.worker = worker
        self._patience_s = patience_s
        self.routes = Routes(layout, access, refresh_servers, timeout_s, patience_s)
        self._puller = Puller(layout, self.routes, wire)
        self.step_bytes, self.slices_along = self._puller.step_bytes, self._puller.slices_along
        self._group: DenseGroup | None = None
        self.connect(servers, wait=True)

    def connect(self, servers: dict[int, str], *, wait: bool = False) -> None:
        """Make `servers` the ones in use. New ones are opened in a thread while training goes on.

        A server that left the list counts as lost.
        """
        self.routes.connect(servers, wait=wait)

    @property
    def generation(self) -> int:
        """A number that rises whenever lost servers were replaced, be it by the same ones restarted.

        The state that a lease referred to is then outdated: see `push`.
        """
        return self.routes.generation

    def is_of(self, lineage: int) -> bool:
        """Return True if the parameters come from this return to a checkpoint. Raises ServerLost, OwnershipUnknown."""
        return self.routes.current().lineage == lineage or self.routes.refresh().lineage == lineage

    # --- values -------------------------------------------------------------------------------------------

    def seed(self, dense: F32, state: F32 | None = None) -> None:
        """Offer initial dense values. Slices that have values keep them, so every worker may call this."""
        values = self.layout.split_dense(dense)
        extra = self._state(state)
        deadline = time.monotonic() + self._patience_s
        while True:
            answers: dict[int, tuple[I64, I64]] = self.routes.call_all("seed", values, extra)
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

    def begin_pull(self, keys: KeyBatch, is_fresh: bool = False, rows_alone: bool = False) -> Future[Pulled]:
        """Pull for a step of training in a thread, to overlap it with the step before.

        Values are rounded, and unless `is_fresh` the dense vector is that of an earlier such pull, as `wire` says.
        rows_alone: another process has the dense vector, which is empty here.
        """
        return self._puller.begin(keys, is_fresh, rows_alone)

    def pull_along(self, keys: KeyBatch, is_fresh: bool = False) -> Along | None:
        """Return a pull as of `begin_pull` to go with the next `push`; None if it is better begun by itself."""
        return None if self.in_group else self._puller.along(keys, is_fresh)

    def pull_slices(self, slices: I64 | None) -> Pulled:
        """Read these dense slices (None: all) and the state, in any thread; other values in `dense` are undefined."""
        return self._puller.slices(slices)

    def pull(self, keys: KeyBatch) -> Pulled:
        """Read the current rows of the keys and the whole dense vector, as the servers have them.

        Raises ServerLost, OwnershipUnknown.
        """
        return self._puller.pull(WantedPull(keys, EXACT))

    @property
    def has_cold_rows(self) -> bool:
        """Return whether a server told in the last pull of training that it has rows outside its memory."""
        return bool(self._puller.cold)

    def hint(self, keys: KeyBatch) -> None:
        """Name the rows of a batch to come to servers with cold rows, which read theirs meanwhile.

        Nothing waits for it, and no value depends on it: where servers are behind, or do not answer, it is dropped.
        """
        self._puller.hint(keys)

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
        pays: bool = False,
        batches: int = 1,
        columns: Bools | None = None,
        along: Along | None = None,
    ) -> PushResult:
        """Apply one batch exactly once: samples start..stop of the shard, counted from the shard's beginning.

        row_gradients: of each table, [keys, dimension]; row_squares, dense_squares: the squares of these and of the
        dense gradient, as an optimizer takes them (see `stretto_parameters.Push`).
        A server applies a column only if its record says `start`, and skips it if the record is at `stop` or later,
        so that repeating a push is harmless. Returns when every column has the batch.
        generation: the generation of the servers when the shard was requested. Under a later generation nothing is
        sent: restored servers may have forgotten this shard, and samples with another shard id now would count twice.
        lineage: the lineage of the ledger that leased the shard. Parameters of another lineage belong to other books.
        pays: the dense gradient is sent in float32 with what rounding has left of earlier ones; nothing is owed then.
        batches: those that the gradients are the sum of; each column gets all of them or none.
        columns: those that this process pushes; None: all. along: a pull after this push, if one round is all.
        Raises PushRefused (give the batch up), ServerLost, OwnershipUnknown (repeat it).
        """
        begun = time.perf_counter()
        layout = self.layout
        _check_push(layout, keys, row_gradients, start, stop)
        self._puller.pushed = keys, batches
        head = np.array([shard, attempt, start, stop, self.worker], np.int64)
        given = (row_gradients, dense_gradient, row_squares, dense_squares, state_delta)
        group = self._group if self.in_group and dense_squares is None and columns is None else None
        gradients, arrived = self._rounded(pays or group is not None or columns is not None, (shard, start), given)
        pending = ~_given(group, layout, Claim(shard, attempt, start, stop), gradients, generation)
        pending &= True if columns is None else columns
        retries, applied, update_seconds, backoff = 0, 0, 0.0, _Backoff()
        while True:
            route = self.routes.current()
            check_books(route, generation, lineage, f"push of shard {shard} attempt {attempt} samples {start}..{stop}")
            claims = {server: part.claim & pending & ~route.frozen for server, part in route.parts.items()}
            pushes = {s: push_part(layout, claim, head, keys, gradients) for s, claim in claims.items() if claim.any()}
            for server, answer in exchanged(self.routes, route, pushes, None if retries else along).items():
                code, count, spent_s = protocol.read_push_answer(answer, int(claims[server].sum()))
                update_seconds = max(update_seconds, spent_s)
                if code is Code.APPLIED:
                    pending &= ~claims[server]
                    applied += count
                elif code is not Code.NOT_OWNED:
                    raise _refusal(code, server, shard, attempt, start, stop)
            if not pending.any():
                arrived()
                pull_s = 0.0 if along is None or retries else along.bring(begun, update_seconds)
                return PushResult(time.perf_counter() - begun - pull_s, update_seconds, retries, applied)
            if time.perf_counter() > begun + self._patience_s:
                raise _unowned(pending, self._patience_s, f"push of shard {shard} samples {start}..{stop}")
            retries += 1
            backoff.wait()
            self.routes.refresh()

    def average_dense(self, group: DenseGroup) -> None:
        """Average dense gradients with other workers from now on, as far as their group takes them."""
        group.attach(self.routes, self._puller)
        self._group = group

    @property
    def in_group(self) -> bool:
        """Return whether the next dense gradient is averaged with those of others."""
        return self._group is not None and not self._group.is_alone

    def _rounded(self, pays: bool, seed: tuple[int, int], given: _Given) -> tuple[Gradients, Callable[[], None]]:
        """Return gradients as they travel, with what is owed; and the function to call once servers have them."""
        layout, (rows, dense, row_squares, dense_squares, state_delta) = self.layout, given
        books = (route := self.routes.current()).generation, route.lineage
        transfers = replace(self._pushed, slices=Transfer.FLOAT32) if pays else self._pushed
        slices = self._debt.added_to(layout.split_dense(dense), books)
        of_slices = None if dense_squares is None else layout.split_dense(dense_squares)
        chances = np.random.default_rng(seed) if transfers.rows is Transfer.INT8 else None
        gradients = Gradients.of(transfers, rows, slices, self._state(state_delta), row_squares, of_slices, chances)
        return gradients, partial(self._debt.note, slices, gradients.slices, transfers.slices, books)

    # --- progress -----------------------------------------------------------------------------------------

    def progress(self, shard: int, attempt: int = 0) -> int:
        """Return the samples of the shard that every column has: a new attempt resumes there. FINISHED if forgotten.

        The call raises the fence to `attempt` on every server: pushes of lower attempts are refused from then on.
        """
        deadline = time.monotonic() + self._patience_s
        while True:
            self.routes.current()
            answers = self.routes.call_all("progress", shard, attempt)
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
            self.routes.refresh()

    def forget(self, shards: Iterable[int], lineage: int | None = None) -> None:
        """Delete the progress records of finished shards on all owners (about 0.6 kB each); a mark stays.

        lineage: of the ledger that names the shards. Parameters of another lineage keep their records, as the shards
        may be open there.
        """
        ids = [int(shard) for shard in shards]
        route = self.routes.current()
        if not ids or (lineage is not None and route.lineage != lineage):
            return
        parts = codec.pack(["finish", [ids], {}])
        self.routes.ask({server: (part.link, Kind.CALL, parts) for server, part in route.parts.items()})

    def close(self) -> None:
        if self._group is not None:
            self._group.close()
        self._puller.close()
        self.routes.close()


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


def push_part(layout: Layout, claim: Bools, head: I64, keys: KeyBatch, gradients: Gradients) -> list[Any]:
    """Return the parts of a push to one server."""
    chosen = chosen_of(claim[: layout.buckets], keys)
    ids: Any = np.flatnonzero(claim[layout.buckets :])
    if len(ids) and ids[-1] - ids[0] + 1 == len(ids):
        ids = slice(int(ids[0]), int(ids[-1]) + 1)
    stored = [table.stored for table in keys.tables]
    return protocol.push_request(head, claim, stored, gradients, chosen, ids)


def _given(
    group: DenseGroup | None, layout: Layout, claim: Claim, gradients: Gradients, generation: int | None
) -> Bools:
    """Give the dense gradient to the group, if there is one; return the columns that have the batch by that."""
    found = np.zeros(layout.columns, np.bool_)
    if group is not None:
        found[layout.buckets :] = group.give(claim, gradients.slices, gradients.state_delta, generation)
    return found


def _check_push(layout: Layout, keys: KeyBatch, row_gradients: Sequence[F32], start: int, stop: int) -> None:
    """Raise LayoutError for a push that no server could apply."""
    if not 0 <= start < stop:
        raise LayoutError(f"push of samples {start}..{stop}: wanted 0 <= start < stop")
    found = [tuple(given.shape) for given in row_gradients]
    wanted = [(len(of), table.dimension) for table, of in zip(layout.tables, keys.tables, strict=True)]
    if found != wanted:
        raise LayoutError(f"row gradients have shapes {found[:8]}, wanted {wanted[:8]}, one array for each table")


def check_books(route: Route, generation: int | None, lineage: int | None, what: str) -> None:
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


def _unowned(pending: Bools, patience_s: float, what: str) -> OwnershipUnknown:
    return OwnershipUnknown(
        f"{what} was rejected for {patience_s:.0f} s by the owners of columns {np.flatnonzero(pending)[:8].tolist()}: "
        "a move did not finish; should it last, stop the job and submit it again from its last checkpoint"
    )


def _refusal(code: Code, server: int, shard: int, attempt: int, start: int, stop: int) -> Exception:
    what = f"ps-{server} refused shard {shard} attempt {attempt} samples {start}..{stop}"
    if code is Code.STALE:
        return StaleAttempt(f"{what}: a higher attempt holds the shard, or it is finished; drop it and ask for another")
    if code is Code.GAP:
        return ProgressGap(f"{what}: samples before {start} are missing there; resume at progress({shard})")
    assert code is Code.MISALIGNED
    return BatchMisaligned(f"{what}: applied up to the middle of it; replay with the batch boundaries used before")
