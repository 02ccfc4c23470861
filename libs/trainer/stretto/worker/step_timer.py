"""Measurements of a worker's steps, summed up in windows."""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepTime:
    """The parts of one step's time, in seconds (DLRover-RM Eq. 2-5).

    rows_s and the pull's part of sync_s count only the time that the step waited: a pull that was over before it was
    needed cost nothing. update_s and the push's part of sync_s are the duration of the push. The push runs beside the
    next computation, so the sum may exceed the step's length. read_s: the wait until the step's batch was prepared.
    """

    rows_s: float = 0.0
    gradient_s: float = 0.0
    update_s: float = 0.0
    sync_s: float = 0.0
    read_s: float = 0.0

    def __add__(self, other: StepTime) -> StepTime:
        return StepTime(
            self.rows_s + other.rows_s,
            self.gradient_s + other.gradient_s,
            self.update_s + other.update_s,
            self.sync_s + other.sync_s,
            self.read_s + other.read_s,
        )

    def over(self, steps: int) -> StepTime:
        """Return the mean over ``steps``."""
        n = max(1, steps)
        return StepTime(self.rows_s / n, self.gradient_s / n, self.update_s / n, self.sync_s / n, self.read_s / n)


@dataclass(frozen=True, slots=True)
class Window:
    """The steps that ended in a window. step_s: their mean length without the time spent waiting for shards."""

    steps: int
    steps_total: int
    samples_total: int
    step_s: float
    longest_gap_s: float
    times: StepTime


class StepTimer:
    """Collects the times of steps. Thread-safe; all times come from one monotonic clock.

    are_apart: steps do not follow one another: several run at a time, or others say when one is to be.
    """

    def __init__(self, *, are_apart: bool = False) -> None:
        self._are_apart = are_apart
        self._lock = threading.Lock()
        self._last_s: float | None = None
        self._steps_total = self._samples_total = 0
        self._clear()

    def _clear(self) -> None:
        self._steps = 0
        self._busy_s = 0.0
        self._gap_s = 0.0
        self._times = StepTime()

    def idle(self) -> None:
        """Note that the worker waits for a shard: the time until its next step belongs to no step."""
        with self._lock:
            self._last_s = None

    def step(self, begun_s: float, ended_s: float, samples: int, times: StepTime, steps: int = 1) -> None:
        """Count a step that ended. ``begun_s`` is its beginning if the worker waited before it.

        ``steps``: so many ended since, none of them told by itself.
        """
        with self._lock:
            since = self._last_s if self._last_s is not None else begun_s
            self._busy_s += ended_s - since
            if self._last_s is not None or steps > 1:
                self._gap_s = max(self._gap_s, ended_s - since)
            self._last_s = None if self._are_apart else ended_s
            self._steps += steps
            self._steps_total += steps
            self._samples_total += samples
            self._times += times

    def window(self) -> Window:
        """Return the measurements since the last call."""
        with self._lock:
            window = Window(
                self._steps,
                self._steps_total,
                self._samples_total,
                self._busy_s / max(1, self._steps),
                self._gap_s,
                self._times.over(self._steps),
            )
            self._clear()
            return window

    @property
    def steps_total(self) -> int:
        with self._lock:
            return self._steps_total
