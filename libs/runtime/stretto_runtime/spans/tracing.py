"""The spans of one process.

A handled message is a span; its parent is the span that published the message (W3C ``traceparent`` header). A message
that a dead owner may have handled before gets a sibling span with a count, under the same parent. Spans go to
``OTEL_EXPORTER_OTLP_ENDPOINT`` if that is set, otherwise as JSON lines to ``<state folder>/spans/<service>.jsonl``.

"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Generator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from stretto_wire.surroundings import monotonic_s, wall_ns

from stretto_runtime.spans.local import LocalSpans
from stretto_runtime.spans.places import Attributes, Kind, Span, Spans, parse_traceparent

ATTRIBUTES = 48


class Tracing:
    """Makes the spans of one service, at most ``per_s`` a second; more are counted, not kept."""

    def __init__(self, service: str, folder: Path, bound_bytes: int, per_s: float) -> None:
        self._spans = _destination(service, folder, bound_bytes)
        self._per_s = per_s
        self._budget = per_s
        self._filled_s = monotonic_s()
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
        return self._spans.start(name, parse_traceparent(parent), start_ns or wall_ns(), kind, found)

    def afford(self) -> bool:
        """Return whether a span may be started now; if not, count it as suppressed."""
        if self._budget < 1:
            now = monotonic_s()
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
        from stretto_runtime.spans.collector import OtlpSpans  # imported late: without a collector nobody needs it

        return OtlpSpans(name)
    return LocalSpans(name, folder / "spans" / f"{service}.jsonl", bound_bytes)


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
