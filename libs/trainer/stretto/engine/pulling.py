"""A worker's pulls: of training, and exact ones; and hints of those to come."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from stretto_parameters import Own

from ..errors import LayoutError, ServerLost
from . import protocol
from .layout import F32, I64, U64, Bools, KeyBatch, Layout
from .link import Link, Pending
from .protocol import Kind
from .routing import Routes
from .transfer import Transfers, Wire

_HINTS_MAX = 4
"""Hints that may wait to be sent; a later one is dropped, as its batch is near by then."""
_NOTHING: F32 = np.zeros(0, np.float32)
_NO_SLICES: I64 = np.zeros(0, np.int64)


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


class Puller:
    """The pulls of one worker. Thread-safe, but `begin` and `hint` are of the thread that trains."""

    def __init__(self, layout: Layout, routes: Routes, wire: Wire) -> None:
        self._layout = layout
        self._routes = routes
        self._wire = wire
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="pull")
        self._begun_pulls = 0
        self._last: KeyBatch | None = None
        self.pushed: tuple[KeyBatch | None, int] = None, 1
        """The keys of the worker's last push, and its batches."""
        self._dense: tuple[int, F32] | None = None
        """The dense vector that a pull of training brought, and the generation of the servers that had it."""
        self._given: tuple[int, F32] | None = None
        """The dense vector for the next pull of training, by the group that updated it, and the generation."""
        self.cold: frozenset[int] = frozenset()
        """Servers that have cold rows, as they told in the last pull of training."""
        self._hinting = ThreadPoolExecutor(1, thread_name_prefix="hint")
        self._hinted: dict[int, KeyBatch] = {}
        """Hints that wait for those before; a pull of their batch takes them out, as they would come late."""

    def begin(self, keys: KeyBatch, is_fresh: bool, rows_alone: bool = False) -> Future[Pulled]:
        """Pull for a step of training, in a thread. is_fresh: with the dense vector in any case; rows_alone: without,
        `dense` is empty then."""
        self._hinted.pop(id(keys), None)
        self._last = keys
        if rows_alone:
            return self._threads.submit(self.pull, keys, self._wire.pull, _NOTHING, is_training=True)
        brings_dense = is_fresh or self._begun_pulls % self._wire.dense_every == 0
        self._begun_pulls += 1
        given, self._given = self._given, None
        if given is not None and given[0] == self._routes.generation:
            return self._threads.submit(self.pull, keys, self._wire.pull, given[1], is_training=True)
        return self._threads.submit(self._pull_to_train, keys, brings_dense)

    def give(self, generation: int, dense: F32) -> None:
        """Spare the next pull of training the dense vector, which servers of this generation have so."""
        self._given = generation, dense

    def step_bytes(self) -> tuple[int, int]:
        """Return the bytes of a step with the keys of the last pull and push, as values travel by the wire, and in
        float32 with a push for each batch; zeros if both are the same."""
        if self._last is None or self._wire == Wire():
            return 0, 0
        sent = self._wire.step_bytes(self._layout, self._last, *self.pushed)
        return int(sent), int(Wire().step_bytes(self._layout, self._last))

    def _pull_to_train(self, keys: KeyBatch, brings_dense: bool) -> Pulled:
        generation = self._routes.generation
        kept = None if brings_dense else self._dense
        if kept is not None and kept[0] == generation:
            return self.pull(keys, self._wire.pull, kept[1], is_training=True)
        self._dense = None  # until this pull succeeds, each of the next brings the dense vector, too
        pulled = self.pull(keys, self._wire.pull, is_training=True)
        if self._wire.dense_every > 1:
            self._dense = generation, pulled.dense.copy()
        return pulled

    def slices(self, wanted: I64 | None) -> Pulled:
        """Pull these dense slices, None for all, for a step of training, and no rows; others in `dense` are undefined.

        Raises ServerLost, OwnershipUnknown."""
        nothing = self._layout.index(*[_NO_SLICES] * len(self._layout.tables))
        return self.pull(nothing, self._wire.pull, wanted=wanted)

    def pull(
        self,
        keys: KeyBatch,
        transfers: Transfers,
        known: F32 | None = None,
        *,
        wanted: I64 | None = None,
        is_training: bool = False,
    ) -> Pulled:
        """Pull rows and dense vector, or rows alone if the latter is known. wanted: these slices alone.

        Raises ServerLost, OwnershipUnknown."""
        begun = time.perf_counter()
        layout = self._layout
        wanted = _NO_SLICES if known is not None else wanted
        while True:
            route = self._routes.current()
            chosen = {server: chosen_of(part.buckets, keys) for server, part in route.parts.items()}
            asked = {
                server: (keys_at(keys, chosen[server]), _both(part.slices, wanted))
                for server, part in route.parts.items()
            }
            requests: dict[int, tuple[Link, Kind, Sequence[Any]]] = {}
            for server, part in route.parts.items():
                of_keys, slices = asked[server]
                told = is_training and part.link.takes_hints
                requests[server] = part.link, Kind.PULL, protocol.pull_request(slices, of_keys, transfers, told)
            found = {
                server: protocol.read_pulled(layout, *asked[server], transfers, parts)
                for server, parts in self._routes.ask(requests).items()
            }
            answers = {s: pulled for s, (pulled, _) in found.items()}
            if all((answers[s].own[part.claim] != Own.NOT_MINE).all() for s, part in route.parts.items()):
                break
            self._routes.refresh()
        if is_training:
            self.cold = frozenset(s for s, (_, has_cold_rows) in found.items() if has_cold_rows)
        tables = zip(layout.tables, keys.tables, strict=True)
        rows = tuple(np.empty((len(of), table.dimension), np.float32) for table, of in tables)
        dense = np.empty((layout.slices, layout.slice_length), np.float32)
        state = _NOTHING
        for server, part in route.parts.items():
            for table, given, at in zip(rows, answers[server].rows, chosen[server], strict=True):
                table[at] = given
            dense[asked[server][1]] = answers[server].slices
            if layout.state_size and part.claim[layout.buckets]:
                state = answers[server].state
        seconds = time.perf_counter() - begun
        row_bytes = sum(len(table) * transfers.rows.row_bytes(table.shape[1]) for table in rows)
        dense_bytes = len(dense if wanted is None else wanted) * transfers.slices.row_bytes(layout.slice_length)
        share = row_bytes / max(1, row_bytes + dense_bytes)
        whole = layout.join_dense(dense) if known is None else known.copy()
        return Pulled(rows, whole, state, seconds, seconds * share)

    def hint(self, keys: KeyBatch) -> None:
        """Name the rows of a batch to come to servers with cold rows, unless they are behind."""
        if self.cold and len(self._hinted) < _HINTS_MAX:
            self._hinted[id(keys)] = keys
            self._hinting.submit(self._hint, id(keys))

    def _hint(self, number: int) -> None:
        """Send a hint if its batch is still to come, and wait until the servers have read the rows."""
        keys = self._hinted.pop(number, None)
        if keys is None:
            return
        route, cold = self._routes.known, self.cold
        parts = () if route is None else [part for server, part in route.parts.items() if server in cold]
        pending: list[Pending] = []
        for part in parts:
            asked = protocol.pull_request(_NO_SLICES, keys_at(keys, chosen_of(part.buckets, keys)))
            with suppress(ServerLost, LayoutError):
                pending.append(part.link.begin(Kind.HINT, asked))
        for each in pending:
            with suppress(ServerLost, LayoutError):
                each.parts()

    def close(self) -> None:
        """Begin nothing more."""
        for threads in (self._threads, self._hinting):
            threads.shutdown(wait=False, cancel_futures=True)


def _both(held: I64, wanted: I64 | None) -> I64:
    return held if wanted is None else np.intersect1d(held, wanted, assume_unique=True)


def chosen_of(buckets: Bools, keys: KeyBatch) -> list[Any]:
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


def keys_at(keys: KeyBatch, chosen: Sequence[Any]) -> list[U64]:
    return [table.stored[at] for table, at in zip(keys.tables, chosen, strict=True)]
