"""Optimizers, schedules and clipping: names, bounds, figures known by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
from stretto_parameters import Clipping, InputRefused, Layout, Table
from stretto_parameters.optimizers import (
    OPTIMIZERS,
    SGD,
    Adam,
    AdamW,
    Ftrl,
    RMSprop,
    RowWiseAdagrad,
    from_dict,
    to_dict,
)
from stretto_parameters.optimizers.schedules import Constant, Cosine, Exponential, Warmup, rates


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_survives_json(name: str) -> None:
    made = OPTIMIZERS[name](learning_rate=Warmup(Cosine(0.3, 1000, 0.1), 50))
    assert from_dict(json.loads(json.dumps(to_dict(made)))) == made


def test_a_layout_survives_json() -> None:
    tables = (Table(4, Adam(0.01), seed=3, weights="bfloat16"), Table(7, RowWiseAdagrad(Exponential(0.1, 0.5, 10))))
    layout = Layout(tables, 100, buckets=64, slices=12, state_size=5, optimizer=Ftrl())
    assert Layout.from_dict(json.loads(json.dumps(layout.to_dict()))) == layout


@pytest.mark.parametrize(
    ("name", "floats"),
    [("sgd", 16), ("adagrad", 32), ("rowwise-adagrad", 17), ("adam", 49), ("adamw", 49), ("rmsprop", 33), ("ftrl", 48)],
)
def test_a_row_of_sixteen_weights_has_these_floats(name: str, floats: int) -> None:
    assert 16 + len(OPTIMIZERS[name]().first_slots(16)) == floats


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "lamb"}, "optimizer kind = 'lamb' is not known: use one of sgd, adagrad"),
        ({"kind": "sgd", "beta": 1.0}, "sgd has learning_rate, step_samples, momentum, nesterov"),
        ({"kind": "adam", "beta_2": 1.0}, "beta_2 = 1.0 of Adam must be at least 0 and less than 1"),
        ({"kind": "adam", "beta_2": 0.9999999}, "beta_2 = 0.9999999 of Adam is too near to 1: give at most"),
        ({"kind": "adagrad", "epsilon": float("nan")}, "epsilon = nan of Adagrad must not be negative"),
        ({"kind": "adagrad", "learning_rate": 0.0}, "learning_rate = 0.0 of a learning-rate schedule must be"),
        (
            {"kind": "ftrl", "learning_rate": {"kind": "cosine", "learning_rate": 1, "over_samples": 9}},
            "Ftrl reaches 0",
        ),
        (
            {
                "kind": "ftrl",
                "learning_rate": {"kind": "exponential", "learning_rate": 1, "decay": 0.9, "every_samples": 9},
            },
            "Ftrl reaches 0: give a floor above 0",
        ),
        (
            {
                "kind": "sgd",
                "learning_rate": {"kind": "exponential", "learning_rate": 1, "decay": 1.1, "every_samples": 9},
            },
            "decay = 1.1 must be at most 1",
        ),
        ({"kind": "sgd", "learning_rate": {"kind": "step"}}, "schedule kind = 'step' is not known: use one of"),
    ],
)
def test_an_optimizer_that_cannot_be_applied_is_refused_by_name(given: dict[str, object], message: str) -> None:
    with pytest.raises(InputRefused, match=message):
        from_dict(given)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"buckets": 48}, "buckets = 48 must be a power of two"),
        ({"slices": 0}, "slices = 0 must be between 1"),
        ({"dense_size": -1}, "dense_size = -1"),
    ],
)
def test_a_layout_that_cannot_be_served_is_refused(fields: dict[str, int], message: str) -> None:
    with pytest.raises(InputRefused, match=message):
        Layout(**{"tables": (Table(2),), "dense_size": 4, "buckets": 64, "slices": 2, **fields})  # type: ignore[arg-type]


def test_a_rate_depends_on_the_samples_alone() -> None:
    assert Constant(0.1).rate(10**9) == 0.1
    assert Exponential(0.1, 0.5, 100).rate(200) == pytest.approx(0.025)
    assert Exponential(0.1, 0.5, 100, staircase=True).rate(199) == pytest.approx(0.05)
    assert Exponential(0.1, 0.5, 100, floor=0.2).rate(10**9) == pytest.approx(0.02)
    assert Cosine(0.2, 100, 0.1).rate(50) == pytest.approx(0.2 * (0.9 * 0.5 + 0.1))
    assert Cosine(0.2, 100, 0.1).rate(1000) == pytest.approx(0.02)
    warm = Warmup(Exponential(0.1, 0.5, 100), 10, first=0.2)
    assert [warm.rate(at) for at in (0, 5, 10, 110)] == pytest.approx([0.02, 0.06, 0.1, 0.05])


def test_each_column_has_the_rate_of_its_own_samples() -> None:
    found = rates(Exponential(1.0, 0.5, 10), np.array([0, 10, 0, 20]))
    assert found.dtype == np.float32
    assert found.tolist() == [1.0, 0.5, 1.0, 0.25]


def test_clipping_bounds_values_and_norms() -> None:
    gradient = np.array([[3.0, -4.0], [0.0, 0.0]], np.float32)
    for limits, expected in ((Clipping(value=1.0), [1.0, -1.0]), (Clipping(norm=2.5), [1.5, -2.0])):
        assert limits.apply([gradient])[0].tolist() == [expected, [0.0, 0.0]]
    both = Clipping(global_norm=6.5).apply([gradient, np.array([12.0], np.float32)])
    assert [each.tolist() for each in both] == [[[1.5, -2.0], [0.0, 0.0]], [6.0]]
    for limits in (Clipping(), Clipping(norm=5.0), Clipping(value=4.0)):
        assert limits.apply([gradient])[0].tolist() == gradient.tolist()
    assert Clipping(norm=2.5).scales([gradient], [np.float32([100.0])]) == [0.25]  # of occurrences, added up
    assert Clipping(norm=1.0)
    assert not Clipping()
    with pytest.raises(InputRefused, match=r"limit = 0\.0 of a gradient"):
        Clipping(norm=0.0)
    with pytest.raises(InputRefused, match="clipping by value and by norm: give one"):
        Clipping(value=1.0, norm=1.0)


def test_optimizers_that_need_no_slot_have_none() -> None:
    assert len(SGD().first_slots(9)) == 0
    assert len(SGD(momentum=0.5).first_slots(9)) == 10
    assert len(RMSprop(momentum=0.5).first_slots(9)) == 19
    assert AdamW(0.1).hyperparameters()[4] == np.float32(0.004)
    assert type(RowWiseAdagrad().dense).__name__ == "Adagrad"
