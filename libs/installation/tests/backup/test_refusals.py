"""A backup that is not whole, or a server that is in use, is refused before anything is written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from installation_backups import NAMES, empty_server, put_back, taken
from runtime_counting import add
from stretto_bus import Client
from stretto_installation.backup import Manifest, restoring
from stretto_installation.backup.manifest import MANIFEST_FILE, in_order
from stretto_installation.errors import BackupError
from stretto_installation.provision import streams
from stretto_installation.server import EmbeddedServer
from stretto_runtime.owner.state.snapshots import Cursor
from stretto_wire.contract.registry import AUDIT, DEAD_LETTERS, STATE, STATE_PREFIX, STREAM, TELEMETRY


@pytest.fixture
async def backup(client: Client, tmp_path: Path) -> Path:
    """A backup with something in the log and in the bucket."""
    for number in range(20):
        await client.publish(add("job-a", number))
        await client.bus.store(f"{STATE_PREFIX}kept.gateway.job-{number}", b"{}")
    folder = tmp_path / "backup"
    await taken(client, folder)
    return folder


def test_effects_are_saved_before_their_causes() -> None:
    assert in_order(NAMES) == [STATE, DEAD_LETTERS, STREAM, TELEMETRY, AUDIT]


def _changed(**fields: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda manifest: {**manifest, **fields}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_changed(format=2), "format = 2"),
        (_changed(streams=[]), f"the stream {STREAM} is missing"),
        (_changed(taken_at_s="yesterday"), "taken_at_s: Input should be a valid number"),
        (_changed(trust={"name": "../trust.conf", "size_bytes": 1, "sha256": ""}), "a file of this folder"),
    ],
)
async def test_a_manifest_that_cannot_be_read_is_refused(
    backup: Path, change: Callable[[dict[str, Any]], dict[str, Any]], why: str
) -> None:
    path = backup / MANIFEST_FILE
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(BackupError, match=why):
        restoring.check(backup, streams())


async def test_a_folder_without_a_manifest_is_no_backup(backup: Path) -> None:
    (backup / MANIFEST_FILE).unlink()
    with pytest.raises(BackupError, match="holds no backup, or one that did not end"):
        restoring.check(backup, streams())


async def test_any_damaged_byte_is_found(backup: Path, tmp_path: Path) -> None:
    restoring.check(backup, streams())
    files = [saved.file.name for saved in Manifest.read(backup).streams if saved.file.size_bytes]

    @settings(max_examples=60)
    @given(st.sampled_from(files), st.integers(0, 1 << 30), st.integers(1, 255), st.booleans())
    def try_one(name: str, place: int, flip: int, cut: bool) -> None:
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(backup, copy)
        data = bytearray((copy / name).read_bytes())
        place %= len(data)
        data[place] ^= flip
        (copy / name).write_bytes(data[:place] if cut else data)
        with pytest.raises(BackupError, match=name):
            restoring.check(copy, streams())

    try_one()


async def test_a_bucket_newer_than_the_log_is_refused(client: Client, tmp_path: Path) -> None:
    subject = f"{STATE_PREFIX}cursor.dispatcher.3.a"
    await client.publish(add("job-a", 1))
    await client.bus.store(subject, Cursor(2, 1, 1, 1).encode(subject))
    with pytest.raises(BackupError, match=r"cursor\.dispatcher\.3\.a is at 2, and the log of the backup ends at 1"):
        await taken(client, tmp_path / "backup")
    assert not (tmp_path / "backup" / MANIFEST_FILE).exists()


async def test_a_server_in_use_is_left_as_it_is(client: Client, backup: Path) -> None:
    await client.publish(add("job-a", 20))
    with pytest.raises(BackupError, match=rf"{STREAM} \(21 messages so far\).*--replace"):
        await put_back(client, backup)
    assert await client.last_seq() == 21
    await put_back(client, backup, replace=True)
    assert await client.last_seq() == 20


async def test_a_server_whose_services_run_is_refused(client: Client, backup: Path) -> None:
    await client.bus.store(f"{STATE_PREFIX}member.dispatcher.dispatcher-1", b"1", {"Nats-TTL": "60s"})
    with pytest.raises(BackupError, match="1 replicas of services run, dispatcher-1 among them"):
        await put_back(client, backup, replace=True)
    assert await client.last_seq() == 20


async def test_an_older_server_is_refused(backup: Path, tmp_path: Path) -> None:
    path = backup / MANIFEST_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), "server_version": [99, 0, 0]}))
    async with empty_server(tmp_path / "other") as (_, restored):
        with pytest.raises(BackupError, match=r"is older than 99\.0\.0"):
            await put_back(restored, backup)


async def test_a_private_key_is_never_saved(server: EmbeddedServer, client: Client, tmp_path: Path) -> None:
    assert server.keys is not None
    trust = server.keys.trust
    manifest = await taken(client, tmp_path / "backup", trust)
    assert manifest.trust is not None
    assert (tmp_path / "backup" / manifest.trust.name).read_text() == trust
    seed = next((server.folder / "keys" / "root").glob("*.seed")).read_text()
    with pytest.raises(BackupError, match="a private key"):
        await taken(client, tmp_path / "other", f"{trust}\n{seed}")
    assert not (tmp_path / "other").exists()


async def test_a_folder_with_content_is_not_written_to(client: Client, backup: Path) -> None:
    before = Manifest.read(backup)
    with pytest.raises(BackupError, match="is not empty"):
        await taken(client, backup)
    assert Manifest.read(backup) == before
