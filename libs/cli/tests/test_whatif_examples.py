"""WHATIF.md: every file in it is read by every command in it, and every field of the answers is explained there."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from stretto_cli.main import app
from typer.testing import CliRunner

TEXT = (Path(__file__).parents[1] / "WHATIF.md").read_text()
SECTIONS = {part.partition(":")[0]: part for part in TEXT.split("\n## ")[1:]}
FILES = dict(re.findall(r"^`(\S+)`:\n\n```(?:csv|json)\n(.*?)```$", TEXT, re.DOTALL | re.MULTILINE))
COMMANDS = [
    (name, command)
    for name, part in SECTIONS.items()
    for block in re.findall(r"```sh\n(.*?)```", part, re.DOTALL)
    for command in block.splitlines()
]


@pytest.mark.parametrize(("section", "command"), COMMANDS)
def test_an_example_is_answered_with_the_fields_that_are_explained(
    section: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)
    program, *arguments = shlex.split(command)
    assert (program, *arguments[:2]) == ("stretto", "whatif", section)
    shown = CliRunner().invoke(app, arguments)
    assert (shown.exit_code, shown.stderr) == (0, "")
    result = CliRunner().invoke(app, [*arguments, "-o", "json"])
    told = json.loads(result.stdout)
    assert told.get("feasible", True) is True
    for field in told:
        assert f"`{field}`" in SECTIONS[section], field


def test_every_command_that_reads_a_file_has_an_example() -> None:
    assert {name for name, _ in COMMANDS} == {"fit", "pareto", "allocate", "place", "memory", "spill", "resize"}
    assert len(FILES) == TEXT.count("```csv") + TEXT.count("```json")


@pytest.mark.parametrize("section", sorted(SECTIONS))
def test_the_help_says_where_the_example_is(section: str) -> None:
    shown = CliRunner().invoke(app, ["whatif", section, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert "libs/cli/WHATIF.md" in shown.stdout
