"""The connection of nats-py at a lower price, and with its defects mended.

A message may skip nats-py's queue and task, and its headers are read when needed (``received``). Messages sent in one
turn of the loop leave in one write, without nats-py's future, queue and task for each.

This overrides internal methods of nats-py 2.16; constraints.txt pins the version. ``test_connection`` compares them
with the originals, and shows the defects: the original does not come back after every error, nor from a dead line.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from nats.aio.client import DEFAULT_BUFFER_SIZE, Client, Srv
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import (
    BadSubjectError,
    ConnectionClosedError,
    ConnectionReconnectingError,
    Error,
    MaxPayloadError,
    OutboundBufferLimitError,
)

from stretto_bus.received import HEAD, Messages, header_lines
from stretto_bus.source_port import Transport

FLUSH_S = 10
CROWDED_BYTES = 8 << 20
"""Bound of what waits here for a slow server."""
PERMISSIONS = "permissions violation"
UNKNOWN = "authorization violation"

Sent = Mapping[str, Any] | str | None
"""Headers by name, or the text of ``lines_of``: a sender of many similar messages makes the common part once."""


def direct(handler: Callable[[Msg], None]) -> Callable[[Msg], Awaitable[None]]:
    """Make a callback that the reading task calls itself: no queue that could overflow, no task switch."""

    async def called(msg: Msg) -> None:
        handler(msg)

    called.handler = handler  # type: ignore[attr-defined]
    return called


class NotEncrypted(Error):
    """TLS was required, but the server (or a proxy in between) does not offer it."""

    def __str__(self) -> str:
        return "nats: the server offers no TLS"


def final(error: Exception) -> bool:
    """Return whether connecting again would fail in the same way: one side does not trust the other."""
    return isinstance(error, (ssl.SSLCertVerificationError, NotEncrypted)) or UNKNOWN in str(error).lower()


class Connection(Client):
    """A NATS connection."""

    interrupted = False
    """True from a break until every pending request has failed: their messages may be lost, and nothing may overtake
    them."""
    _writing = False
    _unsent_most = 0
    """Unsent bytes after the last write: an upper bound since then."""

    def __init__(self) -> None:
        super().__init__()
        self._ps = Messages(self)

    def interrupt(self) -> None:
        """Note a break: bytes that were not written yet are lost with those that were, and no ping is answered; nats-py
        lets a flush wait for an answer until its timeout."""
        self.interrupted = True
        self._pending, self._pending_data_size = [], 0
        for waiting in self._pongs:
            if not waiting.done():
                waiting.set_exception(ConnectionReconnectingError())
                waiting.exception()  # nobody waits for the answer to a ping of nats-py's own

    async def leave(self, subscription: Subscription) -> None:
        """Hear no more of a subject, after the messages that the server has sent already; a break loses these.

        nats-py subscribes again after a break that comes meanwhile.
        """
        try:
            with contextlib.suppress(OSError, Error):
                await subscription.drain()
        finally:
            self._remove_sub(subscription._id)

    @property
    def clustered(self) -> bool:
        """True if the server is one of several."""
        return "cluster" in self._server_info

    @property
    def certificate_ends_s(self) -> float | None:
        """End of the server's certificate at the time of connecting, seconds since the epoch; None without TLS."""
        writer = getattr(self._transport, "_io_writer", None)
        shown = writer.get_extra_info("peercert") if writer is not None else None
        return ssl.cert_time_to_seconds(shown["notAfter"]) if shown else None

    @property
    def crowded(self) -> bool:
        """True if too much waits for the server; a sender that can wait calls ``room`` first."""
        if self._pending_data_size + self._unsent_most > CROWDED_BYTES:
            self._unsent_most = self._unsent()
        return self._pending_data_size + self._unsent_most > CROWDED_BYTES

    async def room(self) -> None:
        """Wait until the server has taken enough, or the connection has broken."""
        with contextlib.suppress(OSError):
            while self.crowded and self.is_connected and self._transport is not None:
                self._write()
                await self._transport.drain()

    @property
    def alone(self) -> bool:
        """True if this is the only server we know."""
        return len(self._server_pool) < 2

    async def move(self) -> None:
        """Leave this server for the next that we know."""
        current = self._current_server
        self._server_pool.sort(key=lambda server: server is current)
        await self.force_reconnect()

    async def _connect_to_server(self, s: Srv) -> None:
        """Connect to a server by our transport: nats-py replaces any transport that is not connected yet by its own."""
        if s.uri.scheme not in ("nats", "tls"):
            await super()._connect_to_server(s)
            return
        self._transport = Transport()
        await self._transport.connect(s.uri, DEFAULT_BUFFER_SIZE, self.options["connect_timeout"])

    async def _attempt_reconnect(self) -> None:
        """Abort the old line, then reconnect: nats-py waits until all written bytes have left, which takes minutes on
        a dead line."""
        self.hang_up()
        await super()._attempt_reconnect()

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        """Refuse a server without TLS where TLS is wanted: nats-py goes on without TLS when the server says that it
        needs none."""
        wanted = "tls" in self.options or any(server.uri.scheme == "tls" for server in self._server_pool)
        if initial_connection and wanted and not info.get("tls_required"):
            raise NotEncrypted
        await super()._process_info(info, initial_connection)

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        """Close without a wait: nats-py waits for a close event that never comes after a failed TLS handshake."""
        if self.is_connecting:
            self.hang_up()
            self._transport = None
        await super()._close(status, do_cbs)

    def hang_up(self) -> None:
        """Leave the line at once; unsent bytes are lost."""
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()

    async def _process_err(self, err_msg: str) -> None:
        """Reconnect after an error of the server; nats-py closes for ever."""
        error = Error(f"nats: {err_msg.strip(chr(39))}")
        await self._error_cb(error)
        if PERMISSIONS not in err_msg.lower():
            await self._process_op_err(error)

    async def _process_pong(self) -> None:
        """Pass over a flush whose caller was cancelled: nats-py's reading task ends at the answer to its ping, and the
        connection hears nothing until three more pings have had none."""
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    def handler_of(self, sid: int) -> Callable[[Msg], None] | None:
        """Return the handler of a ``direct`` subscription; None: it is none, or there is no such subscription."""
        return getattr(getattr(self._subs.get(sid), "_cb", None), "handler", None)

    def _unsent(self) -> int:
        writer = getattr(self._transport, "_io_writer", None)
        return 0 if writer is None else writer.transport.get_write_buffer_size()

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        return header_lines(raw.decode("utf-8", "replace"))

    def put(self, subject: str, data: bytes, reply: str = "", headers: Sent = None) -> None:
        """``publish`` without its coroutines. Subjects come from the registry and are not checked again.

        Raises:
            nats.errors.Error: closed, not connected, without a subject, or larger than the server takes.
        """
        if self.interrupted or not self.is_connected:
            raise ConnectionClosedError if self.is_closed else OutboundBufferLimitError
        if not subject:
            raise BadSubjectError  # the server would hang up
        if len(data) > self._max_payload:
            raise MaxPayloadError
        lines = headers if isinstance(headers, str) else lines_of(headers or {})
        command = _command(subject, reply, data, lines)
        self._pending.append(command)
        self._pending_data_size += len(command)
        if not self._writing:
            self._writing = True
            asyncio.get_running_loop().call_soon(self._write)

    async def _send_publish(
        self, subject: str, reply: str, payload: bytes, payload_size: int, headers: dict[str, Any] | None
    ) -> None:
        self.put(subject, payload, reply, headers)

    async def flush(self, timeout: int = FLUSH_S) -> None:
        """Wait until the server has seen everything sent so far; nats-py's own ping overtakes unwritten bytes."""
        self._write()
        await super().flush(timeout)

    def _write(self) -> None:
        self._writing = False
        if self._pending_data_size and self.is_connected and self._transport is not None:
            pending, self._pending, self._pending_data_size = self._pending, [], 0
            with contextlib.suppress(OSError, RuntimeError):  # a break: the reading task notices, and reconnects
                self._transport.writelines(pending)
            self._unsent_most = self._unsent()


def lines_of(headers: Mapping[str, Any] | str) -> str:
    """The text of headers; a line break inside a value becomes a blank."""
    if isinstance(headers, str):
        return headers
    text = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if text.count("\n") != len(headers):
        text = "".join([f"{name}: {' '.join(str(value).split())}\r\n" for name, value in headers.items()])
    return text


def _command(subject: str, reply: str, data: bytes, lines: str) -> bytes:
    """PUB or HPUB of the NATS protocol."""
    if not lines:
        return b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), reply.encode(), len(data), data)
    block = f"{HEAD}\r\n{lines}\r\n"
    size = len(block) if block.isascii() else len(block.encode())
    return f"HPUB {subject} {reply} {size} {size + len(data)}\r\n{block}".encode() + data + b"\r\n"
