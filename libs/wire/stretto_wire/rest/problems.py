"""The body of an error answer, ``application/problem+json`` (RFC 9457)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .answers import Answer

MEDIA_TYPE = "application/problem+json"
URN = "urn:stretto:problem:"
"""Begins the type of a problem; its kind follows."""
Kind = Literal[
    "above-priority-ceiling", "bad-job", "bad-request", "bad-type", "beyond-cluster", "beyond-limits", "bus", "busy",
    "bytes-used", "catching-up", "closed", "contended", "damaged", "failed", "forbidden", "held-out",
    "internal", "invalid", "malformed", "name-taken", "names-damaged", "no-books", "no-keys", "no-log",
    "no-model", "no-plan", "no-role", "no-such-job", "no-team", "not-allowed", "not-found", "not-growing",
    "not-readable", "not-yours", "over", "quota-used", "refused", "runs-program",
    "shrinks", "state-full", "too-large", "too-large-job",
    "too-many", "too-many-requests", "too-many-streams", "too-slow", "twice", "unauthorized", "unknown",
]  # fmt: skip
"""Kinds of problems, by which clients tell them apart; PROBLEMS.md has a page for each."""


class ProblemError(Answer):
    """One finding."""

    field: str = Field(description="dotted path in the document, or the parameter")
    value: str = Field(description="the value found there, shortened")
    remedy: str
    line: int | None = Field(None, description="line in the document as sent, from 1; null if unknown")
    column: int | None = None


class ProblemBody(Answer):
    """The body of an error answer."""

    type: str = Field(examples=["urn:stretto:problem:bad-job"])
    title: str
    status: int
    detail: str
    instance: str
    help: str = Field(description="address on this gateway of a page about this kind of problem")
    field: str = Field(description="the field, header or parameter in error")
    value: str = Field(description="the value found there, shortened")
    remedy: str = Field(description="an acceptable value, or the next step")
    errors: list[ProblemError] = Field(description="all findings, at most 20; the fields above are those of the first")
    count: int = Field(description="number of all findings")
