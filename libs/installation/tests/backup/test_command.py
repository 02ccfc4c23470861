"""``python -m stretto_installation backup`` and ``restore``: on servers of one's own, by the operator."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from flipped_bits import blocks, flip
from installation_backups import empty_server
from runtime_counting import add
from stretto_bus import Bus, Client
from stretto_bus.reading.ordered_consumer import read
from stretto_installation.access.keys import EXTERNAL
from stretto_installation.access.permissions import EXTERNAL_STREAM
from stretto_installation.server import EmbeddedServer
from stretto_wire.contract.registry import STREAM


def command(server: EmbeddedServer, user: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the command as ``user``."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STRETTO_")}
    argv = [sys.executable, "-m", "stretto_installation", *arguments]
    environment |= {**server.environment(user), **more}
    return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)


async def test_a_backup_is_restored_with_the_events_for_tools_outside(
    server: EmbeddedServer, client: Client, tmp_path: Path
) -> None:
    """Method: a server with other events and their mirror, into which the backup is restored with --replace."""
    await client.publish(add("job-a", 1))
    folder = str(tmp_path / "backup")
    trust = server.folder / "keys" / "server" / "trust.conf"
    taken = command(server, "operator", "backup", folder, "--trust", str(trust))
    assert taken.returncode == 0, taken.stderr
    assert "STRETTO: 1 message up to 1" in taken.stdout
    async with empty_server(tmp_path / "other") as (other, restored):
        assert other.keys is not None
        keeper = {"STRETTO_STREAMS_EXTERNAL_CREDENTIALS": str(other.keys.keeper_folder)}
        assert command(other, "operator", "provision", **keeper).returncode == 0
        for value in range(3):
            await restored.publish(add("job-b", value))
        refused = command(other, "operator", "restore", folder, **keeper)
        assert refused.returncode == 1
        assert "the server is not empty: STRETTO (3 messages so far)" in refused.stderr
        done = command(other, "operator", "restore", folder, "--replace", **keeper)
        assert done.returncode == 0, done.stderr
        outside = await Bus.connect(other.url, other.login(EXTERNAL), "test")
        try:
            [mirrored] = await read(outside, EXTERNAL_STREAM, ["evt.v1.>"], until=1)
        finally:
            await outside.close()
        assert (mirrored.seq, mirrored.subject) == (1, "evt.v1.gateway.job-cancelled.job-a")


async def test_nobody_but_the_operator_may_take_or_restore_one(
    server: EmbeddedServer, client: Client, tmp_path: Path
) -> None:
    await client.publish(add("job-a", 1))
    taken = command(server, "arbiter", "backup", str(tmp_path / "backup"))
    assert taken.returncode == 1
    assert "may not publish to $js.api.stream.snapshot" in taken.stderr
    assert not (tmp_path / "backup" / "manifest.json").exists()
    assert command(server, "operator", "backup", str(tmp_path / "sound")).returncode == 0
    restored = command(server, "arbiter", "restore", str(tmp_path / "sound"), "--replace")
    assert restored.returncode == 1
    assert await client.last_seq() == 1


async def test_a_backup_says_what_could_not_be_read_and_holds_all_the_rest(
    server: EmbeddedServer, client: Client, tmp_path: Path
) -> None:
    """Method: a bit of one of three events is flipped while the server is down; each backup is read back."""
    for job in ("a", "b", "c"):
        await client.publish(add(job, 1))
    sound, lacking = str(tmp_path / "sound"), str(tmp_path / "lacking")
    assert command(server, "operator", "backup", sound).returncode == 0
    server.stop()
    (file,) = blocks(server.folder, STREAM)
    flip(file, b".job-cancelled.b")
    await server.start()
    place = "1 message of the stream STRETTO cannot be read; sequence 2; subject "
    taken = command(server, "operator", "backup", lacking)
    assert taken.returncode == 1
    assert place in taken.stderr
    assert "(job b)" in taken.stderr
    assert command(server, "operator", "backup", sound, "--verify").returncode == 0
    verified = command(server, "operator", "backup", lacking, "--verify")
    assert (verified.returncode, place in verified.stderr) == (1, True)
    async with empty_server(tmp_path / "other") as (other, restored):
        assert command(other, "operator", "restore", lacking).returncode == 0
        assert [stored.seq for stored in await read(restored.bus, STREAM, ["*.evt.>"])] == [1, 3]
