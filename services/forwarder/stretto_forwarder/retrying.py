"""The decision after an attempt: go on, try again after a pause, set the event aside, or stop posting there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime

GONE = 410


@dataclass(frozen=True, slots=True)
class AttemptOutcome:
    """The result of an attempt. With ``status`` 0 there was no answer, and ``reason`` says why. body: its begin."""

    status: int
    reason: str
    retry_after_s: float = 0.0
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Delivered:
    """The receiver accepted the event."""


@dataclass(frozen=True, slots=True)
class Again:
    """Try again after a pause."""

    wait_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Set the event aside with the reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop: the receiver wants no more events."""

    reason: str


Decision = Delivered | Again | GiveUp | Stop


@dataclass(slots=True)
class EndpointFailures:
    """The failures of one endpoint. ``failing_since_s``: time of the first failure since the last success."""

    retry_s: float
    retry_max_s: float
    give_up_s: float
    failing_since_s: float | None = None
    failures: int = 0

    def decide(self, outcome: AttemptOutcome, now: float, random: Callable[[], float]) -> Decision:
        """Decide after an attempt. ``random`` is uniform in [0, 1).

        An endpoint that only failed for ``give_up_s`` loses the current event. Each later event is tried once, until
        one is accepted. So an endpoint that is dead for ever costs one attempt an event.
        """
        if 200 <= outcome.status < 300:
            self.failing_since_s = None
            self.failures = 0
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
        # between half of the pause and all of it, so that endpoints that failed together are not retried together
        wait_s = max(pause_s * (1 + random()) / 2, outcome.retry_after_s)
        return Again(min(wait_s, left_s))


def retry_after_s(text: str, now: float) -> float:
    """Return the seconds of a ``Retry-After`` (RFC 9110, section 10.2.3); 0 if there is none or it is malformed."""
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        when = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return 0.0
    return max(0.0, (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() - now)
