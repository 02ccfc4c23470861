"""REINFORCE with a moving average as its baseline (HeterPS §5.2, Algorithm 1): rl-lstm, and rl-rnn beside it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from stretto_core.placement import Learned, Placement, PlacementProblem
from stretto_core.placement.problem import Progress, unheard
from stretto_core.placement.trials import Trials
from stretto_core.types import InvalidValue

from stretto_learning.features import Floats32, Form
from stretto_learning.policy import Cell, Policy

LEAST_SPREAD = 1e-6
"""of losses, below which a round has nothing to teach"""


@dataclass(frozen=True, slots=True)
class Reinforce:
    """A :class:`~stretto_core.placement.LearningAlgorithm`: at most ``rounds`` (I) of ``plans`` (N) each; the baseline
    follows at ``rate`` (gamma)."""

    cell: Cell
    rounds: int = 120
    plans: int = 24
    rate: float = 0.2

    def __call__(self, problem: PlacementProblem) -> Placement | None:
        """What :meth:`train` finds."""
        return self.train(problem).placement

    def train(self, problem: PlacementProblem, progress: Progress = unheard) -> Learned:
        """Algorithm 1 on the logarithm of the cost, and the best of all plans that it drew, the likeliest included.

        The baseline begins at the first round's mean instead of 0, and what is learnt is scaled by the round's spread:
        costs of any size learn alike. It ends early when the policy draws one plan only.
        """
        rng = np.random.default_rng(problem.seed)
        form = Form.of(problem)
        policy, features, trials = Policy.random(self.cell, form, rng), form.features(problem), Trials(problem)
        baseline: float | None = None
        for turn in range(self.rounds):
            progress(turn, self.rounds)
            actions = policy.sample(features, _noise(rng, self.plans, features, form))
            losses = trials.losses(actions)
            baseline = float(losses.mean()) if baseline is None else baseline
            spread = float(losses.std())
            if len(set(map(tuple, actions))) == 1:
                break
            if spread > LEAST_SPREAD:
                policy.learn(features, actions, (baseline - losses) / spread)
            baseline = (1 - self.rate) * baseline + self.rate * float(losses.mean())
        trials.cost(policy.likeliest(features))
        progress(self.rounds, self.rounds)
        return Learned(trials.best, policy.saved())

    def apply(self, model: bytes, problem: PlacementProblem) -> Placement | None:
        """The likeliest plan; where that cannot be had, the best of as many as a round draws."""
        policy = Policy.loaded(model)
        if policy.cell != self.cell:
            raise InvalidValue(f"model is of an {policy.cell} cell; it was trained by rl-{policy.cell}")
        policy.form.check(problem)
        features, trials = policy.form.features(problem), Trials(problem)
        trials.cost(policy.likeliest(features))
        if trials.best is None:
            noise = _noise(np.random.default_rng(problem.seed), self.plans, features, policy.form)
            trials.losses(policy.sample(features, noise))
        return trials.best


def _noise(rng: np.random.Generator, plans: int, features: Floats32, form: Form) -> Floats32:
    return rng.gumbel(size=(plans, len(features), len(form.types))).astype(np.float32)


RL_LSTM = Reinforce("lstm")
RL_RNN = Reinforce("rnn")
