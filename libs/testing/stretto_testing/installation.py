"""An installation in a simulation: the streams, replicas of services as they are, and the pods of jobs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from stretto_bus import Client
from stretto_bus.faults import BusFault
from stretto_gateway.settings import GatewaySettings
from stretto_installation.provision import make_stream, streams
from stretto_installation.settings import StreamsSettings
from stretto_messages.actuator import PodExited
from stretto_messages.base import Message
from stretto_messages.gateway import JobCancelled
from stretto_runtime import Runner, Service
from stretto_runtime.process.health import Health
from stretto_wire.codec import encode
from stretto_wire.contract.cloudevents import event_lines
from stretto_wire.contract.registry import DEAD_LETTERS, STREAM, subject_of
from stretto_wire.jobspec.spec import JobSpec
from stretto_wire.surroundings import chance

from stretto_testing.jetstream.streams import SECOND_NS
from stretto_testing.nodes import SimulatedProcess, Wording
from stretto_testing.processes.gateways import SimulatedGateway
from stretto_testing.processes.pods import PodProcess, SimulatedPlace
from stretto_testing.processes.readers import EventReader
from stretto_testing.processes.training import Job, SimulatedWorker
from stretto_testing.processes.versions import next_version
from stretto_testing.simulation import URL, Simulation

ANSWERED_S, ASKS_AGAIN_S = 5.0, 0.5
"""Time after which a caller gives the answer of a gateway up, and until the next one is asked."""
HASTY_SHARE = 0.3
"""Share of requests that go to all gateways at once: of a caller that waits for no answer."""
STARTS_S, STOPS_S = 1.5, 15.0
"""Longest times until a process that has ended has a successor, and until one that is asked to end is killed."""
POISON = "poison:"
"""Begin of the id of a message that nobody can read"""
POISONED = b"{"
"""Body of a message that nobody can read"""
TELLS_EXIT_SHARE = 0.7
"""Share of killed workers whose end is told; the lease of the others expires."""


class Silent(Health):
    """Health that nobody asks for: a simulation has no ports."""

    async def start(self, host: str, port: int, descriptor: int | None = None) -> int:
        return 0

    async def stop(self) -> None:
        """Do nothing."""


@dataclass(eq=False)
class Replica:
    """A process of a service, or of a program that is not Stretto's, and each process that is started in its place.

    ``service``: its name; empty for a program. ``is_next``: the process that is started next is of the next version.
    """

    name: str
    make: Callable[[], Service | Coroutine[Any, Any, Any]]
    service: str = ""
    node: SimulatedProcess | None = None
    runner: Runner | None = None
    is_next: bool = False
    is_followed: bool = True
    """Another process is started once this one has ended."""

    @property
    def is_there(self) -> bool:
        """Return whether it has a process."""
        return self.node is not None and not self.node.is_dead and not self.node.tasks[0].done()

    @property
    def report(self) -> dict[str, Any]:
        """Return the body of its ``/readyz``; nothing of a program, or of a process that has ended."""
        is_there = self.runner is not None and self.node is not None and not self.node.is_dead
        return self.runner.report() if is_there and self.runner is not None else {}


@dataclass(eq=False)
class SimulatedPod:
    """A worker's process."""

    job: Job
    name: str
    node: SimulatedProcess


@dataclass
class SimulatedInstallation:
    """Everything that runs. Pods and replicas that end are followed by others, as on any cluster."""

    simulation: Simulation
    client: Client
    place: SimulatedPlace
    jobs: dict[str, Job]
    streams: list[dict[str, Any]]
    """Configurations of its streams"""
    replicas: list[Replica] = field(default_factory=list[Replica])
    pods: list[SimulatedPod] = field(default_factory=list[SimulatedPod])
    serial: count[int] = field(default_factory=count)
    gateways: list[tuple[Replica, SimulatedGateway]] = field(default_factory=list[Any])
    reader: EventReader | None = None
    accepted: set[str] = field(default_factory=set[str])
    """Jobs that a gateway has accepted"""
    submitted: dict[str, int] = field(default_factory=dict[str, int])
    """Job whose submission is stored -> the workers that are started with it"""
    is_lost: bool = False
    is_upgraded: bool = False
    is_worded: bool = False
    """Versions of services differ in what they write."""

    @classmethod
    async def open(cls, simulation: Simulation, cores: float, window_s: float) -> SimulatedInstallation:
        """Make the streams, which remember ids for ``window_s``, and a place that has ``cores`` for pods."""
        client = await Client.connect(URL)
        variables = {"STRETTO_STREAMS_REPLICAS": "3" if simulation.server.is_clustered else "1"}
        configs = streams(StreamsSettings.read(variables))
        for config in configs:
            if config["name"] in (STREAM, DEAD_LETTERS):
                config["duplicate_window"] = int(window_s * SECOND_NS)
            await make_stream(client.bus, config)
        jobs: dict[str, Job] = {}
        return cls(simulation, client, SimulatedPlace(simulation, jobs, cores), jobs, configs)

    def run_service(self, make: Callable[[], Service], replicas: int) -> None:
        """Start replicas of a service."""
        for _ in range(replicas):
            replica = Replica("", make)
            self.replicas.append(replica)
            self.start(replica)

    def run_gateway(self, settings: GatewaySettings) -> None:
        """Start a replica of the gateway."""
        gateway = SimulatedGateway(settings)
        self.run_program(f"gateway-{len(self.gateways)}", gateway.run)
        self.gateways.append((self.replicas[-1], gateway))

    def run_reader(self) -> None:
        """Start a reader outside."""
        self.reader = EventReader(
            lambda: [(each.node, gateway) for each, gateway in self.gateways if each.node is not None and each.is_there]
        )
        self.simulation.process("reader", self.reader.run())

    def run_program(self, name: str, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Start a program that is not Stretto's; faults find it as they find a replica."""
        replica = Replica(name, work)
        self.replicas.append(replica)
        self.start(replica)

    def start(self, replica: Replica) -> None:
        """Start a replica as a new process, if it has none."""
        if self.is_lost or replica.is_there:
            return
        service = replica.make()
        if not isinstance(service, Service):
            replica.node = self.simulation.process(replica.name, service)
            return
        replica.service = service.name
        replica.name = f"{service.name}-{next(self.serial)}"
        replica.runner = runner = Runner(next_version(service) if replica.is_next else service, Silent)

        async def serve() -> None:
            await runner.run()
            if replica.is_followed:
                self._later(chance().uniform(0, STARTS_S), lambda: self.start(replica))

        replica.node = node = self.simulation.process(replica.name, serve())
        if self.is_worded:
            node.wording = Wording.NEWER if replica.is_next else Wording.OLDER

    def kill(self, replica: Replica) -> None:
        """Kill a replica; another process takes its place some time later."""
        if replica.node is not None and not replica.node.is_dead:
            self.simulation.kill(replica.node)
            if replica.is_followed:
                self._later(self.simulation.chance.uniform(0, STARTS_S), lambda: self.start(replica))

    def stop(self, replica: Replica) -> None:
        """Ask a replica to end, as SIGTERM does; another process takes its place."""
        node, runner = replica.node, replica.runner
        if node is None or runner is None or node.is_dead:
            return
        self.simulation.loop.call_soon(runner.stop, context=node.context)
        self._later(STOPS_S, lambda: self.kill(replica) if replica.node is node else None)

    async def submit(self, job: Job, workers: int) -> None:
        """Submit a job, and start so many workers of it, where no actuator does."""
        self.jobs[job.name] = job
        if self.gateways:
            await self._ask_gateways(job.submission.spec)
            self.accepted.add(job.name)
        else:
            await self.client.publish(job.submission, f"gateway:submit-{job.name}", tries_s=600.0)
        self.submitted[job.name] = workers
        for _ in range(workers):
            self.start_worker(job)

    async def _ask_gateways(self, spec: JobSpec) -> None:
        """Send a submission to one gateway after another, or to all at once, until one has accepted it."""
        loop, draw = self.simulation.loop, self.simulation.chance
        while True:
            chosen = self.gateways if draw.random() < HASTY_SHARE else [draw.choice(self.gateways)]
            alive = [
                (each.node, gateway) for each, gateway in chosen if each.node is not None and not each.node.is_dead
            ]
            asked = [loop.begin(node, gateway.submit(spec)) for node, gateway in alive]
            if asked:
                await asyncio.wait(asked, timeout=ANSWERED_S)
            if any(task.done() and not task.cancelled() and task.result() for task in asked):
                return
            await asyncio.sleep(ASKS_AGAIN_S)

    def start_worker(self, job: Job) -> None:
        """Start a worker under a name of its own."""
        name = f"worker-{next(job.pods)}"

        async def work() -> None:
            client = await Client.connect(URL)
            await SimulatedWorker(job, name, client).run()
            await client.close()

        self.pods.append(SimulatedPod(job, name, self.simulation.process(f"{job.name}/{name}", work())))

    def workers(self) -> list[SimulatedPod | PodProcess]:
        """Return the workers that run, whoever started them."""
        return [*self.place.workers(), *(pod for pod in self.pods if not pod.node.is_dead)]

    def kill_pod(self, pod: SimulatedPod | PodProcess) -> None:
        """Kill a pod; another one takes its place, and mostly its end is told."""
        if isinstance(pod, PodProcess):
            self.place.crash(pod.job.name, pod.name)
            return
        if pod.node.is_dead:
            return
        self.simulation.kill(pod.node)
        self.pods.remove(pod)
        draw = self.simulation.chance
        self._later(draw.uniform(0.5, 10.0), lambda: self.start_worker(pod.job))
        if draw.random() < TELLS_EXIT_SHARE:
            self._later(draw.uniform(0.1, 5.0), lambda: self.run(self._tell_exit(pod)))

    def lose(self) -> None:
        """Lose everything but the store of checkpoints: each process, and the server with its disk."""
        self.is_lost = True
        self.place.lose()
        for node in [*(pod.node for pod in self.pods), *(each.node for each in self.replicas)]:
            if node is not None and not node.is_dead:
                self.simulation.kill(node)
        self.pods.clear()
        self.simulation.server.lose_disk()

    def begin_again(self) -> None:
        """Start all replicas, and the workers that each job had at first, where no actuator does."""
        self.is_lost = False
        for replica in self.replicas:
            self.start(replica)
        for name, workers in self.submitted.items():
            for _ in range(workers if name in self.jobs else 0):
                self.start_worker(self.jobs[name])

    def trouble(self, lasts_s: float) -> None:
        """Note that something is wrong, and how long it lasts: nobody is promised a quick answer."""
        until_s = self.simulation.loop.time() + lasts_s
        for job in self.jobs.values():
            job.troubled_until_s = max(job.troubled_until_s, until_s)

    def store_at_once(self, event: Message) -> None:
        """Store an event as somebody else's who needs no time."""
        name, now_s = f"gateway:{next(self.serial)}", self.simulation.server.now_ns() / 1e9
        block = f"NATS/1.0\r\n{event_lines(event, name, now_s, 'gateway', '')}\r\n".encode()
        self.simulation.server.publish(subject_of(event), "", block, encode(event))

    def store_poison(self, job: Job) -> None:
        """Store a message about a job that nobody can read."""
        self.run(self._store_poison(job))

    async def _store_poison(self, job: Job) -> None:
        message_id = f"{POISON}{next(self.serial)}"
        headers = {"ce-id": message_id, "Nats-Msg-Id": message_id}
        with contextlib.suppress(BusFault):  # then it is not stored, or nobody knows
            await self.client.bus.store(subject_of(JobCancelled(job=job.name)), POISONED, headers)

    async def _tell_exit(self, pod: SimulatedPod) -> None:
        exited = PodExited(job=pod.job.name, pod=pod.name, role="worker", reason="killed", exit_code=-9)
        with contextlib.suppress(BusFault):
            await self.client.publish(exited, f"actuator:exit-{pod.job.name}-{pod.name}", tries_s=60.0)

    def _later(self, delay_s: float, action: Callable[[], Any]) -> None:
        self.simulation.loop.call_later(delay_s, action, context=self.simulation.loop.root.context)

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin what is no process's own work."""
        return self.simulation.loop.begin(self.simulation.loop.root, work)


async def until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Wait until a condition holds; return whether it does before ``timeout_s`` is over."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + timeout_s
    while not condition() and loop.time() < end_s:
        await asyncio.sleep(0.5 + 0.1 * chance().random())
    return condition()
