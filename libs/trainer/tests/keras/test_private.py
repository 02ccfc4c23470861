"""The private names of Keras that Stretto uses: those of the pinned release, and a clear sentence if one is gone."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stretto.errors import ModelRefused

pytestmark = pytest.mark.slow

keras = pytest.importorskip("keras")

from stretto.keras import private  # noqa: E402

CONSTRAINTS = Path(__file__).parents[4] / "constraints.txt"
IDS = np.array([[1], [2], [3]])
LABELS = np.array([[0.0], [1.0], [1.0]], np.float32)


class Regularised(keras.layers.Layer):
    """Adds a loss of its own, and has an argument `training`."""

    def call(self, inputs: Any, training: bool = False) -> Any:
        self.add_loss(keras.ops.sum(inputs) * 0.0 + 2.0)
        return inputs


def compiled(loss: Any = "binary_crossentropy") -> Any:
    """Return a compiled model whose losses and metrics were computed once, as a step of `fit` does it."""
    ids = keras.Input((1,), name="ids", dtype="int64")
    flat = keras.layers.Flatten()(Regularised()(keras.layers.Embedding(5, 2, name="table")(ids)))
    model = keras.Model(ids, keras.layers.Dense(1, activation="sigmoid", name="click")(flat))
    model.compile(loss=loss, metrics=["mae"])
    output = model(IDS)
    private.compiled_loss(model)(LABELS, output)
    private.compiled_metrics(model).update_state(LABELS, output)
    return model


def test_keras_is_the_release_that_is_known_to_work() -> None:
    pinned = re.search(r"^keras==([\d.]+)", CONSTRAINTS.read_text(), re.MULTILINE)
    assert pinned[1] == private.KNOWN, "a new release of Keras: run the trainer's tests, then raise private.KNOWN"


def test_layers_and_variables() -> None:
    model = compiled()
    table = next(layer for layer in private.layers_of(model) if layer.name == "table")
    assert private.takes_training(model)
    assert private.table_of(table).path.endswith("table/embeddings")
    private.replace_value(private.table_of(table), private.table_of(table).value + 1.0)
    assert private.table_of(table).numpy().max() >= 0.9


def test_losses_and_metrics() -> None:
    model = compiled(keras.losses.BinaryCrossentropy(from_logits=True))
    [(path, loss)] = private.losses_by_output(private.compiled_loss(model))
    assert isinstance(loss, keras.losses.BinaryCrossentropy), path
    assert private.options_of(loss)["from_logits"] is True
    assert private.options_of(object()) == {}
    assert [each for each in private.layers_of(model) if private.adds_losses(each)]
    total = float(private.total_loss(model, IDS, LABELS, model(IDS), None))
    assert total == pytest.approx(2.0 + float(loss(LABELS, model(IDS))), abs=1e-5)
    assert [each.name for each in private.compiled_metrics(model).metrics] == ["mae"]
    assert [each.name for each in private.means_of_loss(model)] == ["loss"]


def test_a_model_that_was_not_compiled_has_no_loss_and_no_metrics() -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    assert private.compiled_loss(model) is None
    assert private.compiled_metrics(model) is None
    assert private.means_of_loss(model) == []


def test_an_error_keeps_its_text() -> None:
    class Failing(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            error = ModelRefused("the text")
            private.pass_on(error)
            raise error

    with pytest.raises(ModelRefused) as raised:
        Failing()(LABELS)
    assert str(raised.value) == "the text"


def test_an_optimizer_may_leave_variables_out_of_decay() -> None:
    optimizer = keras.optimizers.AdamW()
    assert not private.excludes_from_decay(optimizer)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    assert private.excludes_from_decay(optimizer)


@pytest.mark.parametrize(
    ("use", "name"),
    [
        (private.layers_of, "_flatten_layers"),
        (private.takes_training, "_call_has_training_arg"),
        (private.table_of, "_embeddings"),
        (lambda owner: private.replace_value(owner, 0), "_value"),
        (private.compiled_loss, "_compile_loss"),
        (lambda owner: private.total_loss(owner, None, None, None, None), "_compute_loss"),
        (lambda owner: list(private.losses_by_output(owner)), "_flat_losses"),
        (private.adds_losses, "_get_own_losses"),
        (private.compiled_metrics, "_compile_metrics"),
    ],
)
def test_a_name_that_is_gone_is_told_with_the_release_that_has_it(use: Callable[[Any], Any], name: str) -> None:
    with pytest.raises(ModelRefused, match=rf"Keras .* has no object\.{name}, .* install keras=={private.KNOWN}"):
        use(object())
