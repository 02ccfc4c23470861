"""A server that speaks TLS only, whom clients believe only if their authority does."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import uvloop
from runtime_live import connect
from stretto_bus import BusFault, Client
from stretto_bus.bus import Bus
from stretto_bus.faults import IdentityFault
from stretto_bus.login import Login
from stretto_installation.__main__ import main
from stretto_installation.access.certificates import end_of, usable
from stretto_installation.access.keys import Keys
from stretto_installation.provision import provision
from stretto_installation.server import EmbeddedServer
from stretto_runtime.process.health_warnings import HealthWarnings
from stretto_runtime.process.telemetry import Metrics

NOW = time.time()

pytest.importorskip("cryptography", reason="certificates are made by the package cryptography, which is not installed")


@pytest.fixture
async def encrypted(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    keys = Keys(tmp_path / "nats/keys", NOW, hosts=("127.0.0.1", "localhost"))
    server = EmbeddedServer(tmp_path / "nats", certificate=keys.certificate)
    await server.start()
    yield server
    server.kill()


async def work(url: str, login: Login) -> None:
    """Streams, batches of outputs and tails over one connection."""
    client = await Client.connect(url, login)
    await provision(client.bus)
    for number in range(500):
        await client.bus.store("evt.v1.planner.plan-proposed.job", b"x" * 2000, {"Nats-Msg-Id": str(number)})
    assert len([event async for event in client.events(follow=False)]) == 500
    await client.bus.connection.force_reconnect()
    assert await client.bus.store_surely("evt.v1.planner.plan-proposed.job", b"", {"Nats-Msg-Id": "0"}, 10) == 1
    await client.close()


async def test_everything_works_encrypted(encrypted: EmbeddedServer) -> None:
    assert encrypted.url.startswith("tls://")
    await work(encrypted.url, encrypted.login())


async def test_also_on_the_loop_of_the_services(encrypted: EmbeddedServer) -> None:
    def run() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
            loop.run(work(encrypted.url, encrypted.login()))

    await asyncio.to_thread(run)


async def test_a_name_that_the_certificate_is_not_for_is_refused(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "nats/keys", NOW, hosts=("bus.example",))
    server = EmbeddedServer(tmp_path / "nats", certificate=keys.certificate)
    await server.start()
    with pytest.raises(BusFault, match="IP address mismatch"):
        await Client.connect(server.url, server.login())
    server.kill()


async def test_an_authority_that_did_not_sign_it_is_refused(encrypted: EmbeddedServer, tmp_path: Path) -> None:
    another = Keys(tmp_path / "another", NOW, hosts=("127.0.0.1",)).certificate.ca
    for ca in (another, None):  # of somebody else; the system's
        login = Login(credentials=encrypted.login().credentials, ca=ca)
        with pytest.raises(BusFault, match="CERTIFICATE_VERIFY_FAILED"):
            await Client.connect(encrypted.url, login)


async def test_who_asked_for_tls_says_nothing_in_the_clear(server: EmbeddedServer, tmp_path: Path) -> None:
    """A server, or who stands between, that claims to need none."""
    ca = Keys(tmp_path / "another", NOW, hosts=("127.0.0.1",)).certificate.ca
    credentials = server.login().credentials
    for url, login in (
        (server.url.replace("nats://", "tls://"), Login(credentials=credentials)),
        (server.url, Login(credentials=credentials, ca=ca)),
    ):
        with pytest.raises(BusFault, match="offers no TLS"):
            await Bus.connect(url, login)


async def test_who_did_not_ask_for_tls_gets_no_further(encrypted: EmbeddedServer) -> None:
    with socket.create_connection(("127.0.0.1", encrypted.port)) as plain:
        reader, writer = await asyncio.open_connection(sock=plain.dup())
        assert b'"tls_required":true' in await reader.readline()
        writer.write(b'CONNECT {"verbose":false}\r\nPING\r\n')
        assert b"PONG" not in await reader.read()
        writer.close()


@pytest.mark.parametrize("text", [None, "", "nonsense"])
def test_a_file_of_authorities_that_cannot_be_used_is_named(text: str | None, tmp_path: Path) -> None:
    file = tmp_path / "ca.crt"
    if text is not None:
        file.write_text(text)
    with pytest.raises(IdentityFault, match=f"STRETTO_NATS_CA={file}: .*; give a file of certificates"):
        Login(ca=file).options()


def test_the_servers_certificate_is_kept_until_it_is_for_others_or_ends_soon(tmp_path: Path) -> None:
    first = Keys(tmp_path, NOW, hosts=("a.example", "10.0.0.1"))
    texts = [first.certificate.file.read_text()]
    assert first.login("planner").ca is not None
    day = 24 * 3600
    for now, hosts in ((NOW + day, ("a.example",)), (NOW + day, ("b.example",)), (NOW + 340 * day, ("b.example",))):
        kept = Keys(tmp_path, now, hosts=hosts)
        texts.append(kept.certificate.file.read_text())
        assert (kept.folder / "root/ca.crt").read_text() == (kept.folder / "planner/ca.crt").read_text()
    assert texts[0] == texts[1]
    assert len(set(texts)) == 3


def test_a_certificate_of_a_former_authority_or_without_its_key_is_made_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = Keys(tmp_path, NOW, hosts=("a.example",)).certificate
    for lost in ("root/ca.crt", "server/server.key", "server/server.crt"):
        before = first.file.read_text()
        (tmp_path / lost).unlink()
        kept = Keys(tmp_path, NOW, hosts=("a.example",)).certificate
        assert kept.file.read_text() != before
        assert usable(kept.file.read_text(), kept.ca.read_text(), ("a.example",), NOW)
    first.file.write_text("nonsense")
    before = (tmp_path / "planner/bus.creds").read_text()
    with pytest.raises(SystemExit, match=r"server/server.crt: not a certificate \(PEM\); `keys` with --tls makes"):
        main(["keys", str(tmp_path), "--revoke", "planner"])
    assert (tmp_path / "planner/bus.creds").read_text() == before, "nothing is half done"
    first.file.unlink()
    main(["keys", str(tmp_path)])
    assert "certificate ends" not in capsys.readouterr().out
    main(["keys", str(tmp_path), "--tls", "a.example"])
    ends = datetime.fromtimestamp(end_of(first.file.read_text()), UTC)
    assert f"the server's certificate ends on {ends:%Y-%m-%d}" in capsys.readouterr().out


@pytest.mark.parametrize(("days", "told"), [(330, ""), (340, "the certificate that the bus showed when we connected")])
async def test_a_certificate_that_ends_soon_is_told_before(encrypted: EmbeddedServer, days: int, told: str) -> None:
    client = await Client.connect(encrypted.url, encrypted.login())
    warnings = HealthWarnings(client.bus, Metrics("planner"), clock=lambda: NOW + days * 24 * 3600)
    assert warnings.warning.startswith(told)
    assert bool(warnings.warning) == bool(told)
    await client.bus.connection.force_reconnect()
    assert bool(warnings.warning) == bool(told)
    await client.close()


async def test_without_tls_there_is_no_certificate_to_warn_of(client: Client) -> None:
    assert client.bus.connection.certificate_ends_s is None


async def test_the_operator_reaches_an_encrypted_server_by_the_environment_alone(encrypted: EmbeddedServer) -> None:
    client = await connect(encrypted)
    assert client.bus.connected
    await client.close()
    found = encrypted.environment("planner")
    assert found.keys() == {"STRETTO_NATS_URL", "STRETTO_NATS_CREDENTIALS", "STRETTO_NATS_CA"}
