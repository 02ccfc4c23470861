"""How the command refuses: one line that names what is wrong, and nothing else."""

from __future__ import annotations

from typing import Any


def assert_refused(result: Any, *named: str) -> None:
    """``result`` is of a command that ended."""
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.output
    for name in named:
        assert name in result.stderr
