"""Whatever a pod has written: no control character of it reaches the terminal, and a log is read within bounds."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from stretto_cli.commands.jobs.logs import BYTES_MAX, LINE_MAX, last_lines
from stretto_cli.terminal import Terminal, json_text

HOSTILE = "\x1b]0;title\x07 \x1b[2J \x9b31m \u202eevil \x08\x7f"


@given(st.text() | st.just(HOSTILE))
def test_a_text_is_shown_without_control_characters(text: str) -> None:
    printed = io.StringIO()
    terminal = Terminal(file=printed, width=200)
    table = Table()
    table.add_column("a")
    table.add_row(text.replace("[", "("))
    terminal.print(table)
    terminal.print(text, markup=False)
    assert not {letter for letter in printed.getvalue() if letter != "\n" and not is_shown(letter)}


def is_shown(letter: str) -> bool:
    return letter >= " " and not "\x7f" <= letter <= "\x9f" and letter not in "\u202a\u202b\u202c\u202d\u202e"


@given(st.text() | st.just(HOSTILE))
def test_json_has_no_control_character_and_the_same_text(text: str) -> None:
    written = json_text({"line": text}, None)
    assert all(map(is_shown, written))
    assert json.loads(written) == {"line": text}


def test_a_log_that_was_stretched_or_has_one_endless_line_is_read_within_bounds(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("first\n" + "x" * (2 * BYTES_MAX) + "\nlast\n")
    lines = last_lines(log)
    assert lines[-1] == "last"
    assert len(lines[0]) < LINE_MAX + 50
    os.truncate(log, 8 << 40)
    assert sum(map(len, last_lines(log))) <= LINE_MAX + 50
