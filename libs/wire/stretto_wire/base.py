"""The base of every message and the vocabulary of its fields: names, bounds and units.

A field's unit stands in its name (``_s`` seconds, ``_bytes``, ``_cores``, ``_per_hour``); a field without one is a
count or a name. Bounds keep every message below :data:`MAX_MESSAGE_BYTES`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

MAX_MESSAGE_BYTES = 256 * 1024
"""What a publisher may send and a reader has to accept; the server's own limit is 1 MiB."""

JobId = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"),
    Field(description="a DNS label: lower-case letters, digits and hyphens, at most 63; one token of a subject"),
]
POD_PATTERN = r"^(worker|ps|data)-[0-9]{1,9}$"

PodId = Annotated[
    str,
    StringConstraints(pattern=POD_PATTERN),
    Field(description="role and number; a number is never used again within a job"),
]
Text = Annotated[str, StringConstraints(max_length=2000)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=200)]
RequestId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.:-]{1,100}$")]

Count = Annotated[int, Field(ge=0, le=10**15)]
Seconds = Annotated[float, Field(ge=0, le=10**9)]
EpochSeconds = Annotated[float, Field(ge=0, le=10**11, description="seconds since 1970-01-01 UTC")]
Rate = Annotated[float, Field(ge=0, le=10**12, description="samples per second")]
Cores = Annotated[float, Field(ge=0, le=100_000)]
Bytes = Annotated[int, Field(ge=0, le=2**53 - 1)]  # the largest integer all JSON readers agree on (RFC 8259 section 6)
Money = Annotated[float, Field(ge=0, le=10**12)]
Fraction = Annotated[float, Field(ge=0, le=1)]


class Spec(BaseModel):
    """A part of a specification; strict, closed and immutable."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)


class Record(BaseModel):
    """A value inside messages. Immutable and strictly typed; an unknown field of a newer writer is ignored."""

    # built at first use: no process needs all of the messages
    model_config = ConfigDict(
        strict=True, frozen=True, extra="ignore", allow_inf_nan=False, ser_json_inf_nan="null", defer_build=True
    )


class Message(Record):
    """What travels on one subject. Every message belongs to a job; the job is the subject's last token."""

    job: JobId
