"""``stretto profile``: the job that it submits, what it waits for, and what it tells."""

from __future__ import annotations

import contextlib
import json
import math
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml
from asking import RUNNER
from stretto_cli import options
from stretto_cli.commands.jobs import profile
from stretto_cli.main import app
from stretto_client.errors import ClientError, Refused, Unreachable
from stretto_messages.base import GIB
from stretto_wire import JobSpec

NEW = {"name": "new", "price_per_hour": 0.04, "count": 1, "cpu_cores": 2.0, "memory_bytes": GIB}
COEFFICIENTS = {"a1": 0.020 / 512, "a1@new": 0.005 / 512, "a2": 0.010}
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
        self.why = ""
        self.looks = 0
        self.status, self.most = "training", 100
        self.coefficients, self.error = COEFFICIENTS, dict.fromkeys(COEFFICIENTS, 0.1)
        self.taken = "ranking-on-new"
        self.refusal: ClientError | None = None

    def cluster(self) -> dict[str, Any]:
        return {"devices": [NEW]}

    def jobs(self) -> list[dict[str, Any]]:
        return [{"name": self.taken}]

    def submit(self, text: str) -> dict[str, Any]:
        self.submitted.append(json.loads(text))
        return {"job": self.submitted[-1]["name"]}

    def cancel(self, name: str, reason: str = "") -> None:
        self.cancelled.append(name)
        self.why = reason
        if self.refusal is not None:
            raise self.refusal

    def job(self, name: str) -> dict[str, Any]:
        self.looks += 1
        measured = [
            {"workers": 2, "ps": 1, "worker_cpu_cores": 1.0, "ps_cpu_cores": 1.0, "batch_size": 512, "mixed": True}
            | {"step_time_s": step_s, "windows": min(self.looks + more, self.most), "log_sd": 0.01, **of_type}
            for of_type, step_s, more in (({}, 0.030, 1), ({"device": "new"}, 0.015, 0))  # cores are left out
        ]
        model = {
            "form": "default", "overlap": 1.0, "batch_size": 512, "log_sd": 0.05, "rmsle": 0.02, "unidentified": [],
            "coefficients": self.coefficients,
            "covariance": [
                [(self.error[one] * value) ** 2 * (one == other) for other in self.coefficients]
                for one, value in self.coefficients.items()
            ],
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
    assert (gateway.cancelled, gateway.why) == ([spec.name], "measured")
    assert spec.name == "ranking-on-new-2"
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
    assert "\n1 core " in told
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
    assert gateway.why.startswith("failed: ranking-on-new-2 ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_profile_cancels_its_job_as_such(
    gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setattr(gateway, "job", lambda _: signal.raise_signal(number))
    assert run(tmp_path, "--type", "new").exit_code == 130
    assert (gateway.cancelled, gateway.why) == (["ranking-on-new-2"], "interrupted")


def test_a_type_that_is_not_there_and_a_program_are_refused(gateway: Gateway, tmp_path: Path) -> None:
    told = run(tmp_path, "--type", "old")
    assert (told.exit_code, "the types of devices here are: new" in told.stderr) == (2, True)
    program = tmp_path / "program.yaml"
    program.write_text("name: p\nprogram: {command: [python, train.py], path: .}\ndataset: {samples: 10}\n")
    told = RUNNER.invoke(app, ["profile", str(program), "--type", "new"])
    assert told.exit_code == 2
    assert "only a model's computing" in " ".join(told.stderr.split())
    assert not gateway.submitted


def test_a_type_that_was_not_measured_well_gets_no_figure(gateway: Gateway, tmp_path: Path) -> None:
    gateway.error |= {"a1@new": 1e6}
    told = run(tmp_path, "--type", "new")
    assert (told.exit_code, gateway.cancelled) == (1, ["ranking-on-new-2"])
    said = " ".join(told.stderr.split())
    assert "too small a part of a step to tell how fast new computes; give it a larger model or batch_size" in said


def test_an_unknown_part_that_both_kinds_share_leaves_their_ratio_known(gateway: Gateway, tmp_path: Path) -> None:
    gateway.coefficients = {"a1": 1e-9, "a1@new": 1e-9, "a2_grad": 0.01}
    gateway.error = {"a1": 0.1, "a1@new": 0.1, "a2_grad": 1e6}
    told = run(tmp_path, "--type", "new", "-o", "json")
    assert told.exit_code == 0, told.output
    found = json.loads(told.stdout)
    assert found["cores"] == pytest.approx(1.0, rel=0.01)
    assert all(math.isfinite(kind["compute_interval_s"]["high"]) for kind in found["kinds"])


def test_a_job_that_could_not_be_cancelled_is_told_beside_the_figures(gateway: Gateway, tmp_path: Path) -> None:
    gateway.refusal = Unreachable("nothing answers")
    told = run(tmp_path, "--type", "new", "--url", "http://there", "-o", "json")
    assert (told.exit_code, json.loads(told.stdout)["cores"]) == (1, pytest.approx(4.0))
    assert "`stretto cancel ranking-on-new-2 --url http://there` ends it: nothing answers" in told.stderr


def test_a_job_that_is_over_needs_no_cancelling(gateway: Gateway, tmp_path: Path) -> None:
    gateway.status, gateway.most = "failed", 2
    gateway.refusal = Refused(409, "over", "ranking-on-new-2 has failed already")
    told = run(tmp_path, "--type", "new")
    assert told.exit_code == 1
    assert "was failed before it was measured: the reason" in " ".join(told.stderr.split())
    assert "stretto cancel" not in told.stderr


@pytest.mark.parametrize("more", [(), ("--name", "mine")])
def test_the_name_of_the_job_is_made_of_the_type_or_stated(
    gateway: Gateway, tmp_path: Path, more: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    device = "x" * 15 + "-" + "x" * 5
    monkeypatch.setattr(gateway, "cluster", lambda: {"devices": [NEW | {"name": device}]})
    gateway.taken, gateway.status, gateway.most = "r" * 40 + "-on-" + "x" * 15, "failed", 0
    run(tmp_path, "--type", device, *more, name="r" * 60)
    assert gateway.cancelled == ["mine" if more else gateway.taken + "-2"], "without a hyphen where it was cut"


def test_a_name_that_no_job_may_have_is_refused(gateway: Gateway, tmp_path: Path) -> None:
    told = run(tmp_path, "--type", "new", "--name", "Mine")
    assert (told.exit_code, gateway.submitted) == (2, [])
    assert "name = Mine" in told.stderr
