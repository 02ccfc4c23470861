"""What to do after an attempt: go on, try again after a pause, set the event aside, or stop posting there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime

GONE = 410


@dataclass(frozen=True, slots=True)
class Outcome:
    """``status`` 0: no answer came, and ``reason`` says why."""

    status: int
    reason: str
    retry_after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Delivered:
    """The receiver has it."""


@dataclass(frozen=True, slots=True)
class Again:
    """Try again after this pause."""

    wait_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Set it aside with the reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Stop:
    """The receiver wants nothing any more."""

    reason: str


Decision = Delivered | Again | GiveUp | Stop


@dataclass(slots=True)
class Course:
    """How it goes with one endpoint. ``failing_since_s``: of the first failure since it last took something."""

    retry_s: float
    retry_max_s: float
    give_up_s: float
    failing_since_s: float | None = None
    failures: int = 0

    def decide(self, outcome: Outcome, now: float, random: Callable[[], float]) -> Decision:
        """After an attempt. ``random`` is uniform in [0, 1).

        An endpoint that only fails for ``give_up_s`` loses the event that it is at; each later one is tried once,
        until it takes one. So an endpoint that is dead for ever is done with, however much comes.
        """
        if 200 <= outcome.status < 300:
            self.failing_since_s, self.failures = None, 0
            return Delivered()
        if outcome.status == GONE:
            return Stop(outcome.reason)
        if self.failing_since_s is None:
            self.failing_since_s = now
        self.failures += 1
        left_s = self.failing_since_s + self.give_up_s - now
        if left_s <= 0:
            return GiveUp(outcome.reason)
        pause_s = min(self.retry_max_s, self.retry_s * 2.0 ** min(self.failures - 1, 60))
        # between half of it and all: those who failed together do not come back together
        wait_s = max(pause_s * (1 + random()) / 2, outcome.retry_after_s)
        return Again(min(wait_s, left_s))


def retry_after_s(text: str, now: float) -> float:
    """Seconds that a ``Retry-After`` asks for (RFC 9110, section 10.2.3); 0: none, or not understood."""
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        when = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return 0.0
    return max(0.0, (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() - now)
