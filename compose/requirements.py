"""The requirements of an image, from the pyproject.toml of its distribution and of Stretto's distributions below it.

``python compose/requirements.py own planner`` prints the folders of our distributions, ``shared planner`` the pins of
the third-party packages that the runtime of every service needs too, ``sources planner`` those of packages that have to
be built, and ``rest planner`` the others; ``tools any`` what our own distributions are built with, ``docs any`` what
the documentation is built with, ``compiler planner`` the C compiler, if one of them has sources in C. Pins are in
``compose/pins`` and ``compose/compiler.txt``, by version and digest (``make pins``). An image has every extra of its
distribution, since a setting chooses the backend, except ``embedded`` and ``laptop``, whose processes have images of
their own, and ``torch``, whose wheel depends on the machine. ``compose/pins/laptop-torch.txt`` is what an
installation on this machine for PyTorch alone has, but for PyTorch (``make setup-torch``).
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PINS = Path("compose/pins")
COMPILER = Path("compose/compiler.txt")
SHARED = "runtime"
SOURCES = "# built from source\n"
BUILD_TOOLS = ("setuptools", "wheel")
DOCS_TOOLS = (
    *("zensical", "click", "deepmerge", "Jinja2", "Markdown", "MarkupSafe", "pathspec", "Pygments"),
    *("pymdown-extensions", "PyYAML", "tomli"),
)
"""Zensical, and all that it requires."""
REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(\[(?P<extras>[^]]*)\])?")
EVERY = "*"
ELSEWHERE = ("embedded", "laptop", "laptop-torch", "torch")

Projects = dict[str, tuple[Path, dict[str, Any]]]


def projects(root: Path) -> Projects:
    """Return name -> (folder, project table) of every distribution of the repository."""
    tables = {path.parent: tomllib.loads(path.read_text())["project"] for path in root.glob("*/*/pyproject.toml")}
    return {table["name"]: (folder, table) for folder, table in tables.items()}


def closure(known: Projects, service: str, extra: str = EVERY) -> tuple[set[Path], set[str]]:
    """Return (folders of our distributions, third-party requirements) with an extra, or with EVERY one of its image.

    Raises SystemExit for an unknown service.
    """
    of_folder = {folder.name: name for name, (folder, _) in known.items()}
    if (wanted := of_folder.get(service)) is None:
        raise SystemExit(f"SERVICE={service}: no folder of that name; there are {', '.join(sorted(of_folder))}")
    folders: set[Path] = set()
    others: set[str] = set()
    seen: set[tuple[str, str]] = set()
    left = {(wanted, ""), (wanted, extra)}
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
        if name == extra or (extra == EVERY and name not in ELSEWHERE):
            yield from group


def pins(image: str) -> tuple[set[str], set[str]]:
    """Return (pins of packages that are wheels, pins of those that are sources) of an image."""
    wheels, _, sources = (PINS / f"{image}.txt").read_text().partition(SOURCES)
    lines = ({line for line in part.splitlines() if not line.startswith("#")} for part in (wheels, sources))
    return next(lines), next(lines)


def main(which: str, service: str) -> None:
    if which == "own":
        folders, _ = closure(projects(Path()), service)
        answer = {f"./{folder}" for folder in folders}
    elif which == "compiler":
        folders, _ = closure(projects(Path()), service)
        needed = any(next(folder.glob("stretto*/*.c"), None) for folder in folders)
        answer = {line for line in COMPILER.read_text().splitlines() if needed and not line.startswith("#")}
    elif which in ("tools", "docs"):
        names = BUILD_TOOLS if which == "tools" else DOCS_TOOLS
        lines = Path("constraints.txt").read_text().splitlines()
        answer = {line for line in lines if line.partition("==")[0] in names}
    else:
        wheels, sources = pins(service)
        shared, _ = pins(SHARED)
        answer = {"shared": wheels & shared, "rest": wheels - shared, "sources": sources}[which]
    sys.stdout.write("".join(f"{each}\n" for each in sorted(answer)))


if __name__ == "__main__":
    main(*sys.argv[1:])
