"""Commands that read a file, run in this process: what they answer, how they refuse, and the pages that they draw."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import typer.testing
from stretto_cli.main import app
from typer.main import get_command

RUNNER = typer.testing.CliRunner()
typer.testing._get_command = cache(get_command)  # to make the group anew costs each command a tenth of a second


def command(words: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return two functions of what the command reads, a text or a document, and of further options.

    One returns the result, the other the document that is the answer.
    """

    def run(given: Any, *options: str) -> Any:
        text = given if isinstance(given, str) else json.dumps(given)
        return RUNNER.invoke(app, [*words.split(), *options], input=text)

    def answer(given: Any, *options: str) -> Any:
        result = run(given, "-o", "json", *options)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    return run, answer


def changed(document: Any, path: str, value: Any) -> Any:
    """Return a copy of the document with another value at ``path``, such as ``jobs.0.id``."""
    copy: Any = json.loads(json.dumps(document))
    *parents, last = (int(part) if part.isdigit() else part for part in path.split("."))
    at = copy
    for part in parents:
        at = at[part]
    at[last] = value
    return copy


def assert_refused(result: Any, *named: str) -> None:
    """``result`` is of a command that ended: one line that names what is wrong, and nothing else."""
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.output
    for name in named:
        assert name in result.stderr


def titles_on(page: Path, labels: list[str], jobs: int) -> list[str]:
    """Check that a page loads nothing and has these drawings, the last of which shows every job; return its titles."""
    text = page.read_text()
    drawn = [ElementTree.fromstring(part) for part in re.findall(r"<svg.*?</svg>", text)]
    assert [each.get("aria-label") for each in drawn] == labels
    titles = [each.text or "" for each in drawn[-1].iter("title")]
    assert {f"job {n + 1}," for n in range(jobs)} == {" ".join(title.split()[:2]) for title in titles}
    assert not re.search(r"(src|href)=|url\(|@import", text)
    return titles
