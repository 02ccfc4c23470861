"""House rules on imports: no circles within a package, and no module under a name of one letter."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

from tests.structure import circles_of, files_of

ROOT = Path(__file__).parents[1]
PACKAGES = sorted(
    init.parent
    for pattern in ("libs/*/stretto*", "services/*/stretto_*")
    for init in ROOT.glob(f"{pattern}/__init__.py")
)
ONE_LETTER = re.compile(r"\bas [A-Za-z_]\b")


def python_files() -> list[str]:
    """Return the Python files that a clone gets, and those that are about to be added."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [name for name in names if (ROOT / name).is_file()]


def one_letter_imports(source: str) -> list[str]:
    """Return the imports under a name of one letter; ``with ... as f`` is none."""
    if not ONE_LETTER.search(source):
        return []
    imports = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom))
    return [ast.unparse(node) for node in imports if any(len(alias.asname or "") == 1 for alias in node.names)]


def test_a_circle_is_found() -> None:
    assert circles_of({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [{"b", "c"}]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_the_files_of_a_package_import_each_other_in_one_direction(package: Path) -> None:
    assert circles_of(files_of(package)) == []


def test_an_import_of_one_letter_is_found() -> None:
    assert one_letter_imports("from os import (\n    path as p,\n    sep,\n)") == ["from os import path as p, sep"]
    assert one_letter_imports("import numpy as np\nwith open('a') as f: ...") == []


@pytest.mark.proof
def test_no_import_has_a_name_of_one_letter() -> None:
    found = {name: one_letter_imports((ROOT / name).read_text(encoding="utf-8")) for name in python_files()}
    assert {name: imports for name, imports in found.items() if imports} == {}
