"""What provisioning needs of the machine."""

from __future__ import annotations

import shutil
from pathlib import Path

from stretto_runtime import Client, EmbeddedServer, provision


async def test_a_server_takes_streams_whose_bounds_are_most_of_what_the_disk_has_left(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path)
    await server.start()
    assert server.passwords is not None
    client = await Client.connect(server.url, "operator", server.passwords["operator"])
    try:
        await provision(client.bus, max_bytes=shutil.disk_usage(tmp_path).free * 9 // 10)
    finally:
        await client.close()
        server.stop()
