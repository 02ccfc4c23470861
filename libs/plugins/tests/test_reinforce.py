"""Learning to place: better than chance, the same for a seed, kept and used again, refused where it does not fit."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from stretto_core.algorithms import PLACE
from stretto_core.planner.placement import DeviceType, Layer, LearningAlgorithm, PlacementProblem, exact, provision
from stretto_messages.base import InvalidValue

pytestmark = [pytest.mark.slow, pytest.mark.night]
FEW = 6
CELLS = pytest.mark.parametrize("cell", ["lstm", "rnn"])


def learner_of(cell: str, rounds: int) -> Any:
    """Find the plug-in by its name: it imports TensorFlow, which nobody who only lists these tests should wait for."""
    return replace(PLACE.named(f"rl-{cell}"), rounds=rounds)


def problem_of(layers: int = 6, seed: int = 0, limit: int | None = None) -> PlacementProblem:
    """Embeddings suit the CPU, what is dense the accelerators."""

    def layer(index: int) -> Layer:
        sparse = index % 3 == 0
        compute_s = (0.3, 0.25, 0.2) if sparse else (0.5, 0.03, 0.02)
        shares = ((0.99, 0.98, 0.98), (0.9, 0.9, 0.9))
        kind = "embedding" if sparse else "fc"
        return Layer(f"l{index}", kind, compute_s, shares[0], (0.01, 0.01, 0.01), shares[1], 1e5, 1e6)

    types = (DeviceType("cpu", 0.04, limit), DeviceType("v100", 2.42), DeviceType("a100", 4.1))
    return PlacementProblem(tuple(map(layer, range(layers))), types, 512, 8000, 1e9, seed)


@CELLS
def test_it_learns(cell: str) -> None:
    """The likeliest plan of what was trained is nearer the optimum than the best of the untrained one's first draws."""
    problem = problem_of()
    best = exact(problem)
    assert best is not None
    learned = learner_of(cell, 80).train(problem)
    again = learner_of(cell, 1).apply(learned.model, problem)
    assert learned.placement is not None
    assert again is not None
    assert provision(problem, learned.placement.assignment) == learned.placement
    assert best.cost <= learned.placement.cost * (1 + 1e-9) <= again.cost * (1 + 2e-9)
    rng = np.random.default_rng(1)
    chance = [provision(problem, rng.integers(0, 3, 6).tolist()) for _ in range(24)]
    assert again.cost < min(each.cost for each in chance if each)


@CELLS
def test_a_seed_decides(cell: str) -> None:
    one, other = (learner_of(cell, FEW).train(problem_of()) for _ in range(2))
    assert one == other
    assert one.model != learner_of(cell, FEW).train(problem_of(seed=1)).model


@CELLS
def test_a_draw_has_the_probability_by_which_it_is_learned(cell: str) -> None:
    """Frequencies of whole plans beside the product of what the network says, layer by layer, by NumPy."""
    from stretto_plugins.learning.features import Form
    from stretto_plugins.learning.policy import Policy

    problem = problem_of(3)
    form, rng = Form.of(problem), np.random.default_rng(5)
    policy, features = Policy.random(cell, form, rng), form.features(problem)
    for weight in policy.weights:
        weight.assign(weight * 3)  # far from indifferent
    drawn = policy.sample(features, rng.gumbel(size=(20_000, 3, 3)).astype(np.float32))
    plans, counts = np.unique(drawn, axis=0, return_counts=True)
    expected = np.array([math.prod(_probabilities(policy, features, plan)) for plan in plans])
    assert np.allclose(counts / len(drawn), expected, atol=4 * np.sqrt(expected.max() / len(drawn)))
    assert expected.sum() > 0.99


def _probabilities(policy: Any, features: np.ndarray, plan: np.ndarray) -> list[float]:
    kernel, recurrent, bias, head, head_bias = (weight.numpy().astype(np.float64) for weight in policy.weights)
    hidden = carried = np.zeros(len(recurrent))
    before, found = np.zeros(3), list[float]()

    def sigmoid(x: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-x))

    for row, chosen in zip(features, plan, strict=True):
        gates = np.concatenate([row, before]) @ kernel + hidden @ recurrent + bias
        if policy.cell == "lstm":
            enter, forget, new, leave = np.split(gates, 4)
            carried = sigmoid(forget) * carried + sigmoid(enter) * np.tanh(new)
            hidden = sigmoid(leave) * np.tanh(carried)
        else:
            hidden = np.tanh(gates)
        weights = np.exp(hidden @ head + head_bias)
        found.append(float(weights[chosen] / weights.sum()))
        before = np.eye(3)[chosen]
    return found


def test_limits_are_kept_or_nothing_is_said_to_be_found() -> None:
    learner = learner_of("lstm", FEW)
    found = learner(problem_of(limit=30))
    assert found is not None
    assert sum(stage.units for stage in found.stages if stage.type == 0) <= 30
    fast = replace(problem_of(limit=0), throughput_limit=1e9)
    assert learner(fast) is None


def test_what_does_not_fit_is_refused() -> None:
    problem, learner = problem_of(), learner_of("lstm", 1)
    model = learner.train(problem).model
    assert learner.apply(model, problem_of(4)) is not None, "fewer layers of known kinds"
    wrong = {
        "at most 6": problem_of(7),
        "cpu, v100, a100": replace(problem, types=problem.types[::-1]),
        r"layers\[0\].kind is 'conv'": replace(
            problem, layers=(replace(problem.layers[0], kind="conv"), *problem.layers[1:])
        ),
    }
    for said, other in wrong.items():
        with pytest.raises(InvalidValue, match=said):
            learner.apply(model, other)
    with pytest.raises(InvalidValue, match="rl-lstm"):
        learner_of("rnn", 1).apply(model, problem)
    for content in (b"", b"PK\x03\x04", model[: len(model) // 2], b"\x93NUMPY"):
        with pytest.raises(InvalidValue, match=r"cannot be read.*train a new one"):
            learner.apply(content, problem)


def test_both_are_plug_ins_that_can_keep_what_they_learn() -> None:
    assert all(isinstance(PLACE.named(name), LearningAlgorithm) for name in ("rl-lstm", "rl-rnn"))
    assert not isinstance(exact, LearningAlgorithm)
