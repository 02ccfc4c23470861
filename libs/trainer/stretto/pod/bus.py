"""A pod's connection to the bus: an asyncio loop in a thread of its own, so that training never waits for it.

``stretto_bus`` connects, mends the connection and repeats requests. A pod adds the thread, its renewable credentials,
and the requests that it answers itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import stretto_bus
from stretto_bus.bus import Msg
from stretto_bus.caller import Caller
from stretto_bus.faults import BusFault, CallTimeout, Fault
from stretto_bus.login import RenewableLogin, redacted
from stretto_bus.refusals import refusal
from stretto_messages.actuator import RenewCredentials
from stretto_messages.base import Message
from stretto_messages.refusals import ERROR_HEADER
from stretto_wire.codec import decode, encode
from stretto_wire.contract import registry
from stretto_wire.contract.cloudevents import headers_of
from stretto_wire.contract.inboxes import inbox_of_pod
from stretto_wire.errors import WireError

from ..errors import BusError, CallRefused, StrettoError
from .tracing import PodTracing

M = TypeVar("M", bound=Message)
Handler = Callable[[Any], Message]

_AGAIN_S = 1.0
_RENEWED_EVERY_S = 3600.0
_RENEWED_AFTER = 0.5
"""Share of the life of credentials after which they are renewed, where that is sooner than ``_RENEWED_EVERY_S``."""
_RENEWED_AGAIN = 0.1
"""Share of the time between renewals after which a failed renewal is tried again."""
_QUIET_WITHIN = 0.25
"""Share of the time between renewals that a reconnection waits for a moment without requests. By default as long as a
restore may take."""

log = logging.getLogger("stretto.pod")


class PodBus:
    """The connection of ``pod`` of ``job``. Methods may be called from any thread but the bus's own."""

    def __init__(
        self, url: str, job: str, pod: str, tracing: PodTracing, identity: RenewableLogin | None = None
    ) -> None:
        self.job, self.pod = job, pod
        self._url = url
        self._identity = identity or RenewableLogin()
        self._tracing = tracing
        self._connected: tuple[stretto_bus.Bus, Caller] | None = None
        self._loop = asyncio.new_event_loop()
        self._workers = ThreadPoolExecutor(4, thread_name_prefix="pod-request")
        self._life = f"{pod}-{uuid.uuid4().hex[:8]}"
        self._lanes: dict[str, threading.Lock] = {}
        self._serials = itertools.count(1)
        self._reports = 0
        self._exchanges = 0
        """Number of requests and answers on their way."""
        self._followers: set[asyncio.Task[None]] = set()
        self._staying: Future[None] | None = None
        """The renewal of the credentials, which ends with the connection."""
        threading.Thread(target=self._loop.run_forever, name="bus", daemon=True).start()

    def connect(self, timeout_s: float = 30.0) -> None:
        """Connect, waiting for the server; later breaks are mended for ever. Raises BusError."""
        self._run(self._connect(timeout_s), timeout_s + 5.0)
        self._staying = asyncio.run_coroutine_threadsafe(self._stay_known(), self._loop)

    async def _connect(self, timeout_s: float) -> None:
        name, inbox = f"{self.job}/{self.pod}", inbox_of_pod(self.job, self.pod)
        deadline = self._loop.time() + timeout_s
        while True:
            try:
                left_s = deadline - self._loop.time()
                bus = await stretto_bus.Bus.connect(self._url, self._identity, name, inbox, left_s)
            except BusFault as fault:  # a server that starts may not know us yet
                if self._loop.time() + _AGAIN_S > deadline:
                    raise
                log.warning("not connected yet: %s", fault)
                await asyncio.sleep(_AGAIN_S)
            else:
                self._connected = bus, Caller(bus)
                return

    @property
    def _bus(self) -> stretto_bus.Bus:
        if self._connected is None:
            raise BusError(f"the bus at {redacted(self._url)} is not connected yet; call connect first")
        return self._connected[0]

    async def _stay_known(self) -> None:
        """Renew the credentials long before they expire, because the server then closes the connection.

        The wall clock counts only for the age of the first token, and can neither delay a renewal nor repeat it.
        """
        identity = self._identity
        age_s = time.time() - identity.began_s
        while identity.ends_s < float("inf"):
            every_s = min((identity.ends_s - identity.began_s) * _RENEWED_AFTER, _RENEWED_EVERY_S)
            again_s = every_s * _RENEWED_AGAIN
            await asyncio.sleep(min(max(every_s - age_s, again_s), every_s))
            age_s = every_s
            request = RenewCredentials(job=self.job, pod=self.pod, token=identity.token)
            try:
                reply = await self._ask(request, again_s)
                if reply.answer != "ok":
                    raise CallRefused("the actuator does not know this pod any more")
                identity.prolong(reply.token)
                age_s = 0.0
                await self._come_back(every_s * _QUIET_WITHIN)
            except Exception as error:  # whatever it is: nobody else has them prolonged
                left_s = identity.ends_s - time.time()
                log.warning("credentials not prolonged yet, they last for %.0f s: %s", left_s, error)

    async def _come_back(self, quiet_within_s: float) -> None:
        """Connect again, with the renewed credentials, at a moment when nobody waits.

        Requests on their way would have to be asked again, by services, too: the server lets this pod answer only
        what it was asked on the same connection.
        """
        deadline = self._loop.time() + quiet_within_s
        while self._exchanges and self._loop.time() < deadline:
            await asyncio.sleep(0.005)
        await self._bus.flush(1)
        await self._bus.reconnect()

    @property
    def credentials_end_s(self) -> float:
        """When the bus stops knowing this pod, seconds since the epoch; infinite without credentials."""
        return self._identity.ends_s

    def _run(self, work: Coroutine[Any, Any, Any], timeout_s: float) -> Any:
        future: Future[Any] = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except TimeoutError as error:
            future.cancel()
            raise BusError(f"the bus at {redacted(self._url)} did not answer for {timeout_s:.0f} s") from error
        except (Fault, OSError) as error:
            raise BusError(f"{redacted(self._url)}: {type(error).__name__}: {error}") from error

    # --- requests of this pod -----------------------------------------------------------------------------

    def request_id(self, kind: type[Message]) -> str:
        """Return a new id in the lane of this kind of request; the same id again is the same request."""
        serial = next(self._serials)  # one step, so that no other thread gets it
        return f"{self._life}-{registry.channel_of(kind).name}.{serial}"

    def call(self, request: Message, reply: type[M], timeout_s: float = 15.0, parent: str = "") -> M:
        """Ask the service that owns the job; repeats under one id until ``timeout_s`` is over.

        Raises:
            CallRefused: the service refused, with its reason.
            BusError: nobody answered.
        """
        channel = registry.channel_of(request)
        lane = self._lanes.setdefault(channel.name, threading.Lock())
        with lane, self._tracing.span(f"{channel.service} {channel.name}", parent) as span:
            answer = self._run(self._ask(request, timeout_s, span.traceparent), timeout_s + 5.0)
        if not isinstance(answer, reply):
            raise BusError(f"{channel.service} {channel.name} answers {type(answer).__name__}, not {reply.__name__}")
        return answer

    async def _ask(self, request: Message, timeout_s: float, trace: str = "") -> Any:
        if self._connected is None:
            raise BusError(f"the bus at {redacted(self._url)} is not connected yet; call connect first")
        channel = registry.channel_of(request)
        with self._exchange():
            try:
                return await self._connected[1].call(request, timeout_s, trace)
            except stretto_bus.CallRefused as refused:
                raise CallRefused(f"{channel.service} {channel.name} refused: {refused.message}") from None
            except CallTimeout as timeout:
                raise BusError(str(timeout)) from None

    @contextlib.contextmanager
    def _exchange(self) -> Generator[None]:
        self._exchanges += 1
        try:
            yield
        finally:
            self._exchanges -= 1

    def report(self, message: Message) -> None:
        """Publish telemetry; a report that gets lost on the way is not worth a wait."""
        self._reports += 1
        headers = headers_of(message, f"{self._life}:{self._reports}", time.time())
        self._loop.call_soon_threadsafe(self._publish, registry.subject_of(message), encode(message), headers)

    def _publish(self, subject: str, data: bytes, headers: dict[str, str]) -> None:
        with contextlib.suppress(BusFault, BusError):
            self._bus.offer(subject, data, headers)

    # --- requests to this pod -----------------------------------------------------------------------------

    def serve(self, request: type[Message], handler: Handler) -> None:
        """Answer requests to this pod; the handler runs in a thread. Its StrettoError becomes an error reply."""
        name = registry.channel_of(request).name

        def arrived(message: Msg) -> None:
            if message.reply:  # else it is an answer, which somebody had directed here
                self._loop.create_task(self._answer(request, handler, message))

        self._run(self._subscribe(f"pod.v1.{name}.{self.pod}.{self.job}", arrived), 10.0)

    async def _subscribe(self, subject: str, handler: Callable[[Msg], None]) -> None:
        def arrived(message: Msg) -> None:
            if message.subject == subject:  # else a consumer of another service delivers here what that one has stored
                handler(message)

        await self._bus.subscribe(subject, arrived)
        await self._bus.flush()

    async def _answer(self, request: type[Message], handler: Handler, message: Msg) -> None:
        code = ""
        with self._exchange():
            try:
                asked = decode(request, message.data)
                if asked.job != self.job:
                    raise WireError("job", asked.job, f"this pod belongs to {self.job}")
                data = encode(await self._loop.run_in_executor(self._workers, handler, asked))
            except WireError as error:
                code = "malformed"
                data = refusal(code, str(error), error.field, error.value, error.remedy)
            except StrettoError as error:
                code = "failed"
                data = refusal(code, str(error))
            except Exception as error:
                log.exception("answering %s failed", request.__name__)
                code = "internal"
                data = refusal(code, f"{type(error).__name__}: {error}")
            with contextlib.suppress(BusFault):  # the caller asks again
                await self._bus.send(message.reply, data, {ERROR_HEADER: code} if code else None)

    def follow(self, event: type[M], handler: Callable[[M], None]) -> None:
        """Call ``handler`` in a thread for every event of this kind and job from now on, in order."""
        self._run(self._follow(event, handler), 10.0)

    async def _follow(self, event: type[M], handler: Callable[[M], None]) -> None:
        channel = registry.channel_of(event)
        arrived: asyncio.Queue[Msg] = asyncio.Queue()

        async def handle() -> None:
            while True:
                message = await arrived.get()
                try:
                    told: Any = registry.parse_on(channel, message.subject, message.data)
                    await self._loop.run_in_executor(self._workers, handler, told)
                except WireError as error:
                    log.warning("%s ignored: %s", message.subject, error)
                except Exception:
                    log.exception("handling %s failed", message.subject)

        self._followers.add(self._loop.create_task(handle()))
        await self._subscribe(f"evt.v1.{channel.service}.{channel.name}.{self.job}", arrived.put_nowait)

    def close(self, timeout_s: float = 2.0) -> None:
        """Send what is waiting, then disconnect; never raises."""

        async def end() -> None:
            for follower in self._followers:
                follower.cancel()
            if self._staying is not None:
                self._staying.cancel()
            if self._connected is None:
                return
            if self._bus.connected:
                await self._bus.flush(1)
            await self._bus.close()

        try:
            self._run(end(), timeout_s)
        except BusError as error:
            log.warning("closing: %s", error)
