"""A pod's connection to NATS: an asyncio loop in a thread of its own, so that training never waits for it.

Requests to services carry an id ``<lane>.<n>`` and are repeated under it until they are answered: the owner remembers
the last reply of each lane, and a lane has one request in flight. Nobody listening is known at once (NoResponders).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import nats
import nats.errors
from nats.aio.msg import Msg
from stretto_messages.actuator import RenewCredentials, RenewCredentialsReply
from stretto_messages.base import Message
from stretto_messages.refusals import ERROR_HEADER, Refusal, Refused
from stretto_wire import registry
from stretto_wire.cloudevents import headers_of
from stretto_wire.codec import decode, encode
from stretto_wire.errors import WireError
from stretto_wire.inboxes import inbox_of_pod

from .errors import BusError, CallRefused, StrettoError
from .identity import Connection, Identity
from .tracing import Tracing

M = TypeVar("M", bound=Message)
Handler = Callable[[Any], Message]

_ATTEMPT_S = 1.0
_NO_OWNER_S = 0.05
_BUSY = "busy"
_RENEWED_AFTER, _RENEWED_AGAIN = 0.5, 0.05
"""of the life of credentials"""
_QUIET_WITHIN_S = 5.0

log = logging.getLogger("stretto.bus")


class Bus:
    """``job`` and ``pod`` say whose connection it is. Methods may be called from any thread but the bus's own."""

    def __init__(self, url: str, job: str, pod: str, tracing: Tracing, identity: Identity | None = None) -> None:
        self.job, self.pod = job, pod
        self._url = url
        self._identity = identity or Identity()
        self._tracing = tracing
        self._client = Connection()
        self._loop = asyncio.new_event_loop()
        self._workers = ThreadPoolExecutor(4, thread_name_prefix="pod-request")
        self._life = f"{pod}-{uuid.uuid4().hex[:8]}"
        self._lanes: dict[str, threading.Lock] = {}
        self._serial = 0
        self._told = 0
        self._talks = 0
        """requests and answers on their way"""
        self._last_error = ""
        threading.Thread(target=self._loop.run_forever, name="bus", daemon=True).start()

    def connect(self, timeout_s: float = 30.0) -> None:
        """Connect, waiting for the server; later breaks are mended for ever. Raises BusError."""
        self._run(self._connect(), timeout_s)
        self._spawn(self._stay_known())

    async def _connect(self) -> None:
        async def failed(error: Exception) -> None:
            self._last_error = f"{type(error).__name__}: {error}"
            log.warning("bus: %s", self._last_error)

        await self._client.connect(
            servers=self._url.split(","),
            name=f"{self.job}/{self.pod}",
            error_cb=failed,
            max_reconnect_attempts=-1,
            reconnect_time_wait=cast("int", 0.2),
            connect_timeout=2,
            ping_interval=20,
            inbox_prefix=inbox_of_pod(self.job, self.pod).encode(),
            **self._identity.options(),
        )

    async def _stay_known(self) -> None:
        """Have the credentials prolonged long before they end: the server hangs up on who holds ended ones."""
        identity = self._identity
        while identity.ends_s < float("inf"):
            life_s = identity.ends_s - identity.began_s
            await asyncio.sleep(max(identity.began_s + life_s * _RENEWED_AFTER - time.time(), life_s * _RENEWED_AGAIN))
            request = RenewCredentials(job=self.job, pod=self.pod, token=identity.token)
            try:
                message = await self._ask(request, {}, life_s * _RENEWED_AGAIN)
                if message.headers and ERROR_HEADER in message.headers:
                    raise CallRefused(_reason(message.data, "actuator renew-credentials"))
                reply = decode(RenewCredentialsReply, message.data)
                if reply.answer != "ok":
                    raise CallRefused("the actuator does not know this pod any more")
                identity.prolong(reply.token)
                await self._come_back()
            except Exception as error:  # whatever it is: nobody else has them prolonged
                left_s = identity.ends_s - time.time()
                log.warning("credentials not prolonged yet, they last for %.0f s: %s", left_s, error)

    async def _come_back(self) -> None:
        """Connect anew at a moment when nobody waits: what is on its way would have to be asked again."""
        deadline = self._loop.time() + _QUIET_WITHIN_S
        while self._talks and self._loop.time() < deadline:
            await asyncio.sleep(0.005)
        await self._client.flush(1)
        await self._client.force_reconnect()

    @property
    def credentials_end_s(self) -> float:
        """Until when the bus knows this pod, seconds since the epoch; without credentials for ever."""
        return self._identity.ends_s

    def _run(self, work: Coroutine[Any, Any, Any], timeout_s: float) -> Any:
        future: Future[Any] = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except TimeoutError as error:
            future.cancel()
            said = f" ({self._last_error})" if self._last_error else ""
            raise BusError(
                f"the bus at {_without_password(self._url)} did not answer for {timeout_s:.0f} s{said}"
            ) from error
        except (nats.errors.Error, OSError) as error:
            raise BusError(f"{_without_password(self._url)}: {type(error).__name__}: {error}") from error

    # --- what this pod asks -------------------------------------------------------------------------------

    def request_id(self, kind: type[Message]) -> str:
        """A new id in the lane of this kind of request; the same id again is the same request."""
        self._serial += 1
        return f"{self._life}-{registry.channel_of(kind).name}.{self._serial}"

    def call(self, request: Message, reply: type[M], timeout_s: float = 15.0, parent: str = "") -> M:
        """Ask the service that owns the job; repeats under one id until ``timeout_s`` is over.

        Raises CallRefused with the service's reason, BusError when nobody answered.
        """
        channel = registry.channel_of(request)
        lane = self._lanes.setdefault(channel.name, threading.Lock())
        with lane, self._tracing.span(f"{channel.service} {channel.name}", parent) as span:
            request_id = getattr(request, "request_id", None) or self.request_id(type(request))
            headers = {"request-id": str(request_id)}
            if span.traceparent:
                headers["traceparent"] = span.traceparent
            message = self._run(self._ask(request, headers, timeout_s), timeout_s + 5.0)
        if message.headers and ERROR_HEADER in message.headers:
            raise CallRefused(_reason(message.data, f"{channel.service} {channel.name}"))
        return decode(reply, message.data)

    async def _ask(self, request: Message, headers: dict[str, str], timeout_s: float) -> Msg:
        subject, data = registry.subject_of(request), encode(request)
        deadline = time.monotonic() + timeout_s
        reason = "nobody owns the job at the moment"
        while (left := deadline - time.monotonic()) > 0:
            try:
                with self._talking():
                    message = await self._client.request(subject, data, min(_ATTEMPT_S, left), headers=headers)
                if message.headers is None or message.headers.get(ERROR_HEADER) != _BUSY:
                    return message
                reason = "the service has too many requests waiting"
            except nats.errors.NoRespondersError:
                reason = "nobody owns the job at the moment"
            except (nats.errors.Error, TimeoutError) as error:
                reason = type(error).__name__
            await asyncio.sleep(_NO_OWNER_S)
        raise BusError(f"{subject}: no answer for {timeout_s:.0f} s ({reason})")

    @contextlib.contextmanager
    def _talking(self) -> Generator[None]:
        self._talks += 1
        try:
            yield
        finally:
            self._talks -= 1

    def tell(self, message: Message) -> None:
        """Publish telemetry; one that gets lost on the way is not worth a wait."""
        self._told += 1
        headers = headers_of(message, f"{self._life}:{self._told}", time.time())
        self._spawn(self._publish(registry.subject_of(message), encode(message), headers))

    async def _publish(self, subject: str, data: bytes, headers: dict[str, str]) -> None:
        if self._client.is_connected:
            await self._client.publish(subject, data, headers=headers)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop)

    # --- what this pod is asked ---------------------------------------------------------------------------

    def serve(self, request: type[Message], handler: Handler) -> None:
        """Answer requests to this pod; the handler runs in a thread. Its StrettoError becomes an error reply."""
        name = registry.channel_of(request).name

        async def arrived(message: Msg) -> None:
            self._loop.create_task(self._answer_one(request, handler, message))

        self._run(self._subscribe(f"pod.v1.{name}.{self.pod}.{self.job}", arrived), 10.0)

    async def _subscribe(self, subject: str, callback: Callable[[Msg], Coroutine[Any, Any, None]]) -> None:
        await self._client.subscribe(subject, cb=callback)
        await self._client.flush()

    async def _answer_one(self, request: type[Message], handler: Handler, message: Msg) -> None:
        with self._talking():
            await self._answer(request, handler, message)

    async def _answer(self, request: type[Message], handler: Handler, message: Msg) -> None:
        headers: dict[str, str] | None = None
        try:
            asked = decode(request, message.data)
            if asked.job != self.job:
                raise WireError("job", asked.job, f"this pod belongs to {self.job}")
            reply = await self._loop.run_in_executor(self._workers, handler, asked)
            data = encode(reply)
        except WireError as error:
            headers, data = _refused("malformed", str(error), error.field, error.value, error.remedy)
        except StrettoError as error:
            headers, data = _refused("failed", str(error))
        except Exception as error:
            log.exception("answering %s failed", request.__name__)
            headers, data = _refused("internal", f"{type(error).__name__}: {error}")
        if message.reply and self._client.is_connected:
            await self._client.publish(message.reply, data, headers=headers)

    def follow(self, event: type[M], handler: Callable[[M], None]) -> None:
        """Call ``handler`` for every event of this kind and job from now on."""
        channel = registry.channel_of(event)

        async def arrived(message: Msg) -> None:
            try:
                heard = decode(event, message.data)
            except WireError as error:
                log.warning("%s ignored: %s", message.subject, error)
                return
            await self._loop.run_in_executor(self._workers, handler, heard)

        self._run(self._subscribe(f"evt.v1.{channel.service}.{channel.name}.{self.job}", arrived), 10.0)

    def close(self, timeout_s: float = 2.0) -> None:
        """Send what is waiting, then disconnect; never raises."""

        async def end() -> None:
            if self._client.is_connected:
                await self._client.flush(1)
            await self._client.close()

        try:
            self._run(end(), timeout_s)
        except BusError as error:
            log.warning("closing: %s", error)


def _refused(
    code: str, message: str, field: str = "", value: str = "", remedy: str = ""
) -> tuple[dict[str, str], bytes]:
    """Headers and body of an error reply."""
    refusal = Refusal(
        code=code, message=message[:2000], field=field[:500], value=str(value)[:500], remedy=remedy[:2000]
    )
    return {ERROR_HEADER: code}, encode(Refused(error=refusal))


def _reason(data: bytes, where: str) -> str:
    try:
        return f"{where} refused: {decode(Refused, data).error.message}"
    except ValueError:
        return f"{where} refused: {data[:200]!r}"


def _without_password(url: str) -> str:
    parts = urlsplit(url.split(",")[0])
    return f"{parts.scheme}://{parts.hostname}:{parts.port}"
