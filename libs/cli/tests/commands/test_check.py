"""`stretto check` on a user's files, in a real process of the trainer."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from installed_gateway import Installed, write_spec
from stretto_cli.commands.model.check import arguments_of, free, layer_rows
from stretto_cli.errors import BadInput
from stretto_cli.main import app
from stretto_messages.base import GIB
from stretto_messages.values import Plan
from stretto_wire.jobspec.jobfile import read_job
from typer.testing import CliRunner

CODE = """\
import keras, numpy as np

print("what a user's module prints is no answer")


class Clicks:
    samples = 1000

    def __init__(self, data, wrong=False):
        self.data, self.wrong = data, wrong

    def build(self):
        rows = keras.Input((1, 16), name="rows")
        return keras.Model(rows, keras.layers.Dense(1)(keras.layers.Flatten()(rows)))

    def read(self, start, length):
        number = np.arange(start, start + length)
        label = np.full(length, np.nan) if self.wrong else number % 2
        return {"label": label, "categorical": number[:, None] % 7}
"""


@pytest.fixture
def module(tmp_path: Path) -> Path:
    (tmp_path / "shop_model.py").write_text(CODE)
    return tmp_path


def test_a_model_is_tried_and_its_job_file_written(module: Path, tmp_path: Path) -> None:
    arguments = ["check", "shop_model:Clicks", "--path", str(module), "--data", "d.parquet"]
    done = CliRunner().invoke(app, [*arguments, "--write", str(tmp_path / "job.yaml"), "-o", "json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["figures"]["keys_per_sample"] == 1
    job = read_job((tmp_path / "job.yaml").read_text())
    assert (job.name, job.dataset.samples, job.model.arguments) == ("clicks", 1000, {"data": "d.parquet"})


def test_the_job_file_gets_a_name_that_no_job_has(
    installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRETTO_STATE_FOLDER", str(installed.folder))
    for name in ("checked", "checked-2", "unchecked-3"):
        installed.stretto("submit", write_spec(tmp_path, name)[1])
    assert free("checked") == "checked-3"
    assert free("checked-2") == "checked-2-2"
    assert free("never-checked") == "never-checked"


def test_what_is_found_is_told_and_fails_the_command(module: Path, tmp_path: Path) -> None:
    arguments = ["check", "shop_model:Clicks", "--path", str(module), "--data", "d", "--set", "wrong=true"]
    done = CliRunner().invoke(app, [*arguments, "--write", str(tmp_path / "job.yaml")])
    assert done.exit_code == 1
    assert "'label' is not finite" in " ".join(done.stdout.split())
    assert not (tmp_path / "job.yaml").exists()


def test_an_argument_without_a_value_is_refused(module: Path) -> None:
    done = CliRunner().invoke(app, ["check", "m:M", "--path", str(module), "--set", "wrong"])
    assert done.exit_code == 2
    assert "--set wrong: give NAME=VALUE" in done.output


@pytest.mark.parametrize(
    ("text", "value"), [("1e-3", 1e-3), ("3", 3), ("true", True), ("*", "*"), ("a: b: c", "a: b: c"), ("[1", "[1")]
)
def test_an_argument_is_what_it_would_be_in_a_job_file(text: str, value: object) -> None:
    assert arguments_of([f"x={text}"], None) == {"x": value}


def test_a_word_of_two_meanings_is_no_argument() -> None:
    for word in ("no", "1:30", "010"):
        with pytest.raises(BadInput, match=f"--set x={word}: .* YAML 1.1"):
            arguments_of([f"x={word}"], None)


def test_a_job_file_is_tried_as_it_is_and_its_layers_told(module: Path) -> None:
    document = {"name": "c", "model": {"entry": "shop_model:Clicks", "path": ".", "arguments": {"data": "d"}}}
    file = module / "job.yaml"
    group = {"device": "a", "workers": 1, "cpu_cores": 1.0, "memory_bytes": GIB}
    plan = asdict(Plan(3, 1, 1.0, 1.0, GIB, GIB)) | {"groups": [group | {"stage": 1, "first_layer": 1}]}
    plan["groups"].append(group | {"stage": 2, "first_layer": 7})
    resources = {"fixed": True, "initial": plan, "workers": {"stages": 3, "devices": ["a"]}}
    file.write_text(json.dumps(document | {"dataset": {"samples": 1000}, "resources": resources}))
    done = CliRunner().invoke(app, ["check", str(file)])
    told = " ".join(done.stdout.split())
    assert done.exit_code == 1, done.output
    assert "2 dense yes" in told
    assert "resources.initial.groups, stage 2: first_layer = 7: " in told
    assert "stage 2 can begin with layer 2" in told
    refused = CliRunner().invoke(app, ["submit", str(file), "--url", "http://127.0.0.1:9", "--token", "t"])
    assert refused.exit_code == 2
    assert "is refused: resources.initial.groups, stage 2: first_layer = 7" in " ".join(refused.stderr.split())


def test_options_beside_a_job_file_are_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["check", str(tmp_path / "job.yaml"), "--samples", "3"])
    assert done.exit_code == 2
    assert "leave all options but --output out" in " ".join(done.output.split())


def test_layers_that_are_alike_share_a_line_in_a_long_model() -> None:
    def layers(count: int) -> list[dict[str, Any]]:
        why = {3: "shared", 4: "shared"}
        return [{"number": at, "name": f"d{at}", "uncut": why.get(at, "")} for at in range(1, count + 1)]

    assert layer_rows(layers(3), "") == [("1", "d1", "yes"), ("2", "d2", "yes"), ("3", "d3", "no: shared")]
    long = [("1 to 2", "d1 … d2", "yes"), ("3 to 4", "d3 … d4", "no: shared"), ("5 to 90", "d5 … d90", "yes")]
    assert layer_rows(layers(90), "") == long
    assert layer_rows(layers(1), "norms")[1:] == [("", "", "no other cut: norms")]
