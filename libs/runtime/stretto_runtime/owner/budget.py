"""A budget of journalled bytes for each job: no job fills the journal of all with its requests. Pure.

While the stream is fuller than half, every budget shrinks, and so do its refills. What stays is the same for each job,
so the jobs that ask most are the first that have to wait.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stretto_runtime.inputs import LARGEST_BYTES

BROKEN_BYTES = 1 << 20
"""Price of a request that a machine breaks on: its state is built again then, which may take as long as a thousand
others. With the default settings a job may break it 64 times at once, and twice a minute in the long run (taste)."""
_ESCAPED = (b'"', b"\\", b"\n", b"\r", b"\t")
"""Bytes of a sound JSON document of which a string in JSON makes two."""
FORGET_FROM = 10_000
"""Jobs from which on those that have spent nothing lately are forgotten."""
SHRINKS_FROM, HALVES_EVERY = 0.5, 1 / 32
"""Fullness of the stream from which on budgets shrink, and the step that halves them: taste."""


def share_at(fullness: float | None) -> float:
    """Return the share of every budget that is left at this fullness of the stream, None if that is unknown."""
    beyond = (fullness or 0.0) - SHRINKS_FROM
    return 0.5 ** (beyond / HALVES_EVERY) if beyond > 0 else 1.0


def journalled_bytes(body: bytes) -> int:
    """Return the size of a request's ``body`` within a journal frame, where it is a string."""
    return len(body) + sum(map(body.count, _ESCAPED))


@dataclass(slots=True)
class Budget:
    """Token buckets: each job may journal ``burst_bytes`` at once, and ``bytes_per_s`` in the long run."""

    burst_bytes: float
    bytes_per_s: float
    _spent: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    """Job -> (bytes that are not paid back yet, time of that)"""

    def take(self, job: str, size_bytes: int, now_s: float, share: float = 1.0) -> bool:
        """Spend ``size_bytes``, or return False if the job has less left.

        ``now_s`` is a monotonic clock; ``share`` of burst and rate are given.
        """
        owed_after_bytes = self._owed(job, now_s, share) + size_bytes
        if owed_after_bytes > min(self.burst_bytes, max(LARGEST_BYTES, share * self.burst_bytes)):
            return False
        if len(self._spent) >= FORGET_FROM:
            self._spent = {name: entry for name, entry in self._spent.items() if self._owed(name, now_s, share) > 0}
        self._spent[job] = (owed_after_bytes, now_s)
        return True

    def charge(self, job: str, size_bytes: int, now_s: float, share: float = 1.0) -> None:
        """Spend ``size_bytes``, whatever the job has left."""
        self._spent[job] = self._owed(job, now_s, share) + size_bytes, now_s

    def _owed(self, job: str, now_s: float, share: float) -> float:
        owed_bytes, at_s = self._spent.get(job, (0.0, now_s))
        return max(0.0, owed_bytes - share * self.bytes_per_s * (now_s - at_s))
