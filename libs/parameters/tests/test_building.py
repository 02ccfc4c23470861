"""The kernels in what is installed: a wheel has them always, an editable install where something can build them."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1]
NO_COMPILER = {**{name: value for name, value in os.environ.items() if name != "CC"}, "PATH": ""}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The distribution without what was built; building leaves files beside the sources."""
    left_out = shutil.ignore_patterns("build", "*.egg-info", "*.so", "tests")
    return Path(shutil.copytree(SOURCE, tmp_path / "parameters", ignore=left_out))


def built(copy: Path, hook: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a hook of the build (`build_wheel`, `build_editable`) as pip does."""
    code = f"from setuptools.build_meta import {hook} as build; build('..')"
    return subprocess.run(
        [sys.executable, "-c", code], cwd=copy, env=environment, capture_output=True, text=True, check=False
    )


def loaded(package: Path) -> str:
    """Return the name of the kernels that a copy of the package loads."""
    code = "from stretto_parameters import Layout, Store; print(Store(Layout((), 1, 2, 1), 2**20).kernels.name)"
    done = subprocess.run([sys.executable, "-c", code], cwd=package, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_wheel_has_the_kernels_and_serves_any_python(copy: Path, tmp_path: Path) -> None:
    if not shutil.which("cc"):
        pytest.skip("no C compiler on this machine")
    done = built(copy, "build_wheel", dict(os.environ))
    assert done.returncode == 0, done.stderr[-2000:]
    [wheel] = tmp_path.glob("*.whl")
    assert wheel.name.startswith("stretto_parameters-")
    assert "-py3-none-linux_" in wheel.name
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path / "unpacked")
    [library] = (tmp_path / "unpacked").rglob("libkernels.so")
    assert loaded(library.parents[1]) == "c"


@pytest.mark.skipif(importlib.util.find_spec("ziglang") is not None, reason="ziglang is installed here: a compiler")
class TestWithoutCompiler:
    def test_no_wheel_is_made(self, copy: Path, tmp_path: Path) -> None:
        done = built(copy, "build_wheel", NO_COMPILER)
        assert done.returncode != 0
        assert "no C compiler was found: install gcc or clang, or `pip install ziglang`, or set CC" in done.stderr
        assert list(tmp_path.glob("*.whl")) == []

    def test_an_editable_install_is_served_by_numpy(self, copy: Path) -> None:
        done = built(copy, "build_editable", NO_COMPILER)
        assert done.returncode == 0, done.stderr[-2000:]
        assert "the NumPy reference of the kernels will serve" in done.stdout + done.stderr
        assert loaded(copy) == "numpy"
