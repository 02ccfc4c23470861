"""One connection: publish with acknowledgement, ask JetStream or a peer, notice when the connection broke.

nats-py's own publish and request cost a task per message. Here an answer is one future, and one sweeper watches all
deadlines. While disconnected nothing is buffered: after the reconnect, a message that was never sent must not overtake
one that was lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any, Protocol

import nats.errors
import structlog
from nats.aio.msg import Msg as Msg
from nats.aio.subscription import Subscription as Subscription
from pydantic_core import from_json
from stretto_wire.contract.inboxes import inbox_of
from stretto_wire.surroundings import chance, new_id

from stretto_bus.connection import FLUSH_S, Connection, Sent, direct, final
from stretto_bus.faults import BusFault, Fenced, NobodyListens
from stretto_bus.login import Login, Presents, redacted
from stretto_bus.majority import Majority

PIPELINED = 0
WRONG_LAST_SEQUENCE = 10071
NOBODY = "503"
ACK_TIMEOUT_S = 5.0
SWEEP_S = 0.25
PING_S = 2
"""After three pings without an answer the connection counts as broken: a cut network says nothing."""
NOT_ACKNOWLEDGED = "; is the server's disk full, or its cluster without a majority? see its log"
DENIED = re.compile(r'permissions violation for publish to "([^"]+)"', re.IGNORECASE)

log = structlog.get_logger("stretto.bus")


class Receiver(Protocol):
    """Receiver of an answer: a future, or an object that counts many answers."""

    def done(self) -> bool: ...

    def set_result(self, result: Any, /) -> None: ...

    def set_exception(self, exception: BaseException, /) -> None: ...

    def exception(self) -> BaseException | None: ...


class Backlog(Protocol):
    """The part of a consumer that a process's gauges read."""

    @property
    def waiting(self) -> int:
        """Messages that are stored and not taken."""
        ...

    @property
    def pauses(self) -> int:
        """How often the reader was too slow."""
        ...


Settle = Callable[[Receiver, Msg], None]


Awaited = tuple[Receiver, float, float, str, Settle]
"""An answer that is due in our inbox: its receiver, when its request was sent, its deadline, its subject,
and what turns its message into the receiver's result. It is a plain tuple: an object for each message costs time."""


class Bus:
    """A connection under one user, with its own inbox below the user's.

    Larger than 250 lines: sends, answers, timeouts and reconnects act on one connection and one table of due answers.
    """

    def __init__(self, connection: Connection, user: str | None, inbox: str) -> None:
        self.connection = connection
        self.inbox = inbox
        self._answers_to = f"{inbox}.to."
        self._user = user
        self.reconnects = 0
        self.last_error = ""
        self.on_reconnect: list[Callable[[], None]] = []
        self.sweeps: list[Callable[[float], None]] = []
        self.consumers: set[Backlog] = set()
        self.batch_from = PIPELINED
        self.facts_kept_s = math.inf
        """Age at which the messages of the event stream go, once its configuration is known."""
        """Number of fenced messages from which the streams want an atomic batch; ``PIPELINED``: never."""
        self._server_ahead_s: float | None = None
        """The server's clock less the loop's."""
        self._pending: dict[str, Awaited] = {}
        self._serial = 0
        self._loop = asyncio.get_running_loop()
        self._sweeper: asyncio.TimerHandle | None = None
        self._swept_s = 0.0
        self._majority = Majority()
        self._moving: asyncio.Task[None] | None = None
        self._refused = asyncio.Event()
        """Set once the server does not trust this client, or this client does not trust the server."""

    @classmethod
    async def connect(
        cls,
        url: str,
        login: Presents | None = None,
        name: str = "stretto",
        inbox: str = "",
        within_s: float | None = None,
    ) -> Bus:
        """Connect, waiting for the server for ``within_s`` seconds (None: as long as it takes).

        ``inbox`` is where answers may go, if not below the user's own name (``stretto_wire.contract.inboxes``).

        Raises:
            BusFault: the server refused our login, or its certificate is not to be trusted.
            IdentityFault: a file of ``login`` cannot be used.
        """
        login = login or Login()
        user = login.name()
        prefix = inbox or inbox_of(user or name)
        bus = cls(Connection(), user, f"{prefix}.{new_id(12)}")
        servers = url.split(",")
        refused = asyncio.create_task(bus._refused.wait())
        connecting = asyncio.ensure_future(
            bus.connection.connect(
                servers=chance().sample(servers, len(servers)),
                dont_randomize=True,  # our own order, so that ``move`` can choose
                **login.options(),
                name=name,
                error_cb=bus._failed,
                disconnected_cb=bus._interrupted,
                reconnected_cb=bus._reconnected,
                max_reconnect_attempts=-1,
                reconnect_time_wait=0.2,  # type: ignore[arg-type] - seconds; a fraction is as good as an integer
                connect_timeout=2,
                pending_size=0,
                ping_interval=PING_S,
                inbox_prefix=prefix.encode(),
            )
        )
        try:
            await asyncio.wait([connecting, refused], timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
            if not connecting.done():  # it would try for ever
                bus.connection.hang_up()
                raise BusFault(f"cannot connect to {redacted(url)} as {login}: {bus.last_error}; check STRETTO_NATS_*")
            connecting.result()
        except nats.errors.Error as error:
            raise BusFault(f"cannot connect to {redacted(url)} as {login}: {error}; check STRETTO_NATS_*") from error
        finally:
            connecting.cancel()
            refused.cancel()
        await bus.subscribe(f"{bus._answers_to}>", bus._answered)
        bus._swept_s = bus._loop.time()
        bus._sweeper = bus._loop.call_later(SWEEP_S, bus._sweep)
        return bus

    async def _failed(self, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        if violation := DENIED.search(text):
            self._deny(violation[1], f"{self._user!r} may not publish to {violation[1]}")
        if final(error):
            self._refused.set()
        if text != self.last_error:
            log.warning("bus error", error=text)
        self.last_error = text

    async def _interrupted(self) -> None:
        self.connection.interrupt()

    async def _reconnected(self) -> None:
        self.reconnects += 1
        self.last_error = ""
        self._majority.forget()
        log.info("reconnected", count=self.reconnects)
        self._fail_all(BusFault("the connection to the server broke before it answered"))
        self.connection.interrupted = False
        for callback in list(self.on_reconnect):
            callback()

    @property
    def connected(self) -> bool:
        return self.connection.is_connected and not self.connection.interrupted

    @property
    def server(self) -> str:
        """``host:port`` of the server that we are connected to; empty: none."""
        url = self.connection.connected_url
        return url.netloc.rpartition("@")[2] if url is not None else ""

    @property
    def server_version(self) -> tuple[int, int, int]:
        """Version of the server that we are connected to."""
        version = self.connection.connected_server_version
        return version.major, version.minor, version.patch

    @property
    def clustered(self) -> bool:
        """True if the server belongs to a cluster."""
        return self.connection.clustered

    async def reconnect(self) -> None:
        """Connect anew, with the credentials of now. Unanswered requests fail with BusFault."""
        await self.connection.force_reconnect()

    async def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._fail_all(BusFault("the connection is being closed"))
        with contextlib.suppress(OSError, nats.errors.Error):  # a broken connection is as good as closed
            await self.connection.close()

    async def subscribe(self, subject: str, handler: Callable[[Msg], None]) -> Subscription:
        """A plain subscription; ``handler`` is called in the order of arrival and must not wait."""
        return await self.connection.subscribe(subject, cb=direct(handler))

    async def flush(self, timeout_s: int = FLUSH_S) -> None:
        """Wait until the server has seen everything sent so far. Raises BusFault."""
        try:
            await self.connection.flush(timeout_s)
        except nats.errors.Error as error:
            raise BusFault(f"cannot flush: {error or type(error).__name__}") from error

    async def send(self, subject: str, data: bytes, headers: Sent = None, reply: str = "") -> None:
        """Publish without acknowledgement (replies, flow control)."""
        if self.connection.crowded:
            await self.connection.room()
        self._publish(subject, data, headers, reply)

    def offer(self, subject: str, data: bytes, headers: Sent = None) -> None:
        """Publish as ``send`` does, but drop the message where too much waits already. Raises BusFault."""
        if not self.connection.crowded:
            self._publish(subject, data, headers)

    async def post(
        self, subject: str, data: bytes, headers: Sent = None, timeout_s: float = ACK_TIMEOUT_S
    ) -> asyncio.Future[dict[str, Any]]:
        """Send now; the future brings JetStream's answer, or ``BusFault`` (``Fenced`` for err 10071)."""
        return await self._send(subject, data, headers, timeout_s, _acknowledge)

    def put(
        self,
        subject: str,
        data: bytes,
        headers: Sent,
        receiver: Receiver,
        timeout_s: float = ACK_TIMEOUT_S,
        settle: Settle | None = None,
    ) -> None:
        """Send as ``post`` does, without waiting for room; a sender of many awaits that itself.

        Raises:
            BusFault: not sent; ``receiver`` gets nothing.
        """
        self._serial += 1
        token = str(self._serial)
        now = self._loop.time()
        self._pending[token] = receiver, now, now + timeout_s, subject, settle or _acknowledge
        try:
            self._publish(subject, data, headers, self._answers_to + token)
        except BusFault:
            self._pending.pop(token, None)
            raise

    async def request(
        self, subject: str, data: bytes, headers: dict[str, str] | None = None, timeout_s: float = ACK_TIMEOUT_S
    ) -> Msg:
        """Ask whoever listens; returns the first answer.

        Raises:
            NobodyListens: at once.
            BusFault: not sent, or not answered within ``timeout_s``, in which this process has run, and up to
                ``SWEEP_S`` more.
        """
        return await (await self._send(subject, data, headers, timeout_s, _answer))

    async def store(self, subject: str, data: bytes, headers: dict[str, str] | None = None) -> int:
        """Publish to a stream once; returns the stored sequence.

        Raises:
            Fenced: the expected last sequence is not the last any more.
            BusFault: refused, or not answered in time.
        """
        return int((await (await self.post(subject, data, headers)))["seq"])

    async def store_surely(
        self, subject: str, data: bytes, headers: dict[str, str], tries_s: float | None = None
    ) -> int:
        """Publish until the server has stored it; ``Nats-Msg-Id`` in ``headers`` makes repeating harmless.

        Raises:
            BusFault: not stored within ``tries_s`` seconds (None: never gives up).
        """
        started = self._loop.time()
        delay_s = 0.05
        while True:
            try:
                return await self.store(subject, data, headers)
            except Fenced:
                raise
            except BusFault as fault:
                if tries_s is not None and self._loop.time() - started > tries_s:
                    raise BusFault(f"{subject}: {fault}{self._denial()}", fault.code) from fault
                log.warning("publish again", subject=subject, fault=str(fault))
            await asyncio.sleep(delay_s)
            delay_s = min(2.0, 2 * delay_s)

    async def ask(
        self, api: str, body: dict[str, Any] | None = None, timeout_s: float = ACK_TIMEOUT_S
    ) -> dict[str, Any]:
        """Send a request of the JetStream API (``$JS.API.<api>``) in JSON.

        Raises:
            BusFault: refused or not answered; ``code`` is JetStream's ``err_code``. While a stream has no leader, any
                follower may tell its state, which may lack what was acknowledged: that is no answer.
        """
        data = json.dumps(body).encode() if body is not None else b""
        answer: dict[str, Any] = await (await self.post(f"$JS.API.{api}", data, timeout_s=timeout_s))
        if api.startswith("STREAM.INFO.") and (cluster := answer.get("cluster")) and not cluster.get("leader"):
            raise BusFault(f"{api}: the stream has no leader at the moment, and a follower may lag")
        if "ts" in answer:
            self._server_ahead_s = datetime.fromisoformat(answer["ts"]).timestamp() - self._loop.time()
        return answer

    def server_now(self) -> float | None:
        """Return the time by the server's clock, seconds since the epoch; None before its first answer that has it.

        It runs on from the last such answer by this process's monotonic clock, whatever the machine's wall clock says.
        """
        return None if self._server_ahead_s is None else self._loop.time() + self._server_ahead_s

    async def _send(
        self, subject: str, data: bytes, headers: Sent, timeout_s: float, settle: Settle
    ) -> asyncio.Future[Any]:
        if self.connection.crowded:
            await self.connection.room()
        future: asyncio.Future[Any] = self._loop.create_future()
        self.put(subject, data, headers, future, timeout_s, settle)
        return future

    def _publish(self, subject: str, data: bytes, headers: Sent, reply: str = "") -> None:
        try:
            self.connection.put(subject, data, reply, headers)
        except nats.errors.Error as error:
            raise BusFault(f"cannot send to {subject}: {error or type(error).__name__}") from error

    def _answered(self, msg: Msg) -> None:
        awaited = self._pending.pop(msg.subject[len(self._answers_to) :], None)
        if awaited is not None and not awaited[0].done():
            awaited[4](awaited[0], msg)
            self._judge(awaited)

    def _judge(self, awaited: Awaited) -> None:
        """Note whether JetStream did what takes a majority."""
        receiver, sent_s, _, subject, settle = awaited
        if settle is not _acknowledge:
            return
        fault = receiver.exception()
        if fault is None:
            self._majority.done(subject)
        else:
            self._majority.failed(sent_s, fault)

    def _move(self) -> None:
        """Change to another server of the cluster."""
        log.warning("the server stores nothing; trying another", server=self.server)
        self._majority.forget()
        self._moving = self._loop.create_task(self.connection.move())

    def _deny(self, subject: str, text: str) -> None:
        """Fail every request on ``subject``, in lower case: the server names the refused subject only."""
        denied = [token for token, (_, _, _, asked, _) in self._pending.items() if asked.lower() == subject]
        for receiver, *_ in [self._pending.pop(token) for token in denied]:
            if not receiver.done():
                receiver.set_exception(BusFault(f"{text}; see stretto_installation.access.permissions"))

    def _denial(self) -> str:
        """The reason of a denied publish, which looks like a timeout: it came by the error callback."""
        return f"; the server last said: {self.last_error}" if self.last_error else ""

    def _sweep(self) -> None:
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)
        before, self._swept_s = self._swept_s, self._loop.time()
        now, absent_s = self._swept_s, self._swept_s - before - SWEEP_S
        if absent_s > SWEEP_S:  # this process did not run: the answers may have come, and nobody has read them
            self._pending = {
                token: (receiver, sent_s, deadline_s + absent_s, subject, settle)
                for token, (receiver, sent_s, deadline_s, subject, settle) in self._pending.items()
            }
        late = [token for token, (_, _, deadline_s, _, _) in self._pending.items() if deadline_s < now]
        for token in late:
            awaited = self._pending.pop(token)
            receiver, *_, settle = awaited
            if not receiver.done():
                reason = NOT_ACKNOWLEDGED if settle is _acknowledge else ""
                receiver.set_exception(BusFault(f"no answer in time{reason}{self._denial()}"))
                receiver.exception()  # as in ``_fail_all``
                self._judge(awaited)
        for sweep in list(self.sweeps):
            sweep(now)
        if self._majority.lost(now) and self.connected and not self.connection.alone:
            self._move()

    def _fail_all(self, fault: BusFault) -> None:
        pending, self._pending = self._pending, {}
        for receiver, *_ in pending.values():
            if not receiver.done():
                receiver.set_exception(fault)
                receiver.exception()  # a caller that stopped waiting must not cause "never retrieved"


def _acknowledge(future: Receiver, msg: Msg) -> None:
    """Settle with JetStream's answer."""
    if not msg.data:
        status = (msg.headers or {}).get("Status", "")
        future.set_exception(BusFault("no stream answers" if status == NOBODY else f"status {status}"))
        return
    answer = from_json(msg.data)
    error = answer.get("error")
    if error is None:
        future.set_result(answer)
        return
    code = int(error.get("err_code", error.get("code", 0)))
    kind = Fenced if code == WRONG_LAST_SEQUENCE else BusFault
    future.set_exception(kind(f"{error.get('description')} ({code})", code))


def _answer(future: Receiver, msg: Msg) -> None:
    """Settle with a peer's answer."""
    if not msg.data and msg.headers and msg.headers.get("Status") == NOBODY:
        future.set_exception(NobodyListens("nobody listens"))
    else:
        future.set_result(msg)
