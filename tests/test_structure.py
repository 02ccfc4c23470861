"""House rule on structure: the files of a package do not import each other in circles."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.structure import circles_of, files_of

ROOT = Path(__file__).parents[1]
PACKAGES = sorted(
    init.parent
    for pattern in ("libs/*/stretto*", "services/*/stretto_*")
    for init in ROOT.glob(f"{pattern}/__init__.py")
)


def test_a_circle_is_found() -> None:
    assert circles_of({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [{"b", "c"}]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_the_files_of_a_package_import_each_other_in_one_direction(package: Path) -> None:
    assert circles_of(files_of(package)) == []
