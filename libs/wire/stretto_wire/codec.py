"""JSON codec of messages. Pydantic checks types and bounds here; the message classes do not depend on it."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from stretto_messages.base import MAX_MESSAGE_BYTES, Record

from .errors import WireError

COMPLETE: dict[str, Any] = {
    "json_schema_serialization_defaults_required": True,
}
"""Settings of pydantic for answers: none leaves a field out, so that a published schema lists all as required."""
R = TypeVar("R", bound=Record)
T = TypeVar("T")


@cache
def adapter_of(kind: type[T]) -> TypeAdapter[T]:
    """Return the reader and writer of a type, built when it is first asked for: a large one takes half a second."""
    return TypeAdapter(kind)


def decode(record_type: type[R], data: bytes) -> R:
    """Read JSON of a known type; fields that a newer writer added are ignored, also in a job's specification.

    Raises:
        WireError: with field, value and remedy.
    """
    if len(data) > MAX_MESSAGE_BYTES:
        raise WireError("(document)", f"{len(data)} bytes", f"at most {MAX_MESSAGE_BYTES} bytes")
    try:
        return adapter_of(record_type).validator.validate_json(data, extra="ignore")
    except ValidationError as error:
        raise WireError.of(error, model=record_type) from error


def encode(record: Record) -> bytes:
    """Write JSON, within the bounds of every field and of the whole.

    Raises:
        WireError: with field, value and remedy.
    """
    adapter = adapter_of(type(record))
    try:
        data = adapter.serializer.to_json(adapter.validator.validate_python(record))
    except ValidationError as error:
        raise WireError.of(error, model=type(record)) from error
    if len(data) > MAX_MESSAGE_BYTES:
        raise WireError(
            "(document)", f"{len(data)} bytes of {type(record).__name__}", f"at most {MAX_MESSAGE_BYTES} bytes"
        )
    return data


def document_of(record: Record) -> dict[str, Any]:
    """Return the JSON document of a record, as Python values."""
    return adapter_of(type(record)).dump_python(record, mode="json")
