"""The spans of one process.

A handled message is a span; its parent is the span that published the message (W3C ``traceparent`` header). A message
that a dead owner may have handled before gets a sibling span with a count, under the same parent. Spans go to
``OTEL_EXPORTER_OTLP_ENDPOINT`` if that is set, otherwise as JSON lines to ``<state folder>/spans/<service>.jsonl``.
Those lines are written without OpenTelemetry's library: a span of it costs as much as handling a message.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import re
import time
from collections.abc import Callable, Generator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from pydantic_core import to_json

ATTRIBUTES = 48
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


class Tracing:
    """Makes the spans of one service, at most ``per_s`` a second; more are counted, not kept."""

    def __init__(self, service: str, folder: Path, bound_bytes: int, per_s: float) -> None:
        self._spans = _destination(service, folder, bound_bytes)
        self._per_s = per_s
        self._budget = per_s
        self._filled_s = time.monotonic()
        self.suppressed = 0

    def span(
        self,
        name: str,
        parent: str = "",
        start_ns: int | None = None,
        kind: Kind = "consumer",
        attributes: Callable[[], Attributes] | None = None,
    ) -> Span | None:
        """A started span, or None if too many were started in this second. ``attributes`` is called only if needed."""
        if not self.afford():
            return None
        self._budget -= 1
        found = attributes() if attributes else {}
        return self._spans.start(name, parse_traceparent(parent), start_ns or time.time_ns(), kind, found)

    def afford(self) -> bool:
        """Return whether a span may be started now; if not, count it as suppressed."""
        if self._budget < 1:
            now = time.monotonic()
            self._budget = min(self._per_s, self._budget + (now - self._filled_s) * self._per_s)
            self._filled_s = now
        if self._budget < 1:
            self.suppressed += 1
        return self._budget >= 1

    @contextlib.contextmanager
    def sending(self, name: str, parent: str = "", attributes: Attributes | None = None) -> Generator[str]:
        """Run a span around a sending; yields the ``traceparent`` for its messages."""
        span = self.span(name, parent, kind="producer", attributes=lambda: attributes or {})
        if span is None:
            yield parent if parse_traceparent(parent) else ""
            return
        try:
            yield span.place.traceparent
        except BaseException as error:
            span.fail(str(error))
            raise
        finally:
            span.end()

    def close(self) -> None:
        self._spans.close()


def _destination(service: str, folder: Path, bound_bytes: int) -> Spans:
    name = f"stretto-{service}"
    if os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        from stretto_runtime.process.otlp_spans import OtlpSpans  # imported late: without a collector nobody needs it

        return OtlpSpans(name)
    return LocalSpans(name, folder / "spans" / f"{service}.jsonl", bound_bytes)


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
            "end_s": time.time(),
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
    return f"{random.getrandbits(bits) or 1:0{bits // 4}x}"


def decision_attributes(fact: Any) -> dict[str, Any]:
    """The figures and reasons in a fact, flattened one level: the grounds of a decision."""
    flat: dict[str, Any] = {}
    for name, value in _fields(fact):
        inner = _fields(value)
        for path, leaf in [(f"{name}.{below}", v) for below, v in inner] if inner else [(name, value)]:
            if isinstance(leaf, (str, bool, int, float)):
                flat[f"decision.{path}"] = leaf
            elif isinstance(leaf, (tuple, list)) and leaf and all(isinstance(item, str) for item in leaf):
                flat[f"decision.{path}"] = list(leaf)
        if len(flat) >= ATTRIBUTES:
            break
    return flat


def _fields(value: Any) -> list[tuple[str, Any]]:
    names = _names_of(type(value))
    if names:
        return [(name, getattr(value, name)) for name in names]
    if isinstance(value, Mapping):
        return [(str(key), item) for key, item in value.items()]
    return []


@cache
def _names_of(kind: type) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass; none of any other type."""
    return tuple(field.name for field in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else ()
