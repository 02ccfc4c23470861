"""No secret appears in a log, a span, a metric or an answer, whichever process fails."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import signal
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest
import stretto_wire as wire
from stretto_bus import BusFault, Client
from stretto_bus.login import Login
from stretto_bus.reading.ordered_consumer import read
from stretto_installation.provision import provision
from stretto_installation.server import EmbeddedServer, free_port
from stretto_plane.keys import SEED_BYTES
from stretto_runtime.access.identity import parts_of
from stretto_wire.contract.registry import DEAD_LETTERS, SERVICES, STATE, STREAM, USERS

from tests.integration.pods import end_pods
from tests.live_bus import unpacked
from tests.waits import until

POD = Path(__file__).with_name("asking_pod.py")
JOB = "hushed"
REDIS, TOKEN, PASSWORD = "canary-of-redis", "canary-of-the-gateway", "canary-in-a-url"
JOBS_OWN = "canary-of-a-job"
"""the value of the job's secret"""
BY_DESIGN = ("bus.creds", "secrets.json", "gateway.token", "plane.pem")
"""names of files that hold secrets, of mode 600 or less"""

pytestmark = pytest.mark.slow


class House:
    """Every service as a process of its own, with canaries for secrets and a cache that does not answer."""

    def __init__(self, server: EmbeddedServer, folder: Path) -> None:
        assert server.keys is not None
        self.server, self.folder, self.keys = server, folder, server.keys
        self.state = folder / "state"
        self.logs = folder / "logs"
        self.logs.mkdir()
        self.report = folder / "reports" / "report.jsonl"
        self.report.parent.mkdir()
        self.secret = self.state / "secrets" / "s3"
        self.secret.parent.mkdir(parents=True)
        self.secret.write_text(f"JOB_CANARY={JOBS_OWN}\n")
        self.secret.chmod(0o600)
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, log: str = "", **settings: str) -> subprocess.Popen[bytes]:
        python = self.folder / "asking-python"
        python.write_text(f"#!/bin/sh\nREPORT={self.report} exec {sys.executable} {POD}\n")
        python.chmod(0o755)
        redis = f"redis://:{REDIS}@127.0.0.1:{free_port()}/0"
        told = {
            **self.server.environment(name),
            "STRETTO_STATE_FOLDER": str(self.state),
            "STRETTO_CHECKPOINTS_REDIS_URL": redis,
            "STRETTO_ACTUATOR_SIGNING_KEY_FILE": str(self.keys.signing_file),
            "STRETTO_ACTUATOR_POD_PYTHON": str(python),
            "STRETTO_ACTUATOR_LOCAL_WRITABLE": str(self.report.parent),
            "STRETTO_ACTUATOR_CREDENTIALS_S": "10",
            "STRETTO_GATEWAY_TOKEN": TOKEN,
            "STRETTO_ALLOWED_SECRETS": "s3",
            "STRETTO_LOG_LEVEL": "debug",
            **settings,
        }
        environment = {key: value for key, value in os.environ.items() if not key.startswith("STRETTO_")} | told
        with (self.logs / f"{log or name}.log").open("ab") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", f"stretto_{name}"], env=environment, stdout=out, stderr=out
            )
        self.processes.append(process)
        return process

    def end(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()
            process.wait()

    def secrets(self) -> dict[str, str]:
        """Return the secrets that may appear nowhere, each with its description."""
        found = {REDIS: "the cache's password", TOKEN: "the gateway's token", PASSWORD: "a password in a URL"}
        found[JOBS_OWN] = "a job's secret"
        found[self.keys.signing_file.read_text().strip()] = "the key that vouches for pods"
        files = [*(self.keys.credentials(user) for user in USERS), *self.state.rglob("bus.creds")]
        for file in files:
            token, key = parts_of(file.read_text())
            found[key.seed] = f"the key in {file}"
            found[token.rpartition(".")[2]] = f"the signature in {file}"
        for file in self.state.rglob("plane.pem"):
            _, private, *_ = file.read_text().splitlines()
            found[private] = f"the key in {file}"
            found[base64.b64decode(private)[-SEED_BYTES:].hex()] = f"the seed in {file}"
        return found

    def written(self) -> Iterator[tuple[str, str]]:
        """Return all written text, without the files that hold secrets by design."""
        for root in (self.logs, self.state, self.server.folder):
            for file in root.rglob("*"):
                own = file.name in BY_DESIGN or self.keys.folder in file.parents or self.secret in (file, *file.parents)
                if file.is_file() and not own and "jetstream" not in file.parts:
                    yield str(file), file.read_text(errors="replace")

    async def stored(self, client: Client) -> AsyncIterator[tuple[str, str]]:
        """Yield all that the bus keeps: events, telemetry, journals, snapshots, dead letters."""
        for stream in (STREAM, STATE, DEAD_LETTERS):
            for each in await read(client.bus, stream, [">"]):
                yield f"{stream}:{each.seq} {each.subject}", f"{each.headers} {unpacked(each.data)}"

    def environments(self) -> Iterator[tuple[str, str]]:
        """Yield what every process on the machine can list of the pods that run."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                environment = process.environ()
                if environment.get("STRETTO_JOB") == JOB:
                    yield f"environment of {process.pid}", json.dumps([environment, process.cmdline()])

    def answers(self) -> Iterator[tuple[str, str]]:
        for file in (self.state / "run").glob("*.json"):
            found = json.loads(file.read_text())
            for path in ("/healthz", "/readyz", "/metrics"):
                url = f"http://{found['host']}:{found['port']}{path}"
                with contextlib.suppress(urllib.error.URLError), urllib.request.urlopen(url, timeout=60) as answer:
                    yield url, answer.read().decode()


def shown(url: str, token: str) -> Iterator[tuple[str, str]]:
    """Yield every answer of the gateway that tells of jobs."""
    for path in ("jobs", f"jobs/{JOB}", f"jobs/{JOB}/decisions", "history", "events?follow=false", "status"):
        request = urllib.request.Request(f"{url}/api/v1/{path}", headers={"authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            yield f"GET {path}", answer.read().decode()


def ask(url: str, token: str) -> int:
    request = urllib.request.Request(f"{url}/api/v1/jobs", headers={"authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    server = EmbeddedServer(tmp_path / "nats")
    await server.start()
    made = House(server, tmp_path)
    yield made
    made.end()
    await end_pods(made.state)
    server.kill()


@pytest.mark.night
async def test_no_secret_is_told_in_start_failure_and_reconnect(house: House, tmp_path: Path) -> None:
    # who cannot come in: keys of another installation, damaged ones, a password in the URL
    foreign = EmbeddedServer(tmp_path / "foreign")
    damaged = tmp_path / "damaged.creds"
    damaged.write_text(house.keys.credentials("planner").read_text().replace("SU", "SV"))
    in_url = house.server.url.replace("//", f"//planner:{PASSWORD}@")
    refused = [
        house.start("planner", "foreign", STRETTO_NATS_CREDENTIALS=str(foreign.login("planner").credentials)),
        house.start("planner", "damaged", STRETTO_NATS_CREDENTIALS=str(damaged)),
        house.start("oom", "in-url", STRETTO_NATS_URL=in_url, STRETTO_NATS_CREDENTIALS=""),
        house.start("actuator", "unsigned", STRETTO_ACTUATOR_SIGNING_KEY_FILE=str(damaged)),
    ]
    with pytest.raises(BusFault) as raised:
        await Client.connect(in_url, Login())
    assert PASSWORD not in str(raised.value)
    await until(lambda: all(process.poll() not in (None, 0) for process in refused))

    client = await Client.connect(house.server.url, house.server.login())
    await provision(client.bus)
    running = [house.start(name) for name in SERVICES]
    where = house.state / "run" / "gateway.json"
    await until(lambda: len(list((house.state / "run").glob("*.json"))) == len(SERVICES) and where.exists())
    gateway = json.loads(where.read_text())
    url = f"http://{gateway['host']}:{gateway['port']}"
    assert await until(lambda: _status(url, TOKEN) == 200)
    assert _status(url, TOKEN[:-1]) == 401

    # a pod that renews its credentials, a checkpoint that fails, a request that is refused
    document = {
        "name": JOB,
        "model": {"entry": "m:M"},
        "dataset": {"samples": 1000},
        "checkpoint": {"every_s": 1},
        "environment_from": ["s3"],
    }
    await client.publish(wire.JobSubmitted(job=JOB, spec=wire.JobSpec.parse(document)))
    await until(lambda: house.report.exists())
    lives = await until(lambda: len(_lives(house.report)) >= 1 and _lives(house.report))
    arrived = json.loads(house.report.read_text().splitlines()[0])["secret"]
    assert arrived == hashlib.sha256(JOBS_OWN.encode()).hexdigest(), "the pod has its job's secret"

    # the bus dies and comes back; the pod's credentials are renewed
    house.server.kill()
    await until(lambda: "ConnectionRefused" in _log(house, "planner"))
    await house.server.start()
    await until(lambda: _lives(house.report) - lives)
    await until(lambda: _status(url, TOKEN) == 200)
    assert [process for process in running if process.poll() is not None] == []
    found = dict(house.answers())
    assert len(found) >= 3 * (len(SERVICES) - 1)
    pods = dict(house.environments())
    assert pods
    keys = [*house.state.rglob("plane.pem")]
    assert keys
    assert {stat.S_IMODE(key.stat().st_mode) & 0o377 for key in keys} == {0}, "readable by the user alone"
    answers = dict(shown(url, TOKEN))
    assert "environment_from" in answers[f"GET jobs/{JOB}"]
    found |= pods | answers

    # a service is told to leave, another is killed
    running[0].send_signal(signal.SIGTERM)
    running[1].kill()
    running[0].wait(60)
    found |= dict(house.written())
    kept = {name: text async for name, text in house.stored(client)}
    assert sum("environment_from" in text for text in kept.values()) >= 2, "the event, and a snapshot"
    found |= kept
    await client.close()
    spans = [name for name in found if "/spans/" in name]
    logs = [name for name in found if name.endswith(".log")]
    assert len(spans) >= 2
    assert len(logs) >= len(SERVICES) + len(refused)
    secrets = house.secrets()
    leaks = [f"{what} in {name}" for name, text in found.items() for secret, what in secrets.items() if secret in text]
    assert leaks == []


def _status(url: str, token: str) -> int:
    with contextlib.suppress(OSError):
        return ask(url, token)
    return 0


def _lives(report: Path) -> set[float]:
    return {json.loads(line)["ends_s"] for line in report.read_text().splitlines() if line.endswith("}")}


def _log(house: House, name: str) -> str:
    return (house.logs / f"{name}.log").read_text()
