"""Spans of a job's trace, from the query API of a collector: Grafana Tempo's or Jaeger's.

Both collectors answer ``GET <url>/api/traces/<trace id>``. Tempo sends the batches of OTLP: ids in base64 (the norm
says hexadecimal), times in nanoseconds. Jaeger sends a form of its own: times in microseconds, attributes as tags. The
form of the answer tells the collector. Pods may write any span into a collector, in any job's name: every span is
checked like the spans of files (:mod:`.spans`), and its attributes prove nothing.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Any

import httpx
from opentelemetry.util.re import parse_env_headers
from pydantic import SecretStr

from .spans import JOB, span_of

TIMEOUT_S = 10.0
ANSWER_BYTES_MAX = 8 << 20
"""Size above which an answer is refused (taste): pods decide how large an answer becomes."""
ASKING_MAX = 2
"""Number of answers that are read at once (taste)."""
ID_BYTES, TRACE_ID_BYTES = 8, 16
ERROR_CODES = (2, "STATUS_CODE_ERROR")
UNDESCRIBED = "failed without a description"
ODD = (ValueError, LookupError, TypeError, AttributeError, OverflowError)
"""Errors that a document of an unexpected form raises: for the whole answer, or for one of its spans."""
Convert = Callable[[Any, Any], dict[str, Any]]
"""Conversion of a collector's form of a span, and of what stands beside the span there, to the fields of a span."""


class CollectorFault(Exception):
    """The error of a collector that has not answered with the spans of a trace; the text says why."""


class Collector:
    """The query API at a URL. ``headers`` are sent with each request."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._url, self._headers = url.rstrip("/"), {"Accept": "application/json", **headers}
        self._asking = asyncio.Semaphore(ASKING_MAX)

    @classmethod
    def at(cls, url: str, headers: SecretStr | None) -> Collector | None:
        """Return the collector at a URL, None for an empty URL. ``headers``: as in OTEL_EXPORTER_OTLP_HEADERS."""
        if not url:
            return None
        return cls(url, parse_env_headers(headers.get_secret_value() if headers else "", liberal=True))

    async def spans(self, job: str, trace_id: str) -> list[dict[str, Any]]:
        """Return the spans of a job in its trace; none for a trace that the collector does not know. Raises
        CollectorFault."""
        try:
            async with self._asking, asyncio.timeout(TIMEOUT_S):
                answer = await self._answer(trace_id)
                return await asyncio.to_thread(_read, answer, job, trace_id)
        except (TimeoutError, httpx.TimeoutException):
            raise CollectorFault(f"it has not answered within {TIMEOUT_S:.0f} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise CollectorFault(str(error) or repr(error)) from error

    async def _answer(self, trace_id: str) -> bytes:
        """Return the body of the answer; empty for a trace that the collector does not know."""
        body = bytearray()
        async with (
            httpx.AsyncClient(timeout=TIMEOUT_S, follow_redirects=False) as http,
            http.stream("GET", f"{self._url}/api/traces/{trace_id}", headers=self._headers) as answer,
        ):
            if answer.status_code == HTTPStatus.NOT_FOUND:
                return b""
            if answer.status_code != HTTPStatus.OK:
                raise CollectorFault(f"it answered {answer.status_code} {answer.reason_phrase}")
            async for part in answer.aiter_bytes():
                body += part
                if len(body) > ANSWER_BYTES_MAX:
                    raise CollectorFault(f"its answer is larger than {ANSWER_BYTES_MAX >> 20} MiB")
        return bytes(body)


def _read(body: bytes, job: str, trace_id: str) -> list[dict[str, Any]]:
    """Return the spans of an answer that belong to the job. Raises CollectorFault for an answer of another form."""
    if not body:
        return []
    try:
        answer = json.loads(body)
        found = list(_of_jaeger(answer) if "data" in answer else _of_otlp(answer))
    except (*ODD, RecursionError):
        raise CollectorFault("its answer has neither the form of Tempo nor that of Jaeger") from None
    spans = [span for each in found if (span := _span(*each)) is not None]
    return [span for span in spans if span["trace_id"] == trace_id and span["attributes"].get(JOB) == job]


def _span(convert: Convert, span: Any, more: Any) -> dict[str, Any] | None:
    """Return the fields of a span; None for a span of an unexpected form."""
    try:
        return span_of(convert(span, more))
    except ODD:
        return None


def _of_otlp(answer: dict[str, Any]) -> Iterator[tuple[Convert, Any, Any]]:
    for batch in answer["batches"] if "batches" in answer else answer["resourceSpans"]:
        resource = batch.get("resource", {})
        for scope in batch.get("scopeSpans", ()):
            for span in scope.get("spans", ()):
                yield _otlp_span, span, resource


def _otlp_span(span: dict[str, Any], resource: dict[str, Any]) -> dict[str, Any]:
    status = span.get("status") or {}
    return {
        "trace_id": _hexadecimal(span["traceId"], TRACE_ID_BYTES),
        "span_id": _hexadecimal(span["spanId"], ID_BYTES),
        "parent_id": _hexadecimal(span.get("parentSpanId", ""), ID_BYTES) or None,
        "service": _attributes(resource).get("service.name"),
        "name": span["name"],
        "start_s": int(span["startTimeUnixNano"]) / 1e9,
        "end_s": int(span["endTimeUnixNano"]) / 1e9,
        "attributes": _attributes(span),
        "error": status.get("message") or UNDESCRIBED if status.get("code") in ERROR_CODES else None,
    }


def _attributes(of: Mapping[str, Any]) -> dict[str, Any]:
    return {each["key"]: _value(each.get("value") or {}) for each in of.get("attributes") or ()}


def _value(value: dict[str, Any]) -> Any:
    """Return an attribute's value (OTLP ``AnyValue``); None for bytes and nested objects, which Stretto never
    writes."""
    for kind, found in value.items():
        if kind == "intValue":
            return int(found)  # OTLP writes it as text: numbers of JSON have too few digits
        if kind == "arrayValue":
            return [_value(each) for each in found.get("values", ())]
        if kind in ("stringValue", "doubleValue", "boolValue"):
            return found
    return None


def _hexadecimal(identifier: str, size_bytes: int) -> str:
    if len(identifier) in (0, 2 * size_bytes):
        return identifier.lower()
    return base64.b64decode(identifier, validate=True).hex()


def _of_jaeger(answer: dict[str, Any]) -> Iterator[tuple[Convert, Any, Any]]:
    for trace in answer["data"] or ():
        for span in trace["spans"]:
            yield _jaeger_span, span, trace["processes"]


def _jaeger_span(span: dict[str, Any], processes: dict[str, Any]) -> dict[str, Any]:
    tags = {tag["key"]: tag["value"] for tag in span.get("tags") or ()}
    parents = [each["spanID"] for each in span.get("references") or () if each["refType"] == "CHILD_OF"]
    failed = tags.get("otel.status_code") == "ERROR" or tags.get("error") is True
    return {
        "trace_id": span["traceID"].zfill(2 * TRACE_ID_BYTES),
        "span_id": span["spanID"].zfill(2 * ID_BYTES),
        "parent_id": parents[0].zfill(2 * ID_BYTES) if parents else None,
        "service": processes[span["processID"]]["serviceName"],
        "name": span["operationName"],
        "start_s": span["startTime"] / 1e6,
        "end_s": (span["startTime"] + span["duration"]) / 1e6,
        "attributes": tags,
        "error": tags.get("otel.status_description") or UNDESCRIBED if failed else None,
    }
