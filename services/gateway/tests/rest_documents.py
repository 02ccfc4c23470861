"""Documents of the REST interface: a specification that tests submit, and a problem that they are answered."""

from __future__ import annotations

import uuid
from typing import Any

import httpx


def spec(name: str | None = None, **more: Any) -> dict[str, Any]:
    return {
        "name": name or f"job-{uuid.uuid4().hex[:12]}",
        "model": {"entry": "m:M"},
        "dataset": {"samples": 1000},
        **more,
    }


def problem(response: httpx.Response) -> dict[str, Any]:
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert body["status"] == response.status_code
    assert {"type", "title", "detail", "instance", "field", "value", "remedy"} <= body.keys()
    first = body["errors"][0]
    assert [first[part] for part in ("field", "value", "remedy")] == [body["field"], body["value"], body["remedy"]]
    assert body["count"] >= len(body["errors"])
    return body
