"""The judgement whether JetStream still stores, from the requests that it answered and those that failed."""

from __future__ import annotations

from stretto_bus.faults import BusFault

LEAVE_AFTER_S = 10.0
"""A connected server whose JetStream stores nothing for so long may have lost its cluster, so we try another one.
It is longer than an election (4 to 9 s), which another server could not shorten. One failed request proves nothing,
nor do several at one moment: requests of the second half of that time must fail too."""
UNAVAILABLE = frozenset((0, 10008))
"""Codes of faults that do not blame the request: no answer, no stream, no majority."""
INFORMATION = "$JS.API.STREAM.INFO."
"""Requests that a server answers from its own memory, without a majority."""


class Majority:
    """Facts about whether JetStream still stores: its cluster may have lost the majority while we stay connected."""

    def __init__(self) -> None:
        self._failing_s: tuple[float, float] | None = None
        """Times at which the first and the last failed request were sent, if JetStream has answered none since."""

    def done(self, subject: str) -> None:
        """Note a request that was carried out."""
        if not subject.startswith(INFORMATION):
            self._failing_s = None

    def failed(self, sent_s: float, fault: BaseException) -> None:
        """Note a failed request; a fault that blames the request says nothing about the majority."""
        if not (isinstance(fault, BusFault) and fault.code in UNAVAILABLE):
            return
        first_s, last_s = self._failing_s or (sent_s, sent_s)
        fresh = sent_s - last_s > LEAVE_AFTER_S  # something may have been stored for others in between
        self._failing_s = sent_s if fresh else min(first_s, sent_s), max(last_s, sent_s)

    def lost(self, now: float) -> bool:
        """Return whether requests have failed for so long that another server may do better."""
        first_s, last_s = self._failing_s or (now, now)
        return now - first_s > LEAVE_AFTER_S and last_s - first_s >= LEAVE_AFTER_S / 2

    def forget(self) -> None:
        """Begin anew, with another connection."""
        self._failing_s = None
