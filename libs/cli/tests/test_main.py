"""The command line itself: what it finds, loads and tells of itself."""

from __future__ import annotations

import subprocess
import sys

import pytest
from stretto_cli.main import MODULES, app, registered
from typer.testing import CliRunner

GROUPS = ("data", "token", "whatif", "simulate")


@pytest.mark.parametrize("module", MODULES)
def test_every_command_is_found_and_explains_itself(module: str) -> None:
    assert tuple(registered(module)) == MODULES[module]
    for name in MODULES[module]:
        told = CliRunner().invoke(app, [name, "--help"])
        assert told.exit_code == 0
        if name not in GROUPS:
            assert f"Example: stretto {name}" in told.stdout
            assert "--output" in told.stdout


def test_a_command_loads_what_it_needs_and_no_more() -> None:
    """Numeric libraries take a second."""
    program = "import sys; from stretto_cli.main import app; app(['jobs', '--help'], standalone_mode=False)"
    told = f"{program}; print([name for name in ('numpy', 'scipy', 'fastapi', 'nats') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_help_tells_the_exit_statuses() -> None:
    told = " ".join(CliRunner().invoke(app, ["--help"]).stdout.split())
    assert "Exit status: 0 done; 1 failed" in told
    assert "2 what was given cannot be used" in told
