"""Data in partitions, as the README shows them."""

from pathlib import Path
from typing import Any

import pytest
from stretto import train_locally
from stretto.errors import DataError, ModelRefused
from stretto.examples.wide_deep import WideDeep


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
