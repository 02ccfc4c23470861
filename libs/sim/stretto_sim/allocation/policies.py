"""Core's allocators as policies: the nodes of each job, and the times of decisions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stretto_core.arbiter.ahead import AllocationProblem, Allocator
from stretto_core.arbiter.ahead.certified import certified
from stretto_core.arbiter.ahead.doubling import hand_out, marginal_doubling
from stretto_core.arbiter.ahead.greedy import greedy, greedy_once
from stretto_core.arbiter.ahead.milp import big_m, one_hot


@dataclass(frozen=True, slots=True)
class Policy:
    """Algorithms of the kind ``simulate allocation``.

    ``decide`` gives the nodes of each job of the problem, in its order. It is asked every five minutes if ``periodic``,
    and whenever a job has come or gone if ``on_change``. Between these moments idle nodes go to the queue.
    """

    decide: Callable[[AllocationProblem], list[int]]
    periodic: bool = True
    on_change: bool = False

    @staticmethod
    def of(allocator: Allocator, periodic: bool = True, on_change: bool = False) -> Policy:
        """Return the policy that applies the first step of the allocator's plan."""
        return Policy(lambda problem: _first(allocator, problem), periodic, on_change)

    @staticmethod
    def filled(allocator: Allocator) -> Policy:
        """Return the same policy with idle nodes handed out too: the objective ignores an end within a step."""
        return Policy(lambda problem: hand_out(problem, _first(allocator, problem)))


def _first(allocator: Allocator, problem: AllocationProblem) -> list[int]:
    return [int(nodes) for nodes in allocator(problem).plan[:, 0]]


CERTIFIED = Policy.filled(certified)
MILP = Policy.filled(one_hot)
MILP_BIG_M = Policy.filled(big_m)
GREEDY = Policy.of(greedy)
GREEDY_ONCE = Policy.of(greedy_once)
MARGINAL_DOUBLING = Policy.of(marginal_doubling, periodic=False, on_change=True)
