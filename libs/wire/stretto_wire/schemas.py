"""JSON Schema 2020-12 of every message, reply and of the job specification, derived from the models."""

from __future__ import annotations

from typing import Any, cast

from pydantic.json_schema import GenerateJsonSchema
from stretto_messages.base import Record

from .codec import adapter_of
from .registry import Channel
from .spec import JobSpec

Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
JOB_SCHEMA = "job.schema.json"
REFUSED = "refused.v1.json"


class _WithoutFieldTitles(GenerateJsonSchema):
    """Omits the titles of fields, which only repeat their names; messages and values keep theirs."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def schema_name(channel: Channel, *, reply: bool = False) -> str:
    """Return the file name and relative ``$id`` of a message's schema; its example has the same name."""
    return f"{channel.kind}.{channel.service}.{channel.name}{'.reply' if reply else ''}.v1.json"


def message_schema(message_type: type[Record], name: str) -> Schema:
    """Return the schema that a reader of v1 accepts. It is open: a newer writer may add fields."""
    return _opened(_document(adapter_of(message_type).json_schema(schema_generator=_WithoutFieldTitles), name))


def job_schema() -> Schema:
    """Return the closed schema of a job file. Quantities may be texts with a unit, as in Kubernetes."""
    schema = _document(JobSpec.model_json_schema(schema_generator=_WithoutFieldTitles), JOB_SCHEMA)
    _close(schema)
    schema["$defs"]["DatasetSpec"]["required"].remove("samples")  # named partitions replace it
    return schema


def _close(node: Any) -> None:
    """Close the values that a specification shares with messages, which are open there."""
    if isinstance(node, dict):
        if cast(Schema, node).get("title") in ("Plan", "DataPartition"):
            node["additionalProperties"] = False
        for value in cast(Schema, node).values():
            _close(value)
    elif isinstance(node, list):
        for item in cast(list[Any], node):
            _close(item)


def _document(schema: Schema, name: str) -> Schema:
    return {"$schema": DIALECT, "$id": name, **schema}


def _opened(node: Any) -> Any:
    if isinstance(node, dict):
        items = cast(Schema, node).items()
        return {key: _opened(value) for key, value in items if not (key == "additionalProperties" and value is False)}
    if isinstance(node, list):
        return [_opened(item) for item in cast(list[Any], node)]
    return node
