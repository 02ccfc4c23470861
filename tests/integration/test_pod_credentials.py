"""A pod's credentials end; the pod does not notice, and nobody else's are any use to it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest
from stretto.errors import BusError, CallRefused, PodError
from stretto.pod.bus import PodBus
from stretto.pod.credentials import identity_of
from stretto.pod.tracing import PodTracing
from stretto_actuator.local.backend import LocalBackend
from stretto_actuator.pod.credentials import Issuer
from stretto_actuator.service import Actuator
from stretto_actuator.settings import ActuatorSettings
from stretto_bus import Client
from stretto_bus.login import RenewableLogin, claims_of
from stretto_installation.access.keys import Keys
from stretto_installation.server import EmbeddedServer
from stretto_messages.actuator import GetServers, GetServersReply, RenewCredentials, RenewCredentialsReply
from stretto_messages.gateway import JobCancelled
from stretto_runtime import SettingsFault, serve
from stretto_runtime.access.identity import Key, mint, parts_of, renew

from tests.integration.pods import end_pods
from tests.live_bus import decision, live_bus, plan_of, pod_file, python_of, submission
from tests.waits import until

POD = Path(__file__).with_name("asking_pod.py")
JOB = "asking"
LIFE_S = 10.0
LIVES = 3


class Stage:
    """A bus, an actuator whose pods' credentials expire after seconds, and the record of its pod."""

    def __init__(self, server: EmbeddedServer, client: Client, folder: Path) -> None:
        assert server.keys is not None
        self.server, self.client, self.folder, self.keys = server, client, folder, server.keys
        self.report = folder / "report.jsonl"
        self.buses: list[PodBus] = []
        self._stop = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None

    @property
    def key(self) -> Key:
        return Key(self.keys.signing_file.read_text().strip())

    def start(self, clock_off_s: float = 0.0, **settings: Any) -> None:
        options = {
            "nats_url": self.server.url,
            "nats_credentials": self.server.login("actuator").credentials,
            "signing_key_file": self.keys.signing_file,
            "state_folder": self.folder / "state",
            "pod_python": python_of(self.folder / "asking-python", POD, REPORT=self.report),
            "lease_s": 1.0,
            "poll_s": 0.3,
            **settings,
        }
        self._stop = asyncio.Event()

        def clock() -> float:
            return time.time() + clock_off_s

        actuator = Actuator(ActuatorSettings(**options), LocalBackend(self.folder / "state", clock))
        actuator.now = clock  # type: ignore[method-assign]
        self._serving = asyncio.create_task(serve(actuator, self._stop))

    async def stop(self) -> None:
        if self._serving is not None:
            self._stop.set()
            await self._serving
            self._serving = None

    async def run_job(self) -> None:
        await self.client.publish(submission(JOB, checkpoint={"every_s": None}))
        await self.client.publish(decision(JOB, plan_of(workers=0, memory=2**28)))

    def reported(self) -> list[dict[str, Any]]:
        lines = self.report.read_text().splitlines() if self.report.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def log(self) -> str:
        return "\n".join(file.read_text() for file in (self.folder / "state/pods").rglob("*.log"))


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with live_bus(tmp_path) as (server, client):
        made = Stage(server, client, tmp_path)
        yield made
        for bus in made.buses:
            await asyncio.to_thread(bus.close)
        await made.stop()
        await end_pods(tmp_path / "state")


async def test_a_pod_outlives_its_credentials_and_every_request_is_answered(stage: Stage) -> None:
    stage.start(credentials_s=LIFE_S)
    await stage.run_job()
    await until(lambda: len({line["ends_s"] for line in stage.reported()}) >= LIVES)
    lines = stage.reported()
    assert [line["number"].rpartition(".")[2] for line in lines] == [str(n) for n in range(1, len(lines) + 1)]
    assert {line["answer"] for line in lines} == {"ok"}
    assert max(line["took_s"] for line in lines) < LIFE_S / 2
    assert "not prolonged" not in stage.log()
    assert "authentication expired" not in stage.log()


@pytest.mark.parametrize(
    "clock_off_s",
    [pytest.param(-3600.0, id="an-hour-behind"), pytest.param(3600.0, id="an-hour-ahead", marks=pytest.mark.night)],
)
async def test_a_wrong_clock_of_the_actuator_puts_no_pod_out(stage: Stage, clock_off_s: float) -> None:
    """Method: an actuator whose clock is an hour off and whose tokens live for seconds, on a real server."""
    stage.start(clock_off_s, credentials_s=LIFE_S)
    await stage.run_job()
    await until(lambda: len({line["ends_s"] for line in stage.reported()}) >= LIVES)
    assert {line["answer"] for line in stage.reported()} == {"ok"}
    assert max(line["ends_s"] for line in stage.reported()) <= time.time() + LIFE_S
    assert "not prolonged" not in stage.log()


def bus_of(stage: Stage, name: str, life_s: float, pod: str = "ps-7") -> tuple[PodBus, RenewableLogin]:
    """A pod's own connection, in threads of its own."""
    file = stage.folder / f"{name}.creds"
    file.write_text(mint(stage.key, stage.keys.pods_account, JOB, pod, time.time(), life_s))
    identity = identity_of(file)
    stage.buses.append(PodBus(stage.server.url, JOB, pod, PodTracing(JOB, pod, stage.folder, ""), identity))
    return stage.buses[-1], identity


async def test_who_is_hung_up_on_comes_back_with_the_token_that_it_has_by_then(stage: Stage) -> None:
    """The server ends the connection with the token that it was opened with, whatever was signed since."""
    bus, identity = bus_of(stage, "late", 2.0)
    first = identity.token
    await asyncio.to_thread(bus.connect)
    asking = asyncio.create_task(
        asyncio.to_thread(bus.call, GetServers(job=JOB, request_id="late.1", pod="ps-7"), GetServersReply, 60.0)
    )
    identity.prolong(renew(stage.key, first, JOB, "ps-7", time.time(), 60.0))
    await until(lambda: bus._bus.reconnects)
    stage.start()  # now there is somebody who answers
    assert (await asking).answer == "unknown"
    await asyncio.to_thread(bus.close)


@pytest.mark.parametrize("nonsense", ["x", "a.W10.c", "a.b.c"])
async def test_a_token_that_is_none_is_not_taken_and_asked_for_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, nonsense: str
) -> None:
    bus, identity = bus_of(stage, "odd", 2.0)
    longer = renew(stage.key, identity.token, JOB, "ps-7", time.time(), 60.0)
    answers = [nonsense, longer]

    async def ask(request: RenewCredentials, *_: Any) -> RenewCredentialsReply:
        assert request.token == identity.token
        return RenewCredentialsReply(job=JOB, answer="ok", token=answers.pop(0))

    monkeypatch.setattr(bus, "_ask", ask)
    await asyncio.to_thread(bus.connect)
    await until(lambda: identity.token == longer)
    assert longer in identity._text.data
    await asyncio.to_thread(bus.close)


async def test_only_a_pod_that_there_is_gets_a_later_end_and_only_with_its_own_token(stage: Stage) -> None:
    stage.start(credentials_s=60.0)
    await stage.run_job()
    await until(stage.reported)
    bus, identity = bus_of(stage, "own", 60.0, "ps-0")
    await asyncio.to_thread(bus.connect)

    async def ask(pod: str, token: str, job: str = JOB) -> RenewCredentialsReply:
        request = RenewCredentials(job=job, pod=pod, token=token)
        return await asyncio.to_thread(bus.call, request, RenewCredentialsReply, 3.0)

    [known] = {status.pod for status in await _pods(stage)}
    own, _ = parts_of(mint(stage.key, stage.keys.pods_account, JOB, known, time.time(), 30.0))
    longer = (await ask(known, own)).token
    assert claims_of(longer)["exp"] > claims_of(own)["exp"]
    assert (await ask("ps-8", identity.token)).answer == "unknown"
    neighbour, _ = parts_of(mint(stage.key, stage.keys.pods_account, JOB, "worker-5", time.time(), 60.0))
    foreign, _ = parts_of(mint(stage.key, stage.keys.pods_account, "another", known, time.time(), 60.0))
    ended, _ = parts_of(mint(stage.key, stage.keys.pods_account, JOB, known, time.time() - 100, 60.0))
    for token in (neighbour, foreign, ended, "x", "a.b.c"):
        with pytest.raises(CallRefused, match="the pod's own"):
            await ask(known, token)
    with pytest.raises(BusError):  # the server does not even pass it on
        await ask(known, own, "another")
    await asyncio.to_thread(bus.close)


async def _pods(stage: Stage) -> list[Any]:
    return await LocalBackend(stage.folder / "state").list(JOB)


async def test_credentials_of_a_pod_that_is_gone_are_of_no_use_from_its_end_on(stage: Stage) -> None:
    stage.start(credentials_s=60.0, connections_credentials=stage.keys.counter_file)
    await stage.run_job()
    await until(stage.reported)
    [known] = {status.pod for status in await _pods(stage)}
    stolen, _ = await lines_of(stage, "stolen", known)
    _, cut_of_stranger = await lines_of(stage, "invented", "worker-77")
    await until(cut_of_stranger.is_set)
    assert stolen.is_connected
    await stage.client.publish(JobCancelled(job=JOB, by="ada", reason="enough"))
    await until(lambda: not stolen.is_connected)


async def lines_of(stage: Stage, name: str, pod: str) -> tuple[nats.NATS, asyncio.Event]:
    """A connection with a pod's credentials, and whether the server has ended it."""
    file, cut = pod_file(stage.keys, stage.folder / f"{name}.creds", JOB, pod), asyncio.Event()

    async def end() -> None:
        cut.set()

    async def pass_over(_: Exception) -> None:
        """It was cut."""

    options = {"allow_reconnect": False, "closed_cb": end, "error_cb": pass_over}
    return await nats.connect(stage.server.url, user_credentials=str(file), **options), cut


async def test_nothing_about_credentials_stays_in_the_stream(stage: Stage) -> None:
    stage.start(credentials_s=LIFE_S)
    await stage.run_job()
    await until(lambda: len({line["ends_s"] for line in stage.reported()}) >= 2)
    stored = await _everything_stored(stage.client)
    assert len(stored) > 3
    assert [data for data in stored if b"eyJ0" in data or b"bus.creds" in data] == []


async def _everything_stored(client: Client) -> list[bytes]:
    found: list[bytes] = []
    for stream in ("STRETTO", "KV_STATE", "DLQ"):
        state = (await client.bus.ask(f"STREAM.INFO.{stream}"))["state"]
        for seq in range(state["first_seq"], state["last_seq"] + 1):
            msg = await client.bus.request(f"$JS.API.DIRECT.GET.{stream}", json.dumps({"seq": seq}).encode())
            found.append(msg.data)
    return found


async def test_a_pods_line_is_encrypted_and_only_to_whom_its_authority_believes(tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="certificates are made by the package cryptography")
    keys, foreign = (Keys(tmp_path / name, time.time(), hosts=("127.0.0.1",)) for name in ("nats/keys", "foreign"))
    server = EmbeddedServer(tmp_path / "nats", certificate=keys.certificate)
    await server.start()
    credentials = tmp_path / "bus.creds"
    key = Key(keys.signing_file.read_text().strip())
    credentials.write_text(mint(key, keys.pods_account, JOB, "ps-0", time.time(), 60.0))

    def connect(ca: Path, within_s: float) -> None:
        bus = PodBus(server.url, JOB, "ps-0", PodTracing(JOB, "ps-0", tmp_path, ""), identity_of(credentials, ca))
        try:
            bus.connect(within_s)
        finally:
            bus.close()

    await asyncio.to_thread(connect, keys.certificate.ca, 60.0)
    with pytest.raises(BusError, match="CERTIFICATE_VERIFY_FAILED"):
        await asyncio.to_thread(connect, foreign.certificate.ca, 3.0)
    server.kill()


@pytest.mark.parametrize("text", ["", "nonsense", "-----BEGIN NATS USER JWT-----\nab\n"])
def test_credentials_that_cannot_be_used_are_a_clear_error(text: str, tmp_path: Path) -> None:
    file = tmp_path / "bus.creds"
    file.write_text(text)
    with pytest.raises(PodError, match=r"STRETTO_NATS_CREDENTIALS=.*the actuator writes them"):
        identity_of(file)
    with pytest.raises(PodError, match=r"STRETTO_NATS_CA=.*a file of certificates"):
        identity_of(ca=file)


def test_credentials_that_may_end_before_their_pod_starts_are_refused(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path / "nats")
    assert server.keys is not None
    given = {
        "signing_key_file": server.keys.signing_file,
        "nats_credentials": server.login("actuator").credentials,
        "room_timeout_s": 300,
        "image_timeout_s": 600,
    }
    with pytest.raises(SettingsFault, match=r"CREDENTIALS_S=900 is refused: give more than 900, .*IMAGE_TIMEOUT_S"):
        Issuer(ActuatorSettings(backend="docker", credentials_s=900, **given))
    Issuer(ActuatorSettings(backend="docker", credentials_s=901, **given))
    Issuer(ActuatorSettings(backend="local", credentials_s=60, **given))
