"""How a request is refused: instead of its reply, told apart by a header ``error``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from .base import Record, Text

ERROR_HEADER = "error"


class Refusal(Record):
    """What was refused, with which value, and what to do."""

    code: Annotated[
        str,
        StringConstraints(pattern=r"^[a-z][a-z-]{0,39}$"),
        Field(description="what kind: such as invalid, refused, busy, malformed, failed, internal"),
    ]
    message: Text
    field: Annotated[str, Field(max_length=500, description="dotted path in the request; empty: the whole")] = ""
    value: Annotated[str, Field(max_length=500, description="what stood there, shortened")] = ""
    remedy: Text = ""


class Refused(Record):
    """The reply to any request that was not carried out."""

    error: Refusal
