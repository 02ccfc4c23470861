"""Bayesian optimisation of the assignment, one of HeterPS' baselines (§6.2).

A Gaussian process over assignments, whose covariance falls with the share of layers on different types
(exp(-Hamming distance / length)); the next to try is the one of greatest expected improvement among random assignments
and neighbours of the best ones.
"""

from __future__ import annotations

import math
from typing import cast

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.special import ndtr

from stretto_core.planner.placement.problem import Floats, Placement, PlacementProblem
from stretto_core.planner.placement.trials import Trials

FIRST, ROUNDS = 20, 100
"""Assignments drawn at random first, and then chosen one by one by expected improvement."""

POOL, BEST = 200, 5
"""Candidates of a round from each source, and the number of best assignments that are varied."""

LENGTHS = (0.1, 0.3, 1.0, 3.0)
"""Length scales of the kernel; the one of highest likelihood is used."""

REFITS = 10
"""Rounds between two choices of the length scale."""

NOISE = 1e-6
"""Variance added to the standardised losses, so that a Cholesky factor exists."""

Assignments = NDArray[np.int64]


def bayesian(problem: PlacementProblem, rounds: int = ROUNDS) -> Placement | None:
    """Return the best of at most ``FIRST + rounds`` assignments; deterministic for the problem's seed."""
    rng = np.random.default_rng(problem.seed)
    trials = Trials(problem)
    shape = (len(problem.layers), len(problem.types))
    tried = np.unique(rng.integers(0, shape[1], (FIRST, shape[0])), axis=0)
    length = LENGTHS[0]
    for turn in range(rounds):
        losses = trials.losses(tried.tolist())  # recomputed: infeasible ones rank after all feasible ones
        scaled = (losses - losses.mean()) / max(float(losses.std()), 1e-9)
        if turn % REFITS == 0:
            length = max(LENGTHS, key=lambda each: _Process(tried, scaled, each).likelihood)
        pool = _unseen(_candidates(tried[np.argsort(losses, kind="stable")[:BEST]], shape[1], rng), tried)
        if not len(pool):
            break
        gain = _Process(tried, scaled, length).improvement(pool)
        tried = np.concatenate([tried, pool[[int(gain.argmax())]]])
    trials.losses(tried.tolist())
    return trials.best


class _Process:
    """A Gaussian process of mean 0 and variance 1, conditioned on losses."""

    def __init__(self, seen: Assignments, losses: Floats, length: float) -> None:
        self.seen, self.losses, self.length = seen, losses, length
        self.root = cast("Floats", cholesky(self._covariance(seen) + NOISE * np.eye(len(seen)), lower=True))
        self.weights = cast("Floats", cho_solve((self.root, True), losses))

    def _covariance(self, others: Assignments) -> Floats:
        """Return the covariances by [other, observed]."""
        apart = (others[:, None, :] != self.seen[None, :, :]).mean(axis=2)
        return np.exp(-apart / self.length)

    @property
    def likelihood(self) -> float:
        """Return the log likelihood of the losses, up to a constant."""
        return -0.5 * float(self.losses @ self.weights) - float(np.log(np.diag(self.root)).sum())

    def improvement(self, pool: Assignments) -> Floats:
        """Return the expected improvement of each over the least loss: E[max(least - loss, 0)]."""
        covariance = self._covariance(pool)
        inner = cast("Floats", solve_triangular(self.root, covariance.T, lower=True))
        deviation = np.sqrt(np.maximum(1 + NOISE - (inner**2).sum(axis=0), 1e-12))
        ahead = self.losses.min() - covariance @ self.weights
        z = ahead / deviation
        return ahead * ndtr(z) + deviation * np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)


def _candidates(best: Assignments, kinds: int, rng: np.random.Generator) -> Assignments:
    """Return random assignments, and the best ones with a run of layers moved to another type."""
    layers = best.shape[1]
    near = best[rng.integers(0, len(best), POOL)]
    ends = np.sort(rng.integers(0, layers, (POOL, 2)), axis=1)
    at = np.arange(layers)
    moved = (at >= ends[:, :1]) & (at <= ends[:, 1:])
    near = np.where(moved, rng.integers(0, kinds, (POOL, 1)), near)
    return np.concatenate([near, rng.integers(0, kinds, (POOL, layers))])


def _unseen(pool: Assignments, tried: Assignments) -> Assignments:
    known = set(map(tuple, tried.tolist()))
    return np.array([each for each in dict.fromkeys(map(tuple, pool.tolist())) if each not in known], dtype=np.int64)
