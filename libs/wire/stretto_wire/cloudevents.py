"""CloudEvents 1.0, binary mode: the attributes stand in ``ce-*`` headers, the data are the plain JSON body."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from stretto_messages.base import Message

from .registry import Channel, channel_of

SPEC_VERSION = "1.0"
CONTENT_TYPE = "application/json"


def source_of(service: str) -> str:
    """The CloudEvents source of everything that one service says."""
    return f"/stretto/{service}"


def headers_of(message: Message, event_id: str, time_s: float) -> dict[str, str]:
    """Headers of an event. ``event_id`` is also the ``Nats-Msg-Id``: equal ids are the same event, stored once.

    ``time_s`` is when it happened, in seconds since 1970-01-01 UTC.
    """
    channel = channel_of(message)
    return {
        "Nats-Msg-Id": event_id,
        "ce-specversion": SPEC_VERSION,
        "ce-id": event_id,
        "ce-source": source_of(channel.service),
        "ce-type": channel.type_name,
        "ce-subject": message.job,
        "ce-time": datetime.fromtimestamp(time_s, UTC).isoformat().replace("+00:00", "Z"),
        "ce-datacontenttype": CONTENT_TYPE,
    }


def headers_schema() -> dict[str, Any]:
    """JSON Schema of the headers that every event carries."""
    text = {"type": "string", "minLength": 1}
    return {
        "title": "CloudEventHeaders",
        "description": "CloudEvents 1.0 in binary mode. Further headers may be there.",
        "type": "object",
        "required": ["Nats-Msg-Id", "ce-specversion", "ce-id", "ce-source", "ce-type"],
        "properties": {
            "Nats-Msg-Id": {**text, "description": "equals ce-id; the server stores an id once"},
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
    """Headers as the channel's service would write them."""
    return {
        **headers_of(message, f"{channel.service}:4711:0", 1_795_000_000.25),
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    }
