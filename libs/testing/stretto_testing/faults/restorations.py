"""A backup taken at any moment, the loss of everything but the store of checkpoints, and the restoration.

Nothing of the old installation runs on, neither services nor pods. The new server is empty, and gets the streams of the
backup. Jobs that the restored log has not are submitted again, under other names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from stretto_bus.bus import Bus
from stretto_bus.faults import BusFault
from stretto_installation.backup import restore, take
from stretto_installation.errors import BackupError
from stretto_wire.contract.registry import STREAM
from stretto_wire.surroundings import wall_s

from stretto_testing.checks import Check
from stretto_testing.installation import SimulatedInstallation
from stretto_testing.jetstream.streams import Kept, KeptStream
from stretto_testing.simulation import URL

TRIED_AGAIN_S, DOWN_MOST_S = 1.0, 20.0
"""Pause after which what another fault has ended is tried again; longest time without any installation."""
LIFETIME = b"Nats-TTL"
"""Header of what may have left the log since"""


class Restoration:
    """A backup and its restoration.

    ``moment`` is called when the log's part of the backup is taken, and ``back`` once the streams are what they were,
    before anybody uses them.
    """

    def __init__(
        self, installation: SimulatedInstallation, folder: Path, moment: Callable[[], None], back: Callable[[], None]
    ) -> None:
        self.is_over = False
        self.broken: list[str] = []
        self._at, self._folder, self._moment, self._back = installation, folder, moment, back
        self._server = installation.simulation.server
        self._log: list[Kept] = []
        """The log at the backup's moment"""
        self._backups = 0

    async def run(self, goes_on_s: float) -> None:
        """Take a backup, let everything go on for a while, lose it, and restore the backup."""
        self._server.api.snapshots.on_begun = self._begun
        await self._surely(self._take)
        await asyncio.sleep(goes_on_s)
        self._at.lose()
        down_s = self._at.simulation.chance.uniform(0, DOWN_MOST_S)
        self._at.trouble(down_s)
        await asyncio.sleep(down_s)
        self._server.start()
        await self._surely(self._restore)
        stream = self._server.api.streams[STREAM]
        if _lasting(stream) != _lasting(self._log):
            self.broken.append(f"{Check.RESTORED}: the log ends at {stream.last_seq}, and is not what it was")
        self._back()
        self._at.begin_again()
        self.is_over = True

    def _begun(self, stream: KeptStream) -> None:
        if stream.name == STREAM:
            self._log = list(stream)
            self._moment()

    async def _surely(self, work: Callable[[Bus], Awaitable[object]]) -> None:
        """Do it again until no other fault ends it."""
        while True:
            self._at.trouble(TRIED_AGAIN_S)
            bus = await Bus.connect(URL)
            try:
                await work(bus)
            except (BusFault, BackupError) as fault:
                if isinstance(fault, BackupError) and not isinstance(fault.__cause__, BusFault):
                    raise
                await asyncio.sleep(TRIED_AGAIN_S)
            else:
                return
            finally:
                await bus.close()

    async def _take(self, bus: Bus) -> None:
        self._backups += 1
        await take(bus, self._path, [config["name"] for config in self._at.streams], wall_s())

    async def _restore(self, bus: Bus) -> None:
        await restore(bus, self._path, self._at.streams, wall_s(), replace=True)

    @property
    def _path(self) -> Path:
        return self._folder / f"backup-{self._backups}"


def _lasting(messages: KeptStream | list[Kept]) -> list[Kept]:
    return [kept for kept in messages if LIFETIME not in kept.block]
