"""A parameter server in the process of a test, a worker that trains on it, and checkpoints of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from stretto.engine import Access, Parameters, ParameterServer
from stretto.engine.layout import Layout
from stretto.server.flash_checkpoint import Exports
from trainer_harness import wait_for


def stored(exports: Exports, name: str, *where: str, **more: str) -> tuple[dict[str, Any], str]:
    """Take a checkpoint and wait until it is stored; return the server's part of the manifest, and what was told."""
    exports.begin(name, *where, **more)
    wait_for(lambda: exports.status(name)[0] in ("stored", "failed"))
    stage, part, detail = exports.status(name)
    assert stage == "stored", detail
    return json.loads(part), detail


class TrainedServer:
    """A job "job" of one server that owns everything, with its checkpoints in a folder."""

    def __init__(self, folder: Path, layout: Layout) -> None:
        self.folder, self.layout, self.trained = folder, layout, 0
        self.server = ParameterServer(0, layout)
        self.server.own(range(layout.columns))
        self.exports = Exports("job", "ps-0", self.server.store, folder)
        self.worker = Parameters(layout, {0: self.server.address}, worker=0, access=Access(self.server.key))

    def close(self) -> None:
        self.worker.close()
        self.server.close()

    def train(self, *ids: np.ndarray) -> None:
        """Train a batch with these ids of each table."""
        keys = self.layout.index(*ids)
        sizes = [(len(of), table.dimension) for of, table in zip(keys.tables, self.layout.tables, strict=True)]
        gradients, dense = [np.ones(size, np.float32) for size in sizes], np.ones(self.layout.dense_size, np.float32)
        self.worker.push(keys, gradients, dense, shard=self.trained, attempt=1, start=0, stop=64)
        self.trained += 1

    def manifest(self, name: str) -> Path:
        return self.folder / "job" / name / "manifest.json"

    def image(self, name: str) -> Path:
        return self.manifest(name).with_name(f"{name}.ps-0.image")

    def take(self, name: str, memory: str = "", cache: str = "", base: str = "") -> dict[str, Any]:
        """Take a checkpoint; return the server's part of its manifest, with what was told."""
        part, detail = stored(self.exports, name, cache, f"file://{self.manifest(name).parent}", memory, base=base)
        document = {"id": name, "job": "job", "samples": 64 * self.trained, "parts": [part]}
        self.manifest(name).write_text(json.dumps(document))
        return part | {"detail": detail}
