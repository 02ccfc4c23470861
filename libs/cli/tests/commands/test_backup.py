"""``stretto backup`` and ``stretto restore`` on a real installation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from installed_gateway import Installed, installed_gateway
from stretto_cli.main import app
from stretto_messages.gateway import JobCancelled
from typer.testing import CliRunner


def stretto(*arguments: str) -> Any:
    return CliRunner().invoke(app, [*arguments])


def test_a_running_installation_is_saved_and_restored_into_another_folder(tmp_path: Path) -> None:
    """Method: a gateway on each, and the command as a person types it."""
    target, other = tmp_path / "backup", tmp_path / "other"
    with installed_gateway(tmp_path / "one") as first:
        first.publish(JobCancelled(job="job-a", reason="a test"))
        saved = first.stretto("backup", str(target), "-o", "json")
        assert saved.exit_code == 0, saved.stderr
        saved_streams = {each["stream"]: each for each in json.loads(saved.stdout)["streams"]}
        assert saved_streams["STRETTO"]["messages"] > 0
        events = first.stretto("events", "-o", "json").stdout
        refused = first.stretto("restore", str(target))
        assert refused.exit_code == 1
        assert "end it with `stretto down`, then restore" in " ".join(refused.stderr.split())
    restored = stretto("restore", str(target), "--folder", str(other), "-o", "json")
    assert restored.exit_code == 0, restored.stderr
    assert not json.loads(restored.stdout)["expired"]
    assert (target / "trust.conf").read_text() not in (other / "nats" / "nats.conf").read_text()
    with installed_gateway(other) as second:
        assert second.stretto("events", "-o", "json").stdout == events
    assert [json.loads(line)["event"] for line in events.splitlines()] == ["job-cancelled"]


@pytest.mark.parametrize("command", ["backup", "restore"])
def test_a_folder_that_cannot_be_used_is_named(command: str, installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = installed.folder if command == "backup" else tmp_path / "empty"
    answer = stretto(command, str(tmp_path), "--folder", str(folder))
    assert answer.exit_code == 1
    remedy = "name a new folder for each backup" if command == "backup" else "holds no backup"
    assert remedy in " ".join(answer.stderr.split())
