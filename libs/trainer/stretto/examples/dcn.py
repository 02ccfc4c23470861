"""Deep & Cross Network (Wang et al. 2017; cross layer with a full matrix as in DCN-V2, Wang et al. 2021, Eq. 1)."""

from __future__ import annotations

import keras

from stretto.examples.criteo import FIELDS, INTEGERS, CriteoTask

CROSS_LAYERS = 2
RANK = 16


class DCN(CriteoTask):
    def build(self) -> keras.Model:
        rows = keras.Input((FIELDS, self.embedding_dim), name="rows")
        numeric = keras.Input((INTEGERS,), name="numeric")
        x0 = keras.layers.Concatenate()([keras.layers.Flatten()(rows), numeric])
        cross = x0
        for _ in range(CROSS_LAYERS):
            # x_{l+1} = x0 * (U V x_l + b) + x_l, with W = U V of low rank (DCN-V2, section 4)
            low = keras.layers.Dense(RANK, use_bias=False)(cross)
            cross = keras.layers.Add()([keras.layers.Multiply()([x0, keras.layers.Dense(x0.shape[-1])(low)]), cross])
        deep = x0
        for units in self.hidden:
            deep = keras.layers.Dense(units, activation="relu")(deep)
        return keras.Model([rows, numeric], keras.layers.Dense(1)(keras.layers.Concatenate()([cross, deep])))
