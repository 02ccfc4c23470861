"""One error base: what was refused, with which value, and what to do."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError


class WireError(ValueError):
    """A message, subject or specification that is not of the wire protocol.

    ``field`` is the dotted path, ``value`` what stood there, ``remedy`` what would be accepted. All are short and
    printable whatever arrived, so that they can stand in a header, a log line or a terminal.
    """

    def __init__(self, field: str, value: Any, remedy: str) -> None:
        self.field = _short(field)
        self.value = _short(value)
        self.remedy = _short(remedy, 1000)
        super().__init__(f"{self.field} = {self.value}: {self.remedy}")

    @classmethod
    def of(cls, error: ValidationError, where: str = "") -> WireError:
        """The first finding of a pydantic error, as one sentence of ours; the number of others is told."""
        findings = error.errors(include_url=False, include_context=False)
        first = findings[0]
        path = ".".join(str(part) for part in (where, *first["loc"]) if part != "") or "(body)"
        more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
        value = "absent" if first["type"] == "missing" else first.get("input")
        return cls(path, value, f"{first['msg']}{more}")


def _short(value: Any, limit: int = 120) -> str:
    try:
        text = value if isinstance(value, str) and value else repr(value)
    except (ValueError, RecursionError):  # Python refuses to print integers of thousands of digits
        text = f"a {type(value).__name__} that cannot be printed"
    if len(text) > limit:
        text = f"{text[:limit]}… ({len(text)} characters)"
    return text if text.isprintable() else repr(text)[1:-1]
