"""How the API is served: over TLS, to pages of named origins, beside a port for those who look after processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import httpx
import pytest
from stretto_bus import Client
from stretto_client.documents import Documents
from stretto_client.places import place_of
from stretto_gateway.__main__ import FILES_RESERVED, allow_files, connections_within
from stretto_installation.access.certificates import authority, issue
from stretto_installation.provision import provision
from stretto_installation.server import EmbeddedServer, free_port
from warm_processes import WarmProcess

from tests.waits import wait_until

from .gateway_process import GATEWAYS, Running, installed
from .rest_documents import problem, spec


def test_over_tls_to_named_origins_with_health_beside_it(tmp_path: Path) -> None:
    by = authority(time.time())
    crt, key, ca = (tmp_path / name for name in ("tls.crt", "tls.key", "ca.crt"))
    made = issue(by, ["127.0.0.1"], time.time())
    for file, text in ((crt, made.certificate), (key, made.key), (ca, by.certificate)):
        file.write_text(text)
    settings = {"STRETTO_GATEWAY_TLS_CERTIFICATE": str(crt), "STRETTO_GATEWAY_TLS_KEY": str(key)}
    settings |= {"STRETTO_HEALTH_PORT": str(free_port()), "STRETTO_GATEWAY_CORS_ORIGINS": '["https://a.example"]'}
    with installed(tmp_path, settings) as running:
        assert running.url.startswith("https://127.0.0.1:")
        headers = {"Authorization": f"Bearer {running.token}", "Origin": "https://a.example"}
        trusting = ssl.create_default_context(cafile=str(ca))
        with httpx.Client(
            base_url=f"{running.url}/api/v1", headers=headers, verify=trusting, trust_env=False, timeout=60
        ) as http:
            answer = http.post("/jobs", json=spec())
            assert answer.status_code == 201
            assert answer.headers["access-control-allow-origin"] == "https://a.example"
            assert "max-age" in answer.headers["strict-transport-security"]
            preflight = {"Access-Control-Request-Method": "DELETE", "Access-Control-Request-Headers": "authorization"}
            assert http.options("/jobs/a", headers=preflight).status_code == 200
            other = http.get("/jobs", headers={"Origin": "https://b.example"})
            assert "access-control-allow-origin" not in other.headers
        with pytest.raises(httpx.TransportError):
            httpx.get(running.url.replace("https", "http") + "/healthz", trust_env=False, timeout=60)
        beside = f"http://127.0.0.1:{settings['STRETTO_HEALTH_PORT']}"
        assert httpx.get(f"{beside}/readyz", trust_env=False, timeout=60).status_code == 200
        assert "stretto_gateway_ready 1" in httpx.get(f"{beside}/metrics", trust_env=False, timeout=60).text
        assert httpx.get(f"{beside}/api/v1/jobs", trust_env=False, timeout=60).status_code == 404
        command = {"STRETTO_CLI_CA": str(ca), "STRETTO_CLI_URL": running.url, "STRETTO_CLI_TOKEN": running.token}
        environment = {k: v for k, v in os.environ.items() if not k.startswith("STRETTO_")}
        asked = [str(Path(sys.executable).with_name("stretto")), "jobs", "-o", "json"]
        done = subprocess.run(asked, env=environment | command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        assert '"submitted"' in done.stdout
        done = subprocess.run(
            asked, env=environment | command | {"STRETTO_CLI_CA": ""}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        assert "STRETTO_CLI_CA" in done.stderr
        here = environment | {"STRETTO_STATE_FOLDER": str(running.folder)}
        done = subprocess.run(asked, env=here, capture_output=True, text=True, check=False)
        assert '"submitted"' in done.stdout, done.stderr  # over the socket, which needs no certificate


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"TLS_CERTIFICATE": "/nowhere/tls.crt", "TLS_KEY": "/nowhere/tls.key"}, "cannot be used"),
        ({"TLS_KEY": "/nowhere/tls.key"}, "belong together"),
        ({"OIDC_ISSUER": "https://id.example"}, "OIDC_AUDIENCE"),
        ({"TOKENS_FILE": "/dev/null"}, "/dev/null"),
        ({"HOST": "192.0.2.1"}, "cannot listen at 192.0.2.1"),
        ({"LISTENER": "99"}, "STRETTO_GATEWAY_LISTENER=99 is no listening socket"),
        ({"LOCAL_LISTENER": "3"}, "STRETTO_GATEWAY_LOCAL_LISTENER=3 is no listening socket"),
        ({"HOST": "0.0.0.0", "TOKEN": ""}, "makes everybody an admin"),
    ],
)
def test_settings_that_cannot_be_are_a_sentence_also_before_the_bus_is_there(
    tmp_path: Path, settings: dict[str, str], words: str
) -> None:
    given = {f"STRETTO_GATEWAY_{name}": value for name, value in settings.items()}
    with alone(tmp_path, STRETTO_NATS_URL=f"nats://127.0.0.1:{free_port()}", **given) as (process, lines):
        said = lines.read()
        assert process.wait() == 1
    assert words in said
    assert "Traceback" not in said


@contextlib.contextmanager
def alone(folder: Path, **settings: str) -> Iterator[tuple[WarmProcess, IO[str]]]:
    """A gateway that nobody waits for, and what it prints."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("STRETTO_")}
    environment |= {"STRETTO_STATE_FOLDER": str(folder), **settings}
    reading, writing = os.pipe()
    process = GATEWAYS.start("-m", "stretto_gateway", environment=environment, stdout=writing, stderr=writing)
    os.close(writing)
    with os.fdopen(reading) as lines:
        try:
            yield process, lines
        finally:
            process.kill()
            process.wait()


async def test_a_gateway_that_waits_for_the_bus_lives_says_so_and_goes_on_with_it(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path / "nats")
    told = {**server.environment("gateway"), "STRETTO_GATEWAY_TOKEN": "t"}
    with alone(tmp_path, **told) as (process, lines):
        assert any("ConnectionRefused" in line for line in lines)
        found = json.loads((tmp_path / "run/gateway.json").read_text())
        url = f"http://127.0.0.1:{found['port']}"
        async with httpx.AsyncClient(
            base_url=url, headers={"Authorization": "Bearer t"}, trust_env=False, timeout=60
        ) as http:
            assert (await http.get("/healthz")).status_code == 200
            waiting = await http.get("/readyz")
            assert (waiting.status_code, "bus" in waiting.text) == (503, True)
            assert (await http.get("/api/v1/jobs", headers={"Authorization": ""})).status_code == 401
            for refused in (http.post("/api/v1/jobs", json=spec()), http.get("/api/v1/events")):
                answer = await refused
                assert answer.status_code == 503
                assert "bus" in problem(answer)["detail"]
            await server.start()
            client = await Client.connect(server.url, server.login())
            await provision(client.bus)
            async with asyncio.timeout(60):
                while (await http.get("/readyz")).status_code != 200:
                    await asyncio.sleep(0.05)
            assert (await http.post("/api/v1/jobs", json=spec())).status_code == 201
            await client.close()
        process.terminate()
        assert process.wait(60) == 0
    server.stop()


def test_a_signal_ends_a_gateway_that_still_waits_for_the_bus(tmp_path: Path) -> None:
    with alone(tmp_path, STRETTO_NATS_URL=f"nats://127.0.0.1:{free_port()}") as (process, lines):
        assert any("ConnectionRefused" in line for line in lines)
        process.terminate()
        assert process.wait(60) == 0


def test_who_the_bus_does_not_know_is_told_so_in_a_sentence(gateway: Running, tmp_path: Path) -> None:
    stranger = EmbeddedServer(tmp_path / "another").login("gateway").credentials
    told = {"STRETTO_NATS_URL": gateway.server.url, "STRETTO_NATS_CREDENTIALS": str(stranger)}
    with alone(tmp_path, **told) as (process, lines):
        said = lines.read()
        assert process.wait() == 1
    assert "gateway: cannot connect to" in said
    assert "Traceback" not in said


IDLE_MOST = 5_000


def connected(running: Running, count: int, said: bytes = b"") -> list[socket.socket]:
    host, port = running.url.removeprefix("http://").split(":")
    made = [socket.create_connection((host, int(port)), timeout=60) for _ in range(count)]
    for each in made:
        with contextlib.suppress(OSError):  # closed already: one too many
            each.sendall(said)
    return made


def ended(connection: socket.socket, within_s: float = 10.0) -> bool:
    connection.settimeout(within_s)
    try:
        while connection.recv(4096):
            pass
        return True
    except TimeoutError:
        return False
    except OSError:
        return True


def test_idle_and_slow_connections_of_one_address_keep_nobody_else_out(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2 * IDLE_MOST), hard))
    held: list[socket.socket] = []
    try:
        with installed(tmp_path) as running:
            for said in (b"", b"GET /healthz HTTP/1.1\r\nHost: a\r\n"):
                held += connected(running, IDLE_MOST // 2, said)
            assert running.http().get("/jobs").status_code == 200  # a newcomer, of the same address
            assert "of too many connections the oldest are closed" in (tmp_path / "gateway.log").read_text()
    finally:
        for each in held:
            each.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_strangers_end_no_connection_with_a_token_and_keep_no_command_out(tmp_path: Path) -> None:
    """Method: an event stream is open; then strangers come from as many addresses of this machine as they like, and to
    the socket of commands. Of too many, their own oldest is closed."""
    settings = {"STRETTO_GATEWAY_ADDRESS_CONNECTIONS": "3", "STRETTO_GATEWAY_CONNECTIONS": "8"}
    with installed(tmp_path, settings) as running, running.http() as http, http.stream("GET", "/events") as events:
        lines = events.iter_lines()
        assert next(lines) == "retry: 1000"
        host, port = running.url.removeprefix("http://").split(":")
        at = (host, int(port))
        held = [socket.create_connection(at, source_address=(f"127.0.0.{number}", 0)) for number in range(1, 41)]
        local = [socket.socket(socket.AF_UNIX) for _ in range(40)]
        for each in local:
            each.connect(str(tmp_path / "run" / "gateway.sock"))
        assert ended(held[0])
        assert ended(local[0])
        with running.http() as newcomer:
            assert newcomer.post("/jobs", json=spec()).status_code == 201
        with Documents(place_of(folder=tmp_path, environ={})) as command:
            assert command.jobs()
        assert any(line.startswith("event: job-submitted") for line in lines)
        for each in (*held, *local):
            each.close()


def test_connections_leave_files_for_everything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, chosen: limits.append(chosen))
    for soft, hard in ((256, 512), (1024, 1 << 20), (1024, -1), (-1, -1), (1 << 20, 1 << 20)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, found=(soft, hard): found)
        allow_files(1000)
        files = limits.pop()[0] if limits else soft
        assert files < 0 or 2 * connections_within(hard, 1000) + FILES_RESERVED <= files
    assert connections_within(512, 1000) == 106


def test_headers_that_trickle_are_not_waited_for(tmp_path: Path) -> None:
    with installed(tmp_path, {"STRETTO_GATEWAY_HEADERS_S": "0.3"}) as running:
        silent, half = connected(running, 1)[0], connected(running, 1, b"GET /healthz HTTP/1.1\r\n")[0]
        assert ended(silent)
        assert ended(half)
        (second,) = connected(running, 1, b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        assert second.recv(4096).startswith(b"HTTP/1.1 200")
        second.sendall(b"GET /heal")
        assert ended(second)
        with running.http() as http, http.stream("GET", "/events") as events:
            lines = events.iter_lines()
            assert next(lines) == "retry: 1000"
            time.sleep(0.6)  # longer than headers may take: the stream goes on
            assert http.post("/jobs", json=spec()).status_code == 201
            assert any(line.startswith("event: job-submitted") for line in lines)


def test_a_caller_has_a_bounded_number_of_event_streams(tmp_path: Path) -> None:
    with installed(tmp_path, {"STRETTO_GATEWAY_STREAMS": "2"}) as running, running.http() as http:
        with http.stream("GET", "/events") as one, http.stream("GET", "/events") as other:
            reading = [one.iter_lines(), other.iter_lines()]
            assert [next(lines) for lines in reading] == ["retry: 1000", "retry: 1000"]
            refused = http.get("/events")
            assert (refused.status_code, problem(refused)["field"]) == (429, "streams")
        wait_until(lambda: http.get("/events", params={"follow": False}).status_code == 200)


def test_a_body_that_trickles_is_not_waited_for(tmp_path: Path) -> None:
    with installed(tmp_path, {"STRETTO_GATEWAY_BODY_S": "0.3"}) as running:
        host, port = running.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            head = f"POST /api/v1/jobs HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {running.token}\r\n"
            connection.sendall((head + "Content-Length: 1000\r\n\r\n{").encode())
            assert connection.recv(1000).startswith(b"HTTP/1.1 408 ")


def test_strangers_who_hang_up_or_send_nonsense_leave_nothing_in_the_log(tmp_path: Path) -> None:
    with installed(tmp_path) as running:
        before = (tmp_path / "gateway.log").read_text()
        half = b"POST /api/v1/jobs HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n{"
        for said in (half, b"\x16\x03\x01 nonsense\r\n\r\n"):
            for each in connected(running, 20, said):
                each.close()
        with running.http() as http:
            wait_until(lambda: http.get("/status").status_code == 200)
        assert (tmp_path / "gateway.log").read_text() == before


def test_a_change_is_told_whatever_a_believed_proxy_passes_on_as_an_address(tmp_path: Path) -> None:
    with installed(tmp_path, {"STRETTO_GATEWAY_PROXIES": "*"}) as running, running.http() as http:
        document = spec()
        assert http.post("/jobs", json=document, headers={"X-Forwarded-For": "x" * 5000}).status_code == 201
        text = http.get("/audit-log").text
    assert f'"job":"{document["name"]}"' in text.replace(" ", "")


def test_who_asks_too_often_is_told_when_to_come_back(tmp_path: Path) -> None:
    settings = {"STRETTO_GATEWAY_RATE_PER_S": "0.1", "STRETTO_GATEWAY_RATE_BURST": "2"}
    with installed(tmp_path, settings) as running, running.http() as http:
        answers = [http.get("/status") for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert problem(answers[2])["type"].endswith("too-many-requests")
        assert 1 <= int(answers[2].headers["retry-after"]) <= 10
        for open_to_all in ("healthz", "readyz", "metrics"):
            assert httpx.get(f"{running.url}/{open_to_all}", trust_env=False, timeout=60).status_code == 200
