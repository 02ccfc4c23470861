"""Wide & Deep as a user of Keras writes it: 26 embedding layers in the place of rows, on the same batches."""

from typing import Any

import keras
import numpy as np
from stretto.examples.criteo import FIELDS, INTEGERS

from tests.bench.training.trainer_task import PooledWideDeep


class AdaptedWideDeep(PooledWideDeep):
    """The model of stretto/examples/wide_deep.py; the ids of each field are numbered without gaps."""

    def __init__(self) -> None:
        super().__init__()
        columns = [np.unique(values, return_inverse=True) for values in self.pool["categorical"].T]
        self.rows = [len(unique) for unique, _ in columns]
        self.fields = [inverse.astype(np.int64) for _, inverse in columns]

    def build(self) -> keras.Model:
        ids = [keras.Input((1,), name=f"field_{number}", dtype="int64") for number in range(FIELDS)]
        numeric = keras.Input((INTEGERS,), name="numeric")
        tables = [keras.layers.Embedding(n, self.embedding_dim)(at) for n, at in zip(self.rows, ids, strict=True)]
        rows = keras.layers.Concatenate(axis=1)(tables)
        wide = keras.ops.sum(keras.layers.Flatten()(rows[:, :, :1]), axis=1, keepdims=True)
        x = keras.layers.Concatenate()([keras.layers.Flatten()(rows[:, :, 1:]), numeric])
        for units in self.hidden:
            x = keras.layers.Dense(units, activation="relu")(x)
        return keras.Model([*ids, numeric], keras.layers.Add()([wide, keras.layers.Dense(1)(x)]))

    def read(self, start: int, length: int) -> dict[str, Any]:
        batch = super().read(start, length)
        first = start % len(self.fields[0])
        fields = {f"field_{number}": ids[first : first + length] for number, ids in enumerate(self.fields)}
        return {"label": batch["label"], "numeric": batch["numeric"], **fields}
