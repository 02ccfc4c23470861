"""Error replies: the body of a refusal, written by who answers and read by who asked."""

from __future__ import annotations

from pydantic import ValidationError
from stretto_wire.refusals import Refusal, Refused


def refusal(code: str, message: str, field: str = "", value: object = "", remedy: str = "") -> bytes:
    """The body of an error reply."""
    parts = {"message": message[:2000], "field": field[:500], "value": str(value)[:500], "remedy": remedy[:2000]}
    return Refused(error=Refusal(code=code, **parts)).model_dump_json().encode()


def refusal_in(body: bytes) -> Refusal:
    """The refusal in the body of an error reply."""
    try:
        return Refused.model_validate_json(body).error
    except ValidationError:
        return Refusal(code="malformed", message=f"an error reply that cannot be read: {body[:200]!r}")
