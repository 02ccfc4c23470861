"""The trial of a user's model before a job: all obstacles at once, figures, and a job file that can be submitted."""

import sys
import types
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from stretto import train_locally
from stretto.errors import DataError, ModelRefused
from stretto.examples.wide_deep import WideDeep
from stretto.trial.check import CheckRequest, check
from stretto_wire.jobspec.jobfile import read_job


class Good:
    """Two fields, labels that follow from them, and a hundred samples to evaluate."""

    def __init__(self, data="", dimension=8):
        self.dimension = dimension
        self.reader = types.SimpleNamespace(train_samples=2000, size=2100)

    def build(self):
        rows = keras.Input((2, self.dimension), name="rows")
        return keras.Model(rows, keras.layers.Dense(1)(keras.layers.Flatten()(rows)))

    def read(self, start, length):
        number = np.arange(start, start + length)
        return {"label": (number % 2).astype(np.float32), "categorical": np.stack([number % 2, number % 7], axis=1)}


class Drawn(Good):
    """Other samples at each reading, and a model with a second output."""

    def build(self):
        rows = keras.Input((2, 8), name="rows")
        flat = keras.layers.Flatten()(rows)
        return keras.Model(rows, [keras.layers.Dense(1)(flat), keras.layers.Dense(1)(flat)])

    def read(self, start, length):
        return {"label": np.random.random(length), "categorical": np.zeros((length, 2), np.int64)}


class Shifted(Good):
    """Samples whose values depend on where the reading began."""

    def read(self, start, length):
        return super().read(0, length)


class Unsized(Good):
    def __init__(self):
        super().__init__()
        del self.reader


@pytest.fixture(autouse=True)
def module(monkeypatch):
    """The module of the user."""
    found = types.ModuleType("user_code")
    for each in (Good, Drawn, Shifted, Unsized):
        setattr(found, each.__name__, each)
    monkeypatch.setitem(sys.modules, "user_code", found)


def tried(name, **more):
    return check(CheckRequest(f"user_code:{name}", steps=4, batch_size=256, **more))


def test_a_model_without_fault_gets_figures_and_a_job_file():
    report = tried("Good", arguments={"data": "d", "dimension": 4}, embedding_dim=4)
    assert report.findings == []
    assert (report.figures.keys_per_sample, report.figures.dense_parameters) == (2, 9)
    assert report.figures.bytes_per_million_keys == 1e6 * report.figures.row_bytes[0] > 32e6
    assert report.figures.steps_per_s > 0
    assert (report.figures.rule[:28], report.figures.compared) == ("Adagrad(learning_rate=0.05, ", "")
    assert report.figures.export == ""
    job = read_job(report.job)
    assert (job.model.entry, job.model.arguments) == ("user_code:Good", {"data": "d", "dimension": 4})
    assert (job.dataset.samples, job.evaluate) == (2000, 100)


def test_faults_of_data_and_model_are_told_together():
    report = tried("Drawn")
    assert [finding.where for finding in report.findings] == ["data", "model"]
    assert "gave another 'label' when it was called again" in report.findings[0].text
    assert "the model has 2 outputs" in report.findings[1].text
    assert (report.figures, report.job) == (None, "")


@pytest.mark.parametrize(
    ("name", "more", "where", "text"),
    [
        ("Shifted", {}, "data", "read(128, 128) gave another 'categorical' than the samples from 128 on"),
        ("Unsized", {}, "data", "give --samples"),
        ("Missing", {}, "model", "module user_code has no 'Missing'"),
        ("Good", {"arguments": {"size": 3}}, "model", "model.arguments.size is not an argument of Good"),
        ("Good", {"partition": "day=1"}, "data", "cannot be called as read(start, length, partition)"),
        ("Good", {"samples": 10**9, "embedding_dim": 16}, "model", "model.embedding_dim = 16, but the input 'rows'"),
    ],
)
def test_one_fault_is_told_with_its_remedy(name, more, where, text):
    finding, *others = tried(name, **more).findings
    assert text in finding.text
    assert where == finding.where or "partition" in more
    assert others == []


def test_an_entry_that_is_none_is_refused_as_in_a_job_file():
    report = check(CheckRequest("no-module"))
    assert [finding.where for finding in report.findings] == ["job"]
    assert "model.entry = no-module: text, at most 200 long (module:name" in report.findings[0].text


def test_lists_of_different_lengths_and_missing_texts_are_the_same_when_they_are():
    class Lists(Good):
        def read(self, start, length):
            number = range(start, start + length)
            texts = np.array([float("nan") if i % 3 == 0 else "a" for i in number], object)
            return {"label": np.zeros(length), "tags": [[i] * (i % 3) for i in number], "text": texts}

    from stretto.trial.check import _check_reading

    _check_reading(Lists(), "", 32)
    shorter = type("Shorter", (Lists,), {"read": lambda self, s, n: Lists.read(self, s, n) | {"tags": [[n]] * n}})
    with pytest.raises(DataError, match="gave another 'tags'"):
        _check_reading(shorter(), "", 32)


def test_the_example_of_the_readme_with_partitions_works(capsys: pytest.CaptureFixture[str]):
    blocks = (Path(__file__).parents[2] / "README.md").read_text().split("```python\n")
    code = next(block for block in blocks if "class Days" in block).split("```")[0]
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)
    shown = capsys.readouterr().out
    assert "samples=1000" in shown
    assert float(shown.rpartition("auc=")[2].partition(",")[0]) > 0.9
    with pytest.raises(ModelRefused, match=r"WideDeep.read cannot be called as read\(start, length, partition\)"):
        train_locally(WideDeep, {"a": 10})
    with pytest.raises(DataError, match="held_out = ''"):
        train_locally(names["Days"], {"a": 10}, evaluate_samples=10)
