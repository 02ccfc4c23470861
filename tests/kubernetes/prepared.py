"""A node for tests, with what an administrator provides, or the reason why there is none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.containers import prepared
from tests.containers.bases import docker
from tests.containers.images import IMAGES, name_of
from tests.kubernetes import build, cluster
from tests.kubernetes.node import Node, unmet

REGISTRY = "localhost"
"""The name before those images that were loaded into the node (values-quickstart.yaml)."""
TOOLS = ("kubectl", "socat")
"""``socat`` is what this kubelet forwards ports with."""


def missing() -> str:
    """Return the reason why no node can start here; empty: one can."""
    if lacking := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"{', '.join(lacking)} is missing: install it"
    if not build.built():
        return f"no node is built in {build.CACHE}: run `python -m tests.kubernetes build` (some 10 minutes)"
    return ""


@contextmanager
def node(folder: Path, **volumes_gib: int) -> Iterator[Node]:
    """A node with names, Stretto's images and volumes of these sizes. Skips the test where there is none."""
    if reason := missing():
        pytest.skip(reason)
    engine = prepared.engine()
    if reason := unmet(engine):
        pytest.skip(reason)
    for image in map(name_of, IMAGES):
        docker(engine, "tag", image, f"{REGISTRY}/{image}")
    with Node(folder / "node", engine) as running, cluster.named(running):
        for name, size_gib in volumes_gib.items():
            cluster.volume(running, name, folder / name, size_gib)
        yield running
