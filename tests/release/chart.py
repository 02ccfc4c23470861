"""The chart of a release: its defaults name the registry, and the digest of each image that the release has made."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tests.release.versions import ROOT, ReleaseRefused

CHART = ROOT / "charts" / "stretto"
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
RELEASED, REGISTRY, DIGESTS = "\nreleased:\n", '\n  registry: ""\n', "\n  digests: {}\n"


def write(target: Path, registry: str, digests: dict[str, str]) -> Path:
    """Write the chart into ``target``, with ``registry`` and ``digests`` (image -> sha256:…) as defaults; return it.

    Raises ReleaseRefused for what is no digest, and for an image without one.
    """
    if lacking := set(image_names()) - digests.keys():
        raise ReleaseRefused(f"no digest of {', '.join(sorted(lacking))}: push every image, then name its digest")
    for image, digest in digests.items():
        if DIGEST.fullmatch(digest) is None:
            raise ReleaseRefused(f"{image}: {digest!r} is no digest: sha256: and 64 hexadecimal digits were expected")
    made = target / CHART.name
    shutil.copytree(CHART, made)
    before, begin, values = (made / "values.yaml").read_text().partition(RELEASED)
    assert values.count(REGISTRY) == values.count(DIGESTS) == 1
    stated = "".join(f"\n    {image}: {digest}" for image, digest in sorted(digests.items()))
    values = values.replace(REGISTRY, f"\n  registry: {registry}\n").replace(DIGESTS, f"\n  digests:{stated}\n")
    (made / "values.yaml").write_text(before + begin + values)
    return made


def image_names() -> list[str]:
    """Return the names of all images: those of the services, ``tools`` and ``trainer``."""
    return sorted([*(path.parent.name for path in ROOT.glob("services/*/pyproject.toml")), "tools", "trainer"])


def read_digests(folder: Path) -> dict[str, str]:
    """Return the digests of a folder with one file for each image."""
    return {path.name: path.read_text().strip() for path in folder.iterdir()}
