"""A worker's pulls: of training, and exact ones; and hints of those to come."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from stretto_parameters import Own

from ..errors import LayoutError, ServerLost
from . import protocol
from .layout import F32, I64, U64, Bools, KeyBatch, Layout
from .link import Link, Pending
from .protocol import Kind
from .routing import Part, Route, Routes
from .transfer import Transfers, Wire

_HINTS_MAX = 4
"""Hints that may wait to be sent; a later one is dropped, as its batch is near by then."""
ALONG_BYTES_MAX = 2**21
"""Bytes of a pull, in the mean over its servers, up to which it may go with a push. Above, a network that carries both
ways at once is better used by two messages: taste, two megabytes take 2 ms at 10 Gbit/s."""
PULL_KEPT_S = 1.0
"""Seconds for which a pull ahead may serve its step, which an evaluation for example delays: taste."""
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


class WantedPull(NamedTuple):
    """A pull: rows of these keys, and dense slices.

    known: the dense vector, where none is pulled; slices: these alone, None for all, and no others in `dense`.
    is_training: for a step. kept_under: the generation under which the dense vector serves later pulls, too; None: it
    serves no other.
    """

    keys: KeyBatch
    transfers: Transfers
    known: F32 | None = None
    slices: I64 | None = None
    is_training: bool = False
    kept_under: int | None = None

    def sizes_bytes(self, layout: Layout) -> tuple[int, int]:
        """Return the bytes of the rows and of the dense slices, as they travel."""
        slices = 0 if self.known is not None else layout.slices if self.slices is None else len(self.slices)
        pairs = zip(self.keys.tables, layout.tables, strict=True)
        of_rows = sum(len(keys) * self.transfers.rows.row_bytes(table.dimension) for keys, table in pairs)
        return of_rows, slices * self.transfers.slices.row_bytes(layout.slice_length)


class AskedPull:
    """A pull as the servers of a route are asked for it."""

    def __init__(self, layout: Layout, route: Route, wanted: WantedPull) -> None:
        self._layout, self._route, self._wanted = layout, route, wanted
        slices = _NO_SLICES if wanted.known is not None else wanted.slices
        self._chosen = {server: chosen_of(part.buckets, wanted.keys) for server, part in route.parts.items()}
        self._of = {
            server: of
            for server, part in route.parts.items()
            if self._is_asked(part, of := (keys_at(wanted.keys, self._chosen[server]), _both(part.slices, slices)))
        }

    def _is_asked(self, part: Part, of: tuple[Sequence[U64], I64]) -> bool:
        """Return whether a server is asked for anything: each is, unless these slices alone are wanted."""
        has_state = self._layout.state_size > 0 and bool(part.claim[self._layout.buckets])
        return self._wanted.slices is None or has_state or len(of[1]) > 0 or any(map(len, of[0]))

    @property
    def requests(self) -> dict[int, list[Any]]:
        """The parts of the request to each server."""
        found: dict[int, list[Any]] = {}
        for server, (keys, slices) in self._of.items():
            told = self._wanted.is_training and self._route.parts[server].link.takes_hints
            found[server] = protocol.pull_request(slices, keys, self._wanted.transfers, told)
        return found

    def read(self, answers: Mapping[int, Sequence[Any]], begun_s: float) -> tuple[Pulled, frozenset[int]] | None:
        """Return what was pulled, and the servers that have cold rows; None if a column has left its server."""
        layout, wanted = self._layout, self._wanted
        read = {
            server: protocol.read_pulled(layout, *self._of[server], wanted.transfers, parts)
            for server, parts in answers.items()
        }
        parts = {server: self._route.parts[server] for server in self._of}
        if any((read[server][0].own[part.claim] == Own.NOT_MINE).any() for server, part in parts.items()):
            return None
        tables = zip(layout.tables, wanted.keys.tables, strict=True)
        rows = tuple(np.empty((len(of), table.dimension), np.float32) for table, of in tables)
        dense = np.empty((layout.slices, layout.slice_length), np.float32)
        state = _NOTHING
        for server, part in parts.items():
            pulled, _ = read[server]
            for table, given, at in zip(rows, pulled.rows, self._chosen[server], strict=True):
                table[at] = given
            dense[self._of[server][1]] = pulled.slices
            if layout.state_size and part.claim[layout.buckets]:
                state = pulled.state
        seconds = time.perf_counter() - begun_s
        of_rows, of_slices = wanted.sizes_bytes(layout)
        whole = layout.join_dense(dense) if wanted.known is None else wanted.known.copy()
        found = Pulled(rows, whole, state, seconds, seconds * of_rows / max(1, of_rows + of_slices))
        return found, frozenset(server for server, (_, has_cold_rows) in read.items() if has_cold_rows)


class Along:
    """A pull that goes with a push, by the same messages. The end of the context of an `Along` begins the pull by
    itself unless the push has brought it."""

    def __init__(self, puller: Puller, wanted: WantedPull) -> None:
        self._puller, self.wanted = puller, wanted
        self.future: Future[Pulled] = Future()
        self._answers: tuple[AskedPull, Mapping[int, Sequence[Any]]] | None = None

    def asked(self, route: Route) -> AskedPull:
        """Return the pull as the servers of a route are asked for it."""
        return self._puller.asked(route, self.wanted)

    def answered(self, asked: AskedPull, answers: Mapping[int, Sequence[Any]]) -> None:
        """Take what servers have answered to the pull."""
        self._answers = asked, answers

    def forget(self) -> None:
        """Forget what servers answered to an earlier try, as values of before the push."""
        self._answers = None

    def bring(self, begun_s: float, update_s: float) -> float:
        """Bring what was answered, as the push is complete; return the pull's share of the seconds since it began.

        As many bytes travel either way: half of what the update of the servers has left is the pull's.
        """
        found = self._answers and self._answers[0].read(self._answers[1], begun_s)
        if not found:
            return 0.0
        pulled, cold = found
        share = max(0.0, pulled.seconds - update_s) / 2 / max(1e-9, pulled.seconds)
        own = replace(pulled, seconds=pulled.seconds * share, rows_seconds=pulled.rows_seconds * share)
        self.future.set_result(self._puller.noted(self.wanted, own, cold))
        return own.seconds

    def __enter__(self) -> Along:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.future.done():
            self._puller.submit(self.wanted).add_done_callback(self._copy)

    def _copy(self, pull: Future[Pulled]) -> None:
        if pull.cancelled():
            self.future.cancel()
        elif (error := pull.exception()) is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(pull.result())


def exchanged(
    routes: Routes, route: Route, pushes: Mapping[int, Sequence[Any]], along: Along | None
) -> dict[int, Sequence[Any]]:
    """Return the answers to pushes, by server; the pull that goes along gets its own.

    A server whose columns are not pushed is asked for the pull alone. Raises ServerLost.
    """
    links = {server: part.link for server, part in route.parts.items()}
    if along is None or not all(link.exchanges for link in links.values()):
        if along is not None:
            along.forget()
        return routes.ask({server: (links[server], Kind.PUSH, push) for server, push in pushes.items()})
    asked = along.asked(route)
    pulls = asked.requests
    requests: dict[int, tuple[Link, Kind, Sequence[Any]]] = {}
    for server in {**pushes, **pulls}:
        kind = Kind.PULL if server not in pushes else Kind.EXCHANGE if server in pulls else Kind.PUSH
        requests[server] = links[server], kind, [*pushes.get(server, ()), *pulls.get(server, ())]
    answers = routes.ask(requests)
    cut = {s: protocol.cut_answer(parts) if s in pushes else ((), parts) for s, parts in answers.items()}
    along.answered(asked, {server: cut[server][1] for server in pulls})
    return {server: cut[server][0] for server in pushes}


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
        return self.submit(self._wanted(keys, is_fresh, rows_alone))

    def along(self, keys: KeyBatch, is_fresh: bool) -> Along | None:
        """Return a pull for a step of training that goes with the next push; None if it is better by itself."""
        if self.cold or self._given is not None:  # a push does not wait for rows that are read from a disk
            return None
        if not self._is_small(WantedPull(keys, self._wire.pull)):
            return None
        return Along(self, self._wanted(keys, is_fresh))

    def slices_along(self, slices: I64) -> Along | None:
        """Return a pull as of `slices` that goes with a push; None if it is better by itself."""
        wanted = self._of_slices(slices)
        return Along(self, wanted) if self._is_small(wanted) else None

    def _is_small(self, wanted: WantedPull) -> bool:
        route = self._routes.known
        return route is not None and sum(wanted.sizes_bytes(self._layout)) <= ALONG_BYTES_MAX * len(route.parts)

    def submit(self, wanted: WantedPull) -> Future[Pulled]:
        """Pull in a thread."""
        return self._threads.submit(self.pull, wanted)

    def _wanted(self, keys: KeyBatch, is_fresh: bool, rows_alone: bool = False) -> WantedPull:
        self._hinted.pop(id(keys), None)
        self._last = keys
        wanted = WantedPull(keys, self._wire.pull, is_training=True)
        if rows_alone:
            return wanted._replace(known=_NOTHING)
        brings_dense = is_fresh or self._begun_pulls % self._wire.dense_every == 0
        self._begun_pulls += 1
        generation = self._routes.generation
        given, self._given = self._given, None
        if given is not None and given[0] == generation:
            return wanted._replace(known=given[1])
        kept = None if brings_dense else self._dense
        if kept is not None and kept[0] == generation:
            return wanted._replace(known=kept[1])
        self._dense = None  # until this pull succeeds, each of the next brings the dense vector, too
        return wanted._replace(kept_under=generation if self._wire.dense_every > 1 else None)

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

    def slices(self, wanted: I64 | None) -> Pulled:
        """Pull these dense slices, None for all, for a step of training, and no rows; others in `dense` are undefined.

        Raises ServerLost, OwnershipUnknown."""
        return self.pull(self._of_slices(wanted))

    def _of_slices(self, slices: I64 | None) -> WantedPull:
        nothing = self._layout.index(*[_NO_SLICES] * len(self._layout.tables))
        return WantedPull(nothing, self._wire.pull, slices=slices)

    def pull(self, wanted: WantedPull) -> Pulled:
        """Pull rows and dense slices. Raises ServerLost, OwnershipUnknown."""
        begun_s = time.perf_counter()
        while True:
            route = self._routes.current()
            asked = self.asked(route, wanted)
            requests = {s: (route.parts[s].link, Kind.PULL, parts) for s, parts in asked.requests.items()}
            found = asked.read(self._routes.ask(requests), begun_s)
            if found is not None:
                return self.noted(wanted, *found)
            self._routes.refresh()

    def asked(self, route: Route, wanted: WantedPull) -> AskedPull:
        """Return a pull as the servers of a route are asked for it."""
        return AskedPull(self._layout, route, wanted)

    def noted(self, wanted: WantedPull, pulled: Pulled, cold: frozenset[int]) -> Pulled:
        """Note what a pull has brought, and return it. cold: the servers that have cold rows."""
        if wanted.is_training:
            self.cold = cold
        if wanted.kept_under is not None:
            self._dense = wanted.kept_under, pulled.dense.copy()
        return pulled

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
