"""Spans of a trace come from a collector: over a real gateway's own OTLP, and from answers in the form of Jaeger."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from stretto_gateway.settings import GatewaySettings
from stretto_gateway.traces import collector as collector_module
from stretto_gateway.traces.collector import UNDESCRIBED, Collector, CollectorFault

from tests.http_served import Answer, Asked, served
from tests.waits import wait_until

from ..gateway_process import installed
from ..rest_documents import spec

TRACE = "0af7651916cd43dd8448eb211c80319c"


class Tempo:
    """Takes spans by OTLP and answers as Tempo does: the JSON mapping of Protobuf, so ids are in base64."""

    def __init__(self) -> None:
        self.batches: list[dict[str, Any]] = []
        self.is_down = False

    def answer(self, asked: Asked) -> Answer:
        if asked.method == "POST":
            self.batches += MessageToDict(ExportTraceServiceRequest.FromString(asked.body)).get("resourceSpans", [])
            return 200, {}, b""
        assert asked.path.startswith("/tempo/api/traces/")
        return (503, {}, b"") if self.is_down else (200, {}, json.dumps({"batches": self.batches}).encode())


def jaeger(*spans: dict[str, Any], service: str = "stretto-planner") -> bytes:
    trace = {"traceID": TRACE, "spans": spans, "processes": {"p1": {"serviceName": service, "tags": []}}}
    return json.dumps({"data": [trace], "total": 0, "errors": None}).encode()


def jaeger_span(name: str, span_id: str = "00f067aa0ba902b7", job: str = "ctr", **more: Any) -> dict[str, Any]:
    tags = [{"key": "stretto.job", "type": "string", "value": job}, *more.pop("tags", ())]
    return {
        **{"traceID": TRACE, "spanID": span_id, "operationName": name, "references": [], "processID": "p1"},
        **{"startTime": 1_700_000_000_000_000, "duration": 1_500_000, "tags": tags, "logs": [], **more},
    }


async def asked(status: int, body: bytes, seen: dict[str, str] | None = None, **settings: str) -> list[dict[str, Any]]:
    def answer(asked: Asked) -> Answer:
        assert asked.path == f"/api/traces/{TRACE}"
        if seen is not None:
            seen.update(asked.headers)
        return status, {}, body

    with served(answer) as url:
        read = GatewaySettings.load("gateway", {"STRETTO_GATEWAY_TRACES_URL": url, **settings})
        found = Collector.at(read.traces_url, read.traces_headers)
        assert found is not None
        return await found.spans("ctr", TRACE)


def test_spans_that_the_services_sent_away_come_back(tmp_path: Path) -> None:
    """Goal: a job's trace shows the spans that left by OTLP. Method: a real gateway exports to a collector and asks
    it; then the collector is down, and the answer says what is missing."""
    tempo, name = Tempo(), f"job-{uuid.uuid4().hex[:8]}"
    with served(tempo.answer) as url:
        settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "STRETTO_GATEWAY_TRACES_URL": f"{url}/tempo"}
        with installed(tmp_path, settings) as running, running.http() as http:
            head = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
            http.post("/jobs", json=spec(name), headers=head).raise_for_status()
            wait_until(lambda: bool(http.get(f"/jobs/{name}/trace").json()["spans"]))
            found = http.get(f"/jobs/{name}/trace").json()
            [span] = [each for each in found["spans"] if each["name"] == "publish job-submitted"]
            assert (span["service"], span["trace_id"]) == ("stretto-gateway", TRACE)
            assert abs(span["start_s"] - found["events"][0]["time_s"]) < 60
            assert {each["attributes"]["stretto.job"] for each in found["spans"]} == {name}
            assert found["missing"] is None
            tempo.is_down = True
            alone = http.get(f"/jobs/{name}/trace").json()
            assert alone["events"] == found["events"]
            assert alone["missing"] == "the spans of the collector; the gateway's log says why"
            assert "it answered 503 Service Unavailable" in (tmp_path / "gateway.log").read_text()


async def test_jaeger_is_understood() -> None:
    parent = jaeger_span("decide", span_id="aa")
    failed = [{"key": "otel.status_code", "value": "ERROR"}, {"key": "otel.status_description", "value": "too late"}]
    child = jaeger_span("publish", references=[{"refType": "CHILD_OF", "traceID": TRACE, "spanID": "aa"}], tags=failed)
    decide, publish = await asked(200, jaeger(parent, child, jaeger_span("of another", job="other")))
    assert (decide["span_id"], decide["parent_id"]) == ("00000000000000aa", None)
    assert (decide["service"], decide["name"], decide["error"]) == ("stretto-planner", "decide", None)
    assert (decide["start_s"], decide["end_s"]) == (1_700_000_000.0, 1_700_000_001.5)
    assert (publish["parent_id"], publish["error"]) == (decide["span_id"], "too late")


async def test_identifiers_of_the_norm_are_understood() -> None:
    """OTLP wants hexadecimal ids; Tempo may come to write them, and calls the batches by another name."""
    attributes = [
        {"key": "stretto.job", "value": {"stringValue": "ctr"}},
        {"key": "delivery", "value": {"intValue": "2"}},
        {"key": "pods", "value": {"arrayValue": {"values": [{"stringValue": "ps-0"}]}}},
        {"key": "raw", "value": {"bytesValue": "AA=="}},
    ]
    span = {
        **{"traceId": TRACE.upper(), "spanId": "00F067AA0BA902B7", "parentSpanId": "", "name": "decide"},
        **{"startTimeUnixNano": "1500000000", "endTimeUnixNano": 2_500_000_000, "attributes": attributes},
        "status": {"code": 2},
    }
    [found] = await asked(200, json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode())
    assert (found["trace_id"], found["span_id"], found["parent_id"]) == (TRACE, "00f067aa0ba902b7", None)
    assert (found["start_s"], found["end_s"], found["error"]) == (1.5, 2.5, UNDESCRIBED)
    assert found["attributes"] == {"stretto.job": "ctr", "delivery": 2, "pods": ["ps-0"], "raw": None}


@pytest.mark.parametrize(
    "odd",
    [
        {"name": None},
        {"endTimeUnixNano": None},
        {"startTimeUnixNano": "9" * 400},
        {"traceId": "?"},
        {"attributes": [{"key": "x", "value": {"intValue": "many"}}]},
        {"attributes": 3},
        {"status": 3},
    ],
)
async def test_an_odd_span_hides_no_other(odd: dict[str, Any]) -> None:
    """A pod may write spans into the collector, in any trace."""
    attributes: list[Any] = [
        {"key": "stretto.job", "value": {"stringValue": "ctr"}},
        {"key": "x", "value": {}},
        {"key": "y"},
    ]
    span = {
        **{"traceId": TRACE, "spanId": "00f067aa0ba902b7", "name": "decide", "attributes": attributes},
        **{"startTimeUnixNano": "1", "endTimeUnixNano": "2"},
    }
    spoiled = {name: value for name, value in (span | odd).items() if value is not None}
    answer = {"batches": [{"scopeSpans": [{"spans": [spoiled, span]}]}]}
    [found] = await asked(200, json.dumps(answer).encode())
    assert found["name"] == "decide"
    assert found["attributes"] == {"stretto.job": "ctr", "x": None, "y": None}


async def test_an_odd_span_of_jaeger_hides_no_other() -> None:
    [found] = await asked(200, jaeger(jaeger_span("odd", processID="p9"), jaeger_span("decide")))
    assert found["name"] == "decide"


async def test_headers_are_sent_and_a_trace_may_be_unknown() -> None:
    seen: dict[str, str] = {}
    headers = "Authorization=Bearer%20s3cret,X-Scope-OrgID=7"
    assert await asked(404, b"trace not found", seen, STRETTO_GATEWAY_TRACES_HEADERS=headers) == []
    assert (seen["authorization"], seen["x-scope-orgid"]) == ("Bearer s3cret", "7")
    assert seen["accept"] == "application/json"


@pytest.mark.parametrize(
    ("status", "body", "text"),
    [
        (500, b"", "it answered 500 Internal Server Error"),
        (302, b"", "it answered 302 Found"),
        (200, b"<html>", "neither the form of Tempo nor that of Jaeger"),
        (200, b"[]", "neither the form of Tempo nor that of Jaeger"),
        (200, b'{"data":[{"spans":[{}]}]}', "neither the form of Tempo nor that of Jaeger"),
        (200, b'{"batches":[3]}', "neither the form of Tempo nor that of Jaeger"),
        (200, b"[" * 100_000, "neither the form of Tempo nor that of Jaeger"),
        (200, jaeger(jaeger_span("x" * 5000)), "larger than 0 MiB"),
    ],
)
async def test_a_fault_says_its_reason(status: int, body: bytes, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "larger" in text:
        monkeypatch.setattr(collector_module, "ANSWER_BYTES_MAX", 4096)
    with pytest.raises(CollectorFault, match=text):
        await asked(status, body)


async def test_nobody_there() -> None:
    with pytest.raises(CollectorFault, match=r"[Cc]onnect"):
        await Collector("http://127.0.0.1:9", {}).spans("ctr", TRACE)
