"""Frameworks in data workers: imported at their first use, and then as they are anywhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

FILES = {
    "__init__.py": "loaded = True\nfrom . import nn\n__version__ = '2.6'\n",
    "nn/__init__.py": "from .norm import norm\nclass Module: ...\n",
    "nn/norm.py": "def norm(number): return number\n",
}
TASK = """
import keras
import tensorflow as tf
import torch
from keras import layers
from stretto.readers.arrow import Arrow

class Clicks:
    def __init__(self, data):
        self.reader = Arrow(data, label="clicked", dense=["age"], categorical=["city"])

    def build(self):
        return layers.Dense(1)

    def read(self, start, length):
        return self.reader.read(start, length)
"""
READS = """
from stretto.model.entry_point import load
from stretto.model.form import reading_of_json, reading_to_json
from stretto.model.reading import Feature, RowsReading
from stretto_wire.jobspec.spec import ModelSpec

reading = RowsReading({"rows": 1}, {"numeric": Feature((None, 1))}, has_own_loss=False)
assert reading_of_json(reading_to_json(reading)) == reading
assert reading_of_json(reading_to_json(None)) is None
task = load(ModelSpec(entry="clicks:Clicks", arguments={"data": "clicks.parquet"}))
prepared = reading.reader(task).prepare(2, 3)
assert prepared.batch["numeric"].tolist() == [[2.0], [3.0], [4.0]], prepared
assert len(prepared.keys) == 3
known = {"tensorflow", "keras", "torch"}
heavy = [name for name, module in sys.modules.items() if name.partition(".")[0] in known and not is_deferred(module)]
assert not heavy, heavy
"""


@pytest.mark.parametrize(
    ("uses", "told"),
    [
        ("import torch, torch.nn; from torch import nn; print(is_deferred(torch), is_deferred(nn))", "True True"),
        ("import torch; torch.nn.Module; from torch import nn; print(nn is torch.nn, torch.__version__)", "True 2.6"),
        (
            "from torch.nn import Module; import torch; print(Module is torch.nn.Module, is_deferred(torch))",
            "True False",
        ),
        (
            "import gc, torch; torch.loaded; before = gc.get_freeze_count(); torch.loaded; "
            "print(gc.get_freeze_count() == before)",
            "True",
        ),
        ("from torch.nn import norm; print(norm(3))", "3"),
        ("import torch; from torch import *; print(loaded, is_deferred(sys.modules['torch']))", "True False"),
        ("import torch\ntry:\n    import torch.no\nexcept ModuleNotFoundError as error: print(error.name)", "torch.no"),
        ("import torch\ntry: torch.no\nexcept AttributeError as error: print(error.name, error.obj.loaded)", "no True"),
    ],
)
def test_a_framework_is_imported_at_its_first_use(uses: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    for name, text in FILES.items():
        (tmp_path / "torch" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "torch" / name).write_text(text)
    assert run(uses, tmp_path) == told


def test_batches_of_a_parquet_file_are_read_without_a_framework(tmp_path: Path) -> None:
    columns = {"clicked": [0.0, 1.0] * 4, "age": [float(n) for n in range(8)], "city": [*range(8)]}
    pq.write_table(pa.table(columns), tmp_path / "clicks.parquet")
    (tmp_path / "clicks.py").write_text(TASK)
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('imported')")
    assert run(READS, tmp_path) == ""


def run(program: str, folder: Path) -> str:
    """Run a program in a process that defers frameworks, with a `torch` of the test's own; return what it prints."""
    head = (
        "import sys; from stretto import imports; sys.path.insert(0, '.'); imports.defer_frameworks(); "
        "is_deferred = lambda module: type(module).__name__ == '_Deferred'\n"
    )
    done = subprocess.run([sys.executable, "-c", head + program], cwd=folder, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return done.stdout.strip()
