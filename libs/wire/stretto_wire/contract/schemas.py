"""JSON Schema 2020-12 of every message and reply, derived from the models."""

from __future__ import annotations

from typing import Any, cast

from stretto_messages.base import Record

from ..codec import adapter_of
from ..jobspec.schema import Schema, WithoutFieldTitles, named
from .registry import Channel

REFUSED = "refused.v1.json"


def schema_name(channel: Channel, *, reply: bool = False) -> str:
    """Return the file name and relative ``$id`` of a message's schema; its example has the same name."""
    return f"{channel.kind}.{channel.service}.{channel.name}{'.reply' if reply else ''}.v1.json"


def message_schema(message_type: type[Record], name: str) -> Schema:
    """Return the schema that a reader of v1 accepts. It is open: a newer writer may add fields."""
    return _opened(named(adapter_of(message_type).json_schema(schema_generator=WithoutFieldTitles), name))


def _opened(node: Any) -> Any:
    if isinstance(node, dict):
        items = cast(Schema, node).items()
        return {key: _opened(value) for key, value in items if not (key == "additionalProperties" and value is False)}
    if isinstance(node, list):
        return [_opened(item) for item in cast(list[Any], node)]
    return node
