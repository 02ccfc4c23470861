"""``stretto events`` against a real gateway."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from installed_gateway import PLAN, Installed, decided, write_spec
from stretto_cli import render
from stretto_messages.actuator import JobFailed


def test_events_are_one_json_line_each_and_can_be_resumed(
    installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, file = write_spec(tmp_path)
    installed.stretto("submit", file)
    installed.publish(decided(name, 1, PLAN, None), JobFailed(job=name, reason="over"))
    lines = [json.loads(line) for line in installed.stretto("events", "--job", name, "-o", "json").stdout.splitlines()]
    assert [line["event"] for line in lines] == ["job-submitted", "plan-decided", "job-failed"]
    assert lines[0]["data"]["spec"]["name"] == name
    rest = installed.stretto("events", "-j", name, "--after", str(lines[1]["seq"]), "-o", "json").stdout.splitlines()
    assert [json.loads(line)["seq"] for line in rest] == [lines[2]["seq"]]
    people = installed.stretto("events", "--job", name, "-e", "job-failed").stdout
    assert "job-failed" in people
    assert "plan-decided" not in people
    monkeypatch.setattr(render, "unreadable", lambda found: f"1 stored event of {found['name']} cannot be read")
    damaged = installed.stretto("events", "--job", name, "-o", "json")
    assert f"1 stored event of {name} cannot be read" in damaged.stderr
    assert [json.loads(line) for line in damaged.stdout.splitlines()] == lines


def test_an_event_that_does_not_exist_is_refused_with_the_nearest(installed: Installed) -> None:
    refused = installed.stretto("events", "-e", "plan-decide")
    assert refused.exit_code == 2
    assert "did you mean plan-decided?" in refused.stderr
