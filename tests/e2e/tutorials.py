"""The tutorials as they are written: files to save, commands to type, and what they print."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.e2e.typed import ROOT

TUTORIALS = ROOT / "examples/tutorials"
FENCE = re.compile(r"^(?:<!-- tested: (\S+) -->\n)?```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NAMED = re.compile(r"# ([\w/.-]+\.(?:py|yaml))\n")
FRAMES = re.compile(r"[│╭╮╰╯─━]")


class Fence(NamedTuple):
    """A fence of a page. ``tested``: the test that runs it elsewhere, empty where it is to be run in its place."""

    tested: str
    language: str
    text: str


class Step(NamedTuple):
    """A file's name, or an empty text for commands; the text; what the commands print, as far as the page says."""

    file: str
    text: str
    printed: str = ""


def fences(page: Path) -> list[Fence]:
    """Return the fences of a page in their order."""
    return [Fence(*found) for found in FENCE.findall(page.read_text())]


def steps(name: str) -> Iterator[Step]:
    """Yield the steps of a tutorial in their order. Raises ValueError for a fence that is none."""
    left = [fence for fence in fences(TUTORIALS / name) if not fence.tested]
    for fence, after in zip(left, [*left[1:], Fence("", "", "")], strict=True):
        named = NAMED.match(fence.text)
        if fence.language in ("python", "yaml") and named:
            yield Step(named[1], fence.text)
        elif fence.language == "sh":
            yield Step("", fence.text, after.text if after.language == "text" else "")
        elif fence.language != "text":
            raise ValueError(f"{name}: a {fence.language} fence that is neither a file nor a command:\n{fence.text}")


def save(name: str, folder: Path) -> None:
    """Save all files of a tutorial."""
    for step in steps(name):
        if step.file:
            (folder / step.file).write_text(step.text)


def commands(name: str) -> str:
    """Return all commands of a tutorial, as one script."""
    return "".join(step.text for step in steps(name) if not step.file)


def missing(expected: str, printed: str) -> list[str]:
    """Return the lines of a page that were not printed, in their order; … stands for anything, frames for nothing."""
    lines = [_plain(line) for line in printed.splitlines()]
    absent: list[str] = []
    for line in expected.splitlines():
        pattern = re.compile(".*".join(re.escape(each.strip()) for each in _plain(line).split("…")))
        at = next((n for n, each in enumerate(lines) if pattern.search(each)), None)
        if at is None:
            absent.append(line)
        else:
            lines = lines[at + 1 :]
    return absent


def _plain(line: str) -> str:
    return re.sub(r"\s+", " ", FRAMES.sub(" ", line)).strip()
