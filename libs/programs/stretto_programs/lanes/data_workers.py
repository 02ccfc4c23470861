"""The data workers of a program: a feed and its lanes, started when the first part of the program moves."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import ProgramRefused
from .feed import Feed
from .processes import LaneSettings, Processes


class DataWorkers:
    """The data workers of a program.

    count: number of data workers. paths: folders of the program's modules. environment: variables that data workers get
    beside the program's own. say: writes a line to people.
    """

    def __init__(
        self, count: int, paths: Sequence[str], environment: Mapping[str, str], say: Callable[[str], None]
    ) -> None:
        self.count = count
        self.say = say
        self.feed: Feed | None = None
        """The feed; None until something moves."""
        self.steps_alone = 0
        """Steps that the program ran as it would alone, in a trial or after it."""
        self.figures = ""
        """Seconds of a step alone and with data workers, for people; empty until a trial has told."""
        self._paths, self._environment = paths, environment
        self._processes: Processes | None = None
        self._starting = threading.Lock()
        self._pid = os.getpid()
        os.register_at_fork(after_in_child=self._forget)

    @property
    def is_ours(self) -> bool:
        """Return whether this is the process that the program was started as, and not a fork of it."""
        return os.getpid() == self._pid

    def check(self) -> None:
        """Raise ProgramRefused in a fork of the program."""
        if not self.is_ours:
            raise ProgramRefused("data workers prepare for the process that the program was started as")

    def started(self, framework: str, settings: Mapping[str, Any]) -> Feed:
        """Return the feed, and start its lanes at the first call. Raises ProgramRefused, as `check` does."""
        with self._starting:
            self.check()
            if self.feed is None:
                feed = Feed(self.count, self.say)
                settled = LaneSettings(framework, settings, self._paths, self._environment)
                self._processes = Processes(self.count, feed, settled, self.say)
                feed.use(self._processes)
                self.feed = feed
            return self.feed

    def close(self) -> None:
        """End the data workers, if this process started any."""
        if not self.is_ours:
            return
        if self.feed is not None:
            self.feed.close()
        if self._processes is not None:
            self._processes.close()

    def _forget(self) -> None:
        if self._processes is not None:
            self._processes.forget()
