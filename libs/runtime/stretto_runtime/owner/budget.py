"""A budget of journalled bytes for each job: no job fills the journal of all with its requests. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

FORGET_FROM = 10_000
"""Jobs from which on those that have spent nothing lately are forgotten."""


@dataclass(slots=True)
class Budget:
    """Token buckets: each job may journal ``burst_bytes`` at once, and ``bytes_per_s`` in the long run."""

    burst_bytes: float
    bytes_per_s: float
    _spent: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    """job -> (bytes that are not paid back yet, time of that)"""

    def take(self, job: str, size_bytes: int, now_s: float) -> bool:
        """Spend ``size_bytes``, or return False if the job has less left. ``now_s`` is a monotonic clock."""
        owed_after_bytes = self._owed(job, now_s) + size_bytes
        if owed_after_bytes > self.burst_bytes:
            return False
        if len(self._spent) >= FORGET_FROM:
            self._spent = {name: entry for name, entry in self._spent.items() if self._owed(name, now_s) > 0}
        self._spent[job] = (owed_after_bytes, now_s)
        return True

    def _owed(self, job: str, now_s: float) -> float:
        owed_bytes, at_s = self._spent.get(job, (0.0, now_s))
        return max(0.0, owed_bytes - self.bytes_per_s * (now_s - at_s))
