"""The folders of expired checkpoints of one job are removed beside its steps: a store may take long for each."""

from __future__ import annotations

import asyncio
import contextlib

import structlog
from stretto_bus.tasks import end
from stretto_core.checkpoints.state import CheckpointState
from stretto_wire.surroundings import monotonic_s

from . import manifest
from .stores import Stores

log = structlog.get_logger("stretto.checkpoints")


class Removal:
    """Removes one folder after the other, each once.

    The folder of an attempt that was given up stays as long as its manifest may be needed (`CheckpointState.given_up`).
    A server may still write into the folder of an attempt that was given up. That one is removed again whenever a step
    begins, for `again_s` seconds.
    """

    def __init__(self, job: str, stores: Stores, again_s: float) -> None:
        self._job = job
        self._stores = stores
        self._again_s = again_s
        self._state = CheckpointState(job)
        self._gone: set[str] = set()
        self._whole: set[str] = set()
        """Manifests of attempts that were given up, and are whole"""
        self._attempt = ""
        self._given_up_at_s: dict[str, float] = {}
        self._task: asyncio.Task[None] | None = None

    def follow(self, state: CheckpointState, attempt: str, *, step_begins: bool) -> None:
        """Take the URLs of expired manifests, and that of the attempt under way ("" without one)."""
        now_s = monotonic_s()
        if self._attempt != attempt and self._attempt in state.expired:
            self._given_up_at_s[self._attempt] = now_s
        self._state, self._attempt = state, attempt
        self._gone.intersection_update(state.expired)
        if step_begins:
            self._gone.difference_update(self._given_up_at_s)
            young = {url: at_s for url, at_s in self._given_up_at_s.items() if now_s - at_s < self._again_s}
            self._given_up_at_s = young
        if self._left() and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._remove(), name=f"removal {self._job}")

    async def finish(self) -> None:
        """Wait until all folders are gone."""
        if self._task is not None:
            await self._task

    async def stop(self) -> None:
        """Leave the other folders: whoever has the job next removes them."""
        if self._task is not None:
            await end(self._task)

    def _left(self) -> list[str]:
        kept = self._whole.intersection(self._state.given_up)
        return [url for url in self._state.expired if url not in self._gone and url not in kept]

    async def _remove(self) -> None:
        while left := self._left():
            url = left[0]
            try:
                self._stores.check_own(self._job, url)
                if url in self._state.given_up and await asyncio.to_thread(_is_sound, url):
                    self._whole.add(url)
                    continue
                self._gone.add(url)
                await asyncio.to_thread(manifest.remove, url)
            except Exception as error:  # an old checkpoint that stays does no harm; the next owner tries again
                self._gone.add(url)
                log.warning("old checkpoint not removed", job=self._job, url=url, error=str(error))


def _is_sound(url: str) -> bool:
    with contextlib.suppress(manifest.ManifestDamaged):
        return bool(manifest.read(url).parts)
    return False
