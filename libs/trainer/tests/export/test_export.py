"""Exports of trained models, loaded by processes in which Stretto cannot be imported."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset as ds
import pytest
import yaml
from clicks import readme_code, write_clicks
from object_store import Proxy, environment_of, folders, s3_server
from stretto.build import make_program, options_of
from stretto.engine import Access, Parameters, ParameterServer
from stretto.errors import ExportRefused, ModelRefused
from stretto.export.checkpoint_source import open_checkpoint
from stretto.export.run import ExportRequest, export, steps_of
from stretto.model.entry_point import load
from stretto.server.flash_checkpoint import Exports
from stretto.worker.step import Trainer, Work
from stretto.worker.step_timer import StepTimer
from stretto_wire.jobspec.spec import JobSpec
from trained_server import stored
from trainer_harness import spec_of
from warm_processes import WarmProcesses

pytestmark = pytest.mark.slow

SAMPLES, HELD_OUT = 8192, 2048
NO_STRETTO = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0].startswith("stretto"):
            raise ModuleNotFoundError(f"{name} is not there, as on a server without Stretto")

sys.meta_path.insert(0, Blocked())
"""


def run(code: str, *arguments: str, cwd: Path | None = None, blocked: bool = True) -> str:
    """Run code in a new process, without Stretto; return what it prints."""
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    command = [sys.executable, "-c", (NO_STRETTO if blocked else "") + code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@dataclass
class Trained:
    """A job that was trained in this process, its checkpoint, and what it predicts for held-out samples."""

    spec: JobSpec
    manifest: str
    program: Any
    probability: np.ndarray
    inputs: dict[str, np.ndarray]

    def export(self, to: Path, **changes: Any) -> dict[str, Any]:
        return export(ExportRequest(self.spec, self.manifest, str(to), **changes))


def train(folder: Path, spec: JobSpec) -> Trained:
    """Train as a worker does, take a checkpoint as a server does, and evaluate."""
    program = make_program(load(spec.model), options_of(spec))
    server = ParameterServer(0, program.layout)
    server.own(range(program.layout.columns))
    parameters = Parameters(program.layout, {0: server.address}, worker=0, access=Access(server.key))
    trainer = Trainer(program, parameters, 256, StepTimer(), pipeline=False)
    parameters.seed(program.initial_dense(), program.initial_state())
    assert trainer.train(Work(0, 1, 0, SAMPLES, partition="")) is None
    manifest = folder / spec.name / "c1" / "manifest.json"
    part, _ = stored(Exports(spec.name, "ps-0", server.store, folder), "c1", "", f"file://{manifest.parent}")
    manifest.write_text(json.dumps({"id": "c1", "job": spec.name, "samples": SAMPLES, "parts": [part]}))
    batch = program.read(SAMPLES, HELD_OUT)
    keys = program.index(batch)
    pulled = parameters.pull(keys)
    probability = np.asarray(program.predict(pulled.rows, keys, pulled.dense, pulled.state, batch))
    inputs: dict[str, np.ndarray] = {}
    if not program.embeddings:
        ids = dict(zip(program.tables, program.keys(batch), strict=True))
        inputs = {f"keys{name.removeprefix('rows')}": each for name, each in ids.items()}
        inputs |= {name: np.asarray(batch[name], np.float32) for name in program._features if name in batch}
    trainer.close()
    parameters.close()
    server.close()
    return Trained(spec, f"file://{manifest}", program, probability, inputs)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Wide & Deep of the examples: many keys of the held-out samples were never trained."""
    return train(tmp_path_factory.mktemp("job"), spec_of(SAMPLES, model={"row_weights": "float32"}))


def same(trained: Trained, probability: np.ndarray) -> bool:
    return bool(np.abs(probability.reshape(-1) - trained.probability).max() < 1e-6)


def sigmoid(logit: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-logit.astype(np.float64)))


def given(trained: Trained, folder: Path) -> tuple[str, str]:
    """Write the inputs; return their path, and that for the output."""
    np.savez(folder / "inputs.npz", **trained.inputs)
    return str(folder / "inputs.npz"), str(folder / "logit.npy")


KERAS = """
import keras, numpy as np
model = keras.models.load_model(sys.argv[1])
np.save(sys.argv[3], model.predict(dict(np.load(sys.argv[2])), verbose=0, batch_size=512))
assert "stretto" not in sys.modules
"""
SAVED_MODEL = """
import tensorflow as tf
serve = tf.saved_model.load(sys.argv[4]).signatures["serving_default"]
inputs = {name: tf.constant(value) for name, value in np.load(sys.argv[2]).items()}
[output] = serve(**inputs).values()
np.save(sys.argv[5], output.numpy())
"""


def test_one_model_predicts_what_the_job_measured(trained: Trained, tmp_path: Path) -> None:
    """The Keras file and the SavedModel are loaded by one process."""
    documents = [trained.export(tmp_path / format, format=format) for format in ("keras", "savedmodel")]
    inputs, output = given(trained, tmp_path)
    served = str(tmp_path / "served.npy")
    models = [str(tmp_path / name) for name in ("keras/model.keras", "savedmodel/model")]
    run(KERAS + SAVED_MODEL, models[0], inputs, output, models[1], served)
    for format, document, found in zip(("keras", "savedmodel"), documents, (output, served), strict=True):
        assert same(trained, sigmoid(np.load(found)))
        checkpoint = {"id": "c1", "url": trained.manifest, "samples": SAMPLES}
        assert document["checkpoint"] | {"images": None} == {**checkpoint, "images": None}
        assert json.loads((tmp_path / format / "export.json").read_text()) == document


@pytest.mark.night
def test_rows_that_adam_moves_without_a_batch_predict_the_same(tmp_path: Path) -> None:
    """The steps of such rows are made when the rows are read: by the job's own evaluation, and by the export."""
    model = {"row_weights": "float32", "optimizer": "adam", "learning_rate": 0.01}
    trained = train(tmp_path, spec_of(SAMPLES, name="adam", model=model))
    trained.export(tmp_path / "out", format="keras")
    inputs, output = given(trained, tmp_path)
    run(KERAS, str(tmp_path / "out/model.keras"), inputs, output)
    assert same(trained, sigmoid(np.load(output)))


TABLES = """
import keras, numpy as np, pyarrow.dataset as ds
dense = keras.models.load_model(f"{sys.argv[1]}/dense.keras")
table = ds.dataset(f"{sys.argv[1]}/tables/rows").to_table()
place = {key: at for at, key in enumerate(table["key"].to_pylist())}
rows = np.stack(table["embedding"].to_numpy())
inputs = np.load(sys.argv[2])
keys = inputs["keys"]
known = np.array([all(key in place for key in sample) for sample in keys.tolist()])
at = np.array([[place[key] for key in sample] for sample in keys[known].tolist()])
logit = np.full(len(keys), np.nan)
logit[known] = dense.predict([rows[at], inputs["numeric"][known]], verbose=0)[:, 0]
np.save(sys.argv[3], logit)
"""


@pytest.mark.night
def test_tables_beside_the_dense_model_predict_the_same(trained: Trained, tmp_path: Path) -> None:
    document = trained.export(tmp_path / "out", format="parquet")
    inputs, output = given(trained, tmp_path)
    run(TABLES, str(tmp_path / "out"), inputs, output)
    logit = np.load(output)
    known = ~np.isnan(logit)
    assert 100 < known.sum() < len(logit), "some samples have keys that were never trained"
    assert np.abs(sigmoid(logit[known]) - trained.probability[known]).max() < 1e-6
    assert document["tables"]["rows"]["initial"]["seed"] == 3
    assert sum(name.startswith("tables/rows/bucket-") for name in document["files"]) == 64


@pytest.mark.night
def test_a_table_of_bfloat16_and_one_of_another_width_predict_the_same(tmp_path: Path) -> None:
    (tmp_path / "two_tables.py").write_text(TWO_TABLES)
    spec = JobSpec.parse({
        "name": "two",
        "model": {"entry": "two_tables:Two", "row_weights": "bfloat16", "learning_rate": 0.3},
        "dataset": {"samples": SAMPLES, "batch_size": 256, "seed": 9},
    })  # fmt: skip
    sys.path.insert(0, str(tmp_path))
    try:
        trained = train(tmp_path, spec)
        trained.export(tmp_path / "out")
    finally:
        sys.path.remove(str(tmp_path))
    inputs, output = given(trained, tmp_path)
    run(KERAS, str(tmp_path / "out/model.keras"), inputs, output)
    assert same(trained, np.load(output))


TWO_TABLES = """
import keras, numpy as np

class Two:
    def build(self):
        user, place = keras.Input((1, 6), name="rows_user"), keras.Input((2, 3), name="rows_place")
        numeric = keras.Input((4,), name="keys")  # a name that the keys would have
        x = keras.layers.Concatenate()([keras.layers.Flatten()(user), keras.layers.Flatten()(place), numeric])
        x = keras.layers.BatchNormalization()(keras.layers.Dense(8, activation="relu")(x))
        return keras.Model([user, place, numeric], keras.layers.Dense(1, activation="sigmoid")(x))

    def read(self, start, length):
        draw = np.random.default_rng(5)
        ids = draw.integers(-2**62, 2**62, (50, 3))[(np.arange(start, start + length) * 7) % 50]
        ids[:, 2] += np.arange(start, start + length) // 6000  # keys that are new among the held-out samples
        x = np.random.default_rng(start).normal(size=(length, 4)).astype(np.float32)
        return {"label": (ids[:, 0] % 2 == 0).astype(np.float32), "keys": x, "ids": ids}

    def keys(self, batch):
        return {"rows_user": batch["ids"][:, :1], "rows_place": batch["ids"][:, 1:]}
"""


def size(named: tuple[str, np.ndarray]) -> tuple[int, str]:
    return named[1].size, named[0]


def test_safetensors_have_the_dense_values_and_the_tables(trained: Trained, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    document = trained.export(tmp_path / "out", format="safetensors")
    tensors = safetensors.load_file(tmp_path / "out/model.safetensors")
    keys, rows = tensors.pop("tables/rows/keys"), tensors.pop("tables/rows/rows")
    trained.program.load_into_model(*open_checkpoint(trained.manifest).dense())
    # Keras numbers the layers of a process by itself: the names end alike
    wanted = sorted(
        ((each.path.rpartition("/")[2], each.numpy()) for each in trained.program.model.variables), key=size
    )
    found = sorted(((name.rpartition("/")[2], value) for name, value in tensors.items()), key=size)
    assert [name for name, _ in found] == [name for name, _ in wanted]
    assert all(np.array_equal(one, other) for (_, one), (_, other) in zip(found, wanted, strict=True))
    assert (len(keys), 8) == rows.shape == (document["tables"]["rows"]["rows"], 8)
    assert len(np.unique(keys)) == len(keys)


def test_a_model_that_does_not_fit_into_memory_is_refused_with_the_remedy(trained: Trained, tmp_path: Path) -> None:
    with pytest.raises(ExportRefused, match=r"needs about \d+ bytes of memory for \d+ rows.*use --format parquet"):
        trained.export(tmp_path / "out", format="keras", memory_bytes=10_000)
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_of_another_job_and_a_format_for_others_are_refused(trained: Trained, tmp_path: Path) -> None:
    other = trained.spec.model_copy(update={"name": "other"})
    with pytest.raises(ExportRefused, match="is of job tiny, not other"):
        export(ExportRequest(other, trained.manifest, str(tmp_path / "out")))
    trained.export(tmp_path / "full", format="parquet")
    with pytest.raises(ExportRefused, match="format = keras cannot hold changes alone"):
        trained.export(tmp_path / "out", format="keras", since=str(tmp_path / "full"))


# --- models with embedding layers of their own ------------------------------------------------------------------


SHOP = """
import keras, numpy as np

CITIES = np.array(["Rome", "Oslo", "Lima", "Cairo", "Kyoto", "Turin"], object)

class Shop:
    def __init__(self, kind):
        self.kind = kind

    def build(self):
        layers = keras.layers
        user, price = keras.Input((), name="user", dtype="int64"), keras.Input((1,), name="price")
        city = keras.Input((1,), name="city", dtype="string")
        start = "uniform" if self.kind == "plain" else keras.initializers.RandomNormal(0.0, 0.2, seed=4)
        users = layers.Embedding(3000, 6, name="users", embeddings_initializer=start)
        places = layers.StringLookup(vocabulary=["Rome", "Oslo", "Lima"], num_oov_indices=2)(city)
        table = layers.Embedding(5, 3, name="table")
        tower = keras.Sequential([table, layers.Flatten(), layers.Dense(4, name="small")], name="place")
        parts = [layers.Flatten()(layers.Reshape((1, 6))(users(user))), tower(places), price]
        x = layers.Dense(8, activation="relu", name="deep")(layers.Concatenate()(parts))
        x = layers.BatchNormalization(name="norm")(x)
        return keras.Model({"user": user, "city": city, "price": price}, layers.Dense(1, name="last")(x))

    def read(self, start, length):
        place = np.arange(start, start + length)
        user = (place * 7919) % 2500 if start < 8192 else (place * 7919) % 3000  # some of the users are new
        city, price = place * 31 % 6, np.random.default_rng(start).normal(size=(length, 1)).astype(np.float32)
        label = ((user % 3 == 0) ^ (city % 2 == 0)).astype(np.float32)
        return {"user": user, "city": CITIES[city], "price": price, "label": label}
"""
OWN = """
import keras, numpy as np
found = np.load(sys.argv[2])
inputs = {"user": found["user"], "city": found["city"].reshape(-1, 1), "price": found["price"]}
for kind in ("plain", "normal"):
    model = keras.models.load_model(f"{sys.argv[1]}/{kind}/model.keras")
    assert type(model.get_layer("users")) is keras.layers.Embedding
    import tensorflow as tf
    inputs = {name: tf.constant(value) for name, value in inputs.items()}
    np.save(f"{sys.argv[3]}-{kind}.npy", np.asarray(model(inputs, training=False)))
serve = tf.saved_model.load(f"{sys.argv[1]}/served/model").signatures["serving_default"]
[output] = serve(**inputs).values()
np.save(f"{sys.argv[3]}-served.npy", output.numpy())
"""


@pytest.fixture(scope="module")
def shops(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Trained]]:
    """The same shop, once with rows that the servers begin, and once with initial values of the layer's own."""
    folder = tmp_path_factory.mktemp("shop")
    (folder / "shop.py").write_text(SHOP)
    sys.path.insert(0, str(folder))
    found: dict[str, Trained] = {}
    for kind in ("plain", "normal"):
        model = {"entry": "shop:Shop", "arguments": {"kind": kind}, "learning_rate": 0.3, "path": str(folder)}
        document = {"name": f"shop-{kind}", "model": model, "dataset": {"samples": SAMPLES, "batch_size": 256}}
        found[kind] = train(folder, JobSpec.parse(document))
    yield found
    sys.path.remove(str(folder))


def test_a_users_own_model_comes_back_with_its_tables_and_its_lookups(
    shops: dict[str, Trained], tmp_path: Path
) -> None:
    for kind, trained in shops.items():
        document = trained.export(tmp_path / kind)
        assert document["tables"]["users"]["rows"] == 3000
        assert {table["key"] for table in document["tables"].values()} == {"id"}
    shops["plain"].export(tmp_path / "served", format="savedmodel")
    raw = load(shops["plain"].spec.model).read(SAMPLES, HELD_OUT)
    np.savez(tmp_path / "inputs.npz", user=raw["user"], city=raw["city"].astype(str), price=raw["price"])
    run(OWN, str(tmp_path), str(tmp_path / "inputs.npz"), str(tmp_path / "out"))
    for name in ("plain", "normal", "served"):
        probability = sigmoid(np.load(tmp_path / f"out-{name}.npy"))
        assert same(shops["normal" if name == "normal" else "plain"], probability), name


def test_the_tables_of_layers_are_whole_beside_the_dense_values(shops: dict[str, Trained], tmp_path: Path) -> None:
    """Goal: all ids with the weights that the model in one piece has, in both formats of tables."""
    import keras
    import pyarrow.dataset as ds

    safetensors = pytest.importorskip("safetensors.numpy")
    trained = shops["normal"]
    for format in ("keras", "parquet", "safetensors"):
        trained.export(tmp_path / format, format=format)
    model = keras.models.load_model(tmp_path / "keras/model.keras")
    weights = model.get_layer("users").get_weights()[0]
    table = ds.dataset(tmp_path / "parquet/tables/users").to_table().sort_by("id")
    assert table["id"].to_pylist() == [*range(3000)]
    assert (np.stack(table["embedding"].to_numpy()) == weights).all()
    one = safetensors.load_file(tmp_path / "safetensors/model.safetensors")
    assert (one["tables/users/rows"] == weights).all()
    dense = safetensors.load_file(tmp_path / "parquet/dense.safetensors")
    own = load(trained.spec.model).build()
    for variable in own.variables:
        if variable.path in dense:
            variable.assign(dense.pop(variable.path))
    assert dense == {}
    pairs = zip(own.get_weights(), model.get_weights(), strict=True)
    assert [one.shape for one, other in pairs if not np.array_equal(one, other)] == [(3000, 6), (5, 3)]


def test_a_job_continues_from_an_exported_model(shops: dict[str, Trained], tmp_path: Path) -> None:
    """Goal: its dense parameters, state and rows begin as they are in the model; others are refused."""
    import keras

    trained = shops["normal"]
    trained.export(tmp_path / "one")
    trained.export(tmp_path / "two", format="savedmodel")
    dense, state = open_checkpoint(trained.manifest).dense()
    model = keras.models.load_model(tmp_path / "one/model.keras")
    weights = model.get_layer("users").get_weights()[0]
    for url in (str(tmp_path / "one/model.keras"), f"file://{tmp_path}/two/model"):
        spec = trained.spec.model.model_copy(update={"restore_from": url})
        again = make_program(load(spec), options_of(trained.spec.model_copy(update={"model": spec})))
        assert (again.initial_dense() == dense).all()
        assert (again.initial_state() == state).all()
        [users] = [each for each in again.embeddings if each.layer == "users"]
        assert users.initial is not None
        assert (users.initial == weights).all()
    for url, reason in (("plain/model.keras", "cannot be read"), (str(tmp_path / "two"), "does not fit build")):
        model = trained.spec.model.model_copy(update={"restore_from": url})
        with pytest.raises(ModelRefused, match=reason):
            make_program(load(model), options_of(trained.spec.model_copy(update={"model": model})))


# --- PyTorch ----------------------------------------------------------------------------------------------------


NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(18)
        self.deep = torch.nn.Sequential(torch.nn.Linear(18, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))

    def forward(self, rows, numeric):
        return self.deep(self.norm(torch.cat([rows.flatten(1), numeric], dim=1)))
"""
TORCH_TASK = """
import numpy as np, torch
from net import Net

class Task:
    embedding_dim = 8

    def build(self):
        return Net()

    def read(self, start, length):
        place = np.arange(start, start + length)
        ids = np.stack([place * 7 % 50, place * 13 % 30], axis=1)
        x = np.random.default_rng(start).normal(size=(length, 2)).astype(np.float32)
        return {"label": (ids[:, 0] % 2).astype(np.float32), "categorical": ids, "numeric": x}
"""
SERVE_TORCH = """
import numpy as np, torch
from safetensors.torch import load_file
from net import Net

tensors = load_file(sys.argv[1])
module = Net()
module.load_state_dict({name: value for name, value in tensors.items() if not name.startswith("tables/")})
module.eval()
inputs = np.load(sys.argv[2])
order = tensors["tables/rows/keys"].argsort()
at = order[torch.searchsorted(tensors["tables/rows/keys"][order], torch.from_numpy(inputs["keys"]))]
with torch.no_grad():
    logit = module(tensors["tables/rows/rows"][at], torch.from_numpy(inputs["numeric"]))
np.save(sys.argv[3], logit.numpy())
"""


def train_torch(folder: Path, modules: dict[str, str], learning_rate: float) -> Trained:
    """Write modules into a folder, and train the Task of the last one."""
    pytest.importorskip("torch")
    pytest.importorskip("safetensors.torch")
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    model = {"entry": f"{[*modules][-1]}:Task", "learning_rate": learning_rate}
    document = {"name": "torch", "model": model, "dataset": {"samples": SAMPLES, "batch_size": 256}}
    return train(folder, JobSpec.parse(document))


def test_a_module_of_pytorch_predicts_the_same_from_safetensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    trained = train_torch(tmp_path, {"net": NET, "torch_task": TORCH_TASK}, 0.1)
    assert trained.export(tmp_path / "out")["framework"] == "torch"
    inputs, output = given(trained, tmp_path)
    run(SERVE_TORCH, str(tmp_path / "out/model.safetensors"), inputs, output, cwd=tmp_path)
    assert same(trained, sigmoid(np.load(output)))
    trained.export(tmp_path / "tables", format="parquet")
    assert (tmp_path / "tables/dense.safetensors").is_file()
    with pytest.raises(ExportRefused, match="format = keras is for Keras models, and Net is a PyTorch module"):
        trained.export(tmp_path / "keras", format="keras")


OWN_NET = """
import torch

class OwnNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.users = torch.nn.Embedding(50, 6)
        self.again = self.users
        self.tags = torch.nn.EmbeddingBag(30, 4, mode="mean", padding_idx=0)
        known = torch.linspace(-1, 1, 30)[:, None].repeat(1, 4)
        self.known = torch.nn.Embedding.from_pretrained(known, freeze=False)
        self.norm = torch.nn.BatchNorm1d(16)
        self.deep = torch.nn.Linear(16, 1)

    def forward(self, user, tags, numeric):
        rows = [self.users(user), self.tags(tags), self.known(tags).sum(dim=1), numeric]
        return self.deep(self.norm(torch.cat(rows, dim=1)))
"""
OWN_TASK = """
import numpy as np, torch
from own_net import OwnNet

class Task:
    optimizer = torch.optim.Adam

    def build(self):
        return OwnNet()

    def read(self, start, length):
        place = np.arange(start, start + length)
        tags = np.stack([place * 13 % 30, place * 7 % 29, 0 * place], axis=1)
        x = np.random.default_rng(start).normal(size=(length, 2)).astype(np.float32)
        user = place * 7 % 40  # ten users have no sample
        return {"user": user, "tags": tags, "numeric": x}, (user % 2).astype(np.float32)
"""
SERVE_OWN = """
import numpy as np, torch
from safetensors.torch import load_file
from own_net import OwnNet

module = OwnNet()
module.load_state_dict(load_file(sys.argv[1]))
with torch.no_grad():
    logit = module.eval()(**{name: torch.from_numpy(value) for name, value in np.load(sys.argv[2]).items()})
np.save(sys.argv[3], logit.numpy())
"""


def test_a_module_with_its_own_tables_is_loaded_by_plain_pytorch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables that the servers drew, that are kept as differences, with a padding, under two names, never trained."""
    monkeypatch.syspath_prepend(str(tmp_path))
    trained = train_torch(tmp_path, {"own_net": OWN_NET, "own_task": OWN_TASK}, 0.01)
    found = trained.export(tmp_path / "out")
    assert (found["framework"], found["format"]) == ("torch", "safetensors")
    assert found["tables"]["users"]["rows"] == 50
    tensors = pytest.importorskip("safetensors.torch").load_file(tmp_path / "out/model.safetensors")
    assert int(tensors["norm.num_batches_tracked"]) == -(-SAMPLES // 256), "as PyTorch counts them"
    assert found["tables"]["users"]["initial"]["distribution"] == "normal"
    inputs, _ = importlib.import_module("own_task").Task().read(SAMPLES, HELD_OUT)
    trained.inputs.update(inputs)
    arguments = given(trained, tmp_path)
    run(SERVE_OWN, str(tmp_path / "out/model.safetensors"), *arguments, cwd=tmp_path)
    assert same(trained, sigmoid(np.load(arguments[1])))
    trained.export(tmp_path / "tables", format="parquet")
    assert ds.dataset(tmp_path / "tables/tables/tags").count_rows() == 30


@pytest.mark.parametrize(
    ("data", "samples", "steps"),
    [
        ({"samples": 1000, "batch_size": 64, "epochs": 3}, 3000, 48),
        ({"samples": 1000, "batch_size": 64, "epochs": 3}, 1000 + 65, 18),
        ({"partitions": [{"name": "a", "samples": 65}, {"name": "b", "samples": 1}], "batch_size": 64}, 66, 3),
        ({"growing": True, "batch_size": 64}, 130, 3),
    ],
)
def test_a_short_batch_at_the_end_of_an_epoch_or_partition_counts(data: dict[str, Any], samples: int, steps: int):
    spec = JobSpec.parse({"name": "a", "model": {"entry": "m:M"}, "dataset": data})
    assert steps_of(spec.dataset, samples) == steps


# --- the process that the command starts ----------------------------------------------------------------------


def command(trained: Trained, folder: Path, to: Path, *more: str) -> list[str]:
    spec = folder / "job.yaml"
    spec.write_text(yaml.safe_dump(trained.spec.model_dump(mode="json")))
    start = ["-m", "stretto.export", "--json", "--spec", str(spec)]
    return [sys.executable, *start, "--checkpoint", trained.manifest, "--to", str(to), *more]


def documents(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


@pytest.mark.night
def test_the_process_tells_its_progress_and_its_result(trained: Trained, tmp_path: Path) -> None:
    words = command(trained, tmp_path, tmp_path / "out", "--format", "parquet")
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *told, last = documents(done.stdout)
    assert {"writing tables", "building the model"} <= {each["progress"][0] for each in told}
    assert last["result"] == json.loads((tmp_path / "out/export.json").read_text())
    again = subprocess.run(words, capture_output=True, text=True, check=False)
    assert again.returncode == 2
    assert "exists already" in documents(again.stdout)[-1]["error"]


@pytest.mark.night
def test_an_export_to_an_object_store_is_whole_there_and_can_be_added_to_and_continued(
    trained: Trained, shops: dict[str, Trained], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: a real S3 server; the processes reach it by the variables of a store's client."""
    import keras

    bucket = tmp_path / "s3/exported-models"
    bucket.mkdir(parents=True)
    shop = shops["normal"]
    with s3_server(tmp_path / "s3") as port:
        proxy = Proxy(port)
        proxy.fault = folders
        for name, value in environment_of(proxy.port).items():
            monkeypatch.setenv(name, value)
        for words in (["--to", f"s3://{bucket.name}/full"], ["--to", f"s3://{bucket.name}/more", "--since"]):
            more = [f"s3://{bucket.name}/full"] if words[-1] == "--since" else []
            asked = [*command(trained, tmp_path, tmp_path / "unused", "--format", "parquet"), *words, *more]
            done = subprocess.run(asked, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
            document = documents(done.stdout)[-1]["result"]
            folder = bucket / words[1].rpartition("/")[2]
            assert json.loads((folder / "export.json").read_text()) == document
            for name, entry in document["files"].items():
                assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == entry["sha256"]
        assert document["since"]["url"] == f"s3://{bucket.name}/full"
        again = subprocess.run(asked, capture_output=True, text=True)
        assert again.returncode == 2
        assert "exists already" in again.stdout
        asked = [*command(shop, tmp_path, tmp_path / "unused"), "--to", f"s3://{bucket.name}/one"]
        subprocess.run(asked, capture_output=True, check=True)
        subprocess.run([*asked, "--format", "savedmodel", "--to", f"s3://{bucket.name}/two"], check=True)
        assert [path for path in bucket.rglob("*") if ".part" in str(path) and path.is_file()] == []
        dense, _ = open_checkpoint(shop.manifest).dense()
        for place in ("one/model.keras", "two/model"):
            spec = shop.spec.model.model_copy(update={"restore_from": f"s3://{bucket.name}/{place}"})
            program = make_program(load(spec), options_of(shop.spec.model_copy(update={"model": spec})))
            assert (program.initial_dense() == dense).all()
        proxy.close()
    assert isinstance(keras.models.load_model(bucket / "one/model.keras"), keras.Model)


def test_the_process_says_how_to_find_the_code(trained: Trained, tmp_path: Path) -> None:
    absent = trained.spec.model_copy(update={"model": trained.spec.model.model_copy(update={"entry": "nowhere:M"})})
    changed = Trained(absent, trained.manifest, None, trained.probability, {})
    done = subprocess.run(command(changed, tmp_path, tmp_path / "out"), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no module 'nowhere'" in done.stdout
    assert "--path names the folder" in done.stdout
    assert not (tmp_path / "out").exists()


def test_the_process_takes_no_environment_of_the_job(trained: Trained, tmp_path: Path) -> None:
    """Method: the job's code reads a variable that only the specification has."""
    (tmp_path / "ads_of_a_test.py").write_text("import os\nraise RuntimeError(os.environ.get('OF_THE_JOB', 'clean'))\n")
    model = trained.spec.model.model_copy(update={"entry": "ads_of_a_test:Model", "path": str(tmp_path)})
    spec = trained.spec.model_copy(update={"model": model, "environment": {"OF_THE_JOB": "taken"}})
    changed = Trained(spec, trained.manifest, None, trained.probability, {})
    done = subprocess.run(command(changed, tmp_path, tmp_path / "out"), capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "clean" in documents(done.stdout)[-1]["error"]


def test_a_process_that_is_stopped_leaves_nothing(trained: Trained, tmp_path: Path, warm: WarmProcesses) -> None:
    out = tmp_path / "out"
    out.mkdir()
    read, write = os.pipe()
    process = warm.start(*command(trained, tmp_path, out / "x", "--format", "parquet")[1:], stdout=write)
    os.close(write)
    with open(read) as printed:
        while "writing tables" not in printed.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        rest = printed.read()
    assert process.wait(60) == 130, rest
    assert "interrupted; nothing was written" in rest
    assert list(out.iterdir()) == []


# --- the page ---------------------------------------------------------------------------------------------------


@pytest.mark.night
def test_the_fences_of_the_page_run(tmp_path: Path) -> None:
    """Goal: what EXPORT.md shows, in one folder, in its order; what is said to need no Stretto cannot import it."""
    write_clicks(tmp_path)
    (tmp_path / "my_model.py").write_text(readme_code("import keras, numpy as np, stretto\nfrom"))
    page = (Path(__file__).parents[2] / "EXPORT.md").read_text()
    fences = [block.split("```")[0] for block in page.split("```python\n")[1:]]
    printed = [
        run(fence, cwd=tmp_path, blocked="without Stretto" in fence) for fence in fences if "import torch" not in fence
        and "safetensors.torch" not in fence
    ]  # fmt: skip
    assert len(printed) == 5
    assert printed[1].startswith("[[0.")
