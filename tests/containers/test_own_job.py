"""A job of one's own under Compose: code as a wheel, data in a volume, a file and a secret; its logs and its model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from tests.containers.bases import docker
from tests.containers.engine import Engine
from tests.containers.installation import Installation, filled, installed
from tests.containers.prepared import engine_with_compose

SAMPLES = 40_000
JOB = "clicks"
SECRET = "label-secret"
CONFIGURATION = "conf/model.json"
WHEEL = "ads-1.2-py3-none-any.whl"
MODULE = """
    import json
    import os
    from pathlib import Path

    import keras
    from stretto.readers.arrow import Arrow

    class Clicks:
        def __init__(self, data):
            hidden = json.loads(Path("conf/model.json").read_text())["hidden"]
            print(f"hidden layer of {hidden}, of conf/model.json", flush=True)
            self.hidden = hidden
            self.reader = Arrow(data, label=os.environ["CLICKS_LABEL"], dense=["age"], categorical=["user"])

        def build(self):
            age = keras.Input((1,), name="numeric")
            user = keras.Input((1,), dtype="int64", name="categorical")
            row = keras.layers.Flatten()(keras.layers.Embedding(2_001, 8, name="users")(user))
            x = keras.layers.Dense(self.hidden, activation="relu")(keras.layers.Concatenate()([age / 80, row]))
            model = keras.Model([age, user], keras.layers.Dense(1, activation="sigmoid")(x))
            model.compile(keras.optimizers.Adagrad(0.3), loss="binary_crossentropy")
            return model

        def read(self, start, length):
            return self.reader.read(start, length)
"""

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.night]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that has what the job brings: ``data`` for its volume, ``secrets`` and its configuration."""
    made = tmp_path_factory.mktemp("own")
    (made / "data" / "clicks").mkdir(parents=True)
    with zipfile.ZipFile(made / "data" / WHEEL, "w") as wheel:
        wheel.writestr("ads/__init__.py", "")
        wheel.writestr("ads/model.py", textwrap.dedent(MODULE))
        wheel.writestr("ads-1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: ads\nVersion: 1.2\n")
    draw = np.random.default_rng(1)
    for part in range(2):
        user, age = draw.integers(0, 2_000, SAMPLES // 2), draw.integers(18, 80, SAMPLES // 2)
        table = pa.table({"user": user, "age": age, "clicked": (user % 3 + age / 40 > 2).astype("int8")})
        pq.write_table(table, made / "data" / "clicks" / f"day-{part}.parquet", row_group_size=5_000)
    (made / "secrets").mkdir()
    (made / "secrets" / SECRET).write_text("CLICKS_LABEL=clicked\n")
    (made / "secrets" / SECRET).chmod(0o600)
    os.chown(made / "secrets" / SECRET, 10001, 10001)
    (made / CONFIGURATION).parent.mkdir()
    (made / CONFIGURATION).write_text('{"hidden": 16}\n')
    return made


@pytest.fixture(scope="module")
def place() -> Engine:
    return engine_with_compose()


@pytest.fixture(scope="module")
def volume(place: Engine, folder: Path) -> Iterator[str]:
    """A volume of the engine with data and code, named as the installation allows it."""
    with filled(place, "clicks", folder / "data") as name:
        yield name


@pytest.fixture(scope="module")
def installation(place: Engine, folder: Path, volume: str) -> Iterator[Installation]:
    allowed = {"STRETTO_ALLOWED_VOLUMES": "docker_volume:clicks-*"}
    actuator = {"environment": allowed, "volumes": [f"{folder / 'secrets'}:/etc/stretto/secrets:ro"]}
    own = folder / "own.yaml"
    own.write_text(yaml.safe_dump({"services": {"gateway": {"environment": allowed}, "actuator": actuator}}))
    with installed(place, own=own) as running:
        yield running
    assert running.left() == []


@pytest.fixture(scope="module")
def trained(installation: Installation, folder: Path, volume: str) -> Installation:
    spec = {
        "name": JOB,
        "model": {
            "entry": "ads.model:Clicks",
            "arguments": {"data": "/data/clicks"},
            "code": {"url": f"/data/{WHEEL}"},
        },
        "dataset": {"samples": SAMPLES, "batch_size": 256, "batches_per_shard": 8},
        "volumes": [{"name": "clicks", "path": "/data", "docker_volume": volume}],
        "files": {CONFIGURATION: (folder / CONFIGURATION).read_text()},
        "environment_from": [SECRET],
    }
    installation.gateway.submit(yaml.safe_dump(spec))
    installation.until(lambda: installation.ended(JOB), "the job ends")
    return installation


def stretto(trained: Installation, folder: Path, *arguments: str) -> str:
    """Run the command against the installation's gateway and return what it prints."""
    done = subprocess.run(
        [Path(sys.executable).with_name("stretto"), *arguments],
        cwd=folder,
        env={
            **os.environ,
            "STRETTO_CLI_URL": f"http://127.0.0.1:{trained.port}",
            "STRETTO_CLI_TOKEN": trained.token,
            "CLICKS_LABEL": "clicked",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_sample_is_trained_once(trained: Installation) -> None:
    assert trained.status(JOB) == "finished", trained.gateway.job(JOB)["reason"]
    books = trained.gateway.audit(JOB)
    assert books["exact"], books["findings"]
    assert (books["samples_done"], books["samples_lost"], books["samples_repeated"]) == (SAMPLES, 0, 0)


def test_the_log_of_a_pod_outlives_it(trained: Installation, folder: Path) -> None:
    trained.until(lambda: trained.pods() == [], "the job's containers are gone", 60)
    printed = stretto(trained, folder, "logs", f"{JOB}/worker-0", "-n", "1000")
    assert "hidden layer of 16, of conf/model.json" in printed


def test_the_model_is_exported_from_a_copy_of_its_checkpoint(
    trained: Installation, folder: Path, place: Engine
) -> None:
    (checkpoints,) = trained.containers("checkpoints")
    docker(place, "cp", f"{checkpoints}:/checkpoints/{JOB}", str(folder / "store"))
    with zipfile.ZipFile(folder / "data" / WHEEL) as wheel:
        wheel.extractall(folder / "code")
    (manifest,) = (folder / "store").glob("*-final/manifest.json")
    printed = stretto(trained, folder, "export", JOB, "--checkpoint", str(manifest), "--path", "code",
                      "--set", "data=data/clicks", "--to", "model")  # fmt: skip
    assert re.search(rf"\({SAMPLES:,} samples trained\)", printed), printed
    assert (folder / "model" / "model.keras").is_file()
