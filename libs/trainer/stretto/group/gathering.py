"""Rounds of one part of the dense parameters: the contributions of a group's members, their mean, its new values.

A round ends once every member that is expected has contributed, or the patience with those that lack is over. Expected
is who contributed less than the patience ago; so a member that dies, waits for a shard or evaluates delays the others
once, and one that comes is waited for from its first contribution on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from stretto_parameters import Claim

from ..engine.layout import F32, I64, Bools
from ..errors import StrettoError


class ContributionRefused(StrettoError):
    """A contribution that cannot be in the round; the worker pushes its gradient for itself."""


class Contribution(NamedTuple):
    """A member's gradient of a part: the ids [n] of its slices, their gradients [n, slice_length], the change of the
    state [state_size], and the batch. ``books`` names the servers' lives and the lineage that the lease belongs to."""

    claim: Claim
    books: str
    ids: I64
    slices: F32
    state_delta: F32


class Outcome(NamedTuple):
    """The outcome of a round: the part's new values [n, slice_length], and which of its slices have the batches."""

    values: F32
    applied: Bools


class Mean(NamedTuple):
    """The mean gradient of a round's batches, and these."""

    claims: Sequence[Claim]
    books: str
    ids: I64
    slices: F32
    state_delta: F32


@dataclass
class _Round:
    contributions: dict[int, Contribution] = field(default_factory=dict[int, Contribution])
    ended: threading.Event = field(default_factory=threading.Event)
    closed: bool = False
    outcome: Outcome | None = None


class Gathering:
    """The rounds of the part that one member keeps. Thread-safe: each contribution comes in a thread of its own.

    ``push`` applies a mean at the servers, and returns what came of it; None: nothing was applied.
    """

    def __init__(self, push: Callable[[Mean], Outcome | None], clock: Callable[[], float], patience_s: float) -> None:
        self._push, self._clock, self._patience_s = push, clock, patience_s
        self._lock = threading.Lock()
        self._round = _Round()
        self._seen: dict[int, float] = {}

    def expect(self, members: Iterable[int]) -> None:
        """Expect these members from now on, and no others."""
        with self._lock:
            now, known = self._clock(), self._seen
            self._seen = {member: known.get(member, now) for member in members}

    def contribute(self, member: int, given: Contribution) -> Outcome:
        """Add a member's gradient to the round, and wait for its end.

        Raises:
            ContributionRefused: the round cannot take it, or the servers did not take the round.
        """
        with self._lock:
            self._seen[member] = self._clock()
            entered = self._enter(member, given)
        while not entered.ended.is_set():
            with self._lock:
                is_mine = not entered.closed and not self._lacking(entered)
                if is_mine:
                    entered.closed, self._round = True, _Round()
            if is_mine:
                try:
                    entered.outcome = self._push(_mean(entered.contributions))
                finally:
                    entered.ended.set()
            else:
                entered.ended.wait(self._wait_s(entered))
        if entered.outcome is None:
            raise ContributionRefused("the servers did not take the group's gradient")
        return entered.outcome

    def _enter(self, member: int, given: Contribution) -> _Round:
        entered = self._round
        others = entered.contributions.values()
        if member in entered.contributions:
            raise ContributionRefused(f"worker-{member} is in the round already")
        if any(other.books != given.books for other in others):
            raise ContributionRefused(f"worker-{member} has a lease of other servers than the round")
        if any(not np.array_equal(other.ids, given.ids) for other in others):
            raise ContributionRefused(f"worker-{member} knows another part than the round")
        if any(other.claim.shard == given.claim.shard for other in others):
            raise ContributionRefused(f"shard {given.claim.shard} is in the round already")
        entered.contributions[member] = given
        return entered

    def _lacking(self, entered: _Round) -> dict[int, float]:
        """Return the expected members that have not contributed, and how long each is still waited for."""
        now = self._clock()
        left = {
            member: seen_s + self._patience_s - now
            for member, seen_s in self._seen.items()
            if member not in entered.contributions
        }
        return {member: left_s for member, left_s in left.items() if left_s > 0}

    def _wait_s(self, entered: _Round) -> float:
        with self._lock:
            if entered.closed:
                return self._patience_s
            return max(self._lacking(entered).values(), default=0.0)


def _mean(contributions: Mapping[int, Contribution]) -> Mean:
    """Add up in the order of members, so that the sum does not depend on who came first."""
    each = [given for _, given in sorted(contributions.items())]
    total, delta = each[0].slices.copy(), each[0].state_delta.copy()
    for other in each[1:]:
        total += other.slices
        delta += other.state_delta
    count = np.float32(len(each))
    return Mean([one.claim for one in each], each[0].books, each[0].ids, total / count, delta / count)
