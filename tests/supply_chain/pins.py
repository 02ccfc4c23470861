"""The pins: every package by version and SHA-256, in ``constraints.txt``, and those of each image, in ``compose/pins``.

The C compiler that images build our own sources with is in ``compose/compiler.txt``: it is too large to be installed
everywhere. Packages are raised in ``constraints.txt`` by hand; ``make pins`` then looks up the files that pip takes for
them on Linux x86-64 with Python 3.11, and writes their digests. What an image has is read from the installed packages.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from packaging.utils import canonicalize_name

from tests.supply_chain import sbom

CONSTRAINTS = sbom.ROOT / "constraints.txt"
OF_IMAGES = sbom.ROOT / "compose" / "pins"
COMPILER = sbom.ROOT / "compose" / "compiler.txt"
SHARED = "runtime"
"""The distribution below every service: what images share is in the same layer of each."""
FOR_TORCH = "laptop-torch"
"""The extra of a whole installation on one machine for PyTorch alone: `make setup-torch` installs its pins."""
PINNED = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s#]+)(?: --hash=sha256:(?P<sha256>[0-9a-f]{64}))?")
HEAD = "# Everything that is installed here: `make pins` writes the digests.\n"
HEAD_OF_COMPILER = "# The C compiler of images: `make pins` writes its digest.\n"
SOURCES = "# built from source\n"
"""Line before the packages that their makers publish as source only; ``compose/requirements.py`` builds them first."""


class Pin(NamedTuple):
    """A package. ``sha256`` is empty where nobody has looked it up; ``source``: it is built, as there is no wheel."""

    name: str
    version: str
    sha256: str = ""
    source: bool = False

    def __str__(self) -> str:
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}"


def read(path: Path = CONSTRAINTS) -> dict[str, Pin]:
    """Return the pins of a file by their canonical names."""
    wheels, _, sources = path.read_text().partition(SOURCES)
    found = [
        Pin(match["name"], match["version"], match["sha256"] or "", source)
        for text, source in ((wheels, False), (sources, True))
        for match in map(PINNED.fullmatch, text.splitlines())
        if match is not None
    ]
    return {canonicalize_name(pin.name): pin for pin in found}


def looked_up(pins: dict[str, Pin]) -> dict[str, Pin]:
    """Return the pins with the digest of the file that pip takes for each. Raises CalledProcessError."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--no-deps"]
    command += ["--report", "-", *(f"{pin.name}=={pin.version}" for pin in pins.values())]
    report = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    found = {canonicalize_name(each["metadata"]["name"]): each["download_info"] for each in report["install"]}
    return {
        name: pin._replace(
            sha256=found[name]["archive_info"]["hashes"]["sha256"], source=not found[name]["url"].endswith(".whl")
        )
        for name, pin in pins.items()
    }


def text_of(pins: dict[str, Pin], head: str = HEAD) -> str:
    """Return the text of a file of pins."""
    ordered = [pin for _, pin in sorted(pins.items())]
    wheels, sources = ([f"{pin}\n" for pin in ordered if pin.source == source] for source in (False, True))
    return "".join([head, *wheels, *([SOURCES, *sources] if sources else [])])


def files(pins: dict[str, Pin]) -> dict[Path, str]:
    """Return path -> text of every file of pins."""
    of_images = {OF_IMAGES / f"{image}.txt": _of(image, pins) for image in (*sbom.images(), SHARED)}
    of_images[OF_IMAGES / f"{FOR_TORCH}.txt"] = _of(sbom.TRAINER, pins, FOR_TORCH)
    return {CONSTRAINTS: text_of(pins), **{path: text_of(found) for path, found in of_images.items()}}


def write() -> int:
    """Write every file of pins; return the number of packages.

    Raises PackageNotFoundError: something is pinned and not installed yet; ``constraints.txt`` is written then.
    """
    pins = looked_up(read())
    CONSTRAINTS.write_text(text_of(pins))
    COMPILER.write_text(text_of(looked_up(read(COMPILER)), HEAD_OF_COMPILER))
    OF_IMAGES.mkdir(exist_ok=True)
    for path, text in files(pins).items():
        path.write_text(text)
    return len(pins)


def _of(distribution: str, pins: dict[str, Pin], extra: str = "*") -> dict[str, Pin]:
    """Return the pins of all that a distribution's image has, or it with an extra, but for our own."""
    names = sbom.packages_of(distribution, extra)
    return {name: pins[name] for name in names if not name.startswith("stretto")}
