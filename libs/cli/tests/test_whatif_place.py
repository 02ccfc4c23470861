"""`stretto whatif place` by what learns: kept in a file and used again, and one document whatever libraries print."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from asking import assert_refused, command
from stretto_cli import options

LAYERS = {
    **{"profile_batch": 512, "throughput_limit": 8000, "samples": 1e9},
    "types": [{"name": "cpu", "price_per_hour": 0.04, "limit": 40}, {"name": "v100", "price_per_hour": 2.42}],
    "layers": [
        {
            **{"name": f"l{n}", "kind": "fc", "input_bytes": 1e5, "weight_bytes": 1e6},
            **{"compute_s": [0.5, 0.02], "parallel_fraction": [0.99, 0.95]},
            **{"transfer_s": [0.01, 0.01], "transfer_parallel_fraction": [0.9, 0.9]},
        }
        for n in range(4)
    ],
}


whatif, answer = command("whatif place -")


def place(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, as TensorFlow prints once in a process."""
    command = [Path(sys.executable).with_name("stretto"), "whatif", "place", "-", "-o", "json", *options]
    return subprocess.run(command, input=json.dumps(LAYERS), cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.night
def test_what_was_learned_is_kept_and_used_again(tmp_path: Path) -> None:
    learn = ("--algorithm", "rl-lstm", "--model", "kept.npz", "--seed", "3")
    trained = place(tmp_path, *learn)
    assert (trained.returncode, trained.stderr) == (0, "")
    first, content = json.loads(trained.stdout), (tmp_path / "kept.npz").read_bytes()
    assert first["feasible"]
    assert (first["bound"], first["optimal"]) == (None, False)
    again = place(tmp_path, *learn)
    assert (again.returncode, again.stderr) == (0, "")
    second = json.loads(again.stdout)
    assert second["feasible"]
    assert second["cost"] >= first["cost"]
    assert (tmp_path / "kept.npz").read_bytes() == content, "it is used as it is"


TYPES = {"types": [{"name": "cpu", "price_per_hour": 0.04}, {"name": "x", "price_per_hour": 0.1, "limit": 4}]}


def measured_view() -> dict[str, Any]:
    """Return what a gateway tells of a job whose workers were measured on cores and on devices of type x."""
    model = {
        **{"form": "default", "overlap": 1.0, "batch_size": 512, "covariance": [], "log_sd": 0.05, "rmsle": 0.02},
        **{"degrees_of_freedom": 8.0, "unidentified": []},
        "coefficients": {"a1": 0.02 / 512, "a1@x": 0.002 / 512, "a3": 0.0004, "a4": 0.0002, "a2": 0.01},
        "measured": [
            {"workers": 2, "ps": 1, "worker_cpu_cores": 1.0, "ps_cpu_cores": 1.0, "batch_size": 512, "device": name}
            | {"mixed": False, "step_time_s": 0.03, "windows": 4, "log_sd": 0.01}
            for name in ("", "x")
        ],
    }
    progress = {"samples_per_s": 30_000.0, "samples_total": 5_000_000, "samples_done": 1_000_000}
    plan = {"ps": 1, "ps_cpu_cores": 1.0}
    return {"name": "ctr", "spec": {}, "plan": plan, "progress": progress, "data": {"given_up": 0}, "model": model}


@pytest.fixture
def view(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The view of job ctr at the gateway that commands ask, to be changed."""
    told = measured_view()

    class Gateway:
        def job(self, name: str) -> dict[str, Any]:
            return told | {"name": name}

    monkeypatch.setattr(options, "connect", lambda *_: contextlib.nullcontext(Gateway()))
    return told


def test_the_layers_of_a_live_job_are_placed_as_its_workers_took_them(view: dict[str, Any]) -> None:
    rows = {"compute_s": [0.0106] * 2, "parallel_fraction": [2 * (1 - 0.0112 / 2 / 0.0106)] * 2}
    dense = {"compute_s": [0.02, 0.002], "parallel_fraction": [1.0, 1.0]}
    nothing = {"transfer_s": [0.0] * 2, "transfer_parallel_fraction": [0.0] * 2}
    layers = [{"name": name, **nothing, **given} for name, given in (("rows", rows), ("dense", dense))]
    stated = {**TYPES, "layers": layers, "profile_batch": 512, "throughput_limit": 30_000.0, "samples": 4e6}
    ours, file = answer(TYPES, "--job", "ctr"), answer(stated)
    assert [each["type"] for each in ours["stages"]] == ["cpu", "x"]
    for told in (ours, file):
        told.pop("solve_s")
    assert ours.pop("cost") == pytest.approx(file.pop("cost"))
    assert ours.pop("bound") == pytest.approx(file.pop("bound"))
    assert ours.pop("throughput") == pytest.approx(file.pop("throughput"))
    assert ours == file
    assert answer({**TYPES, "throughput_limit": 60_000}, "--job", "ctr")["throughput"] >= 60_000
    assert answer({**TYPES, "samples": 8e6}, "--job", "ctr")["cost"] > answer(TYPES, "--job", "ctr")["cost"]


def test_what_a_newer_gateway_tells_beside_is_left_out(view: dict[str, Any]) -> None:
    before = answer(TYPES, "--job", "ctr")
    for row in view["model"]["measured"]:
        row["colour"] = "red"
    assert answer(TYPES, "--job", "ctr")["stages"] == before["stages"]


def test_a_job_that_has_too_little_to_tell_is_refused_with_what_is_missing(view: dict[str, Any]) -> None:
    assert_refused(whatif({**TYPES, "layers": []}, "--job", "ctr"), "layers: leave it out beside --job")
    unknown = {"types": [*TYPES["types"], {"name": "z", "price_per_hour": 1.0}]}
    refused = whatif(unknown, "--job", "ctr")
    assert refused.exit_code == 2
    assert "measured on 'z'; measured are: cpu, x; leave" in " ".join(refused.stderr.split())
    view["progress"]["samples_total"] = None
    assert_refused(whatif(TYPES, "--job", "ctr"), "samples", "as ctr tells no total")
    assert answer({**TYPES, "samples": 4e6}, "--job", "ctr")["cost"] > 0
    view["progress"]["samples_per_s"] = 0.0
    assert_refused(whatif(TYPES, "--job", "ctr"), "throughput_limit", "ctr does not train now")
    view["plan"] = None
    assert_refused(whatif(TYPES, "--job", "ctr"), "--job = ctr", "a job with a plan: ask again")
    view["model"] = None
    assert_refused(whatif(TYPES, "--job", "ctr"), "--job = ctr", "a fitted model")
    view["spec"] = {"program": {"command": ["train"]}}
    assert_refused(whatif(TYPES, "--job", "ctr"), "--job = ctr", "a job that trains a model")


def test_what_finds_nothing_says_no_more_than_that() -> None:
    told = answer({**LAYERS, "throughput_limit": 1e12}, "--algorithm", "bayesian")
    assert told["feasible"] is False
    assert "no placement was found" in told["reason"]


@pytest.mark.parametrize("name", ["genetic", "bayesian"])
def test_other_plug_ins_print_the_document_alone(tmp_path: Path, name: str) -> None:
    done = place(tmp_path, "--algorithm", name)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["feasible"]


def test_a_model_that_cannot_be_kept_is_refused_in_one_line() -> None:
    told = "expected an algorithm that learns, such as rl-lstm; exact has no model"
    assert_refused(whatif(LAYERS, "--model", "kept.npz", "-o", "json"), f"--model = kept.npz: {told}")
    options = ("--algorithm", "rl-lstm", "--model", "none/kept.npz", "-o", "json")
    assert_refused(whatif(LAYERS, *options), "--model = none/kept.npz: expected a file in a folder")


def test_listing_loads_none_of_the_libraries() -> None:
    code = (
        "import sys; from stretto_cli.main import app; app(['whatif', 'algorithms'], standalone_mode=False);"
        "sys.exit(bool({'tensorflow', 'pymoo', 'keras'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "rl-lstm" in done.stdout
