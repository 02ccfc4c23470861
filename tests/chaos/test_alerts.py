"""Each alert fires in a real run that causes it, and in no other: real processes, their real /metrics, promtool.

Every run is an installation of its own. Its processes are scraped before, during and after the fault, and promtool
evaluates the shipped rules over the recording, in the time lapse of :mod:`lapse`. A run names all alerts that fire at
any time of it: none before the fault, then its own, and those that follow from the same fault with the reason.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from cluster import SIZE, ThreeServers
from flipped_bits import blocks, flip
from lapse import FIRED, FIRING, LAPSE, RULES, Recording, promtool, unexpected
from runtime_counting import add
from runtime_live import saved_state
from stage import Stage, staged
from stretto_bus import Client
from stretto_bus.login import Login
from stretto_gateway.read_model.summaries import LATE_S_MIN
from stretto_installation.access.certificates import SERVER_DAYS
from stretto_installation.access.keys import Keys
from stretto_installation.provision import provision
from stretto_installation.server import EmbeddedServer
from stretto_installation.settings import StreamsSettings
from stretto_messages.base import example_of
from stretto_messages.checkpoints import CheckpointFailed, CheckpointSaved
from stretto_wire.contract.registry import SERVICES, STATE, STATE_PREFIX, STREAM, partition_of
from stretto_wire.contract.submission import JobSubmitted
from stretto_wire.jobspec.spec import JobSpec

from tests.bench.control.fleet import Job, store
from tests.live_bus import plan_of, pod_file

pytestmark = [pytest.mark.slow, pytest.mark.alone]  # what a run shows depends on time: beside others it would be late

WATCHED_MINUTES = 12
"""After a fault: longer than all but one of the rules wait, so that each of the others could fire, too."""
SMOKE_MINUTES = 4
"""After the fault of a smoke run in `make test`: longer than its own rule waits; the night watches it longer."""
TOGETHER, STARTS_TOGETHER = 10, 2
"""Runs at a time, most of which wait; and processes that start at a time, because a start needs a core."""
FAKE_POD = Path(__file__).parents[2] / "services/actuator/tests/fake_pod.py"
DAY_S = 86_400
SHORTEST_LEASE_S = 1
STREAM_BYTES = 8 << 20
HOOK = "crm"


Cause = Callable[[Stage], Awaitable[None]]


@dataclass(frozen=True)
class Run:
    """A fault, and exactly the alerts that it may cause. ``also`` gives the reason of each that follows from it.

    ``ends``: no alert fires any more at the end of the run, after the fault was mended. ``is_smoke``: ``make test``
    makes this run, too, and watches it for a shorter time.
    """

    alert: str
    cause: Cause
    also: dict[str, str]
    ends: bool
    server: Callable[[Path], EmbeddedServer] | None
    alone: bool
    is_smoke: bool

    @property
    def name(self) -> str:
        return self.cause.__name__

    @property
    def fired(self) -> frozenset[str]:
        return frozenset({self.alert, *self.also} - {QUIET})


QUIET = "quiet"
RUNS: list[Run] = []
SET_ASIDE = {"StrettoDeadLetters": "the message is set aside"}


def causes(
    alert: str,
    also: dict[str, str] | None = None,
    ends: bool = False,
    server: Callable[[Path], EmbeddedServer] | None = None,
    alone: bool = False,
    is_smoke: bool = False,
) -> Callable[[Cause], Cause]:
    """Register a run that causes this alert; ``server`` makes its NATS; ``alone``: it needs the machine."""

    def register(cause: Cause) -> Cause:
        RUNS.append(Run(alert, cause, also or {}, ends, server, alone, is_smoke))
        return cause

    return register


@causes(QUIET, alone=True)
async def every_service_starts_works_and_is_replaced(stage: Stage) -> None:
    """All services, with jobs whose pods report, from the first start on; then each replica is replaced by another."""
    python = stage.folder / "fake-python"
    python.write_text(
        f"#!/bin/sh\nSTRETTO_NATS_CREDENTIALS={stage.server.login().credentials} exec {sys.executable} {FAKE_POD}\n"
    )
    python.chmod(0o755)
    stage.fault()
    endpoint, receiver = await hook(stage, 204)
    given: dict[str, dict[str, Any]] = {
        "actuator": {"pod_python": python, "stop_grace_s": 1, "state_folder": stage.pods},
        "forwarder": endpoint,
        **{service: {"cpu_cores": 8, "memory_bytes": 32 << 30} for service in ("arbiter", "planner")},
    }
    for service in (*SERVICES, "forwarder"):
        await stage.started(f"{service}-0", ("-m", f"stretto_{service}"), service, **given.get(service, {}))
    jobs = [Job(f"ctr-{number}", SMALL_PLAN) for number in range(2)]
    for job in jobs:
        job.under(job.plan, 1, time.time())
        await stage.client.publish(job.submitted(10**9))
    working = asyncio.create_task(report(stage.client, jobs))
    await stage.minutes(3)
    for service in (*SERVICES, "forwarder"):
        await stage.started(f"{service}-1", ("-m", f"stretto_{service}"), service, **given.get(service, {}))
        await stage.stopped(f"{service}-0")
    await stage.minutes(WATCHED_MINUTES)
    working.cancel()
    receiver.close()


SMALL_PLAN = plan_of(cores=1.0)


async def report(client: Client, jobs: list[Job]) -> None:
    """Send the telemetry of the jobs' pods, a report a second from each."""
    while True:
        now = time.time()
        await store(client, [job.report(pod, now) for job in jobs for pod in job.pods])
        await asyncio.sleep(1)


@causes(QUIET, is_smoke=True)
async def one_of_two_replicas_is_killed(stage: Stage) -> None:
    """The other one takes its partitions over within the lease."""
    await two_replicas(stage, lease_s=SHORTEST_LEASE_S)
    async with stage.load():
        await stage.minutes(2)
        stage.fault()
        stage.signal(signal.SIGKILL, "a")
        await stage.minutes(stage.watched_minutes)


@causes(
    "StrettoPartitionWithoutOwner",
    {"StrettoBusStoresNothing": "a bus that is gone stores nothing"},
    ends=True,
)
async def the_bus_is_gone(stage: Stage) -> None:
    """Services answer, and own nothing; one starts meanwhile, and has seen no bus at all."""
    async with loaded(stage):
        stage.server.kill()
        stage.start("c")
        await stage.minutes(8)
        await stage.server.start()
        await stage.minutes(WATCHED_MINUTES)


@causes("StrettoBusStoresNothing", {"StrettoPartitionWithoutOwner": "entries of owners are not stored either"})
async def the_bucket_is_gone(stage: Stage) -> None:
    """Services own their partitions, and none of them can store that it lives."""
    async with loaded(stage):
        await stage.client.bus.ask(f"STREAM.DELETE.{STATE}")
        await stage.minutes(WATCHED_MINUTES)


@causes("StrettoStreamDamaged")
async def a_bit_of_the_log_flips(stage: Stage) -> None:
    """The server finds nothing when it starts; the gateway does when it has read the stream."""
    async with stage.load():
        await stage.minutes(2)
    stage.fault()
    stage.server.stop()
    flip(blocks(stage.server.folder, STREAM)[-1], b"job-0")
    await stage.server.start()
    await stage.started("gateway-0", GATEWAY, "gateway")
    await stage.minutes(WATCHED_MINUTES)


@causes("StrettoReplicaBehind", ends=True, server=lambda folder: cast(EmbeddedServer, ThreeServers(folder)))
async def one_of_three_servers_of_the_bus_is_gone(stage: Stage) -> None:
    """The others go on, and tell that it is gone; then it comes back. It leads neither log nor bucket: an election
    takes seconds, which are minutes of the lapse."""
    cluster = cast(ThreeServers, stage.server).cluster
    await provision(stage.client.bus, StreamsSettings(replicas=SIZE))
    await cluster.whole(stage.client)
    async with loaded(stage):
        leading = [await cluster.leader(stage.client, stream) for stream in (STREAM, STATE)]
        gone = next(node for node in cluster.nodes if node not in leading)
        gone.kill()
        await stage.minutes(WATCHED_MINUTES)
        gone.start()
        await stage.minutes(WATCHED_MINUTES)


@causes("StrettoServiceGone", ends=True, is_smoke=True)
async def every_replica_is_killed(stage: Stage) -> None:
    await two_replicas(stage)
    await stage.minutes(2)
    stage.fault()
    stage.signal(signal.SIGKILL, "a", "b")
    await stage.minutes(stage.watched_minutes)
    await stage.started("c")
    await stage.minutes(2)


@causes("StrettoServiceGone", ends=True)
async def every_replica_is_frozen(stage: Stage) -> None:
    await two_replicas(stage)
    await stage.minutes(2)
    stage.fault()
    stage.signal(signal.SIGSTOP, "a", "b")
    await stage.minutes(WATCHED_MINUTES)
    stage.signal(signal.SIGCONT, "a", "b")
    await stage.minutes(3)


@causes("StrettoKeyLost", {"StrettoDeadLetters": "the damaged snapshots are set aside"})
async def both_snapshots_of_a_job_are_damaged(stage: Stage) -> None:
    await stage.started("a", snapshot_s=0.05)
    subject = f"{STATE_PREFIX}snap.dispatcher.{partition_of('job-0')}.job-0"
    async with stage.load(jobs=2):
        await until_saved(stage)
        await stage.minutes(2)
    stage.fault()
    await stage.started("b")
    await stage.stopped("a")
    for side in "ab":
        await stage.client.bus.store(f"{subject}.{side}", b'{"stream":"STRETTO","seq":20}')
    await stage.started("c")
    await stage.stopped("b")
    await stage.minutes(WATCHED_MINUTES)


@causes("StrettoStreamFilling", ends=True)
async def the_stream_is_three_quarters_full(stage: Stage) -> None:
    await fill(stage, 0.75)


@causes("StrettoStreamFull", {"StrettoStreamFilling": "what is above 90 % is above 70 %"}, ends=True)
async def the_stream_is_almost_full(stage: Stage) -> None:
    await fill(stage, 0.95)


async def fill(stage: Stage, share: float) -> None:
    """Publish events that nobody reads, up to a share of the stream's bound; then raise the bound."""
    await provision(stage.client.bus, StreamsSettings(max_bytes=STREAM_BYTES))
    await stage.started("a")
    await stage.minutes(2)
    stage.fault()
    while (await stream_bytes(stage.client)) < share * STREAM_BYTES:
        await stage.client.bus.store("evt.v1.profiler.profile-measured.job-a", b"x" * (64 << 10))
    await stage.minutes(WATCHED_MINUTES)
    await provision(stage.client.bus, StreamsSettings(max_bytes=4 * STREAM_BYTES))
    await stage.minutes(3)


async def stream_bytes(client: Client) -> int:
    return int((await client.bus.ask(f"STREAM.INFO.{STREAM}"))["state"]["bytes"])


@causes("StrettoInputsLate")
async def a_service_has_too_little_cpu(stage: Stage) -> None:
    """The service runs for half a second in two, as a quota lets it; its messages wait for longer than a second."""
    async with loaded(stage, lease_s=10):
        for _ in range(3 * WATCHED_MINUTES // 2):
            stage.signal(signal.SIGSTOP, "a")
            await asyncio.sleep(1.5)
            stage.signal(signal.SIGCONT, "a")
            await asyncio.sleep(0.5)


@causes("StrettoBacklogGrowing", {"StrettoInputsLate": "the messages of a growing backlog wait for ever longer"})
async def a_service_is_too_slow(stage: Stage) -> None:
    await stage.started("a", delay_s=0.003, lease_s=10)
    stage.fault()
    async with stage.load(per_s=450, jobs=1):
        await stage.minutes(WATCHED_MINUTES + 4)


@causes("StrettoDeadLetters", is_smoke=True)
async def one_message_is_refused(stage: Stage) -> None:
    async with loaded(stage):
        await stage.client.publish(add("job-0", -1))
        await stage.minutes(stage.watched_minutes)


@causes("StrettoManyDeadLetters", SET_ASIDE)
async def twenty_messages_a_minute_are_refused(stage: Stage) -> None:
    """Twenty a minute of the lapse: the rule is a rate."""
    async with loaded(stage):
        for _ in range(20 * WATCHED_MINUTES):
            await stage.client.publish(add("job-0", -1))
            await stage.minutes(1 / 20)


@causes("StrettoMachineFault", SET_ASIDE)
async def a_machine_raises(stage: Stage) -> None:
    async with loaded(stage):
        await stage.client.publish(add("job-0", 666))
        await stage.minutes(WATCHED_MINUTES)


@causes("StrettoVersionRefused")
async def a_version_that_cannot_continue_is_rolled_out(stage: Stage) -> None:
    await stage.started("a", snapshot_s=0.05)
    async with stage.load():
        await until_saved(stage)
        stage.fault()
        stuck = "from runtime_upgraded import Stuck; from stretto_runtime import run; run(Stuck)"
        stage.start("b", ("-c", stuck))
        await stage.minutes(WATCHED_MINUTES)


@causes("StrettoTakeovers")
async def the_only_replica_dies_again_and_again(stage: Stage) -> None:
    await dying_again_and_again(stage, deaths=8)


@causes("StrettoTakeovers")
async def one_of_two_replicas_dies_again_and_again(stage: Stage) -> None:
    await stage.started("b", lease_s=SHORTEST_LEASE_S)
    await dying_again_and_again(stage, deaths=7)


@causes("StrettoFenced")
async def somebody_else_writes_a_fence(stage: Stage) -> None:
    """The owner's next write is refused, as a former owner's is. It takes the partition again."""
    async with loaded(stage):
        await stage.client.bus.store(f"fence.dispatcher.{partition_of('job-0')}", b"{}")
        await stage.minutes(WATCHED_MINUTES)


@causes("StrettoRequestsUnanswerable")
async def a_hostile_pod_asks_without_a_reply_subject(stage: Stage) -> None:
    await stage.started("a")
    token = pod_file(stage.server.keys, stage.folder / "pod.creds", "job-0", "worker-0", 600.0)
    pod = await Client.connect(stage.server.url, Login("worker-0", None, token))
    async with stage.load():
        await stage.minutes(2)
        stage.fault()
        for number in range(9):
            body = f'{{"job":"job-0","request_id":"f.{number}","pod":"worker-0"}}'.encode()
            await pod.bus.send("rpc.v1.dispatcher.next-shard.job-0", body, reply="")
        await pod.bus.flush()
        await stage.minutes(WATCHED_MINUTES)
    await pod.close()


@causes("StrettoGatewayNotReady", ends=True)
async def the_gateway_is_killed(stage: Stage) -> None:
    await stage.started("gateway-0", GATEWAY, "gateway")
    await stage.minutes(2)
    stage.fault()
    stage.signal(signal.SIGKILL, "gateway-0")
    await stage.minutes(WATCHED_MINUTES)
    await stage.started("gateway-1", GATEWAY, "gateway")
    await stage.minutes(2)


@causes("StrettoGatewayNotReady", ends=True)
async def the_gateway_starts_without_a_bus(stage: Stage) -> None:
    """A gateway that has caught up goes on answering from what it has read; a new one has nothing to answer from."""
    await stage.started("gateway-0", GATEWAY, "gateway")
    await stage.minutes(2)
    stage.fault()
    stage.server.kill()
    await stage.minutes(WATCHED_MINUTES)
    assert await stage.metric("gateway-0", "stretto_gateway_ready") == 1
    await stage.stopped("gateway-0")
    stage.start("gateway-1", GATEWAY, "gateway")
    await stage.minutes(4)
    await stage.server.start()
    await stage.minutes(3)


GATEWAY = ("-m", "stretto_gateway")
FORWARDER = ("-m", "stretto_forwarder")


@causes("StrettoCheckpointLate", ends=True)
async def the_store_refuses_checkpoints(stage: Stage) -> None:
    """The facts of a job that trains on, and of a checkpoints service whose store refuses; then it takes them."""
    await stage.started("gateway-0", GATEWAY, "gateway")
    job = Job("ctr", SMALL_PLAN)
    document = {"name": "ctr", "model": {"entry": "m:M"}, "dataset": {"samples": 10**9}, "checkpoint": {"every_s": 1}}
    await store(stage.client, [JobSubmitted(job="ctr", spec=JobSpec.parse(document))])
    await store(stage.client, [*job.under(job.plan, 1, time.time()), job.progressed(time.time())])
    await checkpoints(stage, job, 3, saved=True)
    stage.fault()
    await checkpoints(stage, job, WATCHED_MINUTES + round(LATE_S_MIN * LAPSE / 60), saved=False)  # late by a real clock
    await checkpoints(stage, job, 3, saved=True)


async def checkpoints(stage: Stage, job: Job, minutes: int, saved: bool) -> None:
    """Publish a checkpoint or its failure, and the job's progress, three times a lapsed minute."""
    for _ in range(3 * minutes):
        now = time.time()
        fact = replace(example_of(CheckpointSaved if saved else CheckpointFailed), job=job.name)
        await store(stage.client, [fact, job.progressed(now)])
        await stage.minutes(1 / 3)


@causes("StrettoServerSpilling", ends=True)
async def a_server_gets_no_memory_and_goes_to_its_disk(stage: Stage) -> None:
    await disk_of_a_server(stage, cold_rows=50_000, memory_used_bytes=15 * 2**26)


@causes("StrettoSpillFault", ends=True)
async def the_disk_of_a_server_is_full(stage: Stage) -> None:
    await disk_of_a_server(stage, spill_fault="No space left on device")


async def disk_of_a_server(stage: Stage, **fault: Any) -> None:
    """The reports of a sound server, then with the fault, then sound again, three times a lapsed minute."""
    await stage.started("gateway-0", GATEWAY, "gateway")
    job = Job("ctr", SMALL_PLAN)
    document = {"name": "ctr", "model": {"entry": "m:M"}, "dataset": {"samples": 10**9}}
    await store(stage.client, [JobSubmitted(job="ctr", spec=JobSpec.parse(document))])
    await store(stage.client, job.under(job.plan, 1, time.time()))
    [server] = [pod for pod in job.pods if pod.role == "ps"]
    for minutes, told in ((3, {}), (WATCHED_MINUTES + 2, fault), (3, {})):
        if told:
            stage.fault()
        for _ in range(3 * minutes):
            await store(stage.client, [replace(job.report(server, time.time()), **told)])
            await stage.minutes(1 / 3)


@causes("StrettoWebhookStopped")
async def an_endpoint_answers_that_it_is_gone(stage: Stage) -> None:
    """The endpoint failed for a short while before, so events wait; nobody waits for them now."""
    endpoint, receiver = await hook(stage, 204, 503, 410)
    await stage.started("forwarder-0", FORWARDER, "forwarder", **endpoint)
    await stage.minutes(2)
    receiver.turn()
    async with stage.load(per_s=500):
        await stage.minutes(3)
    stage.fault()
    receiver.turn()
    await stage.minutes(WATCHED_MINUTES + 5)
    assert await stage.metric("forwarder-0", "stretto_forwarder_pending") > 1000
    receiver.close()


@causes("StrettoWebhookBehind", ends=True)
async def an_endpoint_fails_while_many_events_come(stage: Stage) -> None:
    endpoint, receiver = await hook(stage, 204, 503)
    await stage.started("forwarder-0", FORWARDER, "forwarder", **endpoint)
    async with stage.load(per_s=5):
        await stage.minutes(2)
        stage.fault()
        receiver.turn()
    async with stage.load(per_s=300):
        await stage.minutes(3)
    await stage.minutes(WATCHED_MINUTES + 5)
    receiver.turn()
    await stage.minutes(5)
    receiver.close()


def with_an_old_certificate(folder: Path) -> EmbeddedServer:
    """Make a server whose certificate was issued so long ago that it ends in ten days."""
    made_s = time.time() - (SERVER_DAYS - 10) * DAY_S
    keys = Keys(folder / "nats/keys", made_s, hosts=("127.0.0.1",))
    return EmbeddedServer(folder / "nats", certificate=keys.certificate)


@causes("StrettoCertificateEnding", server=with_an_old_certificate)
async def the_certificate_of_the_bus_ends_in_ten_days(stage: Stage) -> None:
    stage.fault()
    await stage.started("a")
    async with stage.load():
        await stage.minutes(WATCHED_MINUTES)


@contextlib.asynccontextmanager
async def loaded(stage: Stage, **settings: Any) -> AsyncIterator[None]:
    """Start a replica and load it; the fault follows after two minutes."""
    await stage.started("a", **settings)
    async with stage.load():
        await stage.minutes(2)
        stage.fault()
        yield


async def dying_again_and_again(stage: Stage, deaths: int) -> None:
    """Each death leaves a process of a new name behind, as the pods of a deployment have."""
    await stage.started("a-0", lease_s=SHORTEST_LEASE_S)
    await stage.minutes(2)
    stage.fault()
    for number in range(deaths):
        stage.signal(signal.SIGKILL, f"a-{number}")
        stage.start(f"a-{number + 1}", lease_s=SHORTEST_LEASE_S)
        await stage.ready(f"a-{number + 1}")
        await stage.minutes(0.5)
    await stage.minutes(WATCHED_MINUTES - 4)


async def two_replicas(stage: Stage, **settings: Any) -> None:
    """Start two replicas of the counting service."""
    await stage.started("a", **settings)
    await stage.started("b", **settings)


async def until_saved(stage: Stage) -> None:
    """Wait until the first job has been saved, on both sides of its snapshot."""
    async with asyncio.timeout(60):
        while (await saved_state(stage.client, "dispatcher", "job-0") or {}).get("count", 0) < 5:
            await asyncio.sleep(0.1)


class Hook:
    """A receiver of webhooks: it answers each request with the first status, and after a turn with the next."""

    def __init__(self, statuses: tuple[int, ...]) -> None:
        self._statuses = itertools.cycle(statuses)
        self._status = next(self._statuses)
        self._server: asyncio.Server | None = None

    async def listen(self) -> str:
        """Listen; return the URL."""
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/hook"

    def turn(self) -> None:
        """Answer with the next status from now on."""
        self._status = next(self._statuses)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = re.search(r"content-length: (\d+)", head)
                await reader.readexactly(int(length[1]) if length else 0)
                writer.write(f"HTTP/1.1 {self._status} -\r\ncontent-length: 0\r\n\r\n".encode())
                await writer.drain()
        writer.close()


async def hook(stage: Stage, *statuses: int) -> tuple[dict[str, Any], Hook]:
    """Start a receiver; return the settings of a forwarder that posts everything to it, and the receiver."""
    receiver = Hook(statuses)
    entry = {"name": HOOK, "url": await receiver.listen(), "secret_file": str(stage.folder / "secret")}
    (stage.folder / "secret").write_text("whsec_" + base64.b64encode(b"s" * 32).decode())
    (stage.folder / "endpoints.yaml").write_text(yaml.safe_dump([{**entry, "start": "beginning"}]))
    settings = {"endpoints_file": stage.folder / "endpoints.yaml", "allow_networks": '["127.0.0.0/8"]'}
    return {**settings, "retry_s": 0.05, "retry_max_s": 1}, receiver


@pytest.fixture(scope="module")
def recordings(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Recording]:
    """Make all runs that the selected tests need, several at a time."""
    selected = {
        item.callspec.params["run"].name
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.module is request.module and hasattr(item, "callspec")
        if "run" in item.callspec.params
    }
    folder = tmp_path_factory.mktemp("alerts")
    return asyncio.run(recorded([run for run in RUNS if run.name in selected], folder))


async def recorded(runs: list[Run], folder: Path) -> dict[str, Recording]:
    """Return the recordings of runs by their name."""
    room, starting = asyncio.Semaphore(TOGETHER), asyncio.Semaphore(STARTS_TOGETHER)
    watched = SMOKE_MINUTES if all(run.is_smoke for run in runs) else WATCHED_MINUTES

    async def record(run: Run) -> Recording:
        async with room:
            own = folder / run.name
            own.mkdir()
            async with staged(own, starting, watched, run.server(own) if run.server else None) as stage:
                await run.cause(stage)
            return stage.recording

    found = {run.name: await record(run) for run in runs if run.alone}
    beside = [run for run in reversed(runs) if not run.alone]  # the longest stand last and begin first
    recordings = await asyncio.gather(*(record(run) for run in beside))
    return found | {run.name: recording for run, recording in zip(beside, recordings, strict=True)}


@pytest.mark.skipif(not promtool(), reason="no promtool: Debian's package prometheus has it")
@pytest.mark.parametrize(
    "run", [pytest.param(run, id=run.name, marks=() if run.is_smoke else pytest.mark.night) for run in RUNS]
)
def test_alert_fires_in_a_real_run_that_causes_it_and_no_other(
    run: Run, recordings: dict[str, Recording], tmp_path: Path
) -> None:
    recording = recordings[run.name]
    expected = [(FIRED, recording.minute("fault"), frozenset[str]()), (FIRED, recording.end_minute, run.fired)]
    if run.ends:
        expected.append((FIRING, recording.end_minute, frozenset[str]()))
    if found := unexpected(recording, expected, tmp_path):
        pytest.fail(found)


def test_every_alert_has_a_run_and_every_run_an_alert() -> None:
    assert {run.alert for run in RUNS} == {QUIET, *(rule["alert"] for rule in RULES)}
    assert {name for run in RUNS for name in run.also} <= {rule["alert"] for rule in RULES}
