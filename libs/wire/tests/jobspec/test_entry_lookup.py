"""Code that no pod of this machine could import is found before a job has its name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from stretto_wire.jobspec.entry_lookup import SOURCE_BYTES, faults_of_entry
from stretto_wire.jobspec.spec import JobSpec


def faults(entry: str, path: Path | str | None = None, **model: object) -> list[tuple[str, str]]:
    spec = {"name": "a", "model": {"entry": entry, "path": path and str(path), **model}, "dataset": {"samples": 10}}
    return [(one.field, one.remedy) for one in faults_of_entry(JobSpec.parse(spec))]


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "shop" / "bare").mkdir(parents=True)
    (tmp_path / "shop" / "__init__.py").write_text("")
    (tmp_path / "shop" / "models.py").write_text(
        "import numpy as np\nif np:\n    from os import path as where\nclass Clicks: ...\nOther = Another = Clicks\n"
    )
    (tmp_path / "shop" / "bare" / "deep.py").write_text("class Clicks:\n    inner = 1\n")
    (tmp_path / "star.py").write_text("from shop.models import *\n")
    (tmp_path / "lazy.py").write_text("def __getattr__(name): ...\n")
    (tmp_path / "made.py").write_text("globals()['Clicks'] = 1\n")
    (tmp_path / "broken.py").write_text("class Clicks(\n")
    (tmp_path / "compiled.cpython-311-x86_64-linux-gnu.so").write_bytes(b"")
    (tmp_path / "long.py").write_text("#" * SOURCE_BYTES + "\n")
    os.mkfifo(tmp_path / "pipe.py")
    return tmp_path


@pytest.mark.parametrize(
    "entry",
    [
        *("shop.models:Clicks", "shop.models:Other", "shop.models:Another", "shop.models:where", "shop.models:np"),
        *("shop.bare.deep:Clicks", "star:Anything", "lazy:Anything", "made:Clicks", "broken:Clicks", "compiled:Clicks"),
        *("long:Clicks", "pipe:Clicks", "stretto.examples.wide_deep:WideDeep", "json:loads", "sys:path"),
    ],
)
def test_what_is_there_or_may_be_there_is_accepted(code: Path, entry: str) -> None:
    assert faults(entry, code) == []


def test_what_is_not_there_is_named_with_its_field_and_remedy(code: Path) -> None:
    assert faults("shop.model:Clicks", code) == [
        ("model.entry", f"there is no module shop.model in {code}: correct one of the two")
    ]
    assert faults("shop:Clicks", code) == [("model.entry", f"{code}/shop/__init__.py has no Clicks; it has no names")]
    ((field, remedy),) = faults("shop.bare.deep:inner", code)
    assert (field, remedy) == ("model.entry", f"{code}/shop/bare/deep.py has no inner; it has Clicks")
    assert faults("no_such:Clicks")[0][1].endswith("correct it, or set model.path to the folder that has it")
    assert faults("stretto.examples.wide_deeep:WideDeep")[0][0] == "model.entry"
    ((field, remedy),) = faults("shop.models:Clicks", "src")
    assert field == "model.path"
    assert remedy.startswith("an absolute path, since each pod")
    assert faults("shop.models:Clicks", code / "none") == [("model.path", "there is no such folder where the pods run")]


def test_code_that_a_worker_brings_itself_is_not_looked_for() -> None:
    assert faults("no_such:Clicks", requirements=["no-such==1.0"]) == []
    assert faults("no_such:Clicks", code={"url": "/code.tar.gz", "sha256": "0" * 64}) == []
