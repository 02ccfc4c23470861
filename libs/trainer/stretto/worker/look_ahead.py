"""The choice of a worker whether to name rows of batches to come to servers that have cold ones.

A server reads named rows while the worker computes. On a slow disk that is time won. Where processors are scarce it is
time lost: the server looks a named row up once more, and the row may leave memory again before its batch comes. The
lengths of steps tell which of both holds: one block of steps is trained the other way, and compared with the blocks
before and after.
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
"""Steps of a block, and steps before them that do not count, as they use what was named, or not, before the change."""
_SOON, _LATE = 3, 24
"""Blocks between two trials: at first, and at most. The number doubles while trials confirm the choice."""
_WEIGHT = 0.4
"""Weight of the last trial in the mean: a block is off by some ten percent on a busy machine."""


class LookAhead:
    """The choice of one worker, and the batches that the worker has named."""

    def __init__(self) -> None:
        self.is_on = True
        """True while the rows of the next batches are to be named."""
        self._is_better = True
        """True if steps are faster with named rows, by the trials so far."""
        self._gain: float | None = None
        """The mean over trials of ln(seconds without named rows / seconds with them)."""
        self._blocks: list[float] = []
        """The logarithms of the seconds of the last three blocks."""
        self._steps, self._seconds = 0, 0.0
        self._pause = self._left = _SOON
        self._named: deque[SampleRange] = deque(maxlen=2 * LOOK_AHEAD)

    @property
    def batches(self) -> int:
        """Number of batches to have ready beside the one that is computed."""
        return LOOK_AHEAD if self.is_on else 1

    def unnamed(self, coming: Iterable[tuple[SampleRange, Prepared]]) -> Iterator[Prepared]:
        """Yield the batches that the worker has not named yet."""
        for wanted, batch in coming:
            if wanted not in self._named:
                self._named.append(wanted)
                yield batch

    def passed(self, seconds: float) -> None:
        """Count a step: seconds from the wait for the batch to the end of the push."""
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
