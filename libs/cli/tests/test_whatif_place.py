"""`stretto whatif place` by what learns: kept in a file and used again, and one document whatever libraries print."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from asking import assert_refused, command

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
