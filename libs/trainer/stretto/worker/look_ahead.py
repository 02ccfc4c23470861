"""Choices of a worker that the lengths of its steps decide, and the batches that it names ahead.

Servers with cold rows read named rows while the worker computes. On a slow disk that is time won. Where processors are
scarce it is time lost: the server looks a named row up once more, and the row may leave memory again before its batch
comes. A pull that goes with a push saves a message, which is time won on a fast network. On a slow one the two go their
opposite ways one after the other, and not at once. Lengths of steps tell which of both holds: one block of steps is
trained the other way, and compared with the blocks before and after.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator

from stretto_pipeline.feeding import SampleRange

from ..model.reading import Prepared

LOOK_AHEAD = 2
"""Batches whose rows servers with cold rows make hot before they are pulled: more would drive each other out again."""
_BLOCK, _SETTLING = 32, 4
"""Steps of a block, and steps before them that do not count, as they use what was asked for before the change."""
_SOON, _LATE = 3, 24
"""Blocks between two trials: after the first one, and at most. The number doubles while trials confirm the choice."""
_WEIGHT = 0.4
"""Weight of the last trial in the mean: a block is off by some ten percent on a busy machine."""


class TimedChoice:
    """The choice of one worker between two ways of a step: the one with which steps are shorter."""

    def __init__(self) -> None:
        self.is_on = True
        """True while steps are to go the first of the two ways."""
        self._is_better = True
        """True if the first way is faster, by the trials so far."""
        self._gain: float | None = None
        """The mean over trials of ln(seconds the second way / seconds the first way)."""
        self._blocks: list[float] = []
        """The logarithms of the seconds of the last three blocks."""
        self._steps, self._seconds = 0, 0.0
        self._pause, self._left = _SOON, 1

    def passed(self, seconds: float) -> None:
        """Count the seconds of a step."""
        self._steps += 1
        if self._steps > _SETTLING:
            self._seconds += seconds
        if self._steps == _SETTLING + _BLOCK:
            self._blocks = [*self._blocks[-2:], math.log(max(self._seconds, 1e-9))]
            self._steps, self._seconds = 0, 0.0
            self._next_block()

    def _next_block(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.is_on = not self._is_better
        elif self._left == -1:
            self.is_on = self._is_better
        elif self._left == -2:
            self._judge()
            self._left = self._pause

    def _judge(self) -> None:
        before, trial, after = self._blocks
        slower = trial - (before + after) / 2
        gain = slower if self._is_better else -slower
        self._gain = gain if self._gain is None else self._gain + _WEIGHT * (gain - self._gain)
        is_confirmed = (self._gain > 0) == self._is_better
        self._pause = min(2 * self._pause, _LATE) if is_confirmed else _SOON
        self.is_on = self._is_better = self._gain > 0


class LookAhead:
    """The choice of one worker whether to name rows ahead, and the batches that the worker has named."""

    def __init__(self) -> None:
        self.choice = TimedChoice()
        self._named: deque[SampleRange] = deque(maxlen=2 * LOOK_AHEAD)

    @property
    def batches(self) -> int:
        """Number of batches to have ready beside the one that is computed."""
        return LOOK_AHEAD if self.choice.is_on else 1

    def unnamed(self, coming: Iterable[tuple[SampleRange, Prepared]]) -> Iterator[Prepared]:
        """Yield the batches that the worker has not named yet."""
        for wanted, batch in coming:
            if wanted not in self._named:
                self._named.append(wanted)
                yield batch
