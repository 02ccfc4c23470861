"""``stretto status`` against a real installation."""

from __future__ import annotations

import json
from typing import Any

from installed_gateway import Installed
from stretto_cli.commands.installation.status import warnings_of


def test_status_shows_every_process(installed: Installed) -> None:
    report = json.loads(installed.stretto("status", "-o", "json").stdout)
    assert report["ready"] is True
    assert [row["name"] for row in report["processes"]] == ["nats", "redis", "gateway"]
    assert all(row["memory_bytes"] > 0 for row in report["processes"])
    assert "ready" in installed.stretto("status").stdout


def test_what_the_gateway_warned_of_at_the_start_is_what_it_warns_of_now() -> None:
    def row(name: str, ready: bool, why: str) -> dict[str, Any]:
        return {"name": name, "ready": ready, "why": why}

    start = ["redis: old", "gateway: not known yet", "actuator: no box"]
    others = [row("actuator", True, "no box"), row("nats", True, "")]
    told = [warnings_of(start, [*others, row("gateway", ready, why)]) for ready, why in ((True, "lost"), (True, ""))]
    assert told == [["redis: old", "actuator: no box", "gateway: lost"], ["redis: old", "actuator: no box"]]
    assert warnings_of(start, [row("gateway", False, "reads")]) == told[1], "its row says so"
