"""Excerpts of stored streams: which messages a reader asks for, and the facts of the stream that holds them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from stretto_messages.base import Described

from ..codec import COMPLETE
from .registry import STATE, STREAM, TELEMETRY

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


@dataclass(frozen=True, slots=True)
class StreamFacts(Described):
    """The first line: facts of the stream when the reading began. Times are seconds since 1970-01-01 UTC."""

    __pydantic_config__: ClassVar[dict[str, Any]] = COMPLETE

    created_at_s: float
    last_seq: int
    kept_s: float | None
    """Age at which its messages go; None: never."""
    unreadable: str = ""
    """Which of its messages cannot be read, in words; empty: none that is known."""
