"""Token buckets, one per key, in bounded memory (the virtual scheduling form of the generic cell rate algorithm)."""

from __future__ import annotations

from collections import OrderedDict

MOST = 10_000
"""Number of remembered keys. Beyond it, the least recently used key is forgotten and has a full bucket again."""


class Buckets:
    """Gives each key ``per_s`` tokens a second, and at most ``burst`` at once. ``per_s`` 0: no bound."""

    def __init__(self, per_s: float, burst: int, most: int = MOST) -> None:
        self._interval_s = 1 / per_s if per_s else 0.0
        self._tolerance_s = (burst - 1) * self._interval_s
        self._most = most
        self._full_at_s: OrderedDict[str, float] = OrderedDict()
        """Map from key to the time when its bucket will be full again."""

    def wait_s(self, key: str, now: float, amount: int = 1) -> float:
        """Return the seconds until ``key`` may take ``amount`` tokens, which is at most ``burst``; 0: now."""
        more_s = (amount - 1) * self._interval_s
        return max(0.0, self._full_at_s.get(key, now) + more_s - self._tolerance_s - now)

    def take(self, key: str, now: float) -> float:
        """Take a token of ``key``; returns 0, or the seconds until the key has one."""
        wait_s = self.wait_s(key, now)
        if wait_s == 0.0:
            self.charge(key, now)
        return wait_s

    def charge(self, key: str, now: float, amount: int = 1) -> None:
        """Take ``amount`` tokens of ``key``, also if the key has fewer."""
        self._full_at_s[key] = max(now, self._full_at_s.get(key, now)) + amount * self._interval_s
        self._full_at_s.move_to_end(key)
        if len(self._full_at_s) > self._most:
            self._full_at_s.popitem(last=False)

    def __len__(self) -> int:
        return len(self._full_at_s)
