"""Observability of a service: traces, health, metrics."""

from __future__ import annotations

import asyncio
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from runtime_counting import Counting, add
from runtime_live import SHORT_LEASE_S, Replicas, Running, eventually, published, until_ready
from stretto_bus import Client
from stretto_installation.server import EmbeddedServer
from stretto_messages.dispatcher import JobProgressed, NextShard
from stretto_runtime import Input, Meta


class Second(Counting):
    """Receiver what the first publishes."""

    name = "arbiter"
    inputs = (Input(JobProgressed),)
    rpcs = ()

    def to_event(self, message: Any, meta: Meta) -> Any:
        return super().to_event(add(message.job, 1), meta)

    def to_message(self, key: str, fact: Any) -> Any:
        return None


async def test_one_trace_from_the_client_through_two_services(client: Client, tmp_path: Path, running: Running) -> None:
    async with running(Counting), running(Second):
        await client.publish(add("job-a", 1))
        await client.call(NextShard(job="job-a", request_id="w.1", pod="worker-1"))
        path = tmp_path / "spans" / "arbiter.jsonl"
        await eventually(lambda: path.exists() and len(path.read_text().splitlines()) >= 2)
    spans = [json.loads(line) for file in (tmp_path / "spans").iterdir() for line in file.read_text().splitlines()]
    assert len({span["trace_id"] for span in spans}) == 1
    by_id = {span["span_id"]: span for span in spans}
    root = next(span for span in spans if span["parent_id"] is None)
    assert root["name"] == "publish job-cancelled"
    for span in spans:
        if span["service"] == "stretto-arbiter":
            assert by_id[span["parent_id"]]["service"] == "stretto-dispatcher"
    handled = next(span for span in spans if span["name"] == "dispatcher job-cancelled")
    assert handled["attributes"]["decision.total"] == 1
    assert handled["attributes"]["stretto.delivery"] == 1


async def test_health_readiness_and_metrics(
    server: EmbeddedServer, client: Client, tmp_path: Path, running: Running
) -> None:
    async with running(Counting) as runner, httpx.AsyncClient() as http:
        where = json.loads((tmp_path / "run" / "dispatcher.json").read_text())
        assert where["port"] == runner.port
        base = f"http://127.0.0.1:{runner.port}"
        assert (await http.get(f"{base}/healthz")).status_code == 200
        ready = (await http.get(f"{base}/readyz")).json()
        assert ready["partitions"] == list(range(16))
        await client.publish(add("job-a", 1))
        await published(client, "dispatcher", 1)
        assert 'stretto_outputs_total{service="dispatcher"} 1.0' in (await http.get(f"{base}/metrics")).text
        server.kill()
        async with asyncio.timeout(60):
            while (await http.get(f"{base}/readyz")).status_code != 503:
                await asyncio.sleep(0.05)
        await server.start()
        await until_ready(runner)
    assert not (tmp_path / "run" / "dispatcher.json").exists()


async def test_after_a_takeover_spans_tell_the_delivery(
    client: Client, tmp_path: Path, replicas: Replicas, running: Running
) -> None:
    first = replicas.start(lease_s="1", snapshot_s="60")
    await client.publish(add("job-a", 1))
    await published(client, "dispatcher", 1)
    first.kill()
    async with running(Counting, lease_s=SHORT_LEASE_S):
        path = tmp_path / "spans" / "dispatcher.jsonl"
        await eventually(path.exists)
        again = json.loads(path.read_text().splitlines()[0])
    before = json.loads((tmp_path / "state0" / "spans" / "dispatcher.jsonl").read_text().splitlines()[0])
    assert again["parent_id"] == before["parent_id"]  # siblings
    assert (before["attributes"]["stretto.delivery"], again["attributes"]["stretto.delivery"]) == (1, 2)
    assert len(await published(client, "dispatcher", 1)) == 1


async def test_spans_go_to_the_collector_of_the_standard_variable(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, running: Running
) -> None:
    received: list[ExportTraceServiceRequest] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            received.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    collector = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    Thread(target=collector.serve_forever, daemon=True).start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    async with running(Counting):
        await client.publish(add("job-a", 1))
        await published(client, "dispatcher", 1)
    collector.shutdown()
    names = {
        span.name
        for request in received
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    }
    assert "dispatcher job-cancelled" in names
    assert not (tmp_path / "spans" / "dispatcher.jsonl").exists()
