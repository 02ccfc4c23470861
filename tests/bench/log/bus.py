"""A separate bus for one measurement."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from stretto_bus import Client
from stretto_installation.provision import provision
from stretto_installation.server import EmbeddedServer
from stretto_installation.settings import StreamsSettings


@asynccontextmanager
async def fresh_bus(sync_interval: str = "") -> AsyncIterator[tuple[Client, EmbeddedServer, Path]]:
    """Give a client, an empty server with all streams, and a folder; all end with the block."""
    with tempfile.TemporaryDirectory(prefix="stretto-bench-") as name:
        folder = Path(name)
        server = EmbeddedServer(folder / "nats", secured=False, sync_interval=sync_interval)
        try:
            await server.start()
            client = await Client.connect(server.url)
            try:
                await provision(client.bus, StreamsSettings(sync_interval=sync_interval))
                yield client, server, folder
            finally:
                await client.close()
        finally:
            server.stop()
