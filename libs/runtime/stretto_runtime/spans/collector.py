"""Spans that OpenTelemetry's library sends to the collector that its standard variables name."""

from __future__ import annotations

from dataclasses import dataclass

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from stretto_runtime.spans.places import SAMPLED, Attributes, Kind, Span, SpanPlace

KINDS: dict[Kind, SpanKind] = {"consumer": SpanKind.CONSUMER, "producer": SpanKind.PRODUCER}


class OtlpSpans:
    """The spans of one service, sent in batches by a thread of the library."""

    def __init__(self, service: str) -> None:
        self._provider = TracerProvider(resource=Resource.create({"service.name": service}))
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("stretto")

    def start(self, name: str, above: SpanPlace | None, start_ns: int, kind: Kind, attributes: Attributes) -> Span:
        """Start a span of the library."""
        context = trace.set_span_in_context(NonRecordingSpan(_context(above))) if above else None
        return OtlpSpan(self._tracer.start_span(name, context, KINDS[kind], attributes, start_time=start_ns))

    def close(self) -> None:
        self._provider.shutdown()


@dataclass(frozen=True, slots=True)
class OtlpSpan:
    """A span of OpenTelemetry's library."""

    span: trace.Span

    @property
    def place(self) -> SpanPlace:
        context = self.span.get_span_context()
        return SpanPlace(f"{context.trace_id:032x}", f"{context.span_id:016x}")

    def fail(self, text: str) -> None:
        self.span.set_status(Status(StatusCode.ERROR, text))

    def end(self) -> None:
        self.span.end()


def _context(place: SpanPlace) -> SpanContext:
    flags = TraceFlags(SAMPLED)
    return SpanContext(int(place.trace_id, 16), int(place.span_id, 16), is_remote=True, trace_flags=flags)
