"""Options and errors that all commands share, and shell completion."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from installed_gateway import Installed, write_spec
from stretto_cli.errors import of_client
from stretto_cli.main import app
from stretto_client.errors import Finding, Refused
from typer.testing import CliRunner


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["watch", "no-such-job"], 2, "no-such-job"),
        (["jobs", "--status", "done"], 2, "refused by the gateway"),
        (["jobs", "--no-such-option"], 2, "--no-such-option"),
        (["submit"], 2, "JOB.YAML"),
        (["submt"], 2, "submit"),
        (["logs", "worker-99"], 2, "worker-99"),
        (["jobs", "--url", "http://127.0.0.1:1"], 1, "stretto up"),
        (["explain", "../../etc"], 2, "'../../etc' is no name; names of jobs and pods are lower-case letters"),
        (["explain", ".."], 2, "'..' is no name"),
        (["events", "--job", "a/../b"], 2, "'a/../b' is no name"),
        (["scale", "a?b#c", "--workers", "2"], 2, "'a?b#c' is no name"),
        (["up", "--memory", "1"], 2, "1: at least 1 MiB and at most 1 EiB"),
        (["up", "--cpu-cores", "0"], 2, "0: at least 0.1 and at most 1,000,000 cores"),
    ],
)
def test_with_json_errors_are_documents_too(
    installed: Installed, arguments: list[str], status: int, words: str
) -> None:
    for form in (["-o", "json"], ["--output=json"]):
        refused = installed.stretto(*arguments, *form)
        assert (refused.exit_code, refused.stdout) == (status, "")
        error = json.loads(refused.stderr)["error"]
        assert error["status"] == status
        assert words in error["message"]


def test_unknown_jobs_are_exit_2_and_a_missing_installation_is_exit_1(installed: Installed, tmp_path: Path) -> None:
    for command in ("watch", "explain", "cancel", "checkpoint", "trace"):
        refused = installed.stretto(command, "no-such-job")
        assert refused.exit_code == 2, command
        assert "no-such-job" in refused.stderr
    for command in (["jobs"], ["status"], ["down"], ["watch", "x"]):
        refused = CliRunner().invoke(app, [*command, "--folder", str(tmp_path / "nothing")])
        assert refused.exit_code == 1, command
        assert "stretto up" in refused.stderr
        assert command[0] not in ("jobs", "watch") or "--url" in refused.stderr, "the command's way to name another"
        assert "connect(" not in refused.stderr


def test_a_refusal_tells_its_remedy_once() -> None:
    remedy = "at most 1, the ceiling of the team search"
    for detail in (f"priority = 3.0: {remedy}", "too high"):
        found = [Finding("priority", "3.0", remedy)]
        told = str(of_client(Refused(422, "above-priority-ceiling", detail, findings=found)))
        assert told.count(remedy) == 1, told


def test_a_refusal_of_several_values_tells_each() -> None:
    found = [Finding("devices", "gpu-c", "here are: gpu-a"), Finding("groups", "gpu-b", "name it as well")]
    told = str(of_client(Refused(422, "beyond-cluster", f"{found[0]} (and 1 more)", findings=found, count=2)))
    assert "name it as well" in told
    assert "1 more" not in told


@pytest.mark.parametrize("by", ["option", "environment"])
def test_job_names_are_completed_from_the_folder_that_is_named(installed: Installed, tmp_path: Path, by: str) -> None:
    name, file = write_spec(tmp_path)
    installed.stretto("submit", file)
    named = f"--folder {installed.folder} " if by == "option" else ""
    environment = {**os.environ, "_STRETTO_COMPLETE": "complete_bash", "COMP_CWORD": str(4 if named else 2)}
    environment |= {"COMP_WORDS": f"stretto watch {named}{name[:8]}"}
    environment |= {} if named else {"STRETTO_STATE_FOLDER": str(installed.folder)}
    command = [str(Path(sys.executable).with_name("stretto"))]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert name in done.stdout.split(), done.stderr[-2000:]


def completed(folder: Path, *words: str) -> list[str]:
    """Return bash's completions of the last word."""
    environment = {**os.environ, "_STRETTO_COMPLETE": "complete_bash", "COMP_CWORD": str(len(words))}
    environment |= {"COMP_WORDS": " ".join(["stretto", *words]), "STRETTO_STATE_FOLDER": str(folder)}
    command = [str(Path(sys.executable).with_name("stretto"))]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout.split()


def test_pods_states_and_events_are_completed(tmp_path: Path) -> None:
    for pod in ("one/worker-0", "two/worker-0", "two/ps-0"):
        (tmp_path / "pods" / pod).mkdir(parents=True)
        (tmp_path / "pods" / pod / "log").write_text("")
    assert completed(tmp_path, "logs", "two/") == ["two/ps-0", "two/worker-0"]
    assert completed(tmp_path, "logs", "wor") == ["worker-0"]
    assert completed(tmp_path, "logs", "--job", "one", "w") == ["worker-0"]
    assert completed(tmp_path, "jobs", "--status", "fin") == ["finished", "finishing"]
    assert completed(tmp_path, "events", "-e", "plan-a") == ["plan-applied"]


@pytest.mark.parametrize(
    ("name", "near"), [("STRETTO_CLI_ULR", "STRETTO_CLI_URL"), ("STRETTO_STATE_FOLDR", "STRETTO_STATE_FOLDER")]
)
def test_a_misspelt_variable_of_the_command_is_refused_with_the_nearest(
    monkeypatch: pytest.MonkeyPatch, name: str, near: str
) -> None:
    monkeypatch.setenv(name, "x")
    refused = CliRunner().invoke(app, ["schema"])
    assert refused.exit_code == 2
    assert f"{name} is not a variable of the command; did you mean {near}?" in refused.stderr
    monkeypatch.delenv(name)
    monkeypatch.setenv("STRETTO_ARBITER_SETTLE_S", "3")  # of a service
    assert CliRunner().invoke(app, ["schema"]).exit_code == 0
