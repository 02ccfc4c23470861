"""The requirements of an image, from the pyproject.toml of its distribution and of those of Stretto below it.

``python compose/requirements.py own planner`` prints the folders of our distributions, ``shared planner`` the
third-party packages that the runtime of every service needs too, and ``rest planner`` the others. An image has every
extra of its distribution, since a setting chooses the backend, except ``embedded``: the processes that the command
starts have images of their own.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PREFIX = "stretto-"
REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(\[(?P<extras>[^]]*)\])?")
EVERY = "*"
ELSEWHERE = "embedded"

Projects = dict[str, tuple[Path, dict[str, Any]]]


def projects(root: Path) -> Projects:
    """Return name -> (folder, project table) of every distribution of the repository."""
    tables = {path.parent: tomllib.loads(path.read_text())["project"] for path in root.glob("*/*/pyproject.toml")}
    return {table["name"]: (folder, table) for folder, table in tables.items()}


def closure(known: Projects, service: str) -> tuple[set[Path], set[str]]:
    """Return (folders of our distributions, third-party requirements). Raises SystemExit for an unknown service."""
    wanted = PREFIX + service
    if wanted not in known:
        names = ", ".join(sorted(name.removeprefix(PREFIX) for name in known))
        raise SystemExit(f"SERVICE={service}: no distribution {wanted}; there are {names}")
    folders: set[Path] = set()
    others: set[str] = set()
    seen: set[tuple[str, str]] = set()
    left = {(wanted, ""), (wanted, EVERY)}
    while left:
        seen.add(asked := left.pop())
        folder, project = known[asked[0]]
        folders.add(folder)
        for requirement in required(project, asked[1]):
            match = REQUIREMENT.match(requirement)
            assert match is not None, requirement
            if match["name"] in known:
                extras = (match["extras"] or "").replace(" ", "").split(",")
                left |= {(match["name"], extra) for extra in ("", *extras)} - seen
            else:
                others.add(requirement)
    return folders, others


def required(project: dict[str, Any], extra: str) -> Iterator[str]:
    """Yield the requirements of a distribution (``extra`` empty), of one extra, or of EVERY extra of its image."""
    if not extra:
        yield from project.get("dependencies", [])
    for name, group in project.get("optional-dependencies", {}).items():
        if name == extra or (extra == EVERY and name != ELSEWHERE):
            yield from group


def main(which: str, service: str) -> None:
    known = projects(Path())
    folders, others = closure(known, service)
    _, shared = closure(known, "runtime")
    answers = {"own": {f"./{folder}" for folder in folders}, "shared": others & shared, "rest": others - shared}
    sys.stdout.write("".join(f"{each}\n" for each in sorted(answers[which])))


if __name__ == "__main__":
    main(*sys.argv[1:])
