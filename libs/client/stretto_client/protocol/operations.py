"""The operations of the gateway by name: the request of each, and a coroutine where several are needed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ..errors import Refused
from .connection import GatewayConnection, GatewayRequest, below, unless_unchanged
from .exchange import document, exchange

ENDED_STATES = ("finished", "failed", "cancelled")
"""The wire's ``OVER``, as a test compares; the command reads JSON and loads no types of views for it."""
VIEW_POLL_S = 0.2
SHOWN_WITHIN_S = 10.0
"""Time within which every replica of the gateway shows a new job."""


def submit(text: str) -> GatewayRequest:
    """Submit a specification in YAML or JSON."""
    return GatewayRequest("POST", "/jobs", (), {"Content-Type": "application/yaml"}, text.encode())


def preview(text: str) -> GatewayRequest:
    """Return the outcome that a submission would have."""
    return GatewayRequest("POST", "/jobs/preview", (), {"Content-Type": "application/yaml"}, text.encode())


def job(name: str, tag: str = "") -> GatewayRequest:
    """Return everything known about a job; with the ``tag`` of an answer, only what has changed since."""
    return GatewayRequest("GET", below("jobs", name), (), unless_unchanged(tag))


def audit(name: str) -> GatewayRequest:
    """Return the audit of a job's books."""
    return GatewayRequest("GET", below("jobs", name, "audit"))


def trace(name: str) -> GatewayRequest:
    """Return the trace of a job, with the spans that the gateway's machine keeps."""
    return GatewayRequest("GET", below("jobs", name, "trace"))


def what_if(name: str, changes: Mapping[str, float]) -> GatewayRequest:
    """Return how a live job would go on under its plan with some changes."""
    return GatewayRequest(
        "GET", below("jobs", name, "whatif"), tuple((key, str(value)) for key, value in changes.items())
    )


def cancel(name: str, reason: str = "") -> GatewayRequest:
    """End a job."""
    return GatewayRequest("DELETE", below("jobs", name), (("reason", reason),))


def checkpoint(name: str) -> GatewayRequest:
    """Take a checkpoint now."""
    return GatewayRequest("POST", below("jobs", name, "checkpoints"))


def scale(name: str, wanted: Mapping[str, int | str]) -> GatewayRequest:
    """Request another number of pods."""
    return _posted(below("jobs", name, "plan"), wanted)


def add_data(name: str, change: Mapping[str, Any]) -> GatewayRequest:
    """Give a growing job more data, or close it."""
    return _posted(below("jobs", name, "data"), change)


def history() -> GatewayRequest:
    """Return the past jobs that warm start reads."""
    return GatewayRequest("GET", "/history")


def status() -> GatewayRequest:
    """Return the progress of the gateway's view."""
    return GatewayRequest("GET", "/status")


def alerts() -> GatewayRequest:
    """Return the alerts that hold now."""
    return GatewayRequest("GET", "/alerts")


def me() -> GatewayRequest:
    """Return the caller."""
    return GatewayRequest("GET", "/me")


def audit_log() -> GatewayRequest:
    """Return the audit log, an entry a line."""
    return GatewayRequest("GET", "/audit-log")


async def jobs(connection: GatewayConnection, filters: Iterable[tuple[str, str]] = ()) -> list[bytes]:
    """Return every page of the list of jobs."""
    given, cursor = tuple(filters), ""
    pages: list[bytes] = []
    while True:
        params = (*given, ("cursor", cursor)) if cursor else given
        answer = await exchange(connection, GatewayRequest("GET", "/jobs", params))
        pages.append(answer.content)
        link, _, relation = answer.headers.get("link", "").partition(";")
        if 'rel="next"' not in relation:
            return pages
        (cursor,) = parse_qs(urlsplit(link.strip(" <>")).query)["cursor"]


async def cluster(connection: GatewayConnection) -> dict[str, Any]:
    """Return the cluster, with the holders of all pages."""
    holders: list[Any] = []
    others, after = 0, ""
    while True:
        page = await document(connection, GatewayRequest("GET", "/cluster", (("after", after),) if after else ()))
        holders += page["holders"]
        others += page["others"]
        if not (after := page["after"] or ""):
            return {**page, "holders": holders, "others": others}


async def submitted(connection: GatewayConnection, text: str) -> bytes:
    """Submit a specification; return the view of its job. Another replica may show it an instant later."""
    name = (await document(connection, submit(text)))["job"]
    deadline_s = connection.now() + SHOWN_WITHIN_S
    while True:
        try:
            return (await exchange(connection, job(name))).content
        except Refused as refused:
            if refused.kind != "no-such-job" or connection.now() > deadline_s:
                raise
        await connection.pause(VIEW_POLL_S)


async def ended(connection: GatewayConnection, name: str) -> dict[str, Any]:
    """Return the view of a job whose last event was read: the view may be an instant behind the event."""
    while (view := await document(connection, job(name)))["status"] not in ENDED_STATES:
        await connection.pause(VIEW_POLL_S)
    return view


def _posted(path: str, body: Mapping[str, Any]) -> GatewayRequest:
    return GatewayRequest("POST", path, (), {"Content-Type": "application/json"}, json.dumps(body).encode())
