"""The command line itself: what it finds, loads and tells of itself."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from importlib.metadata import EntryPoint, version
from pathlib import Path

import pytest
import typer.testing
from installed_gateway import Installed
from stretto_cli import main
from stretto_cli.main import COMMANDS, OURS_ELSEWHERE, app, load
from typer.main import get_command, get_group
from typer.testing import CliRunner

GROUPS = ("data", "token", "whatif", "simulate")


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each command look anew for what is installed (see asking.py)."""
    monkeypatch.setattr(typer.testing, "_get_command", get_command)


def listed() -> list[str]:
    """Return the commands in the order in which the help has them."""
    return get_group(app).list_commands(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [*COMMANDS, "demo", "chaos"])
def test_every_command_is_found_and_explains_itself(name: str) -> None:
    assert all("\n" not in each for each in load(name).help.split("\n\n")), "Typer would keep the line's end"
    shown = CliRunner().invoke(app, [name, "--help"])
    assert shown.exit_code == 0
    usage = shown.stdout.split("Usage: ")[1].splitlines()[0]
    assert "[[" not in usage
    assert not re.search(r"[\[{][a-z]", usage)
    if name not in GROUPS:
        assert f"Example: stretto {name}" in shown.stdout
        assert ("--output" in shown.stdout) == (name != "run")  # its output is the program's own


def test_the_help_lists_commands_of_plug_ins_at_their_place_or_behind_all_others() -> None:
    assert listed() == [*COMMANDS, "chaos", "demo"]


@pytest.mark.usefixtures("anew")
@pytest.mark.parametrize(("name", "package"), OURS_ELSEWHERE.items())
def test_a_command_whose_distribution_is_absent_names_it(
    monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    monkeypatch.setattr(main, "plugged_in", lambda: {})
    refused = CliRunner().invoke(app, [name, "train.py", "--an-option"])
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert f"{package}, which is not installed" in refused.stderr
    assert name not in listed()
    assert CliRunner().invoke(app, ["--help"]).exit_code == 0


@pytest.mark.usefixtures("anew")
def test_a_command_whose_distribution_is_broken_names_it_and_harms_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = EntryPoint("broken", "no_such_package.command", main.ENTRY_POINTS)
    monkeypatch.setattr(main, "plugged_in", lambda: {"broken": broken})
    refused = CliRunner().invoke(app, ["broken"])
    assert refused.exit_code == 1
    assert "broken: the command cannot be loaded from no_such_package.command" in " ".join(refused.stderr.split())
    assert CliRunner().invoke(app, ["schema"]).exit_code == 0
    assert CliRunner().invoke(app, ["--help"]).exit_code == 0


def test_a_command_loads_what_it_needs_and_no_more() -> None:
    """Numeric libraries take a second."""
    program = "import sys; from stretto_cli.main import app; app(['jobs', '--help'], standalone_mode=False)"
    told = f"{program}; print([name for name in ('numpy', 'scipy', 'fastapi', 'nats') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("words", [["--version"], ["version"]])
def test_the_version_is_told_with_and_without_a_gateway(
    words: list[str], installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = version("stretto-cli")
    monkeypatch.chdir(tmp_path)
    alone = CliRunner().invoke(app, words)
    assert (alone.exit_code, alone.stdout.startswith(f"stretto {own}, no gateway: ")) == (0, True)
    assert json.loads(CliRunner().invoke(app, [*words, "-o", "json"]).stdout)["gateway"] is None
    assert installed.stretto(*words).stdout == f"stretto {own}, gateway {version('stretto-gateway')}\n"
    told = json.loads(installed.stretto(*words, "-o", "json").stdout)
    assert told == {"command": own, "gateway": version("stretto-gateway"), "why": None}


def test_the_help_tells_the_exit_statuses() -> None:
    told = " ".join(CliRunner().invoke(app, ["--help"]).stdout.split())
    assert "Exit status: 0 done; 1 failed" in told
    assert "2 the input cannot be used" in told


@pytest.mark.parametrize("command", [["watch"], ["replay"], ["up", "--folder"], ["jobs", "--url"]])
def test_an_argument_that_is_no_text_is_refused(command: list[str]) -> None:
    refused = CliRunner().invoke(app, [*command, "a\udc80"])
    assert (refused.exit_code, "not in UTF-8" in refused.stderr) == (2, True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_interrupts_a_command_once(number: signal.Signals) -> None:
    def interrupted() -> None:
        try:
            signal.raise_signal(number)
        finally:
            signal.raise_signal(number)
            cleaned.append(number)

    cleaned: list[int] = []
    with pytest.raises(KeyboardInterrupt), main.interruptible():
        interrupted()
    assert cleaned == [number]
    assert signal.getsignal(number) is signal.SIG_DFL


def test_a_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with main.interruptible():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
