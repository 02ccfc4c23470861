"""Connections to one parameter server."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stretto_plane import Connection, Key, PeerFailed, PlaneError

from ..errors import LayoutError, ServerBusy, ServerLost
from . import protocol
from .layout import Layout
from .protocol import Kind

_IDLE_MAX = 4
"""Connections that are kept open while nobody uses them: a worker pulls and pushes at the same time."""


@dataclass(frozen=True, slots=True)
class Access:
    """The key of the job, and whether its connections are encrypted."""

    key: Key
    encrypted: bool = False


class Link:
    """The connections to one server. Thread-safe; every failure is `ServerLost`, or `ServerBusy` while it lives.

    layout: told to the server, which refuses another one than it knows; None: nothing is told.
    """

    def __init__(self, server: int, address: str, access: Access, layout: Layout | None, timeout_s: float) -> None:
        """Connect. Raises ServerLost, LayoutError."""
        self.server = server
        self.address = address
        self._access = access
        self._timeout_s = timeout_s
        self._hello = json.dumps({"protocol": protocol.VERSION, "layout": layout.to_dict() if layout else None})
        self._life = ""
        self.takes_hints = False
        """The server understands hints, and tells in pulls of training whether it has cold rows."""
        self.exchanges = False
        """The server pushes and pulls by one message."""
        self.freezes_rows = False
        """The server freezes columns and copies them by one message."""
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._closed = False
        self._give_back(self._open())

    @property
    def life(self) -> str:
        """The life of the server: it changes when the server is emptied, or another process serves in its place."""
        return self._life

    def begin(self, kind: Kind, parts: Sequence[Any]) -> Pending:
        """Send a request; its answer is awaited by `Pending.parts`. Raises ServerLost."""
        connection = self._take()
        try:
            connection.send(kind, parts)
        except PlaneError as error:
            connection.close()
            raise self._failed(error) from error
        return Pending(self, connection)

    def ask(self, kind: Kind, parts: Sequence[Any]) -> Sequence[Any]:
        """Send a request and return the parts of its answer. Raises ServerLost, LayoutError."""
        return self.begin(kind, parts).parts()

    def close(self) -> None:
        """Close the connections that are idle now, and the others once they are."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _take(self) -> Connection:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return self._open()

    def _give_back(self, connection: Connection) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < _IDLE_MAX:
                self._idle.append(connection)
                return
        connection.close()

    def _open(self) -> Connection:
        try:
            connection = Connection(
                self.address, self._access.key, timeout_s=self._timeout_s, encrypted=self._access.encrypted
            )
        except (PlaneError, OSError) as error:
            raise self._failed(error) from error
        try:
            answer = json.loads(bytes(self._received(connection, Kind.HELLO, [self._hello.encode()])[0]))
            if answer["server"] != self.server:
                raise ServerLost(self.server, self.address, f"ps-{answer['server']} answers at its address")
            if self._life and answer["life"] != self._life:
                raise ServerLost(self.server, self.address, "another process answers at its address")
            self._life, self.takes_hints = answer["life"], answer.get("hints", False)
            self.exchanges, self.freezes_rows = answer.get("exchanges", False), answer.get("freezes_rows", False)
        except BaseException:
            connection.close()
            raise
        return connection

    def _received(self, connection: Connection, kind: Kind, parts: Sequence[Any]) -> Sequence[Any]:
        try:
            connection.send(kind, parts)
        except PlaneError as error:
            raise self._failed(error) from error
        return self.receive(connection)

    def receive(self, connection: Connection) -> Sequence[Any]:
        """Await the answer of a request. Raises ServerLost, ServerBusy, LayoutError."""
        try:
            message = connection.receive()
        except PeerFailed as error:
            raise ServerBusy(self.server, self.address, str(error)) from error
        except PlaneError as error:
            raise self._failed(error) from error
        if message.kind == Kind.ANSWER:
            return message.parts
        text = bytes(message.parts[0]).decode(errors="replace") if message.parts else ""
        if message.kind == Kind.FULL:
            raise ServerBusy(self.server, self.address, text)
        raise LayoutError(f"ps-{self.server} refused a request: {text}")

    def _failed(self, error: Exception) -> ServerLost:
        return ServerLost(self.server, self.address, f"{type(error).__name__}: {error}"[:300])

    def done(self, connection: Connection, usable: bool) -> None:
        """Take a connection back once its answer is there; close it if the answer may still come."""
        if usable:
            self._give_back(connection)
        else:
            connection.close()


class Pending:
    """A request that is sent. Each is awaited or dropped."""

    def __init__(self, link: Link, connection: Connection) -> None:
        self._link = link
        self._connection = connection

    def parts(self) -> Sequence[Any]:
        """Await the parts of the answer. Raises ServerLost, ServerBusy, LayoutError."""
        usable = False
        try:
            answer = self._link.receive(self._connection)
            usable = True
            return answer
        except (ServerBusy, LayoutError):
            usable = True
            raise
        finally:
            self._link.done(self._connection, usable)

    def drop(self) -> None:
        """Let the answer go. The request may or may not have been carried out."""
        self._link.done(self._connection, usable=False)
