"""``stretto status`` against a real installation."""

from __future__ import annotations

import json

from installed_gateway import Installed


def test_status_shows_every_process(installed: Installed) -> None:
    report = json.loads(installed.stretto("status", "-o", "json").stdout)
    assert report["ready"] is True
    assert [row["name"] for row in report["processes"]] == ["nats", "redis", "gateway"]
    assert all(row["memory_bytes"] > 0 for row in report["processes"])
    assert "ready" in installed.stretto("status").stdout
