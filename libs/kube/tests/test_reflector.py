"""The loop survives any sequence of faults, and its view ends equal to the server's."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from stretto_kube import PODS, Kind, KubeFault, Object, ObjectChange, Reflector
from watch_history import History, bookmark, histories

FAULTS = ("unreachable", "expired", "ends", "dies", "repeats", "bookmarks", "behind", "malformed")


class Unreliable:
    """List and watch of an API server whose history advances with every request; faults are drawn at random."""

    def __init__(self, history: History, faults: list[str]) -> None:
        self.history, self.faults = history, faults
        self.now = 0

    async def list(self, kind: Kind, labels: str) -> tuple[list[Object], int]:
        if self._fault() == "unreachable":
            raise KubeFault("list", 0, "ClientConnectorError", "refused")
        self._go_on()
        return [*self.history.states[self.now].values()], self.now

    async def watch(self, kind: Kind, labels: str, version: int) -> AsyncIterator[Object]:
        fault = self._fault()
        if fault == "unreachable":
            raise KubeFault("watch", 503, "ServiceUnavailable", "")
        if fault == "expired":
            yield {"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old"}}
        if fault == "malformed":
            yield {"type": "MODIFIED", "object": None}
        self._go_on()
        for event in self.history.events[version : self.now if fault else None]:
            yield event
            if fault == "repeats":
                yield event
            if fault == "dies":
                raise KubeFault("watch", 0, "ClientPayloadError", "")
        if fault == "bookmarks":
            yield bookmark(self.now)
        if not fault:
            await asyncio.Event().wait()

    def _fault(self) -> str:
        return self.faults.pop() if self.faults else ""

    def _go_on(self) -> None:
        self.now = min(self.now + 2, self.history.version) if self.faults else self.history.version


@given(histories(), st.lists(st.sampled_from(FAULTS), max_size=10))
@example(History(), ["malformed", ""])
def test_every_sequence_of_faults_is_outlived(history: History, faults: list[str]) -> None:
    told: dict[str, Any] = {}

    def changed(change: ObjectChange) -> None:
        name = change.object["metadata"]["name"]
        if change.gone:
            del told[name]
        else:
            told[name] = change.object

    async def follow() -> None:
        api: Any = Unreliable(history, faults)
        reflector = Reflector(api, PODS, "", changed, chance=lambda: 0.0)
        task = asyncio.create_task(reflector.run())
        async with asyncio.timeout(60):
            while faults or reflector.store.objects != history.states[-1]:
                await asyncio.sleep(0)
                assert not task.done(), task
        assert told == reflector.store.objects
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(follow())
