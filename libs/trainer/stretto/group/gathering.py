"""Rounds of one part of the dense parameters: the contributions of a group's members, their mean, its new values.

A round ends once every member that is expected has contributed, or the patience with those that lack is over. Patience
with a member lasts for twice its usual time between two contributions, from the last one on, and at least for the time
that is given. So a member that waits for a shard or evaluates delays the others once; a lost member delays them until
its membership ends; a new member is waited for from its first contribution on.
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

LONGEST_S = 15.0
"""Longest time between two contributions that counts as usual: after more a member has come back."""
LOOK_S = 0.2
"""Pause between two looks at who is still expected."""


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
class _Member:
    """When a member contributed last, and the usual time between two contributions; 0: not known."""

    seen_s: float
    usual_s: float = 0.0

    def contributes(self, now: float) -> None:
        took_s = min(now - self.seen_s, LONGEST_S)
        self.seen_s, self.usual_s = now, (self.usual_s + took_s) / 2 if self.usual_s else took_s


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
        self._members: dict[int, _Member] = {}

    def expect(self, members: Iterable[int]) -> None:
        """Expect these members from now on, and no others."""
        with self._lock:
            now, known = self._clock(), self._members
            self._members = {member: known.get(member) or _Member(now) for member in members}

    def contribute(self, member: int, given: Contribution) -> Outcome:
        """Add a member's gradient to the round, and wait for its end.

        Raises:
            ContributionRefused: the round cannot take it, or the servers did not take the round.
        """
        with self._lock:
            now = self._clock()
            self._members.setdefault(member, _Member(now)).contributes(now)
            entered = self._enter(member, given)
        while not entered.ended.is_set():
            with self._lock:
                is_mine = not entered.closed and not self._is_lacking(entered)
                if is_mine:
                    entered.closed, self._round = True, _Round()
            if is_mine:
                try:
                    entered.outcome = self._push(_mean(entered.contributions))
                finally:
                    entered.ended.set()
            else:
                entered.ended.wait(LOOK_S)
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

    def _is_lacking(self, entered: _Round) -> bool:
        """Return True while an expected member has not contributed."""
        now = self._clock()
        return any(
            now - each.seen_s < max(self._patience_s, 2 * each.usual_s)
            for member, each in self._members.items()
            if member not in entered.contributions
        )


def _mean(contributions: Mapping[int, Contribution]) -> Mean:
    """Add up in the order of members, so that the sum does not depend on who came first."""
    each = [given for _, given in sorted(contributions.items())]
    total, delta = each[0].slices.copy(), each[0].state_delta.copy()
    for other in each[1:]:
        total += other.slices
        delta += other.state_delta
    count = np.float32(len(each))
    return Mean([one.claim for one in each], each[0].books, each[0].ids, total / count, delta / count)
