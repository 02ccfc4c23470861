"""The actuator as a service: one reconciler in the background for every job that this replica owns."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import Coroutine
from typing import Any, ClassVar

import structlog
from stretto_bus import CallRefused, CallTimeout
from stretto_bus.login import Login
from stretto_bus.tasks import end
from stretto_core.actuator.machine import ActuatorMachine
from stretto_core.actuator.observations import OBSERVATIONS
from stretto_core.actuator.state import ActuatorState, DataWorkers, JobOpened
from stretto_messages.actuator import GetPodLog, GetPodLogReply, GetServers, RenewCredentials, RenewCredentialsReply
from stretto_messages.base import TEXT_MAX, Message
from stretto_runtime import Json, Meta, PartitionLost, Service, SettingsFault
from stretto_runtime.process.store_check import StoreCheck
from stretto_runtime.settings import DAY_S
from stretto_wire.contract.submission import JobSubmitted
from stretto_wire.surroundings import new_id

from .backend import Backend, BackendError, PodStatus
from .job.reconcile import Reconciler
from .local.boxes import warning_of
from .pod.connections import SHARE, ConnectionCounter, PodName
from .pod.credentials import Issuer
from .pod.logs import PodLogs
from .settings import ActuatorSettings

REACH_AGAIN_S = 2.0
LOGS_KEPT = 1000
"""Pods whose last lines are kept: two MB at most."""

NOT_COUNTED = (
    "one pod can take the connections of all others to the bus: {} is missing; repeat `python -m stretto_installation "
    "keys`, and give the actuator the file that it makes"
)

log = structlog.get_logger("stretto.actuator")


def backend_of(settings: ActuatorSettings) -> Backend:
    """Return the backend that the settings name; the libraries of the others are not needed.

    Raises:
        SettingsFault: the libraries of this backend are not installed.
    """
    try:
        backend: Backend = importlib.import_module(f".{settings.backend}.backend", __package__).backend_of(settings)
    except ImportError as error:
        raise SettingsFault(
            f"STRETTO_ACTUATOR_BACKEND={settings.backend} needs the package {error.name}; "
            f"install stretto-actuator[{settings.backend}]"
        ) from error
    return backend


class Actuator(Service[ActuatorSettings, ActuatorState, ActuatorMachine]):
    """Pods and parameters of every job follow its plan; see the README."""

    name = "actuator"
    version = ActuatorMachine.version
    settings_type = ActuatorSettings
    observations = OBSERVATIONS
    tick_s = 5.0
    state_types: ClassVar[dict[str, type]] = {"job": ActuatorState}

    def __init__(self, settings: ActuatorSettings, backend: Backend | None = None) -> None:
        super().__init__(settings)
        self._backend = backend or backend_of(settings)
        self._issuer = Issuer(settings)
        self.warning = warning_of(settings)
        self._reconcilers: dict[str, tuple[Reconciler, asyncio.Task[None]]] = {}
        self._sweeper: asyncio.Task[None] | None = None
        self._logs: dict[tuple[str, str], str] = {}
        self._counter: ConnectionCounter | None = None
        self._ending: set[asyncio.Task[None]] = set()
        has_store = settings.backend == "local" or settings.store_url
        self._store = StoreCheck(settings.store) if has_store else None
        kept_s = settings.kept_pods_days * DAY_S
        self._pod_logs = PodLogs(self._backend, settings.store if has_store else "", kept_s)

    @property
    def lacks(self) -> str:
        return self._store.lacks if self._store is not None else ""

    async def opened(self) -> None:
        if self._store is not None:
            self._store.start()
        self._count_connections()
        if self.warning:
            log.warning(self.warning)
        while True:
            try:
                await self._backend.open()
                return
            except BackendError as error:
                log.warning("takes no jobs before it reaches the place of the pods", error=str(error))
                await asyncio.sleep(REACH_AGAIN_S)

    async def closed(self) -> None:
        if self._store is not None:
            await self._store.stop()
        if self._counter is not None:
            await self._counter.stop()
        await self._pod_logs.close()
        await self._backend.close()

    def _count_connections(self) -> None:
        file, settings = self.settings.connections_credentials, self.settings
        if file is None:
            return
        if not file.exists():  # installed before there were such credentials
            self.warning += f"{'; ' if self.warning else ''}{NOT_COUNTED.format(file)}"
            return
        login = Login(credentials=file, ca=settings.nats_ca)
        self._counter = ConnectionCounter(settings.nats_url, login, self.connections_of, self._end_greedy)
        self._counter.start()

    def connections_of(self, pod: PodName) -> int:
        """Return how many connections to the bus a pod may have: none once it is gone."""
        try:
            machine = self.machine_of(pod.job)
        except PartitionLost:  # its owner tells, which may be another replica
            return SHARE
        return SHARE if machine is not None and pod.name in machine.state.pods else 0

    def _end_greedy(self, pod: PodName) -> None:
        """End a pod that opens connections without end; where it is gone already, those that use its credentials."""
        with contextlib.suppress(PartitionLost):
            machine = self.machine_of(pod.job)
            known = machine.state.pods if machine is not None else {}
            for name in (pod.name,) if pod.name in known else (*known,):
                log.warning("a pod opens far too many connections to the bus: it is ended", job=pod.job, pod=name)
                task = asyncio.create_task(self._backend.kill(pod.job, name), name=f"end {pod.job}/{name}")
                self._ending.add(task)
                task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._ending.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("a pod that opens too many connections cannot be ended", error=str(error))

    def machine(self, key: str, state: ActuatorState | None) -> ActuatorMachine:
        return ActuatorMachine(state)

    def to_event(self, message: Message, meta: Meta) -> Message | JobOpened:
        if not isinstance(message, JobSubmitted):
            return message
        spec, data = message.spec, message.spec.resources.data
        return JobOpened(
            job=message.job,
            spec=spec.model_dump_json(),
            samples_total=0 if spec.dataset.growing else spec.samples_total,
            evaluate=spec.evaluate,
            best_metric=spec.best.metric if spec.best is not None else "",
            worker_failures=spec.restarts.worker_failures,
            samples_given_up_max=spec.restarts.samples_given_up,
            restores=spec.checkpoint.restore_from is not None,
            final_checkpoint=spec.checkpoint.every_s is not None or spec.checkpoint.url is not None,
            worker_memory_max_bytes=spec.resources.workers.memory.max,
            data=DataWorkers(data.always, data.cpu_cores, data.memory),
            runs_program=spec.program is not None,
            watched=spec.level == 0,
            averages_dense=spec.resources.workers.dense == "group",
            together=spec.program is not None and spec.program.together,
        )

    def answer(self, query: Message, machine: ActuatorMachine | None) -> RenewCredentialsReply | GetPodLogReply:
        if isinstance(query, GetPodLog):
            text = self._logs.get((query.job, query.pod))
            return GetPodLogReply(job=query.job, answer="unknown" if text is None else "ok", text=text or "")
        assert isinstance(query, RenewCredentials)
        return self._issuer.renew(query, machine, self.server_now())

    def answer_slowly(self, query: Message) -> Coroutine[Any, Any, Message] | None:
        return self._log_part(query) if isinstance(query, GetPodLog) and query.whole else None

    async def _log_part(self, query: GetPodLog) -> GetPodLogReply:
        found = await self._pod_logs.part(query.job, query.pod, query.skip)
        if found is None:
            text = self._logs.get((query.job, query.pod), "")
            return GetPodLogReply(job=query.job, answer="ok" if text else "unknown", text=text)
        part, more = found
        return GetPodLogReply(job=query.job, answer="ok", part=part, more=more)

    async def keep_whole_log(self, job: str, pod: str) -> None:
        """Keep the end of a pod's log in the store, before the pod is gone."""
        await self._pod_logs.keep(job, pod)

    def keep_log_of_stopped(self, job: str, pod: str) -> None:
        """Keep the log of a pod that is asked to end, while it does, where its log goes with it."""
        if self.settings.backend == "kubernetes":
            self._pod_logs.keep_meanwhile(job, pod)

    def keep_log(self, job: str, pod: str, log: str) -> None:
        """Keep the last lines of a failed pod for its owner, in memory alone: every stream has other readers."""
        if log:
            self._logs[job, pod] = log[-TEXT_MAX:]
        while len(self._logs) > LOGS_KEPT:
            del self._logs[next(iter(self._logs))]

    def identity(self, job: str, pod: str) -> dict[str, bytes]:
        """Return the files that a new pod logs in to the bus with; they end by the clock of the server that checks."""
        return self._issuer.files(job, pod, self.server_now())

    def deciding(self) -> Json:
        return {}  # all settings are the reconciler's

    def partition_changed(self) -> None:
        super().partition_changed()
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep(), name="sweep")

    async def _sweep(self) -> None:
        """Look for pods of unknown jobs: the state was lost, or belongs to another installation."""
        while True:
            await asyncio.sleep(self.settings.sweep_s)
            await self._pod_logs.clear(self.server_now())
            try:
                for job in sorted({pod.job for pod in await self._backend.list()} - self._reconcilers.keys()):
                    with contextlib.suppress(CallTimeout, CallRefused):
                        await self._end_if_unknown(job)
            except Exception as error:  # the next look may succeed; the loop must not end
                log.exception("pods of unknown jobs not looked for", error=str(error))

    async def _end_if_unknown(self, job: str) -> None:
        """Ask the owner of the job, whichever replica that is, about each pod."""
        for pod in await self._backend.list(job):
            asked = f"sweep-{job}.{new_id(8)}"  # a new id: a repeated one would get the remembered reply
            reply = await self.call(GetServers(job=job, request_id=asked, pod=pod.pod), 5.0)
            if reply.answer != "unknown":
                continue
            try:
                await self._end(pod)
            except BackendError as error:  # it must not keep other pods alive
                log.warning("a pod of an unknown job cannot be ended", job=job, pod=pod.pod, error=str(error))

    async def _end(self, pod: PodStatus) -> None:
        if pod.state == "exited":
            await self._backend.forget(pod.job, pod.pod)
        else:
            log.warning("ending a pod of an unknown job", job=pod.job, pod=pod.pod)
            await self._backend.stop(pod.job, pod.pod, self.settings.stop_grace_s)

    async def reconcile(self, key: str, machine: ActuatorMachine) -> None:
        if self._counter is not None:
            self._counter.changed(key)
        held = self._reconcilers.get(key)
        if held is not None and not held[1].done():
            held[0].follow(machine.state)
            return
        reconciler = Reconciler(key, machine.state, self, self._backend, self.settings)
        task = asyncio.create_task(reconciler.run(), name=f"reconcile {key}")
        self._reconcilers[key] = reconciler, task
        task.add_done_callback(lambda done: self._drop(key, done))

    def _drop(self, key: str, task: asyncio.Task[None]) -> None:
        """Let go of a reconciler that has nothing left to do: a finished job would keep it for ever."""
        if self._reconcilers.get(key, (None, None))[1] is task:
            del self._reconcilers[key]

    async def released(self, key: str) -> None:
        _, task = self._reconcilers.pop(key, (None, None))
        if task is not None:
            await end(task)
