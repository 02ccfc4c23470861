"""The AsyncAPI 3.0 document of the whole system: channels with senders, receivers and place in JetStream.

An AsyncAPI document usually describes one application; here an operation names its service in its id and tag. AsyncAPI
has no words for stream, stored subject and retention: they stand in ``x-jetstream``.
"""

from __future__ import annotations

from typing import Any

from stretto_messages.base import Message, Record, example_of
from stretto_messages.refusals import ERROR_HEADER, Refused
from stretto_wire.codec import document_of
from stretto_wire.contract.cloudevents import example_headers
from stretto_wire.contract.registry import (
    CHANNELS,
    DEAD_LETTERS,
    EVENTS_KEPT_S,
    PARTITIONS,
    PATTERN_OF_STREAM,
    STORED_AS,
    STREAM,
    SUBJECTS_OF_STREAM,
    SUBJECTS_OF_TELEMETRY,
    TELEMETRY,
    TELEMETRY_KEPT_PER_POD,
    TELEMETRY_KEPT_S,
    Channel,
)
from stretto_wire.contract.schemas import REFUSED, schema_name

Document = dict[str, Any]

_DESCRIPTION = """\
All messages between Stretto's services, pods and readers, generated from libs/wire.

Events are CloudEvents 1.0 in binary mode: the attributes stand in `ce-*` headers, the body is plain JSON.
The stream stores a message under its subject with the job's partition in front; a reader of JetStream filters by
`*.evt.v1.>`, a plain NATS subscriber by `evt.v1.>`. Ignore unknown fields: v1 grows by optional fields.
"""

_KINDS = {
    "evt": "an event, stored; anybody may read it",
    "tel": "telemetry, stored for an hour at most",
    "rpc": "a request to the owner of the job, journalled before the reply leaves",
    "pod": "a request straight to one pod, not stored",
}


def document() -> Document:
    """Return the whole document, ready for YAML or JSON."""
    channels: Document = {}
    operations: Document = {}
    messages: Document = {}
    for channel in CHANNELS:
        key = channel_key(channel)
        channels[key] = _channel(channel)
        messages[channel.message.__name__] = _message(channel)
        operations.update(_operations(channel))
        if channel.reply is not None:
            channels[f"{key}.reply"] = _reply_channel(channel.reply)
            messages[channel.reply.__name__] = _reply(channel, channel.reply)
    channels["dlq"] = _dead_letters()
    messages["DeadLetter"] = _dead_letter()
    messages["Refused"] = _refused()
    return {
        "asyncapi": "3.0.0",
        "id": "urn:stretto:wire:v1",
        "info": {"title": "Stretto", "version": "1.0.0", "description": _DESCRIPTION},
        "defaultContentType": "application/json",
        "servers": _servers(),
        "channels": channels,
        "operations": operations,
        "components": {
            "messages": messages,
            "messageTraits": {"cloudEvent": {"headers": _schema_object("./headers.schema.json")}},
        },
        "x-jetstream": _streams(),
    }


def channel_key(channel: Channel) -> str:
    """Return the key of a channel in the document, and of its message in the compatibility baseline."""
    return f"{channel.kind}.{channel.service}.{channel.name}"


def address(channel: Channel) -> str:
    """Return the subject of a channel with its parameters named."""
    tokens = channel.pattern.split(".")
    names = ["job"] if channel.kind in ("evt", "rpc") else ["pod", "job"]
    return ".".join([*tokens[: -len(names)], *(f"{{{name}}}" for name in names)])


def _servers() -> Document:
    return {
        "loopback": {
            "host": "127.0.0.1:4222",
            "protocol": "nats",
            "description": "the embedded server of `stretto up`, on loopback only; the port is chosen at start",
            "bindings": {"nats": {}},
        }
    }


def _streams() -> Document:
    return {
        "streams": {
            STREAM: {
                "description": "events and journals, in the one order that every service replays",
                "subjects": list(SUBJECTS_OF_STREAM),
                "subject_transform": {"source": PATTERN_OF_STREAM, "destination": STORED_AS},
                "partitions": PARTITIONS,
                "kept_s": EVENTS_KEPT_S,
            },
            TELEMETRY: {
                "description": "reports of pods; the oldest go first when it is full. The owner of a partition "
                "journals the ranges that it handles",
                "subjects": list(SUBJECTS_OF_TELEMETRY),
                "subject_transform": {"source": PATTERN_OF_STREAM, "destination": STORED_AS},
                "partitions": PARTITIONS,
                "kept_s": TELEMETRY_KEPT_S,
                "kept_per_subject": TELEMETRY_KEPT_PER_POD,
            },
            DEAD_LETTERS: {
                "description": "rejected messages: the reason in a header, the original as body",
                "subjects": ["dlq.>"],
                "kept_s": EVENTS_KEPT_S,
            },
        },
        "consumers": "the owner of a partition reads it by one ordered consumer without acknowledgements; its "
        "snapshot holds the position",
    }


def _channel(channel: Channel) -> Document:
    message = channel.message
    parameters: Document = {"job": {"description": "the job's name", "examples": ["ctr-ranking-42"]}}
    if channel.kind in ("tel", "pod"):
        parameters = {"pod": {"description": "role and number", "examples": ["worker-0", "ps-1"]}, **parameters}
    return {
        "address": address(channel),
        "title": channel.name,
        "summary": _first_line(message),
        "description": _KINDS[channel.kind],
        "parameters": parameters,
        "messages": {message.__name__: {"$ref": f"#/components/messages/{message.__name__}"}},
        "x-jetstream": _storage(channel),
    }


def _storage(channel: Channel) -> Document:
    if channel.kind == "pod":
        return {"stored": False}
    if channel.kind == "rpc":
        return {
            "stream": STREAM,
            "journalled_as": f"journal.{channel.service}.{{partition}}",
            "readers": [channel.service],
        }
    return {
        "stream": TELEMETRY if channel.kind == "tel" else STREAM,
        "stored_subject": f"{{partition}}.{address(channel)}",
        "kept_s": TELEMETRY_KEPT_S if channel.kind == "tel" else EVENTS_KEPT_S,
        "readers": ["external readers" if reader == "*" else reader for reader in channel.readers],
    }


def _reply_channel(reply: type[Message]) -> Document:
    return {
        "address": None,
        "description": "the reply subject that the request names",
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in (reply.__name__, "Refused")},
    }


def _message(channel: Channel) -> Document:
    message = channel.message
    example: Document = {"name": "realistic", "payload": _payload(message)}
    described: Document = {
        "name": channel.type_name,
        "title": message.__name__,
        "summary": _first_line(message),
        "contentType": "application/json",
        "payload": _schema_object(f"./schemas/{schema_name(channel)}"),
        "examples": [example],
    }
    if channel.kind == "evt":
        described["traits"] = [{"$ref": "#/components/messageTraits/cloudEvent"}]
        example["headers"] = example_headers(channel, example_of(message))
    return described


def _reply(channel: Channel, reply: type[Message]) -> Document:
    return {
        "name": f"{channel.type_name}.reply",
        "title": reply.__name__,
        "summary": _first_line(reply),
        "contentType": "application/json",
        "payload": _schema_object(f"./schemas/{schema_name(channel, reply=True)}"),
        "examples": [{"name": "realistic", "payload": _payload(reply)}],
    }


def _refused() -> Document:
    return {
        "name": "stretto.refused.v1",
        "title": "Refused",
        "summary": _first_line(Refused),
        "contentType": "application/json",
        "headers": _schema_object_of(_texts({ERROR_HEADER: "present: the body is a refusal"})),
        "payload": _schema_object(f"./schemas/{REFUSED}"),
        "examples": [{"name": "realistic", "payload": document_of(example_of(Refused))}],
    }


def _dead_letters() -> Document:
    return {
        "address": "dlq.{subject}",
        "title": "dead letters",
        "summary": "Rejected messages, under their original subject.",
        "parameters": {"subject": {"description": "the whole original subject", "examples": ["tel.v1.ps.ps-0.a"]}},
        "messages": {"DeadLetter": {"$ref": "#/components/messages/DeadLetter"}},
        "x-jetstream": {"stream": DEAD_LETTERS, "kept_s": EVENTS_KEPT_S},
    }


def _dead_letter() -> Document:
    texts = {
        "reason": "kind of fault",
        "error": "field, value and remedy",
        "service": "service that rejected the message",
        "seq": "sequence of the original in its stream",
    }
    return {
        "name": "stretto.dead-letter.v1",
        "title": "DeadLetter",
        "summary": "The original body; the headers state why it was rejected.",
        "headers": _schema_object_of(_texts(texts)),
    }


def _texts(described: dict[str, str]) -> Document:
    properties = {name: {"type": "string", "description": text} for name, text in described.items()}
    return {"type": "object", "required": list(described), "properties": properties}


def _schema_object_of(schema: Document) -> Document:
    return {"schemaFormat": "application/schema+json;version=2020-12", "schema": schema}


def _schema_object(path: str) -> Document:
    return {"schemaFormat": "application/schema+json;version=2020-12", "schema": {"$ref": path}}


def _payload(message_type: type[Message]) -> Any:
    return document_of(example_of(message_type))


def _operations(channel: Channel) -> Document:
    """Return one operation per service and direction. Readers send requests; the answering service receives them."""
    key = channel_key(channel)
    asked = channel.reply is not None
    sender, receivers = (channel.readers, (channel.service,)) if asked else ((channel.service,), channel.readers)
    operations: Document = {}
    for action, services in (("send", sender), ("receive", receivers)):
        for name in services:
            service = "external" if name == "*" else name
            operations[f"{service}.{action}.{key}"] = _operation(channel, action, service)
    return operations


def _operation(channel: Channel, action: str, service: str) -> Document:
    key = channel_key(channel)
    operation: Document = {
        "action": action,
        "channel": {"$ref": f"#/channels/{key}"},
        "summary": f"{service} {'sends' if action == 'send' else 'receives'} {channel.message.__name__}",
        "tags": [{"name": service}],
        "messages": [{"$ref": f"#/channels/{key}/messages/{channel.message.__name__}"}],
    }
    if channel.reply is not None:
        operation["reply"] = {
            "channel": {"$ref": f"#/channels/{key}.reply"},
            "messages": [
                {"$ref": f"#/channels/{key}.reply/messages/{name}"} for name in (channel.reply.__name__, "Refused")
            ],
        }
    return operation


def _first_line(message_type: type[Record]) -> str:
    return " ".join((message_type.__doc__ or "").split("\n\n", maxsplit=1)[0].split())
