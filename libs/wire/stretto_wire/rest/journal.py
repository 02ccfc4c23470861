"""The journal of a job: stored messages of a stream, as lines of JSON between the stream's facts and the end.

The last line says that the body is complete: one that was cut, wherever, has none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from ..contract.registry import STATE, STREAM, TELEMETRY
from .views import COMPLETE

SEQ_MAX = 10**18
SUBJECTS_MAX = 64
"""Subjects of one excerpt. The arbiter, which reads most, needs 19."""
Subject = Annotated[str, StringConstraints(pattern=r"^([^\s.>]+\.)*([^\s.>]+|>)$", max_length=300)]


class Stream(StrEnum):
    """A stream that a replay reads."""

    FACTS = STREAM
    REPORTS = TELEMETRY
    STATE = STATE


class Excerpt(BaseModel, frozen=True, extra="forbid"):
    """The stored messages that a reader asks for, those of ``subject`` after a sequence, and the stream's facts."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    stream: Stream = Stream.FACTS
    """the stream"""
    subject: Annotated[tuple[Subject, ...], Field(max_length=SUBJECTS_MAX)] = ()
    """subjects as they are stored, * and > as NATS has them; none: the stream's facts alone"""
    after: Annotated[int, Field(ge=0, le=SEQ_MAX)] = 0
    """only messages after this sequence"""
    last: bool = False
    """only the last message of each subject, whatever its sequence"""
    headers_only: bool = False
    """leave out the bodies"""

    def parameters(self) -> Iterator[tuple[str, str]]:
        """Yield the parameters of the request's URL."""
        for name, value in self.model_dump(mode="json", exclude_defaults=True).items():
            yield from ((name, str(each)) for each in (value if isinstance(value, list) else [value]))  # type: ignore[misc]


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """The first line: facts of the stream when the reading began. Times are seconds since 1970-01-01 UTC."""

    __pydantic_config__: ClassVar[dict[str, Any]] = COMPLETE

    created_at_s: float
    last_seq: int
    kept_s: float | None
    """Age at which its messages go; None: never."""


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A line between: a message as it is stored, in stored order. ``data`` is in the URL-safe base64 of RFC 4648."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {**COMPLETE, "ser_json_bytes": "base64", "val_json_bytes": "base64"}

    seq: int
    time_s: float
    subject: str
    headers: dict[str, str]
    data: bytes


@dataclass(frozen=True, slots=True)
class JournalEnd:
    """The last line: the number of messages, and why there are no more where not all could be read."""

    __pydantic_config__: ClassVar[dict[str, Any]] = COMPLETE

    messages: int
    fault: str | None
