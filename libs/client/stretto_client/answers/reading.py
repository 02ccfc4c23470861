"""Answers as typed values. Fields that a newer gateway added are ignored."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

from pydantic import ValidationError
from stretto_wire.codec import adapter_of

from ..errors import Unusable

T = TypeVar("T")


def read(kind: type[T], content: bytes | str) -> T:
    """Return an answer as a value of this type. Raises Unusable."""
    try:
        return adapter_of(kind).validate_json(content, extra="ignore")
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "(document)"
        text = f"an answer cannot be read as {kind}: {where}: {first['msg']}; is the gateway of another version?"
        raise Unusable(text) from None


def promoted(kind: type[T], record: Any) -> T:
    """Return a record as one of a class that adds methods, and fields with a default."""
    return kind(*(getattr(record, one.name) for one in fields(record)))
