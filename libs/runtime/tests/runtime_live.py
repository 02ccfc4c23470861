"""A service that runs inside a test, and what a test waits for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from conftest import until_ready
from stretto_runtime import Client, EmbeddedServer, Runner, Service


@asynccontextmanager
async def running(service: type[Service], server: EmbeddedServer, folder: Path, **more: Any) -> AsyncIterator[Runner]:
    assert server.passwords is not None
    settings = service.settings_type(
        nats_url=server.url, nats_password=server.passwords[service.name], state_folder=folder, **more
    )
    runner = Runner(service(settings))
    task = asyncio.create_task(runner.run())
    try:
        await until_ready(runner)
        yield runner
    finally:
        runner.stop()
        await asyncio.wait_for(task, 20)


async def eventually(condition: Callable[[], Any], timeout_s: float = 30) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.02)


async def published(client: Client, service: str, count: int) -> list[Any]:
    """The first ``count`` events of ``service``."""
    found: list[Any] = []
    async with asyncio.timeout(30):
        async for event in client.events(patterns=[f"evt.v1.{service}.*.*"]):
            found.append(event)
            if len(found) == count:
                return found
    return found
