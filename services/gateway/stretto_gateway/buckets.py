"""Token buckets, one per key, in bounded memory (the virtual scheduling form of the generic cell rate algorithm)."""

from __future__ import annotations

from collections import OrderedDict

MOST = 10_000
"""keys remembered; beyond, the one that asked longest ago is forgotten, and has a full bucket if it comes again"""


class Buckets:
    """``per_s`` tokens a second for each key, of which ``burst`` can be saved. ``per_s`` 0: no bound."""

    def __init__(self, per_s: float, burst: int, most: int = MOST) -> None:
        self._interval_s = 1 / per_s if per_s else 0.0
        self._tolerance_s = (burst - 1) * self._interval_s
        self._most = most
        self._full_at_s: OrderedDict[str, float] = OrderedDict()
        """key -> when its bucket will be full again"""

    def wait_s(self, key: str, now: float) -> float:
        """Seconds until ``key`` may take a token; 0: it may now."""
        return max(0.0, self._full_at_s.get(key, now) - self._tolerance_s - now)

    def take(self, key: str, now: float) -> float:
        """Take a token of ``key`` if there is one; else the seconds until there is."""
        wait_s = self.wait_s(key, now)
        if wait_s == 0.0:
            self._full_at_s[key] = max(now, self._full_at_s.get(key, now)) + self._interval_s
            self._full_at_s.move_to_end(key)
            if len(self._full_at_s) > self._most:
                self._full_at_s.popitem(last=False)
        return wait_s

    def __len__(self) -> int:
        return len(self._full_at_s)
