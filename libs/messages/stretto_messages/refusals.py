"""How a request is refused: the reply has a header ``error`` and this body."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import MaxLen

from stretto_messages.base import Pattern, Record, Text, example

ERROR_HEADER = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal(Record):
    """Reason of a refusal, with the field, its value and the remedy."""

    code: Annotated[str, Pattern(r"^[a-z][a-z-]{0,39}$")]
    """Kind of refusal: such as invalid, refused, busy, malformed, failed, internal."""
    message: Text
    field: Annotated[str, MaxLen(500)] = ""
    """Dotted path in the request; empty: the whole."""
    value: Annotated[str, MaxLen(500)] = ""
    """The refused value, shortened."""
    remedy: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused(Record):
    """The reply to any request that was not carried out."""

    error: Refusal


example(
    Refused(
        error=Refusal(
            code="invalid",
            message="offset = -1: a whole number, at least 0 and at most 1000000000000000",
            field="offset",
            value="-1",
            remedy="a whole number, at least 0 and at most 1000000000000000",
        )
    )
)
