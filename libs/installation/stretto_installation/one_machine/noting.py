"""How far the streams of a running installation have come is noted at intervals, and at its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

from stretto_bus.bus import Bus
from stretto_bus.faults import Fault
from stretto_bus.login import Login
from stretto_bus.tasks import end

from ..errors import InstallationError
from ..known_streams import Extent, KnownStreams, extents, put_on_disk
from ..provision import streams
from ..settings import StreamsSettings

ANSWER_S = 3.0
"""Time that the bus has to tell how far its streams have come."""


class Noting:
    """Notes the sequences that are surely synced. ``operator`` returns the URL of the bus and the operator's login."""

    def __init__(
        self, known: KnownStreams, settings: StreamsSettings, operator: Callable[[], tuple[str, Login]]
    ) -> None:
        self._known, self._settings, self._operator = known, settings, operator
        self._task: asyncio.Task[None] | None = None
        self._last: dict[str, Extent] = {}

    def start(self) -> None:
        """Note at intervals from here on: the streams have been made."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Look a last time, while the bus still answers."""
        if self._task is not None:
            await end(self._task)
            self._last = await self._look()

    def finish(self, store: Path) -> None:
        """Note what the last look saw, after the bus has ended and its files were synced."""
        if self._last:
            with contextlib.suppress(OSError, InstallationError):
                put_on_disk(store)
                self._known.note(self._last)

    async def _run(self) -> None:
        """Note what a look saw, one interval later."""
        before: dict[str, Extent] = {}
        while True:
            with contextlib.suppress(OSError, InstallationError):
                self._known.note(before)
            before = await self._look()
            await asyncio.sleep(self._settings.rest_s)

    async def _look(self) -> dict[str, Extent]:
        """Return the streams as the bus has them; none if it does not answer."""
        url, login = self._operator()
        with contextlib.suppress(Fault):
            bus = await Bus.connect(url, login, "up", within_s=ANSWER_S)
            try:
                return await extents(bus, [config["name"] for config in streams(self._settings)])
            finally:
                await bus.close()
        return {}
