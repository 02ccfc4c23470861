"""Whatever a pod has written: no control character of it reaches the terminal, and a log is read within bounds."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.markup import escape
from rich.table import Table
from stretto_cli.commands.jobs.logs import BYTES_MAX, LINE_MAX, last_lines
from stretto_cli.commands.views.trace import TraceSpan, render
from stretto_cli.terminal import NEAREST, Terminal, json_text

HOSTILE = "\x1b]0;title\x07 \x1b[2J \x9b31m \u202eevil \x08\x7f"


@given(st.text() | st.just(HOSTILE))
def test_a_text_is_shown_without_control_characters(text: str) -> None:
    printed = io.StringIO()
    terminal = Terminal(file=printed, width=200)
    table = Table()
    table.add_column("a")
    table.add_row(escape(text))
    terminal.print(table)
    terminal.print(text, markup=False)
    assert not {letter for letter in printed.getvalue() if letter != "\n" and not is_shown(letter)}


def test_no_field_of_a_span_is_markup_or_a_link() -> None:
    hostile = "[link=\x1bc]x[/link][/y]"
    span = TraceSpan("t", "a", None, hostile, hostile, 0, 1, {"stretto.delivery": hostile}, hostile)
    printed = io.StringIO()
    terminal = Terminal(file=printed, width=200, force_terminal=True, color_system=None)
    terminal.print(render([span]))
    terminal.print("[link=\x1bc]x[/link]")
    assert "[link=" in printed.getvalue()
    assert "\x1bc" not in printed.getvalue()
    assert "\x1b]8" not in printed.getvalue()


def is_shown(letter: str) -> bool:
    return letter >= " " and not "\x7f" <= letter <= "\x9f" and letter not in "\u202a\u202b\u202c\u202d\u202e"


@given(st.text() | st.just(HOSTILE))
def test_json_has_no_control_character_and_the_same_text(text: str) -> None:
    written = json_text({"line": text}, None)
    assert all(map(is_shown, written))
    assert json.loads(written) == {"line": text}


def test_a_log_that_was_stretched_or_has_one_endless_line_is_read_within_bounds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    log.write_text("first\n" + "x" * (2 * BYTES_MAX) + "\n" + "y" * (2 * LINE_MAX) + "\nlast\n")
    lines = last_lines(log)
    assert lines == ["y" * LINE_MAX + f" … {LINE_MAX:,} more", "last"]
    assert "only the last 16 MiB" in capsys.readouterr().err
    os.truncate(log, 8 << 40)
    assert sum(map(len, last_lines(log))) <= LINE_MAX + 50


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_a_terminal_without_utf_8_gets_the_nearest_characters(encoding: str) -> None:
    told = "3 × worker – 40% █░ → ✓ …".encode(encoding, NEAREST).decode(encoding)
    assert told.replace("×", "x").replace("–", "-").replace("…", "...") == "3 x worker - 40% #. -> ok ..."
    assert "日\udcff".encode(encoding, NEAREST) == b"\\u65e5\\udcff"
    assert "日\udcff".encode("utf-8", NEAREST).decode() == "日\\udcff"


@pytest.mark.parametrize(
    "environment",
    [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}],
)
def test_commands_print_on_a_terminal_without_utf_8(tmp_path: Path, environment: dict[str, str]) -> None:
    told = {}
    for words in (["--help"], ["submit", "é…\udcff.yaml", "-o", "json"], ["submit", "é…\udcff.yaml"]):
        command = [sys.executable, "-m", "stretto_cli.main", *words]
        done = subprocess.run(
            command, capture_output=True, env={**os.environ, **environment}, cwd=tmp_path, check=False
        )
        told[words[-1]] = (done.stdout + done.stderr).decode("ascii")
    assert "stretto demo" in told["--help"]
    assert "not in UTF-8" in json.loads(told["json"])["error"]["message"]
    assert "not in UTF-8; rename the file" in told["é…\udcff.yaml"]
