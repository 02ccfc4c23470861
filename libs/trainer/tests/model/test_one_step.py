"""The comparison of steps: what rounding explains is the same, and whatever else differs is named."""

from __future__ import annotations

import numpy as np
import pytest
from stretto.model.one_step import Reference, Slices, Stepped, difference
from stretto.optimizers import Adagrad, Clipping, Update

F32 = np.float32
START = Stepped(float("nan"), {"w": np.array([0.5, -2.0, 0.0], F32), "mean": np.array([0.0, -np.inf], F32)})
STEP = Stepped(0.7, {"w": np.array([0.4, -1.9, 0.1], F32), "mean": np.array([0.1, -np.inf], F32)})
SIZES = {"w": np.array([1.0, 0.5, 1e-8], F32)}


def stepped(loss: float = 0.7, **moved: list[float]) -> Stepped:
    return Stepped(loss, {name: np.array(moved.get(name, value), F32) for name, value in STEP.values.items()})


@pytest.mark.parametrize(
    "found",
    [
        stepped(),
        stepped(0.7 + 5e-6, w=[0.4 + 4e-7, -1.9 - 1e-6, 0.1], mean=[0.1 + 5e-6, -np.inf]),
        stepped(w=[0.4, -1.9, -0.1]),  # Adam steps as far, whatever way, for a gradient that is rounding
    ],
)
def test_what_rounding_explains_is_the_same(found: Stepped):
    assert difference(START, [found], [STEP], SIZES) == ""


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (stepped(0.7001), "the loss of step 1 is 0.7001, and 0.7 there"),
        (stepped(w=[0.4, -1.9001, 0.1]), "w[1] is -1.9001 after step 1, and -1.9 there"),
        (stepped(w=[0.4, -1.9, np.nan]), "w[2] is nan"),
        (stepped(w=[0.4, -1.9, 1.1]), "w[2] is 1.1"),  # ten times as far
        (stepped(mean=[0.1001, -np.inf]), "mean[0] is 0.1001"),
        (stepped(mean=[0.1, 0.0]), "mean[1] is 0"),
    ],
)
def test_whatever_else_differs_is_named_with_both_values(found: Stepped, told: str):
    assert difference(START, [found], [STEP], SIZES).startswith(told)


def test_a_small_step_counts_as_much_as_a_large_one():
    small = Stepped(0.7, {"w": START.values["w"] + F32(1e-6), "mean": STEP.values["mean"]})
    resting = Stepped(0.7, {"w": START.values["w"], "mean": STEP.values["mean"]})
    assert difference(START, [small], [resting], {"w": np.ones(3, F32)}).startswith("w[")


@pytest.mark.parametrize(
    ("clipping", "sums", "squares"),
    [
        (Clipping(), [3.0, 4.0], [5.0, 16.0]),
        (Clipping(value=1.5), [2.5, 1.5], [3.25, 2.25]),
        (Clipping(norm=1.0), [3 / 21**0.5, 4 / 21**0.5], [5 / 21, 16 / 21]),
        (Clipping(global_norm=1.0), [3 / 21**0.5, 4 / 21**0.5], [9 / 21, 16 / 21]),
    ],
)
def test_the_reference_limits_each_occurrence_of_a_row(clipping: Clipping, sums: list[float], squares: list[float]):
    """The first row occurs twice. Keras keeps occurrences apart but after a global norm."""
    given = Slices(np.array([[1.0], [2.0], [4.0]], F32), np.array([0, 0, 1]), 2)
    rule = Reference(Update(Adagrad(1.0, 0.0, 0.0), clipping), 16, ["rows"])
    rows = rule.apply({"rows": np.zeros((2, 1), F32)}, {"rows": given})["rows"]
    expected = -np.array(sums) / np.sqrt(squares)
    np.testing.assert_allclose(rows[:, 0], expected, rtol=1e-6)
