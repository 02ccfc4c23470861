"""Wide & Deep (Cheng et al. 2016): a linear model of the categories beside a deep one of their embeddings."""

from __future__ import annotations

import keras

from stretto.examples.criteo import FIELDS, INTEGERS, CriteoTask


class WideDeep(CriteoTask):
    def build(self) -> keras.Model:
        rows = keras.Input((FIELDS, self.embedding_dim), name="rows")
        numeric = keras.Input((INTEGERS,), name="numeric")
        # the first float of a row is the category's weight in the wide part, the others are its embedding
        # (split, and no slices: TensorFlow's gradient of a slice fills an array for each, a sixth of a step)
        weights, embeddings = keras.ops.split(rows, [1], axis=2)
        wide = keras.ops.sum(weights, axis=1)
        x = keras.layers.Concatenate()([keras.layers.Flatten()(embeddings), numeric])
        for units in self.hidden:
            x = keras.layers.Dense(units, activation="relu")(x)
        deep = keras.layers.Dense(1)(x)
        return keras.Model([rows, numeric], keras.layers.Add()([wide, deep]))
