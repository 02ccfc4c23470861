"""Every kind of model that is adapted, exported: the same outputs as the program that trained it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.slow

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

from adapted_kinds import TAKEN, Kind, Offset  # noqa: E402
from stretto.engine import Access, Parameters, ParameterServer, export_image  # noqa: E402
from stretto.errors import ExportRefused  # noqa: E402
from stretto.export.checkpoint import open_checkpoint  # noqa: E402
from stretto.export.run import write  # noqa: E402
from stretto.export.target import Target  # noqa: E402
from stretto.images import ImageWriter, Part  # noqa: E402
from stretto.meter import Meter  # noqa: E402
from stretto.model import Options  # noqa: E402
from stretto.program import make_program  # noqa: E402
from stretto.training import Trainer, Work  # noqa: E402

OWN_CLASSES = {"distributed", "subclassed", "own loss", "positions", "tied"}
"""Kinds with classes that Keras cannot make again: it says so of a plain `model.save`, too."""


class Task:
    def __init__(self, kind: Kind) -> None:
        self.build, self.read = kind.build, kind.read


def trained(kind: Kind, folder: Path) -> tuple[Any, str, list[Any], list[np.ndarray]]:
    """Train a few steps; return the program, a checkpoint, the inputs of a batch, and the outputs for it."""
    program: Any = make_program(Task(kind), Options(optimizer="sgd", learning_rate=0.5))
    server = ParameterServer(0, program.layout)
    server.own(range(program.layout.columns))
    parameters = Parameters(program.layout, {0: server.address}, worker=0, access=Access(server.key))
    trainer = Trainer(program, parameters, 64, Meter(), pipeline=False)
    try:
        parameters.seed(program.initial_dense(), program.initial_state())
        assert trainer.train(Work(0, 1, 0, 512, partition="")) is None
        batch = program.read(600, 64)
        keys = program.index(batch)
        pulled = parameters.pull(keys)
        outputs = program._raw(pulled.rows, keys, pulled.dense, pulled.state, batch)
        with open(folder / "image", "wb") as file:
            writer = ImageWriter(file)
            image = export_image(server.control, writer)
            size, digest = writer.finish(image.manifest)
    finally:
        trainer.close()
        parameters.close()
        server.close()
    part = Part("ps-0", "image", f"file://{folder}/image", size, digest, tuple(image.manifest["columns"]))
    document = {"id": "c1", "job": "job", "samples": 512, "parts": [asdict(part)]}
    (folder / "manifest.json").write_text(json.dumps(document))
    inputs, _ = program._form.read(600, 64, "", "the test")
    return program, f"file://{folder}/manifest.json", inputs, outputs


@pytest.mark.parametrize("format", ["keras", "savedmodel"])
@pytest.mark.parametrize("name", TAKEN)
def test_the_exported_model_gives_the_outputs_that_were_trained(name: str, format: Any, tmp_path: Path) -> None:
    program, manifest, leaves, wanted = trained(TAKEN[name], tmp_path)
    inputs = program._form.pack([tf.constant(each) for each in leaves])
    target = Target(str(tmp_path / "out"))
    if format == "keras" and name in OWN_CLASSES:
        with (
            pytest.raises(ExportRefused, match=r"Keras cannot load model.keras again.*use --format savedmodel"),
            target,
        ):
            write(program, open_checkpoint(manifest), target, format)
        assert not (tmp_path / "out").exists()
        return
    with target:
        write(program, open_checkpoint(manifest), target, format)
    if format == "keras":
        own = {"Offset": Offset} if name == "subclassed layer" else {}
        output = keras.models.load_model(tmp_path / "out/model.keras", own, compile=False)(inputs, training=False)
    else:
        served = tf.saved_model.load(str(tmp_path / "out/model"))  # its variables go with it
        output = served.serve(inputs)
    found = [np.asarray(each) for each in tf.nest.flatten(output)]
    assert max(float(np.abs(one - other).max()) for one, other in zip(found, wanted, strict=True)) < 1e-6


@pytest.mark.parametrize("name", ["functional", "deferred sequential", "subclassed", "nested"])
def test_a_job_starts_with_the_weights_of_a_saved_model(name: str, tmp_path: Path) -> None:
    """Goal: dense parameters, state and tables; also of models whose variables only a batch makes."""
    program, manifest, *_ = trained(TAKEN[name], tmp_path)
    with Target(str(tmp_path / "out")) as target:
        write(program, open_checkpoint(manifest), target, "savedmodel")
    options = Options(optimizer="sgd", learning_rate=0.5, restore_from=str(tmp_path / "out/model"))
    again = make_program(Task(TAKEN[name]), options)
    dense, state = open_checkpoint(manifest).dense()
    assert (again.initial_dense() == dense).all()
    assert (again.initial_state() == state).all()
    tables = {layer.path or layer.name: layer for layer in program.model._flatten_layers()}
    for before, each in zip(program.embeddings, again.embeddings, strict=True):
        assert each.initial is not None
        assert (each.initial == tables[before.layer].get_weights()[0]).all()
