"""`stretto check` on a user's files, in a real process of the trainer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from installed_gateway import Installed, write_spec
from stretto_cli.commands.model.check import arguments_of, free
from stretto_cli.errors import BadInput
from stretto_cli.main import app
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
