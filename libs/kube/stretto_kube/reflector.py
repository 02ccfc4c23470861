"""A cached view that follows the API server: list, watch, and after any fault wait a little and list again.

No watch survives the death of its API server, and a version can be too old to continue from (410). One remedy serves
all cases: list again. Changes that happened meanwhile are reported as if they had been watched.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import NoReturn

import structlog

from .api import Api, Kind
from .faults import KubeFault
from .store import ObjectChange, ObjectView

FIRST_S = 0.2
LONGEST_S = 10.0

log = structlog.get_logger("stretto.kube")


def delay_s(failures: int, chance: float) -> float:
    """Return the pause after ``failures`` faults in a row; ``chance`` in [0, 1) spreads the replicas' retries."""
    return min(FIRST_S * 2.0 ** min(failures, 16), LONGEST_S) * chance


class Reflector:
    """Keeps ``store`` equal to the server's objects of a kind with some labels; calls ``changed`` with every change."""

    def __init__(
        self,
        api: Api,
        kind: Kind,
        labels: str,
        changed: Callable[[ObjectChange], None],
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.store = ObjectView()
        self.synced = asyncio.Event()
        self._api = api
        self._kind = kind
        self._labels = labels
        self._changed = changed
        self._chance = chance
        self._failures = 0

    async def run(self) -> NoReturn:
        """Follow the server until cancelled."""
        while True:
            try:
                await self.list()
                while True:  # a watch that ends without a fault continues where it was
                    await self._watch()
            except KubeFault as fault:
                if self._failures == 0:
                    log.info("lost the watch; listing again", kind=self._kind.plural, fault=str(fault))
            except Exception as error:  # else the view would never change again, unnoticed
                log.exception("cannot follow; listing again", kind=self._kind.plural, error=str(error))
            self._failures += 1
            await asyncio.sleep(delay_s(self._failures, self._chance()))

    async def list(self) -> None:
        """List all objects once. Raises KubeFault."""
        objects, version = await self._api.list(self._kind, self._labels)
        self._report(self.store.listed(objects, version))
        self.synced.set()

    def written(self, one: dict[str, object]) -> None:
        """Take the answer to one's own write, which the watch may report only later."""
        change = self.store.seen(one)
        self._report([change] if change else [])

    async def _watch(self) -> None:
        async for event in self._api.watch(self._kind, self._labels, self.store.version):
            change = self.store.take(event)
            self._failures = 0
            self._report([change] if change else [])
        self._failures = 0

    def _report(self, changes: Sequence[ObjectChange]) -> None:
        for change in changes:
            self._changed(change)
