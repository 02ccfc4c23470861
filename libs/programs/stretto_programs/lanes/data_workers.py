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
    """The data workers of a program, for a single framework.

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
        self._framework = ""
        self._processes: Processes | None = None
        self._starting = threading.Lock()
        self._pid = os.getpid()
        os.register_at_fork(after_in_child=self._forget)

    @property
    def is_ours(self) -> bool:
        """Return whether this is the process that the program was started as, and not a fork of it."""
        return os.getpid() == self._pid

    def check(self, framework: str) -> None:
        """Raise ProgramRefused if data workers cannot prepare for a framework."""
        if not self.is_ours:
            raise ProgramRefused("data workers prepare for the process that the program was started as")
        if self.feed is not None and framework != self._framework:
            raise ProgramRefused("the data workers of this program prepare for another framework")

    def started(self, framework: str, settings: Mapping[str, Any], *, is_home_ahead: bool = True) -> Feed:
        """Return the feed, and start its lanes at the first call.

        is_home_ahead: home may prepare in a thread beside the program's own. Raises ProgramRefused, as `check` does.
        """
        with self._starting:
            self.check(framework)
            if self.feed is None:
                feed = Feed(self.count, self.say, is_home_ahead=is_home_ahead)
                settled = LaneSettings(framework, settings, self._paths, self._environment)
                self._processes = Processes(self.count, feed, settled, self.say)
                feed.use(self._processes)
                self._framework, self.feed = framework, feed
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
