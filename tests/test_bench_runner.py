"""The runner of `make bench`: what cannot be measured is said and counts as missed, and the results are JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.bench import __main__ as bench

ROW: dict[str, Any] = {
    "name": "steps",
    "value": 42.0,
    "unit": "steps/s",
    "baseline": 40.0,
    "ratio": 1.05,
    "bar": "≥ 1.0",
    "ok": True,
    "note": "",
}


def _run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, modules: dict[str, Any], *arguments: str) -> tuple[int, Any]:
    for name, run in modules.items():
        monkeypatch.setitem(sys.modules, f"tests.bench.{name}", SimpleNamespace(run=run))
    path = tmp_path / "bench.json"
    monkeypatch.setattr(bench, "MODULES", tuple(modules))
    monkeypatch.setattr(bench, "RESULTS", path)
    monkeypatch.setattr(sys, "argv", ["bench", *arguments])
    return bench.main(), json.loads(path.read_text())["results"]


def test_figures_that_meet_their_bars(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    figure = {**ROW, "name": "a figure", "ok": None, "bar": ""}
    status, results = _run(monkeypatch, tmp_path, {"one": lambda: [ROW], "two": lambda: [figure]})
    assert status == 0
    assert results["one"]["rows"] == [ROW]
    assert set(results) == {"one", "two"}


def test_a_missed_bar_fails_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert _run(monkeypatch, tmp_path, {"one": lambda: [{**ROW, "ok": False}]})[0] == 1


def test_a_module_that_fails_does_not_hide_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> list[dict[str, Any]]:
        raise RuntimeError("no server\nport 0 is taken")

    status, results = _run(monkeypatch, tmp_path, {"broken": broken, "one": lambda: [ROW]})
    assert status == 1
    assert results["one"]["rows"] == [ROW]
    assert results["broken"]["rows"][0]["value"] is None
    assert results["broken"]["rows"][0]["note"] == "could not be measured: RuntimeError: port 0 is taken"
    assert "missed" in capsys.readouterr().out


def test_a_row_without_a_column_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    row = {key: value for key, value in ROW.items() if key != "baseline"}
    status, results = _run(monkeypatch, tmp_path, {"one": lambda: [row]})
    assert status == 1
    assert "baseline" in results["one"]["rows"][0]["note"]


def test_only_one_is_measured_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _run(monkeypatch, tmp_path, {"one": lambda: [ROW], "two": lambda: [ROW]})
    changed = {"one": lambda: [{**ROW, "value": 43.0}], "two": lambda: pytest.fail("measured too")}
    status, results = _run(monkeypatch, tmp_path, changed, "--only", "one")
    assert status == 0
    assert results["one"]["rows"][0]["value"] == 43.0
    assert results["two"]["rows"] == [ROW]
