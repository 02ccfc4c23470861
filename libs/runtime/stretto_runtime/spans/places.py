"""Places of spans in their traces, and what a destination of spans is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Protocol

TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
SAMPLED = 1
"""Bit of a ``traceparent``'s flags: somebody keeps the spans of this trace."""
Kind = Literal["consumer", "producer"]
Attributes = Mapping[str, Any]


class SpanPlace(NamedTuple):
    """The place of a span in its trace, in lower-case hexadecimal digits."""

    trace_id: str
    span_id: str

    @property
    def traceparent(self) -> str:
        """The W3C header of what the span causes."""
        return f"00-{self.trace_id}-{self.span_id}-01"


def parse_traceparent(text: str) -> SpanPlace | None:
    """Return the place that a W3C ``traceparent`` names; None if there is none, it is malformed, or not sampled."""
    found = TRACEPARENT.fullmatch(text)
    if found is None or not int(found[3], 16) & SAMPLED or not int(found[1], 16) or not int(found[2], 16):
        return None
    return SpanPlace(found[1], found[2])


class Span(Protocol):
    """A started span."""

    @property
    def place(self) -> SpanPlace: ...

    def fail(self, text: str) -> None:
        """Note that the work of the span failed, and why."""
        ...

    def end(self) -> None: ...


class Spans(Protocol):
    """The destination of spans."""

    def start(self, name: str, above: SpanPlace | None, start_ns: int, kind: Kind, attributes: Attributes) -> Span:
        """Start a span below ``above``; None begins a trace."""
        ...

    def close(self) -> None:
        """Send or write the last spans."""
        ...
