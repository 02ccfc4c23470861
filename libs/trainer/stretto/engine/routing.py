"""A worker's connections to the parameter servers, and the owner of each column."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from ..errors import OwnershipUnknown, ServerBusy, ServerLost
from .graph import (
    PUSH_HEAD,
    build_finish,
    build_progress,
    build_pull,
    build_push,
    build_seed,
)
from .layout import I64, Layout
from .link import Link
from .ownership import Own, owners
from .state import DEVICE, build_state, read, state_length

FIRST_BACKOFF_S = 0.002
LAST_BACKOFF_S = 0.05
_PROBE_EVERY_S = 0.3
"""A dead server's port refuses connections at once: so much longer a push or a pull waits for it."""
_PROBE_S = 1.0


class WorkerLink(Link):
    """The worker's operations on one server. `warm` makes the first real step as fast as the others."""

    def __init__(self, layout: Layout, graph: WorkerGraph, server: int, address: str, timeout_s: float) -> None:
        super().__init__(graph.graph, server, address, timeout_s)
        self._layout = layout
        self.pull = self.callable(graph.pull[1], graph.pull[0])
        self.push = self.callable(graph.push[1], graph.push[0])
        self.seed = self.callable(graph.seed[1], graph.seed[0])
        self.progress = self.callable(graph.progress[1], graph.progress[0])
        self.finish = self.callable(graph.finish[1], graph.finish[0])
        self.own = self.callable(graph.own, [])

    def warm(self) -> None:
        layout = self._layout
        none = np.zeros(0, np.int64)
        head = np.zeros(len(PUSH_HEAD) + layout.columns + layout.buckets, np.int64)
        rows = np.zeros((0, layout.dimension), np.float32)
        slices = np.zeros((0, layout.slice_length), np.float32)
        self.own()
        self.pull(np.zeros(layout.buckets, np.int64), none)
        self.push(head, none, rows, slices, np.zeros(state_length(layout), np.float32))
        self.progress(np.zeros(2, np.int64))
        self.finish(none)


class WorkerGraph:
    """The graph of a worker's operations, built once and run on every server."""

    def __init__(self, layout: Layout) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default(), tf.device(DEVICE):
            state = build_state(layout)
            self.pull = build_pull(state)
            self.push = build_push(state)
            self.seed = build_seed(state)
            self.progress = build_progress(state)
            self.finish = build_finish(state)
            self.own = read(state.own)


@dataclass(frozen=True, slots=True)
class Part:
    """The columns of one server, as the worker last read them."""

    link: WorkerLink
    buckets: Any  # bool [buckets]
    slices: I64  # ids
    claim: Any  # bool [columns]


@dataclass(frozen=True, slots=True)
class Route:
    owner: I64  # [columns] server id
    frozen: Any  # bool [columns] moving to another server: a push would be rejected
    parts: dict[int, Part]
    generation: int  # of the servers, see `Routes`


class Routes:
    """Sessions on all servers, and the route: the owner of each column, as last read. Thread-safe.

    The arguments are those of `Parameters`. `generation` rises with the first route after a server was lost: the
    servers may then hold an earlier state, restored from a checkpoint.
    """

    def __init__(
        self,
        layout: Layout,
        refresh_servers: Callable[[], dict[int, str]] | None,
        timeout_s: float,
        patience_s: float,
    ) -> None:
        self._layout = layout
        self._refresh_servers = refresh_servers
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._graph = WorkerGraph(layout)
        self._links: dict[int, WorkerLink] = {}
        self._opening: dict[tuple[int, str], Future[WorkerLink]] = {}
        self._listed: set[int] = set()  # servers of the last list
        self._lock = threading.Lock()
        self.pool = ThreadPoolExecutor(64, thread_name_prefix="ps")
        self._route: Route | None = None
        self._losses = 0  # servers lost so far
        self._seen_losses = 0  # those before the last route was read
        self._generation = 0

    # --- connections --------------------------------------------------------------------------------------

    def connect(self, servers: dict[int, str], *, wait: bool = False) -> None:
        """Make `servers` the ones in use. New ones are opened and warmed in a thread while training goes on.

        Servers that left the list are dropped as soon as they own nothing.
        """
        with self._lock:
            self._listed = set(servers)
            opened: list[Future[WorkerLink]] = []
            for server, address in servers.items():
                link, key = self._links.get(server), (server, address)
                if link is None or link.address != address:
                    # a connection that is being opened is waited for, not opened twice
                    if key not in self._opening:
                        self._opening[key] = self.pool.submit(self._open, server, address)
                    opened.append(self._opening[key])
            self._drop_unlisted(set(self._route.parts) if self._route else set())
        if wait:
            self.gather(dict(enumerate(opened)))

    def _drop_unlisted(self, owning: set[int]) -> None:
        """Close links to servers that left the list and own nothing. Call it under the lock."""
        for server in [s for s in self._links if s not in self._listed and s not in owning]:
            self.pool.submit(self._links.pop(server).close)

    def _open(self, server: int, address: str) -> WorkerLink:
        try:
            if _refuses(address):  # it is dead and still listed: a session would wait for its timeout
                raise ServerLost(server, address, "connection refused")
            link = WorkerLink(self._layout, self._graph, server, address, self._timeout_s)
            link.warm()
        except BaseException:
            with self._lock:
                del self._opening[server, address]
            raise
        with self._lock:
            del self._opening[server, address]
            before = self._links.get(server)
            self._links[server] = link
            if before is not None:  # a server restarted under the same number: only then does the address change
                self._losses += 1
                self._route = None
                self.pool.submit(before.close)
        return link

    def _lose(self, lost: ServerLost) -> None:
        with self._lock:
            link = self._links.get(lost.server)
            self._route = None
            if link is not None and link.address == lost.address:
                # else the loss was counted before, or the link never was in use: a newcomer that does not answer yet
                del self._links[lost.server]
                self._losses += 1
                self.pool.submit(link.close)

    def gather(self, futures: dict[int, Future[Any]]) -> dict[int, Any]:
        """Return results by key. A server whose port refuses connections is lost at once, not after the timeout."""
        pending = set(futures.values())
        while pending:
            done, pending = wait(pending, _PROBE_EVERY_S, FIRST_EXCEPTION)
            for future in done:
                error = future.exception()
                if isinstance(error, ServerLost) and not isinstance(error, ServerBusy):
                    self._lose(error)
                if error is not None:
                    raise error
            if pending and not done:
                self._probe()
        return {key: future.result() for key, future in futures.items()}

    def _probe(self) -> None:
        for link in list(self._links.values()):
            if _refuses(link.address):
                lost = ServerLost(link.server, link.address, "connection refused")
                self._lose(lost)
                raise lost

    def on_all(self, call: Callable[[WorkerLink], Any]) -> dict[int, Any]:
        return self.gather({s: self.pool.submit(call, link) for s, link in list(self._links.items())})

    # --- routing ------------------------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """The generation of the current route, or of the last one while there is none."""
        with self._lock:
            return self._generation

    def current(self) -> Route:
        return self._route or self.refresh()

    def refresh(self) -> Route:
        """Read ownership from the servers until every column has an owner. Raises OwnershipUnknown."""
        deadline = time.monotonic() + self._patience_s
        backoff = FIRST_BACKOFF_S
        while True:
            if self._refresh_servers is not None:
                servers = self._refresh_servers()
                links = dict(self._links)
                if set(servers) != self._listed or any(
                    s not in links or links[s].address != a for s, a in servers.items()
                ):
                    self.connect(servers, wait=True)
            with self._lock:
                losses = self._losses
            own = self.on_all(lambda link: link.own())
            route = self._routed(own, losses)
            if route is not None:
                return route
            if time.monotonic() > deadline:
                missing = np.flatnonzero(owners(own, self._layout.columns) < 0).tolist()
                raise OwnershipUnknown(
                    f"columns {missing[:8]} ({len(missing)} in all) have no owner among servers {sorted(own)} "
                    f"for {self._patience_s:.0f} s: a restore or a move did not finish; should it last, "
                    "stop the job and submit it again from its last checkpoint"
                )
            time.sleep(backoff)
            backoff = min(2 * backoff, LAST_BACKOFF_S)

    def _routed(self, own: dict[int, I64], losses: int) -> Route | None:
        """Make the route that follows from `own` current; None if an owner or a link is missing or lost."""
        owner = owners(own, self._layout.columns)
        if (owner < 0).any():
            return None
        buckets = self._layout.buckets
        parts: dict[int, Part] = {}
        with self._lock:
            if losses != self._losses:
                return None
            for server in np.unique(owner):
                link = self._links.get(int(server))
                if link is None:
                    return None
                claim = owner == server
                parts[int(server)] = Part(link, claim[:buckets], np.flatnonzero(claim[buckets:]), claim)
            self._generation += self._seen_losses != losses
            self._seen_losses = losses
            frozen = np.stack([own[s] for s in parts])[np.searchsorted(list(parts), owner), np.arange(len(owner))]
            self._route = Route(owner, frozen == Own.FROZEN, parts, self._generation)
            self._drop_unlisted(set(parts))
            return self._route

    def close(self) -> None:
        with self._lock:
            links = list(self._links.values())
            self._links = {}
        for link in links:
            link.close()
        self.pool.shutdown(wait=False, cancel_futures=True)


def _refuses(address: str) -> bool:
    """Return True if nobody listens there. Slow is not dead: the operation's own timeout decides about that."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_PROBE_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        pass
    return False
