"""Spans, metrics and logs of one process.

A handled message is a span; its parent is the span that published the message (W3C ``traceparent`` header). A message
that a dead owner may have handled before gets a sibling span with a count, under the same parent. Spans go to
``OTEL_EXPORTER_OTLP_ENDPOINT`` if that is set, otherwise as JSON lines to ``<state folder>/spans/<service>.jsonl``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, TextIO, cast

import structlog
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from pydantic_core import to_json

ATTRIBUTES = 48
AGES_EVERY_S = 0.01
KINDS = ("message", "request", "observation", "tick")


def parse_traceparent(text: str) -> SpanContext | None:
    """The context of a W3C ``traceparent``; None if there is none, it is malformed, or not sampled."""
    parts = text.split("-")
    if len(parts) != 4 or [len(part) for part in parts] != [2, 32, 16, 2]:
        return None
    try:
        trace_id, span_id, flags = int(parts[1], 16), int(parts[2], 16), int(parts[3], 16)
    except ValueError:
        return None
    context = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags))
    return context if context.is_valid and context.trace_flags.sampled else None


def traceparent_of(context: SpanContext) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-01"


class Tracing:
    """Makes the spans of one service, at most ``per_s`` a second; more are counted, not kept."""

    def __init__(self, service: str, folder: Path, bound_bytes: int, per_s: float) -> None:
        self._provider = TracerProvider(resource=Resource.create({"service.name": f"stretto-{service}"}))
        self._provider.add_span_processor(_processor(service, folder, bound_bytes))
        self._tracer = self._provider.get_tracer("stretto")
        self._per_s = per_s
        self._budget = per_s
        self._filled_s = time.monotonic()
        self.suppressed = 0

    def span(
        self,
        name: str,
        parent: str = "",
        start_ns: int | None = None,
        kind: SpanKind = SpanKind.CONSUMER,
        attributes: Callable[[], Mapping[str, Any]] | None = None,
    ) -> trace.Span | None:
        """A started span, or None if too many were started in this second. ``attributes`` is called only if needed."""
        if not self.afford():
            return None
        self._budget -= 1
        above = parse_traceparent(parent)
        context = trace.set_span_in_context(NonRecordingSpan(above)) if above else None
        found = attributes() if attributes else None
        return self._tracer.start_span(name, context, kind, found, start_time=start_ns)

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
    def sending(self, name: str, parent: str = "", attributes: Mapping[str, Any] | None = None) -> Generator[str]:
        """Run a span around a sending; yields the ``traceparent`` for its messages."""
        span = self.span(name, parent, kind=SpanKind.PRODUCER, attributes=lambda: attributes or {})
        if span is None:
            yield parent if parse_traceparent(parent) else ""
            return
        try:
            yield traceparent_of(span.get_span_context())
        except BaseException as error:
            span.set_status(Status(StatusCode.ERROR, str(error)))
            raise
        finally:
            span.end()

    def close(self) -> None:
        self._provider.shutdown()


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
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, Mapping):
        return [(str(key), item) for key, item in value.items()]
    return []


def _processor(service: str, folder: Path, bound_bytes: int) -> SpanProcessor:
    if os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        return BatchSpanProcessor(OTLPSpanExporter())
    return LocalSpans(folder / "spans" / f"{service}.jsonl", bound_bytes)


class LocalSpans(SpanProcessor):
    """Ended spans as JSON lines in a file of bounded size; the previous half is kept as ``<file>.1``."""

    def __init__(self, path: Path, bound_bytes: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._half_bytes = bound_bytes // 2
        self._file = path.open("ab", buffering=0)
        self._bytes = self._file.tell()

    def on_start(self, span: Span, parent_context: Any = None) -> None:
        pass

    def on_end(self, span: ReadableSpan) -> None:
        context = span.context
        if context is None:
            return
        line = {
            "trace_id": f"{context.trace_id:032x}",
            "span_id": f"{context.span_id:016x}",
            "parent_id": f"{span.parent.span_id:016x}" if span.parent else None,
            "service": span.resource.attributes.get("service.name"),
            "name": span.name,
            "start_s": (span.start_time or 0) / 1e9,
            "end_s": (span.end_time or 0) / 1e9,
            "attributes": dict(span.attributes or {}),
            "error": span.status.description if span.status.status_code is StatusCode.ERROR else None,
        }
        self._bytes += self._file.write(to_json(line) + b"\n")
        if self._bytes > self._half_bytes:
            self._file.close()
            os.replace(self._path, self._path.with_suffix(".jsonl.1"))
            self._file, self._bytes = self._path.open("ab", buffering=0), 0

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return True

    def shutdown(self) -> None:
        self._file.close()


class Tally:
    """A counter without a lock, for the one thread that handles messages: a lock costs as much as a small machine."""

    __slots__ = ("_counter", "count")

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self.count = 0

    def settle(self) -> None:
        """Add the count since the last time to the Prometheus counter."""
        count, self.count = self.count, 0
        if count:
            self._counter.inc(count)


class Metrics:
    """The metrics of a replica, for Prometheus."""

    def __init__(self, service: str) -> None:
        self.registry = CollectorRegistry()
        self._tallies: list[Tally] = []
        self._next_age_s = 0.0
        labels = {"service": service}

        def counter(name: str, text: str, *extra: str) -> Counter:
            return Counter(f"stretto_{name}", text, ["service", *extra], registry=self.registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"stretto_{name}", text, ["service"], registry=self.registry).labels(**labels)

        def tally(child: Counter) -> Tally:
            self._tallies.append(Tally(child))
            return self._tallies[-1]

        inputs = counter("inputs", "messages handled", "kind")
        self.inputs = {kind: tally(inputs.labels(service, kind)) for kind in KINDS}
        replayed = counter("replayed_inputs", "messages handled again after a takeover")
        self.replayed = tally(replayed.labels(**labels))
        self.outputs = tally(counter("outputs", "messages published").labels(**labels))
        self.suppressed = counter("outputs_suppressed", "outputs that a predecessor had published").labels(**labels)
        self.dead_letters = counter("dead_letters", "messages set aside", "reason")
        self.lost_keys = gauge("lost_keys", "jobs whose saved state is damaged: nothing is handled for them")
        self.unrenewed = gauge("bus_refuses", "1: the bus stores nothing, not even that this replica lives")
        self.no_way_back = gauge(
            "no_way_back_keys",
            "jobs whose snapshots the former version cannot continue, though the machine names a storage version",
        )
        unanswerable = counter("unanswerable_requests", "requests dropped: their reply subject is no inbox of a caller")
        self.unanswerable = unanswerable.labels(**labels)
        over_budget = counter("requests_over_budget", "requests told to ask again: their job has spent its budget")
        self.over_budget = over_budget.labels(**labels)
        missing = counter("missing_reports", "reports that were to be handled, and that their stream held no more")
        self.missing_reports = missing.labels(**labels)
        self.faults = counter("machine_faults", "exceptions out of a machine: bugs").labels(**labels)
        self.takeovers = counter("takeovers", "partitions taken").labels(**labels)
        self.refused = counter("refusals", "times that saved state was of a version that cannot be continued").labels(
            **labels
        )
        self.fenced = counter("fenced", "partitions lost to a newer owner").labels(**labels)
        self.snapshots = counter("snapshots", "snapshots written").labels(**labels)
        self.partitions = gauge("partitions", "partitions owned and live")
        self.stream_fullness = gauge("stream_fullness", "stored bytes over the stream's bound")
        self.certificate_end = gauge(
            "certificate_end_seconds",
            "end of the certificate that NATS showed, seconds since the epoch; infinite without TLS",
        )
        self.certificate_end.set(math.inf)  # before the first connection no certificate is known, and none ends
        self.backlog = gauge("input_backlog", "messages stored and not handled yet")
        self.pauses = gauge("input_pauses", "times that the inputs of a partition owned now had to wait for us")
        self.lag_s = Histogram(
            "stretto_input_age_seconds",
            "from the server's storing a message to our handling it, of a hundred messages a second",
            ["service"],
            registry=self.registry,
            buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5, 30),
        ).labels(**labels)
        self.service = service

    def handling(self, stored_s: float) -> None:
        """Observe the age of a message that was stored at ``stored_s`` and is handled now."""
        now = time.time()
        if now >= self._next_age_s:
            self._next_age_s = now + AGES_EVERY_S
            self.lag_s.observe(max(0.0, now - stored_s))

    def text(self) -> bytes:
        for tally in self._tallies:
            tally.settle()
        return generate_latest(self.registry)


class Lines(io.TextIOBase):
    """A stream of lines that are lost where they cannot be written: no service ends because its log's disk is full."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, line: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(line)
            self._stream.flush()
        return len(line)


def configure_logs(service: str, level: str) -> None:
    """JSON lines on stderr: time, level, event, service, and trace_id and job where a message is being handled."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.ExceptionRenderer(
                structlog.tracebacks.ExceptionDictTransformer(show_locals=False, max_frames=8)
            ),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, Lines(sys.stderr))),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(service=service)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # it warns of each request that a stranger sends wrongly
