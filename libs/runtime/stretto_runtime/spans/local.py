"""Spans as lines of a file, without OpenTelemetry's library: a span of it costs as much as handling a message."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from pydantic_core import to_json
from stretto_wire.surroundings import chance, wall_s

from stretto_runtime.spans.places import Attributes, Kind, Span, SpanPlace


class LocalSpans:
    """Ended spans as JSON lines in a file of bounded size; the previous half is kept as ``<file>.1``."""

    def __init__(self, service: str, path: Path, bound_bytes: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._service = service
        self._path = path
        self._half_bytes = bound_bytes // 2
        self._file = path.open("ab", buffering=0)
        self._bytes = self._file.tell()

    def start(self, name: str, above: SpanPlace | None, start_ns: int, kind: Kind, attributes: Attributes) -> Span:
        """Start a span; its kind, which only collectors tell apart, is not written."""
        trace_id = above.trace_id if above else _identity(128)
        return LocalSpan(self, name, above, SpanPlace(trace_id, _identity(64)), start_ns, attributes)

    def write(self, span: LocalSpan) -> None:
        """Append the line of a span that ends now."""
        line = {
            "trace_id": span.place.trace_id,
            "span_id": span.place.span_id,
            "parent_id": span.above.span_id if span.above else None,
            "service": self._service,
            "name": span.name,
            "start_s": span.start_ns / 1e9,
            "end_s": wall_s(),
            "attributes": span.attributes,
            "error": span.error,
        }
        self._bytes += self._file.write(to_json(line) + b"\n")
        if self._bytes > self._half_bytes:
            self._file.close()
            os.replace(self._path, self._path.with_suffix(".jsonl.1"))
            self._file, self._bytes = self._path.open("ab", buffering=0), 0

    def close(self) -> None:
        self._file.close()


@dataclasses.dataclass(slots=True)
class LocalSpan:
    """A span that becomes a line of its file when it ends."""

    spans: LocalSpans
    name: str
    above: SpanPlace | None
    place: SpanPlace
    start_ns: int
    attributes: Attributes
    error: str | None = None

    def fail(self, text: str) -> None:
        self.error = text

    def end(self) -> None:
        self.spans.write(self)


def _identity(bits: int) -> str:
    """Return a random identity in hexadecimal digits, which is never zero."""
    return f"{chance().getrandbits(bits) or 1:0{bits // 4}x}"
