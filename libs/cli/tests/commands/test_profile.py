"""``stretto profile``: the job that it submits, what it waits for, and what it tells."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from asking import RUNNER
from stretto_cli import options
from stretto_cli.commands.jobs import profile
from stretto_cli.main import app
from stretto_messages.base import GIB
from stretto_wire import JobSpec

NEW = {"name": "new", "price_per_hour": 0.04, "count": 1, "cpu_cores": 2.0, "memory_bytes": GIB}
NAMES = ("a1", "a1@new", "a2")
JOB = {
    "name": "ranking",
    "model": {"entry": "shop:Ranking", "metadata": {"family": "dcn"}},
    "dataset": {"samples": 1000},
    "resources": {"workers": {"count": {"min": 4}, "stages": "auto", "devices": "auto"}},
    "evaluate": 100,
    "best": {"metric": "loss"},
    "evaluate_every_samples": 500,
}


class Gateway:
    """A gateway whose job is measured one window more at each look, in both kinds of workers."""

    def __init__(self) -> None:
        self.submitted: list[dict[str, Any]] = []
        self.cancelled: list[str] = []
        self.looks = 0
        self.status, self.most = "training", 100

    def cluster(self) -> dict[str, Any]:
        return {"devices": [NEW]}

    def jobs(self) -> list[dict[str, Any]]:
        return [{"name": "ranking-on-new"}]

    def submit(self, text: str) -> dict[str, Any]:
        self.submitted.append(json.loads(text))
        return {"job": self.submitted[-1]["name"]}

    def cancel(self, name: str, reason: str = "") -> None:
        self.cancelled.append(name)

    def job(self, name: str) -> dict[str, Any]:
        self.looks += 1
        measured = [
            {"workers": 2, "ps": 1, "worker_cpu_cores": 1.0, "ps_cpu_cores": 1.0, "batch_size": 512, "mixed": True}
            | {"device": device, "step_time_s": step_s, "windows": min(self.looks + more, self.most), "log_sd": 0.01}
            for device, step_s, more in (("", 0.030, 1), ("new", 0.015, 0))
        ]
        model = {
            "form": "default", "overlap": 1.0, "batch_size": 512, "log_sd": 0.05, "rmsle": 0.02, "unidentified": [],
            "coefficients": dict(zip(NAMES, (0.020 / 512, 0.005 / 512, 0.010), strict=True)),
            "covariance": [[(0.1 * value) ** 2 * (i == j) for j in range(3)] for i, value in enumerate(
                (0.020 / 512, 0.005 / 512, 0.010)
            )],
            "degrees_of_freedom": 1e6, "measured": measured,
        }  # fmt: skip
        return {
            "name": name, "status": self.status, "reason": "the reason", "model": model if self.looks > 1 else None,
            "plan": self.submitted[-1]["resources"]["initial"],
        }  # fmt: skip


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Gateway:
    found = Gateway()
    monkeypatch.setattr(options, "connect", lambda *_: contextlib.nullcontext(found))
    monkeypatch.setattr(profile, "POLL_S", 0.0)
    return found


def run(folder: Path, *more: str, **changes: Any) -> Any:
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(JOB | changes))
    return RUNNER.invoke(app, ["profile", str(file), *more])


def test_a_job_of_its_own_measures_the_type_and_is_cancelled(gateway: Gateway, tmp_path: Path) -> None:
    told = run(tmp_path, "--type", "new", "-o", "json")
    assert told.exit_code == 0, told.output
    (document,) = gateway.submitted
    spec = JobSpec.parse(document)
    assert gateway.cancelled == [spec.name] == ["ranking-on-new-2"]
    assert (spec.resources.fixed, spec.resources.workers.stages, spec.resources.workers.devices) == (True, 1, ("new",))
    assert spec.resources.initial is not None
    assert [(group.device, group.workers, group.cpu_cores) for group in spec.resources.initial.groups] == [
        ("new", 1, 2)
    ]
    assert spec.resources.initial.cpu_workers == spec.resources.least.workers == 1
    assert (spec.evaluate, spec.best, spec.dataset.epochs, spec.model.metadata) == (0, None, 1000, {"family": "dcn"})
    assert gateway.looks == 3, "until the third window of the type, which lags"
    found = json.loads(told.stdout)
    assert (found["cores"], found["speed"]) == pytest.approx((4.0, 2.0))
    half = found["cores_interval"]["high"] / found["cores"]
    assert half == pytest.approx(1.0117, abs=1e-4), "1.645 x 0.05 x the root of two errors of a tenth, as a factor"
    assert [kind["compute_s"] for kind in found["kinds"]] == pytest.approx([0.020, 0.005])


def test_what_it_found_is_told_in_words(gateway: Gateway, tmp_path: Path) -> None:
    told = run(tmp_path, "--type", "new").output
    assert "a unit of new computes as fast as 4 of the cluster's cores, 90 % between 3.95 and 4.05" in told
    assert "later jobs whose model.metadata are alike begin with that: family dcn" in told
    alone = run(tmp_path, "--type", "new", model={"entry": "shop:Ranking"}).output
    assert "no later job takes it: model.metadata is empty" in alone


@pytest.mark.parametrize(
    ("status", "most", "said"),
    [
        ("failed", 2, "was failed before it was measured: the reason"),
        ("waiting", 2, "is waiting and was not measured in 1 s: the reason"),
    ],
)
def test_a_job_that_is_never_measured_says_why_and_is_cancelled(
    gateway: Gateway, tmp_path: Path, status: str, most: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(profile.time, "monotonic", lambda: float(next(clock)))
    gateway.status, gateway.most = status, most
    told = run(tmp_path, "--type", "new", "--patience", "1")
    assert (told.exit_code, gateway.cancelled) == (1, ["ranking-on-new-2"])
    assert said in " ".join(told.stderr.split())


def test_a_type_that_is_not_there_and_a_program_are_refused(gateway: Gateway, tmp_path: Path) -> None:
    told = run(tmp_path, "--type", "old")
    assert (told.exit_code, "the types of devices here are: new" in told.stderr) == (2, True)
    program = tmp_path / "program.yaml"
    program.write_text("name: p\nprogram: {command: [python, train.py], path: .}\ndataset: {samples: 10}\n")
    told = RUNNER.invoke(app, ["profile", str(program), "--type", "new"])
    assert told.exit_code == 2
    assert "only a model's computing" in " ".join(told.stderr.split())
    assert not gateway.submitted
