"""Streams of an installation, by their present configuration, and a server to restore them into."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from runtime_live import connect
from stretto_bus import Client
from stretto_installation.backup import Manifest, Restored, restore, take
from stretto_installation.provision import streams
from stretto_installation.server import EmbeddedServer

NAMES = [config["name"] for config in streams()]


@asynccontextmanager
async def empty_server(folder: Path) -> AsyncIterator[tuple[EmbeddedServer, Client]]:
    """Run another server, with keys of its own and without streams."""
    server = EmbeddedServer(folder)
    await server.start()
    client = await connect(server)
    try:
        yield server, client
    finally:
        await client.close()
        server.kill()


async def taken(client: Client, folder: Path, trust: str = "") -> Manifest:
    """Take a backup of every stream."""
    return await take(client.bus, folder, NAMES, time.time(), trust)


async def put_back(client: Client, folder: Path, replace: bool = False) -> Restored:
    """Restore every stream."""
    return await restore(client.bus, folder, streams(), time.time(), replace)
