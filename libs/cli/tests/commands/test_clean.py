"""``stretto clean`` on a real installation."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from installed_gateway import Installed, write_spec
from stretto_cli.commands.installation.clean import clean
from stretto_wire import JobSpec, JobSubmitted

from tests.waits import wait_until


@pytest.mark.parametrize("dry_run", [True, False])
def test_an_ended_job_is_cleaned_and_what_a_live_job_needs_stays(
    installed: Installed, tmp_path: Path, dry_run: bool
) -> None:
    """Method: an ended job, another from whose checkpoint a live job starts, and the live job, with folders of each."""
    ended, base = (write_spec(tmp_path) for _ in range(2))
    url = f"file://{installed.folder}/checkpoints/{base[0]}/{base[0]}-000001/manifest.json"
    for name, file in (ended, base):
        assert installed.stretto("submit", file).exit_code == 0
        assert installed.stretto("cancel", name).exit_code == 0
    live = f"live-of-{base[0]}"
    spec = {"name": live, "model": {"entry": "m:M"}, "dataset": {"samples": 9}, "checkpoint": {"restore_from": url}}
    installed.publish(JobSubmitted(job=live, spec=JobSpec.parse(spec), submitted_by="somebody"))
    wait_until(lambda: live in installed.stretto("jobs", "-o", "json").stdout)
    for kind in ("pods", "spans", "checkpoints"):
        for name in (ended[0], base[0], live):
            (installed.folder / kind / name).mkdir(parents=True, exist_ok=True)
    refused = installed.stretto("clean", live)
    assert refused.exit_code == 2
    assert "lives" in refused.stderr
    assert json.loads(installed.stretto("clean", "-o", "json").stdout)["folders"] == [], "all are of today"
    options = ["clean", ended[0], base[0], "--checkpoints", "-o", "json", *(["--dry-run"] if dry_run else [])]
    cleaned = installed.stretto(*options)
    assert f"{'measuring' if dry_run else 'removing'} checkpoints of {ended[0]} …" in cleaned.stderr
    report = json.loads(cleaned.stdout)
    gone = {(row["job"], row["kind"]) for row in report["folders"]}
    kinds = {ended[0]: ("pods", "spans", "checkpoints"), base[0]: ("pods", "spans")}
    assert gone == {(name, kind) for name in kinds for kind in kinds[name]}
    assert {row["team"] for row in report["folders"]} == {"default"}
    assert all((installed.folder / kind / name).exists() == dry_run for name, kind in gone)
    assert (installed.folder / "pods" / live).exists()
    assert (installed.folder / "checkpoints" / base[0]).exists()
    assert installed.stretto("cancel", live).exit_code == 0


@pytest.mark.parametrize(
    ("settings", "options", "gone"),
    [
        ({}, [], ["pods", "spans"]),
        ({"PODS": "41"}, [], ["spans"]),
        ({"SPANS": "41", "PODS": "41", "CHECKPOINTS": "39"}, [], ["checkpoints"]),
        ({"CHECKPOINTS": "41"}, [], ["pods", "spans"]),
        ({"CHECKPOINTS": "41", "PODS": "41", "SPANS": "41"}, ["--older-than", "39"], ["pods", "spans"]),
        ({"CHECKPOINTS": "41"}, ["--older-than", "39", "--checkpoints"], ["checkpoints", "pods", "spans"]),
        ({"PODS": "41"}, ["--checkpoints"], ["spans"]),
        ({}, ["--checkpoints"], ["checkpoints", "pods", "spans"]),
        ({"CHECKPOINTS": "soon"}, [], None),
        ({"CHECKPOINT": "9"}, [], None),
    ],
)
def test_settings_say_after_how_many_days_what_goes(
    installed: Installed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, str],
    options: list[str],
    gone: list[str] | None,
) -> None:
    name, file = write_spec(tmp_path)
    assert installed.stretto("submit", file).exit_code == 0
    assert installed.stretto("cancel", name).exit_code == 0
    for kind in ("pods", "spans", "checkpoints"):
        (installed.folder / kind / name).mkdir(parents=True)
    for kind, days in settings.items():
        monkeypatch.setenv(f"STRETTO_KEPT_{kind}_DAYS", days)
    monkeypatch.setattr(f"{clean.__module__}.time", SimpleNamespace(time=lambda: time.time() + 40 * 86400))
    answer = installed.stretto("clean", "--dry-run", "-o", "json", *options)
    if gone is None:
        assert (answer.exit_code, "STRETTO_KEPT_CHECKPOINT" in answer.stderr) == (2, True)
    else:
        rows = json.loads(answer.stdout)["folders"]
        assert [row["kind"] for row in rows if row["job"] == name] == gone
