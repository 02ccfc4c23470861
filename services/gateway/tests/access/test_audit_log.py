"""The audit log: one chain whoever writes it, for admins only, and in nobody's events."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

from stretto_bus import Client
from stretto_gateway.access.audit_log import AuditLog, RequestedChange
from stretto_gateway.streams.bus import StreamBus
from stretto_runtime.spans.tracing import Tracing
from stretto_wire.contract.audit_log import verify

from tests.live_bus import live_bus

from ..gateway_process import Running
from ..rest_documents import spec

CHANGES = 40


async def test_two_replicas_write_one_chain(tmp_path: Path) -> None:
    """Method: two logs with connections of their own append together on a real server; the chain is verified."""
    streams = [StreamBus(Tracing("gateway", tmp_path, 0, 0)) for _ in range(2)]
    logs = [AuditLog(stream, time.monotonic, time.time) for stream in streams]

    async def append(log: AuditLog, actor: str) -> None:
        for _ in range(CHANGES):
            await log.note(RequestedChange("job-a", "cancel", 202, "", actor, "admin", ""))

    async with live_bus(tmp_path) as (server, _):
        for stream in streams:
            stream.reached((await Client.connect(server.url, server.login("gateway"))).bus)
        await asyncio.gather(*(append(log, f"replica-{number}") for number, log in enumerate(logs)))
        lines = [line async for line in streams[0].audit_lines()]
        for stream in streams:
            await stream.close()
    found = verify(lines)
    assert (found.entries, found.first) == (2 * CHANGES, True)
    assert [sum(b"replica-%d" % number in line for line in lines) for number in range(2)] == [CHANGES, CHANGES]


def test_a_change_is_in_the_audit_log_and_in_nobodys_events(gateway: Running) -> None:
    """Method: submit a job, and read the log and all its events."""
    document = spec()
    with gateway.http() as http:
        assert http.post("/jobs", json=document).status_code == 201
        text = http.get("/audit-log").content
        events = http.get("/events", params={"follow": False}).text
    assert document["name"].encode() in text.splitlines()[-1]
    assert verify(text.splitlines()).first
    assert "change-audited" not in events
    assert "127.0.0.1" not in events


def test_the_newest_changes_come_page_by_page(gateway: Running) -> None:
    with gateway.http() as http:
        for _ in range(3):
            assert http.post("/jobs", json=spec()).status_code == 201
        whole = [json.loads(line) for line in http.get("/audit-log").text.splitlines()]
        pages: list[list[Any]] = []
        before: int | None = None
        while not pages or before is not None:
            page = http.get("/audit-log/newest", params={"limit": 2} | ({} if before is None else {"before": before}))
            pages.append(page.json()["entries"])
            before = page.json()["before"]
    assert all(len(page) <= 2 for page in pages)
    assert [entry for page in pages for entry in page] == whole[::-1]


def test_an_installation_in_which_nothing_happened_has_empty_pages(own_gateway: Running) -> None:
    with own_gateway.http() as http:
        assert http.get("/audit-log/newest").json() == {"entries": [], "before": None}
        assert http.get("/events/newest").json() == {"events": [], "before": None}
