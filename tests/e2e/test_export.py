"""A job's model, exported while it trains and after, and served by a process without Stretto."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from stretto_cli.options import connect
from stretto_client.documents import Documents
from stretto_client.errors import Refused

from tests.e2e.typed import shell

JOB = "exported"
SAMPLES, HELD_OUT = 120_000, 4096
ARGUMENTS = {"seed": 7, "samples": SAMPLES, "categories": 3000, "hidden": "32", "samples_per_s": 6000}

pytestmark = [pytest.mark.slow, pytest.mark.night]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("export") / "state"
    assert stretto(folder, "up", "--detach").returncode == 0
    yield folder
    stretto(folder, "down")


def stretto(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return shell(" ".join([".venv/bin/stretto", *words]), STRETTO_STATE_FOLDER=str(folder))


def exported(folder: Path, *words: str) -> dict[str, Any]:
    done = stretto(folder, "export", JOB, "-o", "json", *words)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


SERVE = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0].startswith("stretto"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Blocked())
import keras, numpy as np
model = keras.models.load_model(sys.argv[1])
np.save(sys.argv[3], model.predict(dict(np.load(sys.argv[2])), verbose=0, batch_size=1024))
"""


def test_the_exported_model_has_the_quality_that_the_job_measured(folder: Path, tmp_path: Path) -> None:
    """Method: a real job by `stretto up`, whose reader is slow enough that checkpoints are taken meanwhile."""
    from stretto.examples.wide_deep import WideDeep
    from stretto.model.evaluate import log_loss

    spec = {
        "name": JOB,
        "model": {
            "entry": "stretto.examples.wide_deep:WideDeep", "arguments": ARGUMENTS, "embedding_dim": 8,
            "learning_rate": 0.1,
        },
        "dataset": {"samples": SAMPLES, "batch_size": 512, "batches_per_shard": 8},
        "evaluate": HELD_OUT,
        "checkpoint": {"every_s": 3},
    }  # fmt: skip
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(spec))
    following = subprocess.Popen(
        [sys.executable, "-m", "stretto_cli.main", "submit", str(tmp_path / "job.yaml"), "-f", "-o", "json",
         "--folder", str(folder)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    early = wait_for_early_export(folder, tmp_path / "early")
    output, _ = following.communicate(timeout=400)
    view = json.loads(output)
    assert view["status"] == "finished", view["reason"]
    assert early["checkpoint"]["samples"] < SAMPLES

    done = exported(folder, "--to", str(tmp_path / "full"))
    assert done["checkpoint"]["samples"] == SAMPLES
    assert done["checkpoint"]["id"].endswith("-final")
    changes = exported(folder, "--to", str(tmp_path / "changes"), "--since", str(tmp_path / "early"))
    assert 0 < changes["tables"]["rows"]["rows"] <= done["tables"]["rows"]["rows"]

    told = stretto(folder, "export", JOB, "--format", "savedmodel", "--to", str(tmp_path / "served")).stdout
    assert f"exported exported to {tmp_path / 'served'} as savedmodel" in " ".join(told.split())
    assert f"({SAMPLES:,} samples trained)" in told
    assert (tmp_path / "served/model/saved_model.pb").is_file()
    again = stretto(folder, "export", JOB, "--to", str(tmp_path / "served"))
    assert again.returncode == 2
    assert "exists already" in again.stderr

    task = WideDeep(**ARGUMENTS | {"samples_per_s": 0}, embedding_dim=8)
    batch = task.read(SAMPLES, HELD_OUT)
    np.savez(tmp_path / "inputs.npz", keys=task.keys(batch), numeric=batch["numeric"])
    words = [str(tmp_path / name) for name in ("full/model.keras", "inputs.npz", "logit.npy")]
    served = subprocess.run(
        [sys.executable, "-c", SERVE, *words], check=False, capture_output=True, text=True,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
    )  # fmt: skip
    assert served.returncode == 0, served.stderr[-2000:]
    probability = 1 / (1 + np.exp(-np.load(tmp_path / "logit.npy").astype(np.float64).reshape(-1)))
    measured = view["books"]["evaluation"]
    assert measured["samples"] == HELD_OUT
    assert abs(log_loss(batch["label"], probability) - measured["loss"]) < 1e-6


def wait_for_early_export(folder: Path, to: Path, limit_s: float = 200) -> dict[str, Any]:
    """Export as soon as a checkpoint with trained samples is stored."""
    deadline = time.monotonic() + limit_s
    with connect(folder, None, None) as gateway:
        while not any(each["stage"] == "stored" and each["checkpoint"]["samples"] for each in checkpoints(gateway)):
            assert time.monotonic() < deadline
            time.sleep(0.2)
    return exported(folder, "--live", "--format", "parquet", "--to", str(to))


def checkpoints(gateway: Documents) -> list[dict[str, Any]]:
    try:
        return gateway.job(JOB)["checkpoints"]
    except Refused:  # it is just being submitted
        return []
