"""Event streams, without a gap or a repetition."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any

from ..errors import ClientError, Refused, Unreachable, Unusable
from .connection import Answer, GatewayConnection, GatewayRequest, TransportFault, below
from .exchange import BAD_REQUEST, accepted, error_of, opened
from .outage import RECONNECT_PAUSE_S, Patience, Unavailable, available
from .server_sent import Frame, Parser

END_LOST = "end-lost"
"""Name of the event by which a gateway tells that its server has lost what was stored after the event's ``id``."""


@dataclass(frozen=True, slots=True)
class Event:
    """A stored event. ``id`` is its sequence in the stream of all events; ``body`` the gateway's document of it, whose
    ``data`` is the event itself."""

    id: int
    name: str
    body: dict[str, Any]

    @property
    def time_s(self) -> float:
        """Return the time at which the event was stored, in seconds since 1970-01-01 UTC."""
        return float(self.body["time_s"])

    @property
    def job(self) -> str:
        """Return the name of the event's job."""
        return str(self.body["job"])

    @property
    def service(self) -> str:
        """Return the service that told the event."""
        return str(self.body["service"])

    @property
    def data(self) -> dict[str, Any]:
        """Return the fields of the message; :func:`stretto_wire.parse` makes a typed one of it."""
        return self.body["data"]


async def events(
    connection: GatewayConnection,
    job: str | None,
    after: int,
    follow: bool,
    names: Iterable[str],
    has_answered: bool = False,
) -> AsyncGenerator[Event]:
    """Yield the events after a sequence, each once and in order; ``END_LOST`` undoes those that came with a later id.

    1. Read from the last event that was complete: ``Last-Event-ID`` has its sequence, and its time, by which the
       gateway knows whether the event still is stored. A gateway of a version that knows no such time refuses it, and
       is asked by the sequence alone.
    2. If the connection breaks, or a stream that is to be followed ends, wait until the gateway is back, and begin
       again with 1.

    ``has_answered``: the gateway was there just now, so that it will come back where nobody answers.
    Raises ClientError.
    """
    path = below("jobs", job, "events") if job else "/events"
    params = (("follow", "true" if follow else "false"), *(("event", name) for name in names))
    last, stored, patience = after, "", Patience(connection)
    while True:
        parser, resumed = Parser(), {"Last-Event-ID": f"{last}{stored}"}
        try:
            async with opened(connection, GatewayRequest("GET", path, params, resumed)) as found:
                async for part in _stream_of(*found):
                    patience.over()
                    for frame in parser.feed(part):
                        event = event_of(frame)
                        is_loss, time_s = event.name == END_LOST, event.body.get("time_s")
                        is_news = event.id < last if is_loss else event.id > last
                        if is_loss or is_news:
                            stored = f"@{time_s}" if time_s and not is_loss else ""
                        if is_news:
                            last = event.id
                            yield event
            if not follow:
                return
            # a gateway that ends every stream at once is not asked without a pause
            await connection.pause(RECONNECT_PAUSE_S)
            error: ClientError = Unreachable("the gateway ends every stream at once; see `stretto status`")
        except Refused as refused:
            if refused.status != BAD_REQUEST or not stored:
                raise
            stored = ""
            continue
        except Unavailable as unavailable:
            error = unavailable.error
        except TransportFault as fault:
            error = error_of(fault)
            if fault.kind == "certificate" or (fault.kind != "broken" and not has_answered):
                raise error from fault
        await patience.outlast(error)
        has_answered = True


def _stream_of(answer: Answer, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Return the parts of a stream of events. Raises ClientError, Unavailable."""
    kind = accepted(available(answer)).headers.get("content-type", "nothing")
    if answer.status != 200 or not kind.startswith("text/event-stream"):
        found = f"{kind}, HTTP {answer.status}"
        raise Unusable(f"{answer.url} is no stream of events ({found}): is it the address of a gateway?")
    return parts


def event_of(frame: Frame) -> Event:
    """Return the event in a frame. Raises Unusable."""
    try:
        return Event(int(frame.id), frame.name, json.loads(frame.data))
    except ValueError as error:
        raise Unusable(f"the stream has a frame that is no event ({error}): {frame.data[:100]}") from None
