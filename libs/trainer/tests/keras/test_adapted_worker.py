"""Worker pods with a user's own Keras model: elastic training, compiled metrics, and refusals as the user's fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trainer_harness import spec_of, wait_for

pytestmark = pytest.mark.slow

SAMPLES = 20_000

USER = """
import keras
import numpy as np

layers = keras.layers

class Model:
    def __init__(self, **options):
        self.options = options

    def build(self):
        user = keras.Input((), name="user", dtype="int64")
        city = keras.Input((1,), name="city", dtype="string")
        cities = layers.StringLookup(vocabulary=["Rome", "Oslo"])(city)
        parts = [layers.Embedding(50, 8, **self.options)(user), layers.Flatten()(layers.Embedding(3, 8)(cities))]
        model = keras.Model([user, city], layers.Dense(1, activation="sigmoid")(layers.Concatenate()(parts)))
        model.compile(keras.optimizers.Adagrad(0.2), "binary_crossentropy", metrics=["accuracy"])
        return model

    def read(self, start, length):
        place = np.arange(start, start + length)
        inputs = {"user": place % 50, "city": np.array(["Rome", "Lima"])[place % 2]}
        return inputs, (place % 2).astype(np.float32)
"""


@pytest.fixture
def make(tmp_path: Path, started: Any) -> Any:
    (tmp_path / "own_model.py").write_text(USER)
    return lambda **arguments: started(spec_of(SAMPLES, model={"entry": "own_model:Model", "arguments": arguments}))


def test_workers_die_and_join_and_every_sample_of_a_users_own_model_counts_once(make: Any):
    cluster = make()
    cluster.start_ps(0, 1)
    cluster.keep_for("worker-1")
    cluster.launch("worker-0")
    wait_for(lambda: len(cluster.done) >= 2, 60, "two shards")
    cluster.launch("worker-1")
    cluster.kill("worker-0")
    wait_for(cluster.finished, 120, "every shard")
    assert [book.applied_samples for book in cluster.books(0, 1)] == [SAMPLES, SAMPLES]
    found = cluster.evaluated("worker-1", 5000)
    assert found.auc > 0.99
    [accuracy] = found.metrics
    assert (accuracy.name, accuracy.value > 0.95) == ("accuracy", True)


def test_a_model_that_is_refused_is_the_users_error(make: Any):
    cluster = make(embeddings_constraint="non_neg")
    cluster.start_ps(0)
    assert cluster.launch("worker-0").wait(60) == 3
    assert "embeddings_constraint is applied to the whole table" in cluster.log("worker-0")
