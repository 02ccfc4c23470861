"""An empty environment with one distribution in it: its wheels, and of other packages those only that it declares."""

from __future__ import annotations

import subprocess
import sys
import venv
from importlib.metadata import Distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.release.wheels import requirements_of
from tests.supply_chain.sbom import installed, needs_of

Asked = tuple[str, frozenset[str]]


def environment(folder: Path, wheels: dict[str, Path], wanted: str) -> Path:
    """Install ``wanted``, such as ``stretto-cli[embedded]``, into ``folder``; return its Python.

    Our own packages are installed by pip from their wheels. Those of others are links into the environment that
    runs this, where they have the versions that the release is tested with.
    """
    own, others = closure(wheels, Requirement(wanted))
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", "--no-index"]
    subprocess.run([*command, *(str(wheels[name]) for name in sorted(own))], check=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    for name in others:
        _link(installed(name), packages, folder / "bin")
    return python


def closure(wheels: dict[str, Path], wanted: Requirement) -> tuple[set[str], set[str]]:
    """Return the names of (our own packages, packages of others) that an installation of ``wanted`` has."""
    own, others = set[str](), set[str]()
    left = {_asked(wanted)}
    seen = set(left)
    while left:
        name, extras = left.pop()
        if name in wheels:
            own.add(name)
            declared = requirements_of(wheels[name])
            needs = [each for each in declared if _holds(each, extras)]
        else:
            others.add(name)
            needs = needs_of(installed(name), extras)
        left |= {_asked(each) for each in needs} - seen
        seen |= left
    return own, others


def _asked(requirement: Requirement) -> Asked:
    return canonicalize_name(requirement.name), frozenset(requirement.extras)


def _holds(requirement: Requirement, extras: frozenset[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))


def _link(found: Distribution, packages: Path, programs: Path) -> None:
    """Link every module of a package, and its programs. A script is left out: it names the Python of elsewhere."""
    for file in found.files or []:
        here = Path(str(found.locate_file(file))).resolve()
        if ".." not in file.parts:
            target = packages / file
        elif here.parent.name == "bin" and not here.read_bytes().startswith(b"#!"):
            target = programs / here.name
        else:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            target.symlink_to(here)
