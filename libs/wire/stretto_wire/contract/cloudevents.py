"""CloudEvents 1.0, binary mode: the attributes stand in ``ce-*`` headers, the data are the plain JSON body."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache, lru_cache
from typing import Any

from stretto_messages.base import Message

from .registry import Channel, channel_of

SPEC_VERSION = "1.0"
CONTENT_TYPE = "application/json"


def headers_of(message: Message, event_id: str, time_s: float, publisher: str = "", trace: str = "") -> dict[str, str]:
    """Return the headers of what is published without a fence. ``event_id`` of an event is also the ``Nats-Msg-Id``:
    the server stores such an id once, so that repeating is harmless. Telemetry is sent once.

    ``time_s`` is the time of the event in seconds since 1970-01-01 UTC. ``publisher`` is by default the service or role
    of the message's channel. ``trace`` is a W3C ``traceparent``.
    """
    lines = event_lines(message, event_id, time_s, publisher, trace)
    pairs = (line.split(": ", 1) for line in lines.removesuffix("\r\n").split("\r\n"))
    once = {} if channel_of(message).kind == "tel" else {"Nats-Msg-Id": event_id}
    return once | {name: value for name, value in pairs}


def event_lines(message: Message, event_id: str, time_s: float, publisher: str = "", trace: str = "") -> str:
    """Return the text of an event's headers as NATS sends it, without ``Nats-Msg-Id``.

    Services use this text: a dictionary for every event costs five times as much.
    """
    lines = _shared_lines(type(message), publisher)
    lines = f"{lines}ce-id: {event_id}\r\nce-subject: {message.job}\r\nce-time: {_rfc3339(time_s)}\r\n"
    return f"{lines}traceparent: {' '.join(trace.split())}\r\n" if trace else lines


@cache
def _shared_lines(message: type[Message], publisher: str) -> str:
    """Return the header lines that all messages of a type share."""
    channel = channel_of(message)
    shared = {
        "ce-specversion": SPEC_VERSION,
        "ce-type": channel.type_name,
        "ce-source": f"/stretto/{publisher or channel.service}",
        "ce-datacontenttype": CONTENT_TYPE,
        **({"Nats-TTL": f"{channel.kept_s}s"} if channel.kind == "evt" and channel.kept_s is not None else {}),
    }
    return "".join(f"{name}: {value}\r\n" for name, value in shared.items())


def _rfc3339(time_s: float) -> str:
    """Return a time in UTC with microseconds; the text of a second is cached."""
    seconds, micros = divmod(round(time_s * 1e6), 1_000_000)
    return f"{_second(seconds)}.{micros:06d}Z"


@lru_cache(maxsize=64)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def headers_schema() -> dict[str, Any]:
    """Return the JSON Schema of the headers that every event carries."""
    text = {"type": "string", "minLength": 1}
    return {
        "title": "CloudEventHeaders",
        "description": "CloudEvents 1.0 in binary mode. Further headers may be there.",
        "type": "object",
        "required": ["ce-specversion", "ce-id", "ce-source", "ce-type"],
        "properties": {
            "Nats-Msg-Id": {**text, "description": "equals ce-id, where it is there: the server stores it once"},
            "ce-specversion": {"const": SPEC_VERSION},
            "ce-id": {**text, "description": "unique within ce-source"},
            "ce-source": {**text, "description": "URI reference of the publishing service"},
            "ce-type": {"type": "string", "pattern": r"^stretto\.[a-z]+\.[a-z-]+\.v1$"},
            "ce-subject": {**text, "description": "the job"},
            "ce-time": {**text, "format": "date-time"},
            "ce-datacontenttype": {"const": CONTENT_TYPE},
            "traceparent": {
                "description": "W3C Trace Context: one trace from submit to the last shard",
                "type": "string",
                "pattern": "^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$",
            },
        },
    }


def example_headers(channel: Channel, message: Message) -> dict[str, str]:
    """Return realistic headers of a message, as the channel's service writes them."""
    headers = headers_of(message, f"{channel.service}:4711:0", 1_795_000_000.25)
    if channel.kind == "evt" and channel.service != "gateway":  # outputs of owners stand behind a fence
        del headers["Nats-Msg-Id"]
    return {
        **headers,
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    }
