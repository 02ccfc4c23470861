"""HEAD, which tools use to look before they load, at every kind of address of a real gateway."""

from __future__ import annotations

from typing import cast

import httpx
import pytest
from stretto_gateway.http.app import health_app
from stretto_gateway.service import Gateway

from ..gateway_process import Running

PAGES = ("/", "/console", "/console/jobs/a", "/console/docs", "/console/docs/none.html", "/problems", "/openapi.json")
ANSWERS = ("/healthz", "/readyz", "/api/v1/me", "/api/v1/jobs", "/api/v1/jobs/none", "/api/v1/none")
STREAMS_MOST = 20
"""Event streams that one caller may have open at once."""


@pytest.mark.parametrize("path", [*PAGES, *ANSWERS])
def test_head_is_answered_as_get_without_the_body(gateway: Running, path: str) -> None:
    with gateway.http() as http:
        whole, head = (http.request(method, f"{gateway.url}{path}") for method in ("GET", "HEAD"))
        other = http.get(f"{gateway.url}/healthz").text
    assert head.content == b""
    assert head.status_code == whole.status_code
    assert {**head.headers, "date": ""} == {**whole.headers, "date": ""}
    assert other == "ok\n", "no byte of a body is left in the connection"


def test_head_is_guarded_as_get_is(gateway: Running) -> None:
    assert httpx.head(f"{gateway.url}/api/v1/jobs", trust_env=False).status_code == 401


def test_head_of_an_event_stream_ends_at_once_and_holds_no_place(gateway: Running) -> None:
    with gateway.http() as http:
        heads = [http.head("/events") for _ in range(STREAMS_MOST + 5)]
    assert {head.status_code for head in heads} == {200}
    assert all(head.headers["content-type"].startswith("text/event-stream") for head in heads)


async def test_who_monitors_the_process_may_look_by_head_too() -> None:
    transport = httpx.ASGITransport(health_app(cast(Gateway, None)))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        head = await http.head("/healthz")
    assert (head.status_code, head.content) == (200, b"")
