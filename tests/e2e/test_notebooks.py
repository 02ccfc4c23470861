"""The notebooks of ``examples/notebooks``, executed in order on one real installation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.e2e.typed import shell

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "notebooks"
NOTEBOOKS = ("first-job", "why-this-plan", "events-to-a-data-frame")
"""In the order in which a reader takes them: the last one reads what the others left."""
CELL_S = 420

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("notebooks") / "state"
    up = shell(".venv/bin/stretto up --detach", STRETTO_STATE_FOLDER=str(folder))
    assert up.returncode == 0, up.stderr[-3000:]
    yield folder
    shell(".venv/bin/stretto down", STRETTO_STATE_FOLDER=str(folder))


@pytest.fixture(scope="module")
def executed(folder: Path) -> dict[str, Any]:
    """Execute every notebook; an error of a cell is an error here."""
    found: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STRETTO_STATE_FOLDER", str(folder))
        for name in NOTEBOOKS:
            notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)  # type: ignore[no-untyped-call]
            NotebookClient(notebook, timeout=CELL_S, kernel_name="python3").execute()
            found[name] = notebook
    return found


def outputs(notebook: Any, kind: str) -> str:
    """Return all that the cells showed in this form."""
    return "".join(
        "".join(output.get("data", {}).get(kind, "")) for cell in notebook.cells for output in cell.get("outputs", ())
    )


def test_all_notebooks_are_executed() -> None:
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(NOTEBOOKS)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_kept_without_outputs(name: str) -> None:
    cells = [
        cell for cell in json.loads((FOLDER / f"{name}.ipynb").read_text())["cells"] if cell["cell_type"] == "code"
    ]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)


@pytest.mark.night
def test_the_first_job_finishes_and_shows_itself(executed: dict[str, Any]) -> None:
    html = outputs(executed["first-job"], "text/html")
    assert "notebook-first: finished, 100.0% of 120,000 samples" in html
    assert "<svg" in html
    assert "<script" not in html


@pytest.mark.night
def test_a_decision_and_the_job_s_own_model_explain_themselves(executed: dict[str, Any]) -> None:
    notebook = executed["why-this-plan"]
    printed = "".join(
        output["text"]
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if output.output_type == "stream"
    )
    for words in ("chosen by", "predicted", "1 workers:", "4 workers:", "samples/s ["):
        assert words in printed, words
    assert "Decision v" in outputs(notebook, "text/html")


@pytest.mark.night
def test_events_become_a_data_frame(executed: dict[str, Any]) -> None:
    html = outputs(executed["events-to-a-data-frame"], "text/html")
    for words in ("job-submitted", "plan-decided", "notebook-first", "finished", "plan.workers"):
        assert words in html, words
