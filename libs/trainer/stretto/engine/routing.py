"""A worker's connections to the parameter servers, and the owner of each column."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from stretto_parameters import Own

from ..errors import OwnershipUnknown, ServerBusy, ServerLost
from . import codec
from .layout import I64, Bools, Layout
from .link import Access, Link, Pending
from .protocol import Kind

FIRST_BACKOFF_S = 0.002
LAST_BACKOFF_S = 0.05

Request = tuple[Kind, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Part:
    """The columns of one server, as the worker last read them. slices: ids."""

    link: Link
    buckets: Bools
    slices: I64
    claim: Bools


@dataclass(frozen=True, slots=True)
class Route:
    """The owner of each column [columns], the columns that are moving, and each server's part.

    generation: of the servers, see `Routes`. lineage: the number of the return to a checkpoint that all columns
    come from; 0: none.
    """

    owner: I64
    frozen: Bools
    parts: dict[int, Part]
    generation: int
    lineage: int

    @property
    def books(self) -> str:
        """The name of the servers' lives and of the lineage of their parameters: leases of other books are not mixed.

        A name is the same in all processes, as a generation is not."""
        lives = " ".join(f"{server}:{self.parts[server].link.life}" for server in sorted(self.parts))
        return f"{self.lineage} {hashlib.blake2b(lives.encode(), digest_size=16).hexdigest()}"


def owners(own: Mapping[int, I64], columns: int) -> I64:
    """Return the server that serves reads of each column: [columns], -1 for a column without a server.

    MINE goes before FROZEN: between the two last steps of a move a column has both states, and the server where it is
    MINE is ahead. Where a column should be, the actuator plans (`stretto_core.actuator.placement`).
    """
    route = np.full(columns, -1, np.int64)
    for state in (Own.FROZEN, Own.MINE):
        for server, vector in own.items():
            route[vector == state] = server
    return route


class Routes:
    """Links to all servers, and the route: the owner of each column, as last read. Thread-safe.

    The arguments are named as in `Parameters`. `generation` rises with the first route after a server was lost: the
    servers may then hold an earlier state, restored from a checkpoint.
    """

    def __init__(
        self,
        layout: Layout,
        access: Access,
        refresh_servers: Callable[[], dict[int, str]] | None,
        timeout_s: float,
        patience_s: float,
    ) -> None:
        self._layout = layout
        self._access = access
        self._refresh_servers = refresh_servers
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._links: dict[int, Link] = {}
        self._opening: dict[tuple[int, str], Future[Link]] = {}
        self._listed: dict[int, str] = {}  # the last list of servers
        self._lock = threading.Lock()
        self._openers = ThreadPoolExecutor(16, thread_name_prefix="open-ps")
        self._route: Route | None = None
        self._losses = 0  # servers lost so far
        self._seen_losses = 0  # those before the last route was read
        self._generation = 0

    # --- connections --------------------------------------------------------------------------------------

    def connect(self, servers: dict[int, str], *, wait: bool = False) -> None:
        """Make `servers` the ones in use. New ones are opened in a thread while training goes on.

        A server that left the list counts as lost, though it may answer: the node of its pod may be cut off, and its
        columns have come back on others by then. It is not asked again.
        """
        with self._lock:
            self._listed = dict(servers)
            if self._route is not None and not self._listed.keys() >= self._route.parts.keys():
                self._route = None
                self._losses += 1
            for server in self._links.keys() - self._listed.keys():
                self._links.pop(server).close()
            opened: list[Future[Link]] = []
            for server, address in servers.items():
                link, key = self._links.get(server), (server, address)
                if link is None or link.address != address:
                    # a connection that is being opened is waited for, not opened twice
                    if key not in self._opening:
                        self._opening[key] = self._openers.submit(self._open, server, address)
                    opened.append(self._opening[key])
        if wait:
            for future in opened:
                try:
                    future.result()
                except ServerLost as lost:
                    self._lose(lost)
                    raise

    def _open(self, server: int, address: str) -> Link:
        """Raises ServerLost, also if the server left the list meanwhile."""
        try:
            link = Link(server, address, self._access, self._layout, self._timeout_s)
        except BaseException:
            with self._lock:
                del self._opening[server, address]
            raise
        with self._lock:
            del self._opening[server, address]
            if self._listed.get(server) != address:
                link.close()
                raise ServerLost(server, address, "it left the list of servers")
            before = self._links.get(server)
            self._links[server] = link
            if before is not None:  # a server restarted under the same number: only then does the address change
                self._losses += 1
                self._route = None
                before.close()
        return link

    def _lose(self, lost: ServerLost) -> None:
        if isinstance(lost, ServerBusy):
            return
        with self._lock:
            link = self._links.get(lost.server)
            self._route = None
            if link is not None and link.address == lost.address:
                # else the loss was counted before, or the link never was in use: a newcomer that does not answer yet
                del self._links[lost.server]
                self._losses += 1
                link.close()

    def ask(self, requests: Mapping[int, tuple[Link, Kind, Sequence[Any]]]) -> dict[int, Sequence[Any]]:
        """Send all requests, then await all answers: server -> parts. Raises ServerLost of the first that fails."""
        pending: dict[int, Pending] = {}
        try:
            for server, (link, kind, parts) in requests.items():
                pending[server] = link.begin(kind, parts)
            answers: dict[int, Sequence[Any]] = {}
            while pending:
                server = next(iter(pending))
                answers[server] = pending.pop(server).parts()
            return answers
        except ServerLost as lost:
            self._lose(lost)
            raise
        finally:
            for left in pending.values():
                left.drop()

    def on_all(self, kind: Kind, parts: Sequence[Any]) -> dict[int, Sequence[Any]]:
        """Ask every server the same: server -> parts of its answer."""
        with self._lock:
            links = dict(self._links)
        return self.ask({server: (link, kind, parts) for server, link in links.items()})

    def call_all(self, name: str, *arguments: Any) -> dict[int, Any]:
        """Carry out a control operation on every server: server -> result."""
        answers = self.on_all(Kind.CALL, codec.pack([name, arguments, {}]))
        return {server: codec.unpack(parts) for server, parts in answers.items()}

    # --- routing ------------------------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """The generation of the current route, or of the last route while there is none."""
        with self._lock:
            return self._generation

    @property
    def known(self) -> Route | None:
        """The route as last read, if there is one."""
        return self._route

    def current(self) -> Route:
        """Return the route as last read; read it if there is none."""
        return self._route or self.refresh()

    def refresh(self) -> Route:
        """Read ownership from the servers until every column has an owner. Raises OwnershipUnknown."""
        deadline = time.monotonic() + self._patience_s
        backoff = FIRST_BACKOFF_S
        while True:
            self._follow_list()
            with self._lock:
                losses = self._losses
            placed: dict[int, tuple[I64, int]] = self.call_all("placement")
            own = {server: states for server, (states, _) in placed.items()}
            route = self._routed(own, {server: lineage for server, (_, lineage) in placed.items()}, losses)
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

    def generation_of(self, books: str) -> int | None:
        """Return the generation of a route of these books; None if the servers have others. Raises ServerLost,
        OwnershipUnknown."""
        route = self.current()
        if route.books != books:
            route = self.refresh()
        return route.generation if route.books == books else None

    def _follow_list(self) -> None:
        """Connect to the servers that the list names now."""
        if self._refresh_servers is None:
            return
        servers = self._refresh_servers()
        links = dict(self._links)
        if servers != self._listed or any(s not in links or links[s].address != a for s, a in servers.items()):
            self.connect(servers, wait=True)

    def _routed(self, own: dict[int, I64], lineages: dict[int, int], losses: int) -> Route | None:
        """Make the route that follows from `own` current.

        None if an owner or a link is missing or lost, or if columns are of several lineages.
        """
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
            if len({lineages[server] for server in parts}) > 1:
                return None
            self._generation += self._seen_losses != losses
            self._seen_losses = losses
            state = np.stack([own[s] for s in parts])[np.searchsorted(list(parts), owner), np.arange(len(owner))]
            self._route = Route(owner, state == Own.FROZEN, parts, self._generation, lineages[next(iter(parts))])
            return self._route

    def close(self) -> None:
        """Close every link."""
        with self._lock:
            links = list(self._links.values())
            self._links, self._listed = {}, {}  # one that is being opened is closed when it is open
        for link in links:
            link.close()
        self._openers.shutdown(wait=False, cancel_futures=True)
