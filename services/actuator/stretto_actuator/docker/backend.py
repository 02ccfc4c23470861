"""Pods as containers of one Docker engine.

The engine is the memory: containers are found by their labels. What it says of them is kept here and refreshed by its
events; after every gap everything is asked anew. A container has two volumes of its own, for its files and for what it
writes; they go with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from urllib.parse import urlsplit

import structlog
from stretto_bus.tasks import end
from stretto_runtime import SettingsFault
from stretto_wire.surroundings import wall_s

from ..backend import HEADROOM, BackendError, Following, NoRoom, Places, PodSpec, PodStatus, Waiting, exit_reason
from ..pod.devices import NO_DEVICES, Devices, Given, devices_of
from ..settings import ActuatorSettings, networks_of
from .engine import Container, Engine, ImageMissing, NameTaken, changed, cut
from .manifest import MACHINE, PLACES, SCRATCH_VOLUME, USER, config, host, texts_by_folder
from .networks import JobNetworks, NetworkRules
from .volumes import JobFolders, volumes_of

LIMITS = ("docker-cpu", "docker-memory")
LOG_LINES = 30
OOM_CODE = 137
THREADS = 16
PULLS = 4
ASK_AGAIN_S = 2.0
JOIN_S = 10.0
HALF_MADE_S = 60.0
"""Age of a container that was made and never started after which its actuator counts as dead."""
PULL_AGAIN_S = 5.0
PULL_AGAIN_MAX_S = 60.0
LOOK_S = 60.0
"""Time without any event after which all containers are listed anew: a connection may be dead and not say so."""
WATCH_AGAIN_S = 0.2
WATCH_AGAIN_MAX_S = 5.0

log = structlog.get_logger("stretto.actuator")
T = TypeVar("T")
Key = tuple[str, str]
"""Names of job and pod."""


def backend_of(settings: ActuatorSettings) -> DockerBackend:
    """By the settings ``STRETTO_ACTUATOR_DOCKER…``. Raises SettingsFault: pods could not reach the bus."""
    _refuse_unreachable_bus(settings)
    engine = Engine(settings.docker_url, settings.installation)
    common = settings.docker_network or f"{settings.installation}-pods"
    rules = NetworkRules(
        common=common,
        apart=settings.docker_network_per_job,
        reach=settings.docker_reach,
        ranges=networks_of(settings.docker_subnets),
        bits=settings.docker_subnet_bits,
        image=settings.pod_image,
        metadata=networks_of(settings.metadata_addresses),
    )
    networks = JobNetworks(engine, rules)
    folders = JobFolders(engine, volumes_of(settings.docker_volumes), USER)
    return DockerBackend(engine, networks, folders, devices=devices_of(settings))


def _refuse_unreachable_bus(settings: ActuatorSettings) -> None:
    """Raise SettingsFault if the bus is on this machine, outside of containers, and pods do not get that far."""
    given = settings.pod_nats_url.get_secret_value() if settings.pod_nats_url else settings.nats_url
    for url in given.split(","):
        host = urlsplit(url.strip()).hostname or ""
        if host == "localhost" or host.startswith("127.") or host == "::1":
            raise SettingsFault(
                f"STRETTO_ACTUATOR_POD_NATS_URL names {host}, which is each container's own: name the bus as "
                f"containers reach it: a container on the pods' network, or {MACHINE} with "
                "STRETTO_ACTUATOR_DOCKER_REACH=host and a bus that listens on more than loopback"
            )
        if host == MACHINE and settings.docker_reach == "job":
            raise SettingsFault(
                f"STRETTO_ACTUATOR_POD_NATS_URL names {host}, which pods do not reach: run the bus in a container on "
                "the pods' network, or set STRETTO_ACTUATOR_DOCKER_REACH=host, which opens every service of this "
                "machine to them that listens on more than loopback"
            )


@dataclass(slots=True)
class Stop:
    """Times at which a pod was first and last asked to end."""

    first_s: float
    last_s: float


class DockerBackend:
    """Pods as containers of one engine; see the module.

    Larger than 250 lines: all calls of the backend act on the same few records of containers.
    """

    def __init__(
        self,
        engine: Engine,
        networks: JobNetworks,
        folders: JobFolders,
        clock: Callable[[], float] = wall_s,
        devices: Devices = NO_DEVICES,
    ) -> None:
        self._engine = engine
        self._networks = networks
        self._folders = folders
        self._clock = clock
        self._devices = devices
        self._threads = ThreadPoolExecutor(THREADS, "docker")
        self._pulls = ThreadPoolExecutor(PULLS, "docker pull")  # minutes each: nobody else is to wait for them
        self._following = Following(self._let_go)
        self._containers: dict[Key, Container] = {}
        self._logs: dict[Key, str] = {}
        self._launched: set[Key] = set()
        """Pods that this process has launched: all others were adopted."""
        self._launching: dict[Key, asyncio.Lock] = {}
        self._promised: dict[Key, Given] = {}
        """Devices of pods whose containers are being made."""
        self._pulling: dict[Key, tuple[asyncio.Task[None], PodStatus]] = {}
        """Pods whose image is awaited."""
        self._never: dict[Key, PodStatus] = {}
        """Pods that were given up before there was a container."""
        self._forgotten: set[Key] = set()
        """Names of pods of followed jobs that no pod may have again."""
        self._stops: dict[Key, Stop] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._unreachable: str | None = "the engine was not asked yet"

    # the protocol ----------------------------------------------------------------------------------------------

    async def open(self) -> None:
        if self._tasks:
            return
        await self._do(self._engine.open)
        await self._do(self._networks.open)
        events = await self._do(self._engine.events)
        await self._look()
        self._tasks = [asyncio.create_task(work) for work in (self._watch(events), self._join())]

    async def close(self) -> None:
        for task in (*self._tasks, *(task for task, _ in self._pulling.values())):
            await end(task)
        self._tasks = []
        self._pulling = {}
        for threads in (self._threads, self._pulls):
            threads.shutdown(wait=False, cancel_futures=True)
        self._engine.close()

    def places(self, job: str, pod: str) -> Places:
        return PLACES

    def follow(self, job: str, changed: Callable[[], None]) -> Callable[[], None]:
        return self._following.add(job, changed)

    async def list(self, job: str | None = None) -> Sequence[PodStatus]:
        if self._unreachable is not None:
            raise BackendError(self._unreachable)
        found = {key: self._status(each) for key, each in self._containers.items() if each.state != "created"}
        waiting = {key: status for key, (_, status) in self._pulling.items()}
        known = {**self._never, **waiting, **found}
        return [pod for key, pod in known.items() if job in (None, pod.job) and key not in self._forgotten]

    async def launch(self, spec: PodSpec) -> None:
        key = spec.job, spec.pod
        async with self._launching.setdefault(key, asyncio.Lock()):
            if key in self._forgotten or key in self._never or key in self._pulling:
                return
            try:
                await self._place(spec)
            except ImageMissing:
                status = PodStatus(*key, "pending", spec.cpu_cores, spec.memory_bytes, launched_at_s=self._clock())
                waiting = Waiting("image-pull", f"{spec.image} is being pulled")
                pulling = asyncio.create_task(self._pull(spec), name=f"pull for {spec.job}/{spec.pod}")
                self._pulling[key] = pulling, replace(status, waiting=waiting)

    async def stop(self, job: str, pod: str, grace_s: float) -> None:
        container = await self._running(job, pod)
        if container is None:
            return
        now = self._clock()
        asked = self._stops.setdefault((job, pod), Stop(now, now - ASK_AGAIN_S))
        if now - asked.first_s > grace_s:
            await self._do(self._engine.signal, container.id, signal.SIGKILL)
        elif now - asked.last_s >= ASK_AGAIN_S:
            asked.last_s = now
            await self._do(self._engine.signal, container.id, signal.SIGTERM)

    async def kill(self, job: str, pod: str) -> None:
        container = await self._running(job, pod)
        if container is not None:
            await self._do(self._engine.signal, container.id, signal.SIGKILL)

    async def resize(self, job: str, pod: str, cpu_cores: float, memory_bytes: int) -> tuple[float, int]:
        container = self._containers.get((job, pod))
        if container is None or container.state != "running":
            raise BackendError(f"{job}/{pod} does not run here; it cannot be resized")
        if memory_bytes < container.memory_bytes:
            used = await self._do(self._engine.used_bytes, container.id)
            memory_bytes = max(memory_bytes, int(used * HEADROOM))
        await self._do(self._engine.limit, container.id, cpu_cores, memory_bytes)
        await self._refresh(job, pod, container.id)
        return cpu_cores, memory_bytes

    async def logs(self, job: str, pod: str, lines: int) -> str:
        container = self._containers.get((job, pod))
        return await self._do(self._engine.log, container.id, lines) if container is not None else ""

    async def forget(self, job: str, pod: str) -> None:
        key = job, pod
        container = self._containers.get(key)
        if container is not None and container.state == "running":
            return
        if container is not None:
            await self._do(self._engine.remove, container.id)
        elif self._never.pop(key, None) is None:
            return
        if job in self._following:
            self._forgotten.add(key)
        self._drop(key)
        if all(other != job for other, _ in (*self._containers, *self._pulling)):
            await self._do(self._networks.leave, job)

    # starting --------------------------------------------------------------------------------------------------

    async def _place(self, spec: PodSpec) -> None:
        """A container, unless there is one. Raises ImageMissing."""
        known = self._containers.get((spec.job, spec.pod))
        if known is not None and known.state != "created":
            return
        if not spec.image:
            raise BackendError("no image to run: name one in the job (image), or in STRETTO_ACTUATOR_POD_IMAGE")
        given = self._choose_devices(spec)
        try:
            container = await self._do(self._make, spec, given)
            if container is not None:
                await self._keep(container)
        finally:
            self._promised.pop((spec.job, spec.pod), None)

    def _choose_devices(self, spec: PodSpec) -> Given:
        """Choose devices for a pod, and promise them until its container holds them. Raises NoRoom, BackendError."""
        key = spec.job, spec.pod
        containers = (each.devices for other, each in self._containers.items() if other != key and self._holds(each))
        given = self._devices.free_of(spec.extended, (*containers, *self._promised.values()))
        self._promised[key] = given
        return given

    def _holds(self, container: Container) -> bool:
        """Return whether a container may use its devices, now or once it starts; one left half made never does."""
        is_left = container.state == "created" and self._clock() - container.created_at_s > HALF_MADE_S
        return container.state != "exited" and not is_left

    def _check_is_sole_holder(self, made: str, given: Given) -> None:
        """Raise NoRoom if another actuator has just given one of these devices to a container of its own.

        Each looks after its own container can be seen and before it starts, so that at most one of two starts.
        """
        for each in self._engine.containers() if given else ():
            for name, devices in each.devices.items():
                if each.id != made and self._holds(each) and (both := {*devices} & {*given.get(name, ())}):
                    raise NoRoom(f"{name}: {each.job}/{each.pod} got {min(both)} at the same moment")

    def _make(self, spec: PodSpec, given: Given) -> Container | None:
        """Make the container; return None while another actuator makes it."""
        with self._networks.used_by(spec.job, spec.egress) as network:
            return self._make_on(network, spec, given)

    def _make_on(self, network: str, spec: PodSpec, given: Given) -> Container | None:
        name = f"{spec.pod}.{spec.job}.{self._engine.installation}"
        configuration = config(spec, name, self._engine.labels(spec.job, spec.pod, given), given)
        self._folders.check(spec.volumes)
        place = host(spec, network, self._folders.mounts(spec.job, spec.reads, spec.image), given)
        try:
            made = self._engine.create(name, spec.image, configuration, place)
        except NameTaken:
            found = self._engine.inspect(name)
            if found is None:
                raise BackendError(f"there is a container {name} that is none of ours; remove it") from None
            if found.state == "created" and self._clock() - found.created_at_s > HALF_MADE_S:
                self._engine.remove(found.id)
            return found if found.state != "created" else None
        try:
            self._check_is_sole_holder(made, given)
            self._engine.lay(made, PLACES.files, spec.files, USER)
            for folder, texts in texts_by_folder(spec).items():
                self._engine.lay(made, folder, texts, USER)
            self._engine.make_folder(made, SCRATCH_VOLUME, PLACES.scratch.rpartition("/")[2], USER)
            self._engine.start(made)
        except BackendError:
            self._engine.remove(made)
            raise
        self._launched.add((spec.job, spec.pod))
        return self._engine.inspect(made)

    async def _pull(self, spec: PodSpec) -> None:
        """Pull until the image is there (or loaded by hand) and the pod runs, or until this is cancelled."""
        key = (spec.job, spec.pod)
        pause_s = PULL_AGAIN_S
        while True:
            detail = ""
            try:
                await asyncio.get_running_loop().run_in_executor(self._pulls, self._engine.pull, spec.image)
            except BackendError as error:
                detail = str(error)
            task, status = self._pulling[key]
            try:
                await self._place(spec)
                break
            except ImageMissing as error:
                self._pulling[key] = task, replace(status, waiting=Waiting("image-pull", detail or str(error)))
            except NoRoom:
                break  # the image is there, and whoever wants the pod launches it again
            except BackendError as error:
                self._give_up(key, replace(status, exit_code=126, reason="failed", detail=str(error)))
                break
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PULL_AGAIN_MAX_S)
        self._pulling.pop(key, None)
        self._following.notify(spec.job)

    def _give_up(self, key: Key, status: PodStatus) -> None:
        self._never[key] = replace(status, state="exited", waiting=None)

    async def _running(self, job: str, pod: str) -> Container | None:
        """Return the pod's container, or None if none runs or will run."""
        key = job, pod
        if (pulling := self._pulling.pop(key, None)) is not None:
            task, status = pulling
            await end(task)
            detail = status.waiting.detail if status.waiting else ""
            self._give_up(key, replace(status, reason="image-pull", detail=detail))
            self._following.notify(job)
        container = self._containers.get(key)
        return container if container is not None and container.state == "running" else None

    # what is there ---------------------------------------------------------------------------------------------

    def _status(self, container: Container) -> PodStatus:
        key = container.job, container.pod
        status = PodStatus(
            job=container.job,
            pod=container.pod,
            state="running",
            cpu_cores=container.cpu_cores,
            memory_bytes=container.memory_bytes,
            limits=LIMITS,
            launched_at_s=container.started_at_s,
            adopted=key not in self._launched,
        )
        if container.state == "running":
            return status
        code = container.exit_code
        oom = container.oom_killed and code == OOM_CODE  # also set when only a child of it was killed
        log_tail = self._logs.get(key, "")
        return replace(status, state="exited", exit_code=code, reason=exit_reason(code, oom), log=log_tail)

    async def _watch(self, events: Any) -> None:
        """Refresh containers that change; after every gap, list all of them."""
        while True:
            try:
                await self._listen(events)
            except Exception as error:  # of any kind: no other task watches
                log.warning("looks at everything anew", error=str(error), exc_info=not isinstance(error, BackendError))
            events = None
            pause_s = WATCH_AGAIN_S
            while events is None:
                await asyncio.sleep(pause_s)
                try:
                    events = await self._do(self._engine.events)
                    await self._look()
                except Exception as error:
                    self._unreachable = str(error)
                    events = None
                    log.warning("cannot look", error=str(error), exc_info=not isinstance(error, BackendError))
                    pause_s = min(2 * pause_s, WATCH_AGAIN_MAX_S)

    async def _listen(self, events: Any) -> None:
        """Follow the stream, which a thread of its own reads, until it ends. Raises BackendError."""
        changes: asyncio.Queue[tuple[str, str, str] | Exception] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def read() -> None:
            last: Exception = BackendError("the engine tells nothing any more")
            try:
                for event in changed(events):
                    loop.call_soon_threadsafe(changes.put_nowait, event)
            except Exception as error:
                last = error
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(changes.put_nowait, last)

        threading.Thread(target=read, name="docker events", daemon=True).start()
        try:
            while True:
                try:
                    async with asyncio.timeout(LOOK_S):
                        event = await changes.get()
                except TimeoutError:
                    await self._look()
                    continue
                if isinstance(event, Exception):
                    raise event
                await self._refresh(*event)
        finally:
            cut(events)

    async def _join(self) -> None:
        """Join bus and cache to the jobs' networks again: when made anew, they are on the common network alone."""
        while True:
            await asyncio.sleep(JOIN_S)
            try:
                await self._do(self._networks.join)
            except Exception as error:
                log.warning("cannot join", error=str(error), exc_info=not isinstance(error, BackendError))

    async def _look(self) -> None:
        there = await self._do(self._engine.containers)
        self._unreachable = None
        known = {(each.job, each.pod) for each in there}
        for key in self._containers.keys() - known:
            self._drop(key)
        for container in there:
            await self._keep(container)
        self._following.notify_all()

    async def _refresh(self, job: str, pod: str, container: str) -> None:
        now = await self._do(self._engine.inspect, container)
        if now is not None:
            await self._keep(now)
        elif (before := self._containers.get((job, pod))) is not None and before.id == container:
            self._drop((job, pod))
        self._following.notify(job)

    def _drop(self, key: Key) -> None:
        """Take note that a pod has no container any more."""
        for kept in (self._containers, self._logs, self._stops):
            kept.pop(key, None)
        self._launched.discard(key)

    def _let_go(self, job: str) -> None:
        """Forget a job whose pods are not started here any more: it has ended or has another owner."""
        self._forgotten = {key for key in self._forgotten if key[0] != job}
        self._launching = {key: lock for key, lock in self._launching.items() if key[0] != job}

    async def _keep(self, container: Container) -> None:
        key = container.job, container.pod
        if key in self._forgotten:
            return
        if container.state == "exited" and container.exit_code and key not in self._logs:
            self._logs[key] = await self._do(self._engine.log, container.id, LOG_LINES)
        self._containers[key] = container

    async def _do(self, call: Callable[..., T], *arguments: Any) -> T:
        """A blocking call, in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: call(*arguments))
