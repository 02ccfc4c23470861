"""Algorithms by name, over real metadata of packages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from stretto_core.algorithms import REINSTALL, AlgorithmError, DecisionKind

TASTE = DecisionKind("taste", "sweet")


def install(folder: Path, points: str, monkeypatch: pytest.MonkeyPatch) -> None:
    about = folder / "flavours-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: flavours\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"[stretto.taste]\n{points}\n")
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])


def test_our_own_algorithm_that_is_not_registered_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AlgorithmError, match="installed for taste are none") as told:
        TASTE.named("sweet")
    assert REINSTALL in str(told.value)
    install(tmp_path, "sour = json:loads", monkeypatch)
    with pytest.raises(AlgorithmError, match="installed for taste are sour;") as told:
        TASTE.named("sweet")
    assert REINSTALL in str(told.value)


def test_a_name_that_never_was_is_told_with_those_that_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "sour = json:loads\nsweet = json:dumps", monkeypatch)
    with pytest.raises(AlgorithmError, match=r"algorithm is 'bitter'; installed for taste are sweet, sour$"):
        TASTE.named("bitter")


@pytest.mark.parametrize("moved", ["json.elsewhere:loads", "json:reads"])
def test_an_algorithm_whose_code_has_moved_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: str
) -> None:
    install(tmp_path, f"sweet = {moved}", monkeypatch)
    with pytest.raises(AlgorithmError, match="of flavours cannot be loaded") as told:
        TASTE.named("sweet")
    assert REINSTALL in str(told.value)
