"""Event streams, without a gap or a repetition."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import Unreachable, Unusable
from .commands import Emit, Now, Open, Pause, Read, Request, Send, Steps, TransportFault
from .exchange import document_of, error_of, problem
from .server_sent import Frame, Parser

RECONNECT_S = 30.0
"""How long a broken stream waits for the gateway."""
RECONNECT_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class Event:
    """A stored event. ``id`` is its sequence in the stream of all events; ``body`` the gateway's document of it, whose
    ``data`` is the event itself."""

    id: int
    name: str
    body: dict[str, Any]

    @property
    def time_s(self) -> float:
        """Return when it was stored, in seconds since 1970-01-01 UTC."""
        return float(self.body["time_s"])

    @property
    def job(self) -> str:
        """Return the name of its job."""
        return str(self.body["job"])

    @property
    def service(self) -> str:
        """Return the service that told it."""
        return str(self.body["service"])

    @property
    def data(self) -> dict[str, Any]:
        """Return the fields of the message; :func:`stretto_wire.parse` makes a typed one of it."""
        return self.body["data"]


def events(job: str | None, after: int, follow: bool, names: Sequence[str]) -> Steps[int]:
    """Emit the events after a sequence, each once and in order; return the sequence of the last one.

    1. Read from the sequence of the last event that was complete (``Last-Event-ID``).
    2. If the connection breaks, wait until the gateway is back, and begin again with 1.

    Raises ClientError.
    """
    path = f"/jobs/{job}/events" if job else "/events"
    params = (("follow", "true" if follow else "false"), *(("event", name) for name in names))
    last = after
    while True:
        request = Request("GET", path, params, {"Last-Event-ID": str(last)})
        parser = Parser()
        try:
            answer = yield Open(request)
            if answer.status >= 400:
                raise problem(answer)
            while part := (yield Read()):
                for frame in parser.feed(part):
                    event = event_of(frame)
                    if event.id > last:
                        last = event.id
                        yield Emit(event)
            return last
        except TransportFault as fault:
            if fault.kind != "broken":
                raise error_of(fault) from fault
        yield from _wait_back()


def event_of(frame: Frame) -> Event:
    """Return the event in a frame. Raises Unusable."""
    try:
        return Event(int(frame.id), frame.name, json.loads(frame.data))
    except ValueError as error:
        raise Unusable(f"the stream has a frame that is no event ({error}): {frame.data[:100]}") from None


def _wait_back() -> Steps[None]:
    """Wait until the gateway answers and has read the whole stream: before, it does not know older jobs."""
    reason = "it does not answer"
    deadline_s = (yield Now()) + RECONNECT_S
    while (yield Now()) < deadline_s:
        try:
            answer = yield Send(Request("GET", "/status"))
            if answer.status == 200 and document_of(answer)["ready"]:
                return
            reason = f"it is still reading the stream ({answer.status})"
        except TransportFault as fault:
            reason = fault.text
        yield Pause(RECONNECT_PAUSE_S)
    raise Unreachable(f"the gateway went away: {reason}; see `stretto status`")
