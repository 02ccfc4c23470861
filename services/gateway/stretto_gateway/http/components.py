"""Components of openapi.json that FastAPI does not know: events (``Event``), job files (``job.*``), data of growing
jobs, problems, and lines of the audit log and of journals.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import TypeAdapter
from stretto_messages.base import EpochSeconds, JobId
from stretto_wire.contract.audit_log import AuditEntry
from stretto_wire.contract.excerpts import StreamFacts
from stretto_wire.contract.registry import CHANNELS, Channel
from stretto_wire.contract.schemas import message_schema, schema_name
from stretto_wire.jobspec.schema import Schema, job_schema
from stretto_wire.rest.answers import Arrived
from stretto_wire.rest.journal import JournalEnd, StoredMessage
from stretto_wire.rest.problems import ProblemBody

from ..read_model.parts import ALWAYS, PARTS_OF
from .event_stream import END_LOST

AT = "#/components/schemas/"
EVENT, AUDIT_LINE, JOB, ARRIVED = "Event", "AuditEntry", "job.JobSpec", "Arrived"
PROBLEM, PARTS, EVENT_PAGE, AUDIT_PAGE = "ProblemBody", "JobParts", "EventPage", "AuditPage"
JOURNAL_LINE = "JournalLine"
"""Components that routes name and FastAPI does not know."""
EVENTS = "events."
"""Beginning of the names of components that messages share: a message may get further fields, a view is complete."""


def ref(component: str) -> Schema:
    """Return the reference to a component of the document."""
    return {"$ref": AT + component}


def content(media_type: str, component: str) -> dict[str, Any]:
    """Return the content of a body or an answer that FastAPI does not describe."""
    return {"content": {media_type: {"schema": ref(component)}}}


def completed(document: Schema) -> Schema:
    """Add the components that FastAPI does not know to its document."""
    components: Schema = document["components"]["schemas"]
    _adopt(components, job_schema(), "job.")
    _adopt(components, Arrived.model_json_schema(), "")
    _adopt(components, ProblemBody.model_json_schema(mode="serialization"), "")
    _adopt(components, TypeAdapter(AuditEntry).json_schema(mode="serialization"), "")
    kinds = (StreamFacts, StoredMessage, JournalEnd)
    for kind in kinds:
        _adopt(components, TypeAdapter(kind).json_schema(mode="serialization"), "")
    text = "A line of a journal: the first, one of those between, the last."
    one_of = [ref(kind.__name__) for kind in kinds]
    components[JOURNAL_LINE] = {"title": JOURNAL_LINE, "description": text, "oneOf": one_of}
    whole = components["JobView"]
    text = "Parts of a job: those fields of JobView that were asked for."
    components[PARTS] = {**whole, "title": PARTS, "description": text, "required": sorted(ALWAYS)}
    frames = [_frame(components, channel) for channel in CHANNELS if channel.kind == "evt"]
    mapping = {name: AT + title for name, title in frames}
    components[EVENT] = {
        "title": EVENT,
        "description": "The `data` of one server-sent event; its `id` is `seq`. Ignore events of unknown names. "
        f"`{END_LOST}`, of no job: the server has lost what it had stored after `seq`; forget events of larger ids. "
        "`x-parts`: the parts of a job that each may change.",
        "oneOf": [ref(title) for _, title in frames],
        "discriminator": {"propertyName": "event", "mapping": mapping},
        "x-parts": {event: list(parts) for event, parts in PARTS_OF.items()},
    }
    before: Schema = {"anyOf": [{"type": "integer"}, {"type": "null"}], "description": "leads to older ones, if any"}
    components[EVENT_PAGE] = _page(EVENT_PAGE, "Events", "events", EVENT, before)
    components[AUDIT_PAGE] = _page(AUDIT_PAGE, "Entries of the audit log", "entries", AUDIT_LINE, before)
    document["components"]["schemas"] = dict(sorted(components.items()))
    return document


def _page(title: str, contents: str, field: str, item: str, before: Schema) -> Schema:
    return {
        "title": title,
        "description": f"{contents}, newest first.",
        "type": "object",
        "properties": {field: {"type": "array", "items": ref(item)}, "before": before},
        "required": [field, "before"],
    }


def _frame(components: Schema, channel: Channel) -> tuple[str, str]:
    """Add the frame of an event; returns the name of the event and the name of the frame's component."""
    _adopt(components, message_schema(channel.message, schema_name(channel)), EVENTS)
    message = channel.message.__name__
    fields: Schema = {
        "seq": {"type": "integer", "minimum": 1, "description": "sequence in the stream of all events"},
        "time_s": TypeAdapter(EpochSeconds).json_schema(),
        "type": {"const": channel.type_name, "type": "string"},
        "service": {"const": channel.service, "type": "string"},
        "event": {"const": channel.name, "type": "string"},
        "job": TypeAdapter(JobId).json_schema(),
        "trace_id": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "data": ref(EVENTS + message),
    }
    title = f"{message}Event"
    components[title] = {"title": title, "type": "object", "properties": fields, "required": [*fields]}
    return channel.name, title


def _adopt(components: Schema, schema: Schema, prefix: str) -> None:
    """Take a schema and its definitions as components whose names begin with ``prefix``."""
    moved = json.loads(json.dumps(schema).replace('"#/$defs/', f'"{AT}{prefix}'))
    definitions: Schema = moved.pop("$defs", {})
    own = {key: value for key, value in moved.items() if key not in ("$schema", "$id")}
    for name, found in {**definitions, str(own["title"]): own}.items():
        known = components.setdefault(prefix + name, found)
        assert known == found, f"two schemas are called {prefix}{name}"
