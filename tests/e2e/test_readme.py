"""A job of one's own, typed as the README tells it, from `up` to `down`.

It has fewer samples than the example's file: the commands are the same, and what a long job shows (quality, decisions
and what they brought) the demonstration shows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from stretto_installation.server import keys_of

from tests.contract.subscriber import SubscriberUnavailable, validate_run
from tests.e2e.typed import OWN_JOB, ROOT, shell

JOB = "wide-deep-example"
SAMPLES = 150_000

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def job_file(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The example's file as the README names it, and a copy with fewer samples."""
    [example] = {word for command in OWN_JOB for word in command.split() if word.endswith(".yaml")}
    spec = yaml.safe_load((ROOT / example).read_text())
    spec["dataset"]["samples"] = spec["model"]["arguments"]["samples"] = SAMPLES
    shorter = tmp_path_factory.mktemp("job") / "wide_deep.yaml"
    shorter.write_text(yaml.safe_dump(spec))
    return example, str(shorter)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("own") / "state"
    yield folder
    shell(OWN_JOB[-1], STRETTO_STATE_FOLDER=str(folder))


@pytest.fixture(scope="module")
def trained(folder: Path, job_file: tuple[str, str]) -> dict[str, str]:
    """Type every command of the block but the last; returns the output of each by its name.

    The backup goes beside the state instead of the checkout.
    """
    printed: dict[str, str] = {}
    for command in OWN_JOB[:-1]:
        typed = command.replace(*job_file).replace(" backups/", f" {folder.parent}/backups/")
        done = shell(typed, STRETTO_STATE_FOLDER=str(folder))
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        printed[command.split()[1]] = done.stdout
    return printed


def ask(folder: Path, *arguments: str) -> Any:
    done = shell(" ".join([".venv/bin/stretto", *arguments, "-o json"]), STRETTO_STATE_FOLDER=str(folder))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_job_of_ones_own_is_trained_exactly_once(trained: dict[str, str], folder: Path) -> None:
    [job] = [job for job in ask(folder, "jobs") if job["name"] == JOB]
    assert job["status"] == "finished"
    finished = [e for e in events(folder) if e["event"] == "job-finished"]
    assert [(e["data"]["samples_lost"], e["data"]["samples_repeated"]) for e in finished] == [(0, 0)]
    assert finished[0]["data"]["samples_applied"] == SAMPLES
    assert finished[0]["data"]["evaluation"]["auc"] > 0.5


def test_every_decision_is_explained(trained: dict[str, str], folder: Path) -> None:
    assert "v1 warm-start" in trained["explain"]
    decisions = ask(folder, "explain", JOB)["decisions"]
    assert decisions
    assert all(decision["reasons"] for decision in decisions)


def test_one_trace_goes_from_submit_to_the_last_shard(trained: dict[str, str], folder: Path) -> None:
    trace = ask(folder, "trace", JOB)
    services = {span["service"].removeprefix("stretto-") for span in every(trace["spans"])}
    assert {"gateway", "planner", "arbiter", "actuator", "dispatcher", "worker"} <= services, sorted(services)


def every(spans: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for span in spans:
        yield span
        yield from every(span["children"])


def test_a_reader_in_another_language_understands_the_whole_run(trained: dict[str, str], folder: Path) -> None:
    url = json.loads((folder / "run" / "up.json").read_text())["nats_url"]
    try:
        summary = validate_run(url, keys_of(folder / "nats").credentials("operator"))
    except SubscriberUnavailable as error:
        pytest.skip(str(error))
    assert summary["invalid"] == []
    assert summary["events"] > 50
    assert {"stretto.arbiter.plan-decided.v1", "stretto.dispatcher.job-completed.v1"} <= summary["types"].keys()


def events(folder: Path) -> list[dict[str, Any]]:
    done = shell(f".venv/bin/stretto events --job {JOB} -o json", STRETTO_STATE_FOLDER=str(folder))
    return [json.loads(line) for line in done.stdout.splitlines()]
