"""A trial of data workers: steps of a program alone and with them, timed one after the other in the same run.

alone -> waiting, until data workers serve; the program runs alone -> with -> kept, or home for good
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

STEPS: int = 50
"""Steps that are timed alone, and with data workers; 0: nothing is tried, and data workers are kept."""
LEAST, LIMIT_S = 5, 30.0
"""Steps that are enough once they have taken so long."""
SKIPPED = 10
"""Steps after each change that are not timed: functions are traced, and lanes' first answers compared."""
LONGEST = 2
"""Longest steps of each part that do not count, such as one with a validation behind it."""
SLOWER = 1.02

Phase = Literal["alone", "waiting", "with", "kept", "home"]


@dataclass
class Trial:
    """The trial of a split step. alone_s, with_s: mean seconds of a step; 0: not known."""

    phase: Phase = field(default_factory=lambda: "alone" if STEPS else "kept")
    alone_s: float = 0.0
    with_s: float = 0.0
    _last_s: float = 0.0
    _took_s: list[float] = field(default_factory=list[float])
    _untimed: int = 0

    @property
    def is_split(self) -> bool:
        """Return whether the next step is prepared by data workers."""
        return self.phase in ("with", "kept")

    def next_step(self, now_s: float, *, is_served: bool, is_trusted: bool) -> None:
        """Note that the program begins its next step.

        is_served: data workers can be asked. is_trusted: the first answer of one was compared.
        """
        if self._last_s:
            self._took_s.append(now_s - self._last_s)
        self._last_s = now_s
        if self.phase == "waiting" and is_served:
            self._begin("with")
        elif self.phase == "with" and not is_trusted and sum(self._took_s) < LIMIT_S:
            self._untimed = len(self._took_s)
        elif self.phase == "alone" and (mean_s := self._mean_s()):
            self.alone_s = mean_s
            self._begin("waiting")
        elif self.phase == "with" and (mean_s := self._mean_s()):
            self.with_s = mean_s
            self._begin("home" if mean_s > SLOWER * self.alone_s else "kept")

    def in_words(self) -> str:
        """Return both figures for people, "" while there is only one."""
        if not self.with_s:
            return ""
        return f"a step took {1e3 * self.alone_s:.2f} ms alone, {1e3 * self.with_s:.2f} ms with them"

    def _begin(self, phase: Phase) -> None:
        self.phase, self._untimed = phase, 0
        self._took_s.clear()

    def _mean_s(self) -> float:
        """Return the mean of the steps timed in this phase, 0 while they are too few."""
        took_s = self._took_s[self._untimed + SKIPPED :]
        if len(took_s) < STEPS and not (len(took_s) >= LEAST and sum(took_s) >= LIMIT_S):
            return 0.0
        counted_s = sorted(took_s)[:-LONGEST]
        return sum(counted_s) / len(counted_s)
