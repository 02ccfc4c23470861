"""The operations of the gateway by name: the request of each, and a coroutine where several are needed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ..errors import Refused
from .connection import GatewayConnection, Request, below, unless_unchanged
from .exchange import document, exchange

ENDED_STATES = ("finished", "failed", "cancelled")
"""The wire's ``OVER``, as a test compares; the command reads JSON and loads no types of views for it."""
VIEW_POLL_S = 0.2
SHOWN_WITHIN_S = 10.0
"""Time within which every replica of the gateway shows a new job."""


def submit(text: str) -> Request:
    """Submit a specification in YAML or JSON."""
    return Request("POST", "/jobs", (), {"Content-Type": "application/yaml"}, text.encode())


def preview(text: str) -> Request:
    """Return the outcome that a submission would have."""
    return Request("POST", "/jobs/preview", (), {"Content-Type": "application/yaml"}, text.encode())


def job(name: str, tag: str = "") -> Request:
    """Return everything known about a job; with the ``tag`` of an answer, only what has changed since."""
    return Request("GET", below("jobs", name), (), unless_unchanged(tag))


def audit(name: str) -> Request:
    """Return the audit of a job's books."""
    return Request("GET", below("jobs", name, "audit"))


def trace(name: str) -> Request:
    """Return the trace of a job, with the spans that the gateway's machine keeps."""
    return Request("GET", below("jobs", name, "trace"))


def what_if(name: str, changes: Mapping[str, float]) -> Request:
    """Return how a live job would go on under its plan with some changes."""
    return Request("GET", below("jobs", name, "whatif"), tuple((key, str(value)) for key, value in changes.items()))


def cancel(name: str, reason: str = "") -> Request:
    """End a job."""
    return Request("DELETE", below("jobs", name), (("reason", reason),))


def checkpoint(name: str) -> Request:
    """Take a checkpoint now."""
    return Request("POST", below("jobs", name, "checkpoints"))


def scale(name: str, wanted: Mapping[str, int | str]) -> Request:
    """Request another number of pods."""
    return _posted(below("jobs", name, "plan"), wanted)


def add_data(name: str, change: Mapping[str, Any]) -> Request:
    """Give a growing job more data, or close it."""
    return _posted(below("jobs", name, "data"), change)


def history() -> Request:
    """Return the past jobs that warm start reads."""
    return Request("GET", "/history")


def status() -> Request:
    """Return the progress of the gateway's view."""
    return Request("GET", "/status")


def me() -> Request:
    """Return the caller."""
    return Request("GET", "/me")


def audit_log() -> Request:
    """Return the audit log, an entry a line."""
    return Request("GET", "/audit-log")


async def jobs(connection: GatewayConnection, filters: Iterable[tuple[str, str]] = ()) -> list[bytes]:
    """Return every page of the list of jobs."""
    given, cursor = tuple(filters), ""
    pages: list[bytes] = []
    while True:
        params = (*given, ("cursor", cursor)) if cursor else given
        answer = await exchange(connection, Request("GET", "/jobs", params))
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
        page = await document(connection, Request("GET", "/cluster", (("after", after),) if after else ()))
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


def _posted(path: str, body: Mapping[str, Any]) -> Request:
    return Request("POST", path, (), {"Content-Type": "application/json"}, json.dumps(body).encode())
