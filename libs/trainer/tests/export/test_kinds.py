"""Every kind of model that is adapted, exported: the same outputs as the program that trained it."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.slow

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

from adapted_kinds import TAKEN, Kind  # noqa: E402
from planted import Task  # noqa: E402
from stretto.build import make_program  # noqa: E402
from stretto.engine import Access, Parameters, ParameterServer, export_image  # noqa: E402
from stretto.errors import ExportRefused  # noqa: E402
from stretto.export.checkpoint_source import open_checkpoint  # noqa: E402
from stretto.export.keras_model import save  # noqa: E402
from stretto.export.run import write  # noqa: E402
from stretto.export.target import Target  # noqa: E402
from stretto.model.program import Options  # noqa: E402
from stretto.server.image_file import ImageWriter, Part  # noqa: E402
from stretto.worker.step import Trainer, Work  # noqa: E402
from stretto.worker.step_timer import StepTimer  # noqa: E402

BY_DAY = {"functional", "subclassed", "lists", "strings"}
KINDS = [name if name in BY_DAY else pytest.param(name, marks=pytest.mark.night) for name in TAKEN]
"""All kinds of models: ``make test`` exports one of each way in which a model may be written and fed."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, str, list[Any], list[np.ndarray]]]:
    """Function (name of a kind) -> ``train`` of it, once."""
    return functools.cache(lambda name: train(TAKEN[name], tmp_path_factory.mktemp("kind")))


def train(kind: Kind, folder: Path) -> tuple[Any, str, list[Any], list[np.ndarray]]:
    """Train a few steps; return the program, a checkpoint, the inputs of a batch, and the outputs for it."""
    program: Any = make_program(Task(kind), Options(optimizer="sgd", learning_rate=0.5))
    server = ParameterServer(0, program.layout)
    server.own(range(program.layout.columns))
    parameters = Parameters(program.layout, {0: server.address}, worker=0, access=Access(server.key))
    trainer = Trainer(program, parameters, 64, StepTimer(), pipeline=False)
    try:
        parameters.seed(program.initial_dense(), program.initial_state())
        assert trainer.train(Work(0, 1, 0, 512, partition="")) is None
        batch = program.read(600, 64)
        keys = program.index(batch)
        pulled = parameters.pull(keys)
        outputs = program._arrays(pulled.rows, keys, pulled.dense, pulled.state, batch)
        with open(folder / "image", "wb") as file:
            writer = ImageWriter(file)
            image = export_image(server.store, writer)
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


def own_classes(model: Any) -> dict[str, type[Any]]:
    """Return the classes of a model that are not Keras' own: it makes some of them again, if they are given to it."""
    kinds = {type(each) for each in [model, *model._flatten_layers()]}
    return {kind.__name__: kind for kind in kinds if kind.__module__ == "adapted_kinds"}


@pytest.mark.parametrize("name", KINDS)
def test_a_saved_model_gives_the_outputs_that_were_trained(trained: Any, name: str, tmp_path: Path) -> None:
    program, manifest, leaves, wanted = trained(name)
    inputs = program._form.pack([tf.constant(each) for each in leaves])
    with Target(str(tmp_path / "out")) as target:
        write(program, open_checkpoint(manifest), target, 0, "savedmodel")
    served = tf.saved_model.load(str(tmp_path / "out/model"))  # its variables go with it
    assert largest(served.serve(inputs), wanted) < 1e-6 + TAKEN[name].noise


@pytest.mark.parametrize("name", KINDS)
def test_a_file_of_keras_gives_the_outputs_that_were_trained_or_is_refused(
    trained: Any, name: str, tmp_path: Path
) -> None:
    """Goal: no file that cannot be loaded. Only models with classes of the user's own may be refused."""
    program, manifest, leaves, wanted = trained(name)
    inputs = program._form.pack([tf.constant(each) for each in leaves])
    refused = ""
    try:
        with Target(str(tmp_path / "out")) as target:
            write(program, open_checkpoint(manifest), target, 0, "keras")
    except ExportRefused as error:
        refused = str(error)
    if refused:
        assert own_classes(program.model), refused
        assert "as a .keras file and load it again" in refused
        assert "use --format savedmodel" in refused
        assert not (tmp_path / "out").exists()
        return
    own = own_classes(program.model)
    model = keras.models.load_model(tmp_path / "out/model.keras", own, compile=False)
    assert largest(model(inputs, training=False), wanted) < 1e-6 + TAKEN[name].noise


class Scaled(keras.Model):
    """A model as people write them: without get_config, and its argument is a number of NumPy."""

    def __init__(self, factor: np.int64) -> None:
        super().__init__()
        self.factor = factor

    def call(self, x: Any) -> Any:
        return x * float(self.factor)


def test_a_model_that_keras_cannot_write_is_refused_with_its_class_and_the_formats_that_work(tmp_path: Path) -> None:
    model = Scaled(np.int64(3))
    model(np.ones((1, 2), np.float32))
    with pytest.raises(
        ExportRefused, match=r"cannot save Scaled .*give Scaled a get_config\(\).*--format savedmodel"
    ) as told:
        save(model, tmp_path / "model.keras")
    assert "non-serializable" in str(told.value)


def largest(output: Any, wanted: list[np.ndarray]) -> float:
    found = [np.asarray(each) for each in tf.nest.flatten(output)]
    return max(float(np.abs(one - other).max()) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("name", ["functional", "deferred sequential", "subclassed", "nested"])
def test_a_job_starts_with_the_weights_of_a_saved_model(trained: Any, name: str, tmp_path: Path) -> None:
    """Goal: dense parameters, state and tables; also of models whose variables only a batch makes."""
    program, manifest, *_ = trained(name)
    with Target(str(tmp_path / "out")) as target:
        write(program, open_checkpoint(manifest), target, 0, "savedmodel")
    options = Options(optimizer="sgd", learning_rate=0.5, restore_from=str(tmp_path / "out/model"))
    again = make_program(Task(TAKEN[name]), options)
    dense, state = open_checkpoint(manifest).dense()
    assert (again.initial_dense() == dense).all()
    assert (again.initial_state() == state).all()
    tables = {layer.path or layer.name: layer for layer in program.model._flatten_layers()}
    for before, each in zip(program.embeddings, again.embeddings, strict=True):
        assert each.initial is not None
        assert (each.initial == tables[before.layer].get_weights()[0]).all()
