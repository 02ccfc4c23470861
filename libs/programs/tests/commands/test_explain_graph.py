"""`stretto explain-graph` on a user's script, in a real process with TensorFlow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from stretto_cli.main import app
from typer.testing import CliRunner

SCRIPT = """\
import argparse
import tensorflow as tf

given = argparse.ArgumentParser()
given.add_argument("--words", type=int)
given.add_argument("-o", "--own", default="")
options = given.parse_args()
print("what a user's script prints is no answer", options.own)
table = tf.Variable(tf.zeros([100, 4]))


def parsed(number):
    return tf.strings.join([tf.strings.as_string(tf.range(number, number + options.words)), "w"])


@tf.function
def step(iterator):
    keys = tf.strings.to_hash_bucket_fast(next(iterator), 100)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(table, keys))
    table.assign_sub(tf.convert_to_tensor(tape.gradient(loss, table)))


iterator = iter(tf.data.Dataset.range(100000).map(parsed).batch(64))
for _ in range(10):
    step(iterator)
open("the-program-went-on", "w").close()
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.slow
def test_a_program_is_explained_as_one_document(script: Path) -> None:
    drawing = script.with_name("step.dot")
    arguments = ["explain-graph", str(script), "--words", "200", "-o", "json", "--dot", str(drawing)]
    done = CliRunner().invoke(app, [*arguments, "--", "-o", "mine"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["moves"]
    assert found["speedup"] > 1.05
    assert found["pipelines"][0]["movable"] == ["Map"]
    assert {"Map", "Batch", "StringToHashBucketFast"} <= found["moved"]["operations"].keys()
    assert [each["dtype"] for each in found["sent"]] == ["int64"]
    assert found["sent"][0]["bytes"] == 64 * 8
    assert {"tensor": "StringToHashBucketFast:0", "dtype": "int64", "bytes": 64 * 200 * 8} in found["received"]
    assert any(each["effect"] == "reads" and "Variable:0" in each["reason"] for each in found["stays"])
    assert drawing.read_text().startswith("digraph step {")
    assert "palegreen" in drawing.read_text()
    assert "dot" not in found
    assert not script.with_name("the-program-went-on").exists()


@pytest.mark.slow
@pytest.mark.night
def test_people_see_what_moves_and_crosses_and_one_verdict(script: Path) -> None:
    done = CliRunner().invoke(app, ["explain-graph", str(script), "--words=200"])
    assert done.exit_code == 0, done.output
    shown = " ".join(done.stdout.split())
    for part in ("@tf.function step", "tf.data Range → Map → Batch", "received StringToHashBucketFast:0 int64 102,400"):
        assert part in shown
    assert "move to data workers: at most" in done.stdout.strip().splitlines()[0]


@pytest.mark.slow
@pytest.mark.night
def test_a_program_that_ends_before_its_first_step_is_named(script: Path) -> None:
    done = CliRunner().invoke(app, ["explain-graph", str(script), "--words", "many"])
    assert done.exit_code == 2
    assert "train.py was not explained: " in done.output


@pytest.mark.slow
@pytest.mark.night
def test_a_program_that_catches_every_end_is_explained_all_the_same(script: Path) -> None:
    stubborn = "while True:\n    try:\n        step(iterator)\n    except BaseException:\n        pass\n"
    script.write_text(SCRIPT.replace("for _ in range(10):\n    step(iterator)\n", stubborn))
    done = CliRunner().invoke(app, ["explain-graph", str(script), "--words", "20", "-o", "json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["verdict"]


def test_a_program_of_pytorch_is_refused_before_it_trains(script: Path) -> None:
    """Method: a package stands for PyTorch, whose tensors call `torch.autograd.backward`."""
    (script.parent / "torch").mkdir()
    (script.parent / "torch" / "__init__.py").write_text("from . import autograd\n")
    (script.parent / "torch" / "autograd.py").write_text("def backward(tensor): pass\ngrad = backward\n")
    script.write_text(
        "import torch\nwhile True:\n    try:\n        torch.autograd.backward(1)\n    except Exception: pass\n"
        "    open('the-program-went-on', 'w').close()\n"
    )
    done = CliRunner().invoke(app, ["explain-graph", str(script)])
    assert done.exit_code == 2
    assert "trains with PyTorch" in done.output
    assert "`stretto run` moves nothing of it" in " ".join(done.output.split())
    assert not script.with_name("the-program-went-on").exists()


def test_a_script_that_is_not_there_is_named() -> None:
    done = CliRunner().invoke(app, ["explain-graph", "nowhere.py"])
    assert done.exit_code == 2
    assert "nowhere.py is no file: name a Python script" in done.output
