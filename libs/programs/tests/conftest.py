"""Common to all tests: the harness of those that run programs is on the path, and small programs are explained here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

sys.path.insert(0, str(Path(__file__).parent / "harness"))  # pytest's importlib mode leaves the folder off the path

from program_harness import WARM

if TYPE_CHECKING:
    from stretto_programs.capture.analysis import Explained


@pytest.fixture(scope="session", autouse=True)
def warm() -> Iterator[None]:
    """End the processes that programs are forked from with the tests."""
    yield
    WARM.close()


@pytest.fixture
def explain(tmp_path: Path) -> Callable[..., Explained]:
    """Return how to explain a program given in parts, in this process; without prices, crossings are free.

    use: also called, while all that the step needs is alive.
    """
    from functools import partial

    from stretto_programs.capture.analysis import explained
    from stretto_programs.capture.first_step import first_step
    from stretto_programs.capture.hooks import install
    from stretto_programs.capture.report import FREE, document

    def explained_program(
        *parts: str, prices: Any = FREE, use: Callable[[Explained], None] = lambda found: None, number: int = 1
    ) -> Explained:
        script = tmp_path / "train.py"
        script.write_text("\n".join(parts) + "\nraise AssertionError('the program went on after its first step')\n")
        found: list[Explained] = []

        def took(captured: Any) -> None:
            found.append(explained(captured, prices))
            use(found[0])

        first_step(script, [], use=took, install=partial(install, number=number), number=number)
        [only] = found
        assert document(only)["verdict"]
        return only

    return explained_program
