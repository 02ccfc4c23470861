"""The check of a service's store when the service starts: can it be written and read? ``/readyz`` says why not."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

import structlog
from stretto_bus.tasks import end
from stretto_wire.stores.filesystems import StoreLibraryMissing, check_library, check_store

from stretto_runtime.process.faults import SettingsFault

AGAIN_S = 15.0
PATIENCE_S = 60.0

log = structlog.get_logger("stretto.store")


class StoreCheck:
    """Checks a store again and again until it can be used."""

    def __init__(self, url: str, check: Callable[[str], str] = check_store) -> None:
        """Check nothing yet. Raises SettingsFault if the store's library is not installed."""
        self._url = url
        self._check = check
        self._task: asyncio.Task[None] | None = None
        self._lacks: str | None = None
        try:
            check_library(url)
        except (StoreLibraryMissing, ValueError) as error:
            raise SettingsFault(f"STRETTO_STORE_URL={url} cannot be used: {error}") from error

    @property
    def lacks(self) -> str:
        """The reason why the service is not ready, empty once the store was written and read."""
        return "the store is being checked" if self._lacks is None else self._lacks

    def start(self) -> None:
        """Check in the background."""
        self._task = asyncio.create_task(self._run(), name="check store")

    async def stop(self) -> None:
        if self._task is not None:
            await end(self._task)

    async def _run(self) -> None:
        while (reason := await self._once()) != "":
            if reason != self._lacks:
                log.warning(reason)
            self._lacks = reason
            await asyncio.sleep(AGAIN_S)
        if self._lacks:
            log.info("the store can be used now", store=self._url)
        self._lacks = ""

    async def _once(self) -> str:
        """Check once, in a thread that keeps nothing from ending: a client may wait for minutes."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[str] = loop.create_future()

        def tell(text: str) -> None:
            if not answer.done():
                answer.set_result(text)

        def check() -> None:
            try:
                text = self._check(self._url)
            except Exception as error:
                text = f"the store {self._url} cannot be used: {error}"
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(tell, text)

        threading.Thread(target=check, name="check store", daemon=True).start()
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await answer
        except TimeoutError:
            return f"the store {self._url} has not answered for {PATIENCE_S:.0f} s; check its URL and the network"
