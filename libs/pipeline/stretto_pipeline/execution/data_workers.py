"""The data workers of one program: a feed and its lanes, started when the first part of the program moves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import ProgramRefused
from .feed import Feed
from .processes import Processes, Settings


class DataWorkers:
    """So many data workers, of one framework. paths: folders of the program's modules. say: writes a line to people."""

    def __init__(self, count: int, paths: Sequence[str], say: Callable[[str], None]) -> None:
        self.count = count
        self.say = say
        self.feed: Feed | None = None
        """None: nothing has moved yet"""
        self._paths = paths
        self._framework = ""
        self._processes: Processes | None = None

    def started(self, framework: str, settings: Mapping[str, Any], *, is_home_ahead: bool = True) -> Feed:
        """Return the feed; its lanes start now if they did not. Raises ProgramRefused: another framework has them.

        is_home_ahead: a thread beside the program's own may prepare at home.
        """
        if self.feed is None:
            self._framework = framework
            self.feed = Feed(self.count, self.say, is_home_ahead=is_home_ahead)
            self._processes = Processes(self.count, self.feed, Settings(framework, settings, self._paths), self.say)
            self.feed.use(self._processes)
        elif framework != self._framework:
            raise ProgramRefused("the data workers of this program prepare for another framework")
        return self.feed

    def close(self) -> None:
        """End the data workers."""
        if self.feed is not None:
            self.feed.close()
        if self._processes is not None:
            self._processes.close()
