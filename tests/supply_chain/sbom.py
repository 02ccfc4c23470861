"""A bill of materials of every image, in CycloneDX 1.6: packages, versions and licences.

Of the installed metadata, from the very requirements that the image is made of (``compose/requirements.py``).
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from types import ModuleType

from cyclonedx.factory.license import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
TRAINER, TOOLS = "trainer", "cli"
NAMES = {TOOLS: "tools"}
"""Names of images that are not those of their distributions."""
NOT_PINNED = ("torch>=2.6", "confluent-kafka>=2.6,<3")
"""Requirements of extras that no image has."""
VERSION = SchemaVersion.V1_6
PYTHONS: tuple[dict[str, str], ...] = ({}, {"python_full_version": "3.11.0"})
"""This Python, and the oldest that Stretto runs on: packages replace what later ones brought."""
CLASSIFIER = "License :: OSI Approved :: "


@dataclass(frozen=True, slots=True)
class Package:
    """One that is installed. ``needs``: names of those that it requires."""

    name: str
    version: str
    licence: str
    needs: tuple[str, ...]


def images() -> list[str]:
    """Every image that ``make images`` makes, by its distribution."""
    services = sorted(path.parent.name for path in ROOT.glob("services/*/pyproject.toml"))
    return [*services, TRAINER, TOOLS]


def packages_of(image: str, extra: str = "*") -> dict[str, Package]:
    """Everything that an image has, or its distribution with an extra, by name, our own distributions included.

    Raises PackageNotFoundError: something of it is not installed here.
    """
    requirements = _requirements()
    known = requirements.projects(ROOT)
    folders, others = requirements.closure(known, image, extra)
    others -= set(NOT_PINNED)
    own = [name for name, (folder, _) in known.items() if folder in folders]
    found: dict[str, Package] = {}
    left = {(canonicalize_name(name), frozenset[str]()) for name in own}
    left |= {_asked(Requirement(each)) for each in others}
    seen = set(left)
    while left:
        name, extras = left.pop()
        needed = {_asked(each) for each in needs_of(installed(name), extras)}
        before = found[name].needs if name in found else ()
        needs = tuple(sorted({*before, *(each for each, _ in needed)}))
        found[name] = Package(name, installed(name).version, licence_of(installed(name)), needs)
        if name.startswith("stretto"):  # what of theirs the image has is in ``others``
            needed = set()
        left |= needed - seen
        seen |= needed
    return {name: replace(p, needs=tuple(each for each in p.needs if each in found)) for name, p in found.items()}


def distribution_of(image: str) -> str:
    """Return the name of the distribution in the folder that an image is named after."""
    return next(name for name, (folder, _) in _requirements().projects(ROOT).items() if folder.name == image)


def bill(image: str, packages: dict[str, Package]) -> str:
    """The document."""
    own = distribution_of(image)
    licences = LicenseFactory()
    components = {
        name: Component(
            type=ComponentType.APPLICATION if name == own else ComponentType.LIBRARY,
            name=name,
            version=package.version,
            purl=PackageURL("pypi", name=name, version=package.version),
            bom_ref=f"{name}=={package.version}",
            licenses=[licences.make_from_string(package.licence)],
        )
        for name, package in packages.items()
    }
    bom = Bom(components=[part for name, part in components.items() if name != own])
    bom.metadata.component = components[own]
    for name, package in packages.items():
        bom.register_dependency(components[name], [components[each] for each in package.needs])
    return make_outputter(bom, OutputFormat.JSON, VERSION).output_as_string(indent=1)


def licence_of(found: Distribution) -> str:
    """Return a package's stated licence: an SPDX expression, else classifiers, else the first line of its text."""
    if expression := found.metadata.get("License-Expression"):
        return expression
    classifiers = [each for each in found.metadata.get_all("Classifier") or [] if each.startswith(CLASSIFIER)]
    if classifiers:
        return " AND ".join(each.removeprefix(CLASSIFIER) for each in classifiers)
    text = (found.metadata.get("License") or "").strip()
    return text.splitlines()[0][:80] if text else "unknown"


def write(folder: Path) -> dict[str, dict[str, Package]]:
    """Write ``<image>.cdx.json`` of every image, and ``licences.txt``; return the packages of each by its image."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {NAMES.get(image, image): packages_of(image) for image in images()}
    for image in images():
        name = NAMES.get(image, image)
        (folder / f"{name}.cdx.json").write_text(bill(image, found[name]) + "\n")
    everything = {package.name: package for packages in found.values() for package in packages.values()}
    (folder / "licences.txt").write_text(licences(everything.values()))
    return found


def licences(packages: Iterable[Package]) -> str:
    """Return each licence with its packages."""
    by_licence: dict[str, list[str]] = {}
    for package in sorted(packages, key=lambda package: package.name):
        if not package.name.startswith("stretto"):
            by_licence.setdefault(package.licence, []).append(f"{package.name} {package.version}")
    return "".join(f"{licence}\n  {', '.join(names)}\n" for licence, names in sorted(by_licence.items()))


def _requirements() -> ModuleType:
    spec = importlib.util.spec_from_file_location("requirements", ROOT / "compose" / "requirements.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def installed(name: str) -> Distribution:
    """Return what is installed here under a name. Raises PackageNotFoundError."""
    try:
        return distribution(name)
    except PackageNotFoundError:
        if name == "tensorflow":  # of the same makers, without what needs a GPU
            return distribution("tensorflow-cpu")
        raise


def needs_of(found: Distribution, extras: frozenset[str] = frozenset()) -> list[Requirement]:
    """Return what a distribution requires on any Python 3.11."""
    wanted = [Requirement(each) for each in found.requires or []]
    environments = [{"extra": extra, **python} for extra in ("", *extras) for python in PYTHONS]
    return [each for each in wanted if each.marker is None or any(each.marker.evaluate(e) for e in environments)]


def _asked(requirement: Requirement) -> tuple[str, frozenset[str]]:
    return canonicalize_name(requirement.name), frozenset(re.sub("_", "-", extra) for extra in requirement.extras)
