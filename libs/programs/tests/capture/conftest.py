"""Small training programs, explained in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from stretto_programs.capture.analysis import Explained, explained
from stretto_programs.capture.first_step import first_step
from stretto_programs.capture.report import FREE, document
from stretto_programs.partition.cut import Prices


@pytest.fixture
def explain(tmp_path: Path) -> Callable[..., Explained]:
    """Return how to explain a program given in parts. use: also called, while all that the step needs is alive."""

    def explained_program(
        *parts: str,
        prices: Prices = FREE,
        use: Callable[[Explained], None] = lambda found: None,
    ) -> Explained:
        script = tmp_path / "train.py"
        script.write_text("\n".join(parts) + "\nraise AssertionError('the program went on after its first step')\n")
        found: list[Explained] = []

        def took(captured: object) -> None:
            found.append(explained(captured, prices))  # type: ignore[arg-type]
            use(found[0])

        first_step(script, [], use=took)
        [only] = found
        assert document(only)["verdict"]
        return only

    return explained_program
