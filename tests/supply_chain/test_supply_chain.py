"""Bills of materials hold pinned packages only; known vulnerabilities are reported, and so is a failed query."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

import pytest
from cyclonedx.validation.json import JsonStrictValidator
from packaging.utils import canonicalize_name

from tests.http_served import Answer, Asked, served
from tests.supply_chain import pins, sbom
from tests.supply_chain.audit import audit

PINNED = {name: pin.version for name, pin in pins.read().items()}
UNSAID = {"namex"}
"""states no licence in its metadata; its source says Apache 2.0"""
COPYLEFT = re.compile(r"\b(?:A?GPL|Affero|SSPL|GNU General)", re.IGNORECASE)


@pytest.mark.parametrize("image", sbom.images())
def test_an_image_is_made_of_what_is_pinned_and_its_bill_says_so(image: str) -> None:
    packages = sbom.packages_of(image)
    others = {name: each.version for name, each in packages.items() if not name.startswith("stretto")}
    unpinned = {name: version for name, version in others.items() if PINNED.get(name) != version}
    assert unpinned == {}
    document = json.loads(sbom.bill(image, packages))
    assert JsonStrictValidator(sbom.VERSION).validate_str(json.dumps(document)) is None
    assert document["metadata"]["component"]["name"] == sbom.distribution_of(image)
    listed = {part["name"]: part["version"] for part in document["components"]}
    assert others.items() <= listed.items()
    assert {"nats-py", "pydantic", "stretto-wire"} <= listed.keys()
    refs = {entry["ref"] for entry in document["dependencies"]}
    assert len(refs) == len(packages)


IMPORTS = """
import importlib, json, pkgutil, sys
from importlib.metadata import packages_distributions

class Absent:
    def find_spec(self, name, path=None, target=None):
        if path is None and not given.intersection(installed.get(name, given)):
            raise ModuleNotFoundError(f"the image has no {name}", name=name)

installed, given, found = packages_distributions(), set(json.loads(sys.argv[2])), {}
sys.meta_path.insert(0, Absent())
package = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(package.__path__, f"{sys.argv[1]}."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ImportError as error:
            found[module.name] = str(error)
print(json.dumps(found))
"""


@pytest.mark.parametrize("service", sorted(path.name for path in (sbom.ROOT / "services").iterdir() if path.is_dir()))
def test_a_service_imports_nothing_that_its_image_lacks(service: str) -> None:
    """Here everything is installed, so that a needless import shows on a cluster first: the service does not start."""
    packages = sbom.packages_of(service)
    given = [found.name for found in distributions() if canonicalize_name(found.name) in packages]
    command = [sys.executable, "-c", IMPORTS, f"stretto_{service}", json.dumps(given)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == {}


def test_everything_is_pinned_by_digest_and_the_pins_of_images_are_those_of_constraints() -> None:
    known = pins.read()
    assert [name for name, pin in known.items() if not pin.sha256] == []
    assert [name for name, pin in pins.read(pins.COMPILER).items() if pin.sha256 and not pin.source] == ["ziglang"]
    assert {path.name for path in pins.OF_IMAGES.iterdir()} == {
        f"{image}.txt" for image in (*sbom.images(), pins.SHARED, pins.FOR_TORCH)
    }
    assert pins.read(pins.OF_IMAGES / f"{pins.FOR_TORCH}.txt").keys() & {"tensorflow-cpu", "keras", "torch"} == set()
    assert [str(path) for path, text in pins.files(known).items() if path.read_text() != text] == []


def test_the_digests_that_are_installed_are_all_that_is_needed() -> None:
    """The set-up installs exactly the pins, without a resolver: none may be missing or of another version."""
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    extra = {"torch"}  # nor what it alone brings: the wheel depends on the machine, so it has no digest here
    for _ in range(3):
        extra |= {canonicalize_name(n.name) for d in distributions() if d.name in extra for n in sbom.needs_of(d)}
    extra -= PINNED.keys()
    installed = [found for found in distributions() if canonicalize_name(found.name) not in extra]
    needed = {canonicalize_name(each.name) for found in installed for each in sbom.needs_of(found)}
    assert sorted(name for name in needed - PINNED.keys() - {"pip"} if not name.startswith("stretto")) == []


def test_a_file_with_another_digest_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "sound-1.0-py3-none-any.whl"
    with zipfile.ZipFile(archive, "w") as wheel:
        wheel.writestr("sound-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: sound\nVersion: 1.0\n")
        wheel.writestr("sound-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("sound-1.0.dist-info/RECORD", "")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", f"--find-links={tmp_path}"]
    for sha256, code in ((digest, 0), ("0" * 64, 1)):
        path = tmp_path / "pins.txt"
        path.write_text(pins.text_of({"sound": pins.Pin("sound", "1.0", sha256)}))
        done = subprocess.run([*command, "-r", str(path)], capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
    assert "DO NOT MATCH THE HASHES" in done.stderr


@pytest.mark.parametrize("image", sbom.images())
def test_every_licence_is_known_and_none_binds_our_own_code(image: str) -> None:
    packages = sbom.packages_of(image).values()
    licences = {each.name: each.licence for each in packages if not each.name.startswith("stretto")}
    assert {name for name, licence in licences.items() if licence == "unknown"} <= UNSAID
    assert {name: licence for name, licence in licences.items() if COPYLEFT.search(licence)} == {}


def test_bills_and_licences_are_written(tmp_path: Path) -> None:
    sbom.write(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        *(f"{sbom.NAMES.get(image, image)}.cdx.json" for image in sbom.images()), "licences.txt"
    }  # fmt: skip
    assert "fastapi" in (tmp_path / "licences.txt").read_text()


@pytest.fixture
def service() -> Iterator[str]:
    """The address of a fake service of the Open Source Vulnerabilities API that knows one vulnerability."""

    def answer(asked: Asked) -> Answer:
        ranges = [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "2.0"}]}]
        affected = [{"package": {"name": "leaky", "ecosystem": "PyPI"}, "ranges": ranges}]
        known = {"id": "OSV-1", "aliases": [], "affected": affected, "summary": "leaks", "details": "leaks"}
        is_leaky = json.loads(asked.body)["package"]["name"] == "leaky"
        return 200, {}, json.dumps({"vulns": [known]} if is_leaky else {}).encode()

    with served(answer) as url:
        yield f"{url}/v1/query"


def pinned(folder: Path, *lines: str) -> Path:
    path = folder / "constraints.txt"
    path.write_text("".join(f"{line}\n" for line in ("# a comment", *lines)))
    return path


def test_a_known_vulnerability_is_told_with_what_mends_it(service: str, tmp_path: Path) -> None:
    found = audit(pinned(tmp_path, "leaky==1.0", "sound==1.0"), service)
    assert (found.packages, found.findings) == (2, ("leaky 1.0: OSV-1, mended in 2.0",))
    assert audit(pinned(tmp_path, "sound==1.0"), service).findings == ()


def test_a_service_that_does_not_answer_is_no_clean_bill(tmp_path: Path) -> None:
    found = audit(pinned(tmp_path, "sound==1.0"), "http://127.0.0.1:1/v1/query", timeout_s=2)
    assert "cannot be asked" in found.unasked
    assert "Connection refused" in found.unasked


@pytest.mark.slow
def test_nothing_that_is_pinned_is_known_to_be_vulnerable() -> None:
    if not os.environ.get("STRETTO_AUDIT"):
        pytest.skip("asks a service outside about every package: set STRETTO_AUDIT=1 where there is a way to it")
    found = audit(pins.CONSTRAINTS)
    if found.unasked:
        pytest.skip(f"NOT AUDITED: {found.unasked}")
    assert found.findings == ()
