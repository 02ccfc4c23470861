"""REINFORCE with a moving average as its baseline (HeterPS §5.2, Algorithm 1): rl-lstm, and rl-rnn beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from stretto_core.planner.placement import Learned, Placement, PlacementProblem
from stretto_core.planner.placement.problem import Progress, unheard
from stretto_core.planner.placement.trials import Trials
from stretto_messages.base import InvalidValue

from stretto_plugins.learning.features import Floats32, Form
from stretto_plugins.learning.policy import Cell, Policy

LEAST_SPREAD = 1e-6
"""Spread of rewards below which a round is skipped."""
PATIENCE = 25
"""Rounds without a better plan before training may end early."""


@dataclass(frozen=True, slots=True)
class Reinforce:
    """Learns a placement from ``rounds`` (I) of ``plans`` (N) sampled placements each.

    The baseline follows at ``rate`` (gamma); ``curiosity`` fades over the rounds. Implements
    :class:`~stretto_core.planner.placement.LearningAlgorithm`.
    """

    cell: Cell
    rounds: int = 200
    plans: int = 32
    rate: float = 0.2
    curiosity: float = 0.05

    def __call__(self, problem: PlacementProblem) -> Placement | None:
        """Return the placement that :meth:`train` finds."""
        return self.train(problem).placement

    def train(self, problem: PlacementProblem, progress: Progress = unheard) -> Learned:
        """Run Algorithm 1; return the best of all sampled plans, the most probable one included.

        The reward is the least cost so far / cost instead of the cost, the baseline begins at the first round's mean
        instead of 0, and what is learnt is scaled by the round's spread: costs of any size learn alike, and how bad
        the bad ones are drowns nothing. It ends early when the best plan is the likeliest and none better was drawn for
        a while.
        """
        rng = np.random.default_rng(problem.seed)
        form = Form.of(problem)
        policy, features, trials = Policy.random(self.cell, form, rng), form.features(problem), Trials(problem)
        least, baseline, stale = math.inf, None, 0
        for turn in range(self.rounds):
            progress(turn, self.rounds)
            actions = policy.sample(features, _noise(rng, self.plans, features, form))
            losses = trials.losses(actions)
            stale = 0 if losses.min() < least else stale + 1
            least = min(least, float(losses.min()))
            if stale >= PATIENCE and trials.best and policy.likeliest(features) == trials.best.assignment:
                break
            rewards = np.exp(least - losses)
            mean, spread = float(rewards.mean()), float(rewards.std())
            baseline = mean if baseline is None else baseline
            if spread > LEAST_SPREAD:
                fading = self.curiosity * (1 - turn / self.rounds)
                policy.learn(features, actions, (rewards - baseline) / spread, fading)
            baseline = (1 - self.rate) * baseline + self.rate * mean
        trials.cost(policy.likeliest(features))
        progress(self.rounds, self.rounds)
        return Learned(trials.best, policy.saved())

    def apply(self, model: bytes, problem: PlacementProblem) -> Placement | None:
        """Return the most probable plan; if it is infeasible, the best of one round of samples."""
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
