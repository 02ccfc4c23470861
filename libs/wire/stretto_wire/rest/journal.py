"""The journal of a job: stored messages of a stream, as lines of JSON between the stream's facts and the end.

The last line says that the body is complete: one that was cut, wherever, has none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from stretto_messages.base import Described

from ..codec import COMPLETE
from ..contract.excerpts import Excerpt


def parameters_of(excerpt: Excerpt) -> Iterator[tuple[str, str]]:
    """Yield the parameters of the URL that asks for an excerpt."""
    for name, value in excerpt.model_dump(mode="json", exclude_defaults=True).items():
        yield from ((name, str(each)) for each in (value if isinstance(value, list) else [value]))  # type: ignore[misc]


@dataclass(frozen=True, slots=True)
class StoredMessage(Described):
    """A line between: a message as it is stored, in stored order. ``data`` is in the URL-safe base64 of RFC 4648."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {**COMPLETE, "ser_json_bytes": "base64", "val_json_bytes": "base64"}

    seq: int
    time_s: float
    subject: str
    headers: dict[str, str]
    data: bytes


@dataclass(frozen=True, slots=True)
class JournalEnd(Described):
    """The last line: the number of messages, and why there are no more where not all could be read."""

    __pydantic_config__: ClassVar[dict[str, Any]] = COMPLETE

    messages: int
    fault: str | None
