"""The model xDeepFM (Lian et al. 2018): a compressed interaction network beside a deep and a linear part."""

from __future__ import annotations

import keras

from stretto.examples.criteo import FIELDS, INTEGERS, CriteoTask

FEATURE_MAPS = (16, 16)


class XDeepFM(CriteoTask):
    def build(self) -> keras.Model:
        rows = keras.Input((FIELDS, self.embedding_dim), name="rows")
        numeric = keras.Input((INTEGERS,), name="numeric")
        weights, x0 = keras.ops.split(rows, [1], axis=2)
        linear = keras.ops.sum(weights, axis=1)
        dimension = self.embedding_dim - 1

        # Eq. 6: X^k_h = sum_ij W^{k,h}_ij (X^{k-1}_i * X^0_j), element-wise along the embedding
        pooled = []
        layer = x0
        for maps in FEATURE_MAPS:
            outer = keras.ops.einsum("bid,bjd->bdij", layer, x0)
            outer = keras.layers.Reshape((dimension, layer.shape[1] * FIELDS))(outer)
            layer = keras.layers.Permute((2, 1))(keras.layers.Dense(maps, use_bias=False)(outer))
            pooled.append(keras.ops.sum(layer, axis=2))  # Eq. 7
        interactions = keras.layers.Concatenate()(pooled)

        deep = keras.layers.Concatenate()([keras.layers.Flatten()(x0), numeric])
        for units in self.hidden:
            deep = keras.layers.Dense(units, activation="relu")(deep)
        output = keras.layers.Dense(1)(keras.layers.Concatenate()([interactions, deep]))
        return keras.Model([rows, numeric], keras.layers.Add()([linear, output]))
