"""The version of a release: one for all distributions, images and the chart, stated in these places and no other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
RELEASED = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")
OF_DISTRIBUTION = (r'^version = "([^"]+)"$', r'"stretto(?:-[a-z]+)?(?:\[[a-z,]+\])?==([^"]+)"')
STATED = {
    "libs/*/pyproject.toml": OF_DISTRIBUTION,
    "services/*/pyproject.toml": OF_DISTRIBUTION,
    "compose/.env": (r"^STRETTO_VERSION=(.+)$",),
    "compose/compose.yaml": (r"\$\{STRETTO_VERSION:-([^}]+)\}",),
    "compose/README.md": (r"\bstretto/[a-z]+:([\d.]+)",),
    "charts/stretto/Chart.yaml": (r"^version: (.+)$", r"^appVersion: (.+)$"),
    "examples/tutorials/*.md": (r"\bstretto/[a-z]+:([\d.]+)",),
}
"""Files -> patterns, each with the version as its group. Wheels of one release need each other at exactly it."""


class ReleaseRefused(ValueError):
    """A release cannot be made so; the message names the place, the value and the remedy."""


@dataclass(frozen=True, slots=True)
class Place:
    """One statement of the version: characters ``start`` to ``end`` of a file."""

    path: Path
    start: int
    end: int
    version: str


def places(root: Path = ROOT) -> Iterator[Place]:
    """Yield every place that states the version."""
    for files, patterns in STATED.items():
        for path in sorted(root.glob(files)):
            text = path.read_text()
            for pattern in patterns:
                for match in re.finditer(pattern, text, re.MULTILINE):
                    yield Place(path, *match.span(1), match[1])


def current(root: Path = ROOT) -> str:
    """Return the version. Raises ReleaseRefused where two places differ."""
    stated = {place.version: place for place in places(root)}
    if len(stated) != 1:
        told = ", ".join(f"{version} in {place.path.relative_to(root)}" for version, place in stated.items())
        raise ReleaseRefused(f"one version was expected, not {told}: run `make release VERSION=…`")
    return next(iter(stated))


def write(version: str, root: Path = ROOT) -> int:
    """State ``version`` in every place; return how many there are. Raises ReleaseRefused for what is no version."""
    if RELEASED.fullmatch(version) is None:
        raise ReleaseRefused(f"VERSION={version} is no version: state three numbers, such as 1.4.0")
    by_path: dict[Path, list[Place]] = {}
    for place in places(root):
        by_path.setdefault(place.path, []).append(place)
    for path, found in by_path.items():
        text = path.read_text()
        for place in sorted(found, key=lambda place: place.start, reverse=True):
            text = text[: place.start] + version + text[place.end :]
        path.write_text(text)
    return sum(map(len, by_path.values()))
