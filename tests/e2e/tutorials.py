"""The tutorials as they are written: files to save, and commands to type."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.e2e.typed import ROOT

TUTORIALS = ROOT / "examples/tutorials"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NAMED = re.compile(r"# ([\w/.-]+\.(?:py|yaml))\n")


def steps(name: str) -> Iterator[tuple[str, str]]:
    """Yield the fences of a tutorial in their order: a file's name, or an empty text for commands, and the text.

    Raises ValueError for a fence that is neither.
    """
    for language, text in FENCE.findall((TUTORIALS / name).read_text()):
        named = NAMED.match(text)
        if language in ("python", "yaml") and named:
            yield named[1], text
        elif language == "sh":
            yield "", text
        else:
            raise ValueError(f"{name}: a {language} fence that is neither a file nor a command:\n{text}")


def save(name: str, folder: Path) -> None:
    """Save all files of a tutorial."""
    for file, text in steps(name):
        if file:
            (folder / file).write_text(text)


def commands(name: str) -> str:
    """Return all commands of a tutorial, as one script."""
    return "".join(text for file, text in steps(name) if not file)
