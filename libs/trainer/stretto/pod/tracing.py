"""A pod's spans, sent to OTLP if the standard variables name an endpoint, else written under the state folder."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags

_LARGEST_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class Sent:
    """The W3C ``traceparent`` of a span, for messages sent within it."""

    traceparent: str


class _SystemIds(IdGenerator):
    """Ids from the system's randomness: user code seeds Python's, equally in every worker, and ids would collide."""

    def generate_span_id(self) -> int:
        return secrets.randbits(64) or 1

    def generate_trace_id(self) -> int:
        return secrets.randbits(128) or 1


class PodTracing:
    """The tracer of a pod. ``parent``: the traceparent of the pod's start, for spans without a nearer parent."""

    def __init__(self, job: str, pod: str, state_folder: Path | None, parent: str = "") -> None:
        self._parent = parent
        role = pod.partition("-")[0]
        resource = Resource.create({"service.name": f"stretto-{role}", "stretto.job": job, "stretto.pod": pod})
        self._provider = TracerProvider(resource=resource, id_generator=_SystemIds())
        processor = _processor(job, pod, state_folder)
        if processor is not None:
            self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("stretto")
        self._common = {"stretto.job": job, "stretto.pod": pod}

    @contextlib.contextmanager
    def span(self, name: str, parent: str = "", attributes: Mapping[str, Any] | None = None) -> Generator[Sent]:
        """Open a span around the block."""
        above = _context(parent or self._parent)
        context = trace.set_span_in_context(NonRecordingSpan(above)) if above else None
        span = self._tracer.start_span(name, context, SpanKind.CLIENT, {**self._common, **(attributes or {})})
        own = span.get_span_context()
        try:
            yield Sent(f"00-{own.trace_id:032x}-{own.span_id:016x}-01")
        except BaseException as error:
            span.set_status(Status(StatusCode.ERROR, str(error)[:500]))
            raise
        finally:
            span.end()

    def close(self) -> None:
        self._provider.shutdown()


def _context(text: str) -> SpanContext | None:
    parts = text.split("-")
    if len(parts) != 4 or [len(part) for part in parts] != [2, 32, 16, 2]:
        return None
    try:
        context = SpanContext(int(parts[1], 16), int(parts[2], 16), True, TraceFlags(int(parts[3], 16)))
    except ValueError:
        return None
    return context if context.is_valid else None


def _processor(job: str, pod: str, state_folder: Path | None) -> SpanProcessor | None:
    if os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        return BatchSpanProcessor(OTLPSpanExporter())
    return _LocalSpans(state_folder / "spans" / job / f"{pod}.jsonl") if state_folder else None


class _LocalSpans(SpanProcessor):
    """Ended spans as JSON lines; after 4 MiB the older half is dropped."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._file = path.open("ab", buffering=0)

    def on_end(self, span: ReadableSpan) -> None:
        context = span.get_span_context()
        line = {
            "trace_id": f"{context.trace_id:032x}" if context else None,
            "span_id": f"{context.span_id:016x}" if context else None,
            "parent_id": f"{span.parent.span_id:016x}" if span.parent else None,
            "service": span.resource.attributes.get("service.name"),
            "name": span.name,
            "start_s": (span.start_time or 0) / 1e9,
            "end_s": (span.end_time or 0) / 1e9,
            "attributes": dict(span.attributes or {}),
            "error": span.status.description if span.status.status_code is StatusCode.ERROR else None,
        }
        self._file.write(json.dumps(line, default=list).encode() + b"\n")
        if self._file.tell() > _LARGEST_BYTES // 2:
            self._file.close()
            os.replace(self._path, self._path.with_suffix(".jsonl.1"))
            self._file = self._path.open("ab", buffering=0)

    def shutdown(self) -> None:
        self._file.close()
