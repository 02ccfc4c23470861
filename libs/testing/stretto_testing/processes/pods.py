"""The place where pods of a simulated installation run: a backend of the actuator, and the programs of pods.

Parameter servers answer what the actuator asks, and columns change their owners. What columns hold is their job's
(``training``), wherever they are, until their server dies: moves of content have tests of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from stretto_actuator.backend import ExitReason, Following, Places, PodSpec, PodStatus
from stretto_bus import Client
from stretto_bus.bus import Msg
from stretto_bus.faults import BusFault
from stretto_core.actuator.servers import RECOVERIES
from stretto_messages import pods as messages
from stretto_messages.base import Message
from stretto_messages.books import AppliedBooks, ColumnBooks
from stretto_messages.values import BUCKETS, SLICES, Evaluation
from stretto_wire.codec import encode
from stretto_wire.contract.registry import parse
from stretto_wire.surroundings import chance, wall_s

from stretto_testing.checks import Check
from stretto_testing.nodes import SimulatedProcess
from stretto_testing.processes import reports
from stretto_testing.processes.reports import REPORT_S
from stretto_testing.processes.training import COLUMNS, Job, SimulatedWorker
from stretto_testing.simulation import URL, Simulation

CALL_S, START_S, MOVE_S, STORE_S = 0.01, 1.0, 0.02, 0.5
"""Mean times of a call to the place, until a pod runs, a column has moved, an image is stored."""
KILLED = 137
DECIDED_WITHIN_S = 20.0
"""Time without a fault within which a parameter server's end for its memory leads to a plan with more."""
LOSSES_MOST = RECOVERIES - 1
"""Losses of parameter servers after which no fault comes to another one of a job: it would fail, as promised."""


class PodProcess:
    """One pod: what its place knows of it, and its process once it runs."""

    def __init__(self, place: SimulatedPlace, job: Job, spec: PodSpec) -> None:
        self.job, self.spec = job, spec
        self.role = spec.pod.rpartition("-")[0]
        self.name = spec.pod
        self.node: SimulatedProcess | None = None
        self.is_leaving = asyncio.Event()
        self.owned = [0] * COLUMNS
        """Parameter servers: 1 for each column that is here"""
        self.moving: asyncio.Task[None] | None = None
        self.moves = (0, 0)
        self.move_error: str | None = None
        self.emptied_version = self.import_number = 0
        self.exports: dict[str, tuple[float, list[int]]] = {}
        """Checkpoint -> when its image is stored, and what this server owned at the export"""
        self._place = place

    async def run(self) -> None:
        """Answer the actuator, and train or serve until the pod is to leave."""
        client = await Client.connect(URL)
        await client.bus.subscribe(f"pod.v1.*.{self.name}.{self.job.name}", lambda msg: self._asked(client, msg))
        reporting = asyncio.create_task(self._report(client))
        if self.role == "worker":
            await SimulatedWorker(self.job, self.name, client, self.is_leaving).run()
        await self.is_leaving.wait()
        reporting.cancel()
        await client.close()
        self._place.ended(self, 0, "completed")

    def _asked(self, client: Client, msg: Msg) -> None:
        words = msg.subject.split(".")
        request = parse(".".join(words), msg.data)
        with contextlib.suppress(BusFault):  # it is asked again
            client.bus.offer(msg.reply, encode(self._answer(request)))

    def _answer(self, request: Message) -> Message:
        job = self.job.name
        match request:
            case messages.PodPing():
                return messages.PodPingReply(job=job, ready=True, address="127.0.0.1:9000")
            case messages.TrainUnder():
                self.job.plan_version = request.plan_version
                return messages.TrainUnderReply(job=job)
            case messages.EvaluateModel():
                found = Evaluation(samples=request.samples, loss=0.5, auc=0.7)
                return messages.EvaluateModelReply(job=job, state="done", evaluation=found)
            case messages.GetOwnership():
                rows = tuple(10 * own for own in self.owned[:BUCKETS])
                buckets, slices = tuple(self.owned[:BUCKETS]), tuple(self.owned[BUCKETS:])
                return messages.GetOwnershipReply(job=job, buckets=buckets, slices=slices, bucket_rows=rows)
            case messages.GetMoveStatus():
                is_running = self.moving is not None and not self.moving.done()
                done, total = self.moves
                return messages.GetMoveStatusReply(
                    job=job, running=is_running, done=done, total=total, moved_bytes=done, longest_freeze_s=0.01,
                    error=None if is_running else self.move_error,
                )  # fmt: skip
            case messages.GetBooks():
                return self._books()
            case messages.ExportState():
                self.exports[request.checkpoint_id] = wall_s() + chance().expovariate(1 / STORE_S), [*self.owned]
                self.job.export(request.checkpoint_id, self.columns)
                return messages.ExportStateReply(job=job, accepted=True, size_bytes=100)
            case messages.GetExportStatus():
                return self._export_status(request.checkpoint_id)
            case messages.ClaimBuckets() | messages.TakeBuckets() | messages.EmptyServer() | messages.ImportState():
                return self._change(request)
            case _:
                raise AssertionError(f"no simulated server understands {type(request).__name__}: add it here")

    def _change(self, request: Message) -> Message:
        match request:
            case messages.ClaimBuckets():
                return self._claim(request)
            case messages.TakeBuckets():
                return self._take(request)
            case messages.EmptyServer():
                return self._empty(request)
            case _:
                assert isinstance(request, messages.ImportState)
                return self._import(request)

    def _export_status(self, checkpoint: str) -> Message:
        if checkpoint not in self.exports:
            return messages.GetExportStatusReply(job=self.job.name, stage="unknown")
        stored_at_s, owned = self.exports[checkpoint]
        if wall_s() < stored_at_s:
            return messages.GetExportStatusReply(job=self.job.name, stage="cached")
        full_from_s, full_until_s = self._place.store_is_full_s
        if full_from_s <= stored_at_s < full_until_s:
            return messages.GetExportStatusReply(job=self.job.name, stage="failed", detail="the store is full")
        columns = [column for column, own in enumerate(owned) if own]
        part = {"pod": self.name, "file": f"{self.name}.image", "bases": [], "columns": columns}
        return messages.GetExportStatusReply(job=self.job.name, stage="stored", part=json.dumps(part))

    def _claim(self, request: messages.ClaimBuckets) -> Message:
        wanted = [int(number in request.buckets) for number in range(BUCKETS)]
        wanted += [int(number in request.slices) for number in range(SLICES)]
        if sum(self.owned) and self.owned != wanted:
            return messages.ClaimBucketsReply(job=self.job.name, accepted=False, detail="owns others already")
        if self.owned != wanted:
            self.owned = wanted
            for server, mask in self.job.each(self.columns):
                server.claimed(mask)
        return messages.ClaimBucketsReply(job=self.job.name, accepted=True)

    @property
    def columns(self) -> list[int]:
        """The columns that are here."""
        return [column for column, own in enumerate(self.owned) if own]

    def _empty(self, request: messages.EmptyServer) -> Message:
        if request.version > self.emptied_version:
            self.emptied_version, self.import_number = request.version, 0
            if self.moving is not None:
                self.moving.cancel()
            self.drop_columns()
        elif self.columns:
            return messages.EmptyServerReply(job=self.job.name, accepted=False, detail="late")
        return messages.EmptyServerReply(job=self.job.name, accepted=True)

    def drop_columns(self) -> None:
        """Lose what is here."""
        columns, self.owned = self.columns, [0] * COLUMNS
        if columns:
            self.job.lose(columns)

    def _import(self, request: messages.ImportState) -> Message:
        """Load columns as a server does: a request that comes late is refused, a repeated one loads nothing."""
        wanted = [*request.buckets, *(BUCKETS + number for number in request.slices)]
        missing = [column for column in wanted if not self.owned[column]]
        images = self.job.images.get(request.checkpoint.id, {})
        wrong = ""
        if request.number < self.import_number:
            wrong = "late"
        elif not request.beside and self.columns and missing:
            wrong = "owns others already"
        elif request.beside and missing and self.columns and request.lineage != self.job.lineage:
            wrong = "of another lineage"
        elif not images.keys() >= {*wanted}:
            wrong = "no image"
        self.import_number = max(self.import_number, request.number)
        if not wrong and missing:
            self.job.load(request.checkpoint.id, missing, request.lineage)
            self.owned = [int(own or column in missing) for column, own in enumerate(self.owned)]
        return messages.ImportStateReply(job=self.job.name, accepted=not wrong, detail=wrong)

    def _take(self, request: messages.TakeBuckets) -> Message:
        if self.moving is not None and not self.moving.done():
            return messages.TakeBucketsReply(job=self.job.name, accepted=False, detail="busy")
        moves = [move for move in request.moves if not self.owned[move.bucket]]
        self.moves, self.move_error = (0, len(moves)), None
        self.moving = asyncio.create_task(self._move(moves))
        return messages.TakeBucketsReply(job=self.job.name, accepted=True)

    async def _move(self, moves: list[messages.BucketMove]) -> None:
        for move in moves:
            await asyncio.sleep(chance().expovariate(1 / MOVE_S))
            source = self._place.pods.get((self.job.name, f"ps-{move.source}"))
            if self.job.losses and (source is None or not source.owned[move.bucket]):
                self.move_error = f"{move.bucket} is not at ps-{move.source}"
                return
            if source is None or not source.owned[move.bucket]:
                self.job.wrong.append(
                    f"{Check.COLUMNS}: {self.name} takes {move.bucket} from ps-{move.source}: not there"
                )
                return
            source.owned[move.bucket], self.owned[move.bucket] = 0, 1
            self.moves = (self.moves[0] + 1, self.moves[1])

    def _books(self) -> Message:
        for server, mask in self.job.each(self.columns):
            server.audit(mask)
        columns = [
            ColumnBooks(columns=(column,), samples=samples, fingerprint=fingerprint)
            for column, own in enumerate(self.owned)
            if own
            for samples, fingerprint in [self.job.counted(column)]
        ]
        return messages.GetBooksReply(
            job=self.job.name,
            applied_samples=columns[-1].samples if columns else 0,
            skipped_repeats=0,
            rejected_pushes=0,
            owns_dense=bool(sum(self.owned[BUCKETS:])),
            rows=10 * sum(self.owned[:BUCKETS]),
            checksum="1",
            applied=AppliedBooks(columns_total=COLUMNS, columns=tuple(columns)),
        )

    async def _report(self, client: Client) -> None:
        number, memory_bytes = 0, 0
        while True:
            await asyncio.sleep(REPORT_S)
            number += 1
            match self.role:
                case "worker":
                    report = reports.of_worker(self.job, self.spec, number, self._place.data_workers_of(self.job))
                case "data":
                    report = reports.of_data_worker(self.job, self.spec)
                case _:
                    report = reports.of_server(self.job, self.spec, self.columns)
                    memory_bytes = report.memory_used_bytes
            if memory_bytes > self.spec.memory_bytes:
                self._place.outgrown(self)
                return
            with contextlib.suppress(BusFault):
                await client.publish(report, tries_s=0.0)


class SimulatedPlace:
    """The pods of a simulated cluster of so many cores: they outlive every replica of the actuator."""

    def __init__(self, simulation: Simulation, jobs: dict[str, Job], cores: float) -> None:
        self.pods: dict[tuple[str, str], PodProcess] = {}
        self.statuses: dict[tuple[str, str], PodStatus] = {}
        self.broken: list[str] = []
        self.simulation = simulation
        self._jobs = jobs
        self._cores = cores
        self._followings: list[Following] = []
        self.store_is_full_s = (0.0, 0.0)
        """Wall-clock time within which the store of checkpoints has no room for an image"""
        self._outgrown: dict[str, tuple[int, float]] = {}
        """Job -> the largest limit at which one of its parameter servers was ended for its memory, and the last time"""

    def backend(self) -> SimulatedBackend:
        """Return a backend for one replica of the actuator."""
        following = Following()
        self._followings.append(following)
        return SimulatedBackend(self, following)

    def workers(self) -> list[PodProcess]:
        """Return the workers that run."""
        return [pod for pod in self.pods.values() if pod.role == "worker" and pod.node is not None]

    def servers(self) -> list[PodProcess]:
        """Return the parameter servers whose loss their jobs can survive."""
        return [
            pod
            for pod in self.pods.values()
            if pod.role == "ps" and pod.node is not None and pod.job.has_checkpoint and pod.job.losses < LOSSES_MOST
        ]

    def data_workers(self) -> list[PodProcess]:
        """Return the data workers that run."""
        return [pod for pod in self.pods.values() if pod.role == "data" and pod.node is not None]

    def data_workers_of(self, job: Job) -> int:
        """Return how many data workers of a job run."""
        return sum(pod.job is job for pod in self.data_workers())

    def fill_store(self, lasts_s: float) -> None:
        """Let the store of checkpoints have no room for a while."""
        now_s = self.simulation.loop.wall_ns() / 1e9
        self.store_is_full_s = now_s, now_s + lasts_s

    def outgrown(self, pod: PodProcess) -> None:
        """End a parameter server whose rows have outgrown its limit, as a kernel does."""
        least_bytes, _ = self._outgrown.get(pod.job.name, (0, 0.0))
        self._outgrown[pod.job.name] = max(pod.spec.memory_bytes, least_bytes), self.simulation.loop.time()
        self._later(0.0, lambda: self.crash(pod.job.name, pod.name, "oom-killed"))

    def _is_enough(self, pod: PodProcess) -> bool:
        """Return whether a parameter server has more memory than one of its job that was ended for it.

        True also if there was no time yet to decide.
        """
        limit_bytes, at_s = self._outgrown.get(pod.job.name, (0, 0.0))
        decided_s = max(at_s, pod.job.troubled_until_s) + DECIDED_WITHIN_S
        return pod.spec.memory_bytes > limit_bytes or self.simulation.loop.time() < decided_s

    def launch(self, spec: PodSpec) -> None:
        """Start a pod that never was; it runs some time later."""
        key = spec.job, spec.pod
        if key in self.statuses:
            return
        self.statuses[key] = PodStatus(
            spec.job, spec.pod, "pending", spec.cpu_cores, spec.memory_bytes, launched_at_s=wall_s()
        )
        self.pods[key] = pod = PodProcess(self, self._jobs[spec.job], spec)
        self._count_cores()
        if pod.role == "ps" and not self._is_enough(pod):
            self.broken.append(f"{Check.MEMORY}: {pod.name} of {spec.job} starts with {spec.memory_bytes} bytes again")
        self._later(chance().expovariate(1 / START_S), lambda: self._begin(pod))

    def _count_cores(self) -> None:
        used = sum(pod.spec.cpu_cores for pod in self.pods.values())
        if used > self._cores + 1e-6:
            self.broken.append(f"{Check.PODS}: they have {used:g} cores, of {self._cores:g}: {sorted(self.pods)}")

    def _begin(self, pod: PodProcess) -> None:
        if self.pods.get((pod.job.name, pod.name)) is pod:
            self._change(pod, state="running", launched_at_s=self.simulation.loop.wall_ns() / 1e9)
            pod.node = self.simulation.process(f"{pod.job.name}/{pod.name}", pod.run())

    def ended(self, pod: PodProcess, code: int, reason: ExitReason) -> None:
        """Note the end of a pod."""
        if self.pods.pop((pod.job.name, pod.name), None) is not None:
            self._change(pod, state="exited", exit_code=code, reason=reason)

    def crash(self, job: str, name: str, reason: ExitReason = "killed") -> None:
        """Kill a pod."""
        pod = self.pods.get((job, name))
        if pod is not None:
            if pod.node is not None:
                self.simulation.kill(pod.node)
            pod.drop_columns()
            self.ended(pod, KILLED, reason)

    def lose(self) -> None:
        """Lose all pods, and what was known of pods."""
        for pod in self.pods.values():
            if pod.node is not None:
                self.simulation.kill(pod.node)
            pod.drop_columns()
        self.pods.clear()
        self.statuses.clear()
        self._outgrown.clear()
        self._followings.clear()

    def stop(self, job: str, name: str, grace_s: float) -> None:
        """Ask a pod to end; it is killed after ``grace_s``."""
        pod = self.pods.get((job, name))
        if pod is None:
            return
        if pod.node is None:
            self.crash(job, name)
        elif not pod.is_leaving.is_set():
            self.simulation.loop.call_soon(pod.is_leaving.set, context=pod.node.context)
            self._later(grace_s, lambda: self.crash(job, name) if self.pods.get((job, name)) is pod else None)

    def resize(self, job: str, name: str, cpu_cores: float, memory_bytes: int) -> None:
        """Change the limits of a pod."""
        if (pod := self.pods.get((job, name))) is not None:
            pod.spec = replace(pod.spec, cpu_cores=cpu_cores, memory_bytes=memory_bytes)
            self._change(pod, cpu_cores=cpu_cores, memory_bytes=memory_bytes)
            self._count_cores()

    def _change(self, pod: PodProcess, **changes: Any) -> None:
        key = pod.job.name, pod.name
        self.statuses[key] = replace(self.statuses[key], **changes)
        for following in self._followings:
            following.notify(pod.job.name)

    def _later(self, delay_s: float, action: Callable[[], object]) -> None:
        loop = self.simulation.loop
        loop.call_later(delay_s, action, context=loop.root.context)


class SimulatedBackend:
    """One replica's way to the place; every call takes a while, and its caller may die before or after its effect."""

    def __init__(self, place: SimulatedPlace, following: Following) -> None:
        self._place, self._following = place, following

    async def open(self) -> None:
        await self._call()

    async def close(self) -> None:
        await self._call()

    async def _call(self, effect: Callable[[], object] | None = None) -> None:
        await asyncio.sleep(chance().expovariate(1 / CALL_S))
        if effect is not None:
            effect()
            await asyncio.sleep(chance().expovariate(1 / CALL_S))

    def places(self, job: str, pod: str) -> Places:
        return Places("/files", "/scratch", "")

    def follow(self, job: str, changed: Callable[[], None]) -> Callable[[], None]:
        return self._following.add(job, changed)

    async def list(self, job: str | None = None) -> Sequence[PodStatus]:
        await self._call()
        return [status for (of, _), status in self._place.statuses.items() if job in (None, of)]

    async def launch(self, spec: PodSpec) -> None:
        await self._call(lambda: self._place.launch(spec))

    async def stop(self, job: str, pod: str, grace_s: float) -> None:
        await self._call(lambda: self._place.stop(job, pod, grace_s))

    async def kill(self, job: str, pod: str) -> None:
        await self._call(lambda: self._place.crash(job, pod))

    async def resize(self, job: str, pod: str, cpu_cores: float, memory_bytes: int) -> tuple[float, int]:
        await self._call(lambda: self._place.resize(job, pod, cpu_cores, memory_bytes))
        return cpu_cores, memory_bytes

    async def logs(self, job: str, pod: str, lines: int) -> str:
        return ""

    async def forget(self, job: str, pod: str) -> None:
        def forget() -> None:
            if self._place.statuses.get((job, pod)) is not None and (job, pod) not in self._place.pods:
                del self._place.statuses[job, pod]

        await self._call(forget)
