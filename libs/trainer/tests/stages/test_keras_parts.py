"""A functional Keras model that is cut between its layers: each cut computes what the whole model does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.slow

keras = pytest.importorskip("keras")

from staged import equal, stepped, trained  # noqa: E402
from stretto.build import make_program  # noqa: E402
from stretto.errors import ModelRefused  # noqa: E402
from stretto.examples.dcn import DCN  # noqa: E402
from stretto.examples.wide_deep import WideDeep  # noqa: E402
from stretto.examples.xdeepfm import XDeepFM  # noqa: E402
from stretto.model.program import Options  # noqa: E402
from stretto.optimizers import Clipping  # noqa: E402
from stretto.parts import FIRST_LAYER  # noqa: E402


@pytest.mark.parametrize("task", [WideDeep, DCN, XDeepFM])
def test_parts_compute_what_the_whole_model_does(task: Any) -> None:
    program = make_program(task(), Options(embedding_dim=16))
    layers = len(program.layers)
    prepared = program.prepare(0, 200)
    chance = np.random.default_rng(7)
    rows = tuple(chance.normal(size=(len(of), 16)).astype(np.float32) for of in prepared.keys.tables)
    dense, state = program.initial_dense(), program.initial_state()
    whole = program.step(rows, prepared.keys, dense, state, prepared.batch)
    for cuts in [[cut] for cut in range(2, layers, 3)] + [[2, layers - 1], [3, layers // 2, layers - 2]]:
        loss, of_rows, of_dense, delta = stepped(program, cuts, prepared.batch, prepared.keys, rows, dense, state)
        assert loss == whole.loss, cuts
        for one, other in zip((*of_rows, of_dense), (*whole.rows, whole.dense), strict=True):
            equal(one, other)
        assert not len(delta)


def test_one_and_two_stages_train_the_same_bits_and_three_the_same_numbers() -> None:
    program = make_program(WideDeep(hidden="32,16"), Options(embedding_dim=16))
    alone = trained(program, None)
    assert trained(program, [1]) == alone
    for first_layers in ([1, 5], [1, 4, 7]):
        values, losses = trained(program, first_layers)
        assert losses == pytest.approx(alone[1], rel=1e-6)
        for one, other in zip(values, alone[0], strict=True):
            equal(np.frombuffer(one, np.float32), np.frombuffer(other, np.float32))


def stateful() -> Any:
    """Return a model with states and random layers on both sides of a cut, and a tensor that skips it."""
    rows, numeric = keras.Input((3, 4), name="rows"), keras.Input((2,), name="numeric")
    flat = keras.layers.Flatten()(rows)
    x = keras.layers.BatchNormalization()(keras.layers.Concatenate()([flat, numeric]))
    x = keras.layers.Dropout(0.5, seed=1)(keras.layers.Dense(9, kernel_regularizer="l2", activation="relu")(x))
    x = keras.layers.BatchNormalization()(keras.layers.Dense(7)(keras.layers.Concatenate()([x, flat])))
    return keras.Model([rows, numeric], keras.layers.Dense(1)(keras.layers.Dropout(0.5, seed=2)(x)))


def test_states_penalties_and_random_layers_are_those_of_the_whole_model() -> None:
    for cuts in ([4], [7], [3, 6, 9]):
        program = make_program(Small(stateful), Options(embedding_dim=4))
        prepared = program.prepare(0, 40)
        rows = tuple(np.linspace(-1, 1, 4 * len(of), dtype=np.float32).reshape(-1, 4) for of in prepared.keys.tables)
        state = program.initial_state()
        dense = np.linspace(-1, 1, program.layout.dense_size, dtype=np.float32)
        found = stepped(program, cuts, prepared.batch, prepared.keys, rows, dense, state)
        whole = program.step(rows, prepared.keys, dense, state, prepared.batch)
        assert found[0] == pytest.approx(whole.loss, rel=1e-6)
        for one, other in zip((*found[1], *found[2:]), (*whole.rows, whole.dense, whole.state_delta), strict=True):
            equal(one, other)


class Small:
    """A task of 3 fields and 2 numbers."""

    def __init__(self, build: Any) -> None:
        self.build = build

    def read(self, start: int, length: int) -> dict[str, Any]:
        place = np.arange(start, start + length)
        return {
            "label": (place % 3 == 0).astype(np.float32),
            "numeric": np.stack([place % 5, place % 2], axis=1).astype(np.float32),
            "categorical": np.stack([place % 3, place % 7, place % 11], axis=1).astype(np.int64),
        }


def shared() -> Any:
    rows = keras.Input((3, 4), name="rows")
    layer = keras.layers.Dense(12)
    return keras.Model(rows, keras.layers.Dense(1)(layer(layer(keras.layers.Flatten()(rows)))))


def masked() -> Any:
    """Return a model whose LSTM takes a mask."""
    rows = keras.Input((3, 4), name="rows")
    x = keras.layers.LSTM(5)(keras.layers.Masking()(keras.layers.Dense(4)(rows)))
    return keras.Model(rows, keras.layers.Dense(1)(x))


def test_layers_are_told_with_the_cuts_that_are_possible() -> None:
    layers = make_program(Small(shared), Options(embedding_dim=4)).layers
    assert [bool(each.uncut) for each in layers] == [False, False, False, True, False]
    task = Small(shared)
    task.clipping = Clipping(global_norm=1.0)
    program = make_program(task, Options(embedding_dim=4))
    assert len(program.layers) == 2
    assert "norms" in program.uncut
    (of_lstm,) = (
        each.uncut for each in make_program(Small(masked), Options(embedding_dim=4)).layers if "lstm" in each.name
    )
    assert "the mask of" in of_lstm


@pytest.mark.parametrize(
    ("build", "first", "until", "options", "why"),
    [
        (shared, 3, None, {}, "first_layer = 3: no cut before dense.* by the layers 2, 3, .* with layer 2 or 4;"),
        (shared, 1, 5, {}, "first_layer = 5 of the next stage: .* to 4 \\(dense_"),
        (shared, 9, None, {}, "first_layer = 9: .* to 4 \\(dense_.* stage 2 can begin with layer 2 or 4"),
        (shared, 4, 2, {}, "first_layer = 2 of the next stage: the stage before it begins with layer 4"),
        (shared, 2, None, {"clipping": True}, "norms of its gradients are limited"),
    ],
)
def test_a_model_that_cannot_be_cut_there_is_refused(build: Any, first: int, until: Any, options: Any, why: str):
    task = Small(build)
    if options:
        task.clipping = Clipping(global_norm=1.0)
    program = make_program(task, Options(embedding_dim=4))
    with pytest.raises(ModelRefused, match=why):
        program.part(first, until)
    program.part(FIRST_LAYER, None)
