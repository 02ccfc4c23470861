"""Error replies: the body of a refusal, written by who answers and read by who asked."""

from __future__ import annotations

from stretto_messages.refusals import Refusal, Refused
from stretto_wire.codec import decode, encode
from stretto_wire.errors import WireError


def refusal(code: str, message: str, field: str = "", value: object = "", remedy: str = "") -> bytes:
    """The body of an error reply."""
    parts = {"message": message[:2000], "field": field[:500], "value": str(value)[:500], "remedy": remedy[:2000]}
    return encode(Refused(error=Refusal(code=code, **parts)))


def refusal_in(body: bytes) -> Refusal:
    """The refusal in the body of an error reply."""
    try:
        return decode(Refused, body).error
    except WireError:
        return Refusal(code="malformed", message=f"an error reply that cannot be read: {body[:200]!r}")
