"""Helpers of the pods' tests: a real nats-server, a tiny dispatcher and actuator on it, and pods as processes."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import nats
from stretto_core.actuator import placement
from stretto_installation.server import free_port
from stretto_messages.actuator import GetServers, GetServersReply, GroupChanged, ServersChanged
from stretto_messages.base import Message
from stretto_messages.dispatcher import (
    NextShard,
    NextShardReply,
    ReleaseShard,
    ReleaseShardReply,
    ShardHeartbeat,
    ShardHeartbeatReply,
)
from stretto_messages.pods import (
    ClaimBuckets,
    EvaluateModel,
    GetBooks,
    GetBooksReply,
    PodPing,
    PodPingReply,
    PsReported,
    WorkerReported,
)
from stretto_messages.profiler import GetReportInterval, GetReportIntervalReply
from stretto_messages.values import DataWorker, Evaluation, GroupMember, ParameterServer, Shard
from stretto_plane import Key
from stretto_wire.codec import decode, encode
from stretto_wire.contract import registry
from stretto_wire.jobspec.spec import JobSpec
from warm_processes import WarmProcess, WarmProcesses


def wait_for(condition: Any, timeout_s: float = 60.0, what: str = "") -> Any:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"waited {timeout_s} s for {what or condition}")


class Cluster:
    """A job. The dispatcher keeps shards in a list, and requeues leases of a dead pod with attempt + 1."""

    def __init__(self, folder: Path, spec: JobSpec, warm: WarmProcesses | None = None) -> None:
        self.folder, self.spec, self.job = folder, spec, spec.name
        self.key_path = folder / "plane.pem"
        self._warm = warm
        """Pods are forks of a process that has imported TensorFlow; None: each is started as the product starts it."""
        self.environment: dict[str, str] = {}
        """More variables of every pod."""
        self.processes: dict[str, subprocess.Popen[bytes] | WarmProcess] = {}
        self.killed: set[str] = set()
        """Requests of theirs that arrive after their death are not answered: nobody would train the lease."""
        self.logs: dict[str, Path] = {}
        self.reports: list[Any] = []
        self.requests: list[Message] = []
        self.servers: dict[int, str] = {}
        self.stages: dict[str, tuple[int, int]] = {}
        """Stage and first layer of the workers of later stages."""
        self.group: tuple[GroupMember, ...] = ()
        self.group_version = self.group_wanted = 0
        self.data_workers: tuple[DataWorker, ...] = ()
        self.data_version = 0
        self.version = 0
        batch = spec.dataset.batch_size * spec.dataset.batches_per_shard
        starts = range(0, spec.dataset.samples, batch)
        self.todo = [
            Shard(id=i, attempt=0 + 1, epoch=0, start=s, length=min(batch, spec.dataset.samples - s))
            for i, s in enumerate(starts)
        ]
        self.leased: dict[str, Shard] = {}
        self.ahead: dict[str, Shard] = {}
        self.done: dict[int, Shard] = {}
        self.failed: list[ReleaseShard] = []
        self.released: list[ReleaseShard] = []
        self.remembered: dict[str, tuple[str, bytes]] = {}
        self.repeated_requests = 0
        self.forget: list[int] = []
        self.lineage = 0
        """The return to a checkpoint that the shards in the list are of."""
        self.deaf = 0
        """The number of requests for shards whose replies get lost."""
        self.reserved: dict[str, Shard] = {}
        """Shards for certain pods only."""
        self.silent = False
        """If true, heartbeats do not report that another pod has the lease."""
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    # --- life ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        port = free_port()
        self.url = f"nats://127.0.0.1:{port}"
        binary = shutil.which("nats-server") or str(Path(sys.executable).parent / "nats-server")
        self.processes["nats"] = subprocess.Popen(
            [binary, "-a", "127.0.0.1", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.spec_path = self.folder / "spec.json"
        self.spec_path.write_text(self.spec.model_dump_json())
        self.key_path.write_bytes(Key.random().pem)
        self.run(self._connect())

    def run(self, work: Any, timeout_s: float = 60.0) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    async def _connect(self) -> None:
        async def broken(_: Exception) -> None:
            """Ignore errors while the server starts and stops."""

        self.nc = await nats.connect(
            self.url, connect_timeout=5, max_reconnect_attempts=-1, reconnect_time_wait=0.1, error_cb=broken
        )
        await self.nc.subscribe("rpc.v1.>", cb=self._rpc)
        await self.nc.subscribe("tel.v1.>", cb=self._telemetry)

    def stop(self) -> None:
        self.run(self.nc.close(), 60)
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
                process.wait(60)
        self._loop.call_soon_threadsafe(self._loop.stop)

    # --- pods ---------------------------------------------------------------------------------------------

    def launch(self, pod: str, **extra: str) -> subprocess.Popen[bytes] | WarmProcess:
        role = pod.partition("-")[0]
        environment = {
            **os.environ,
            "STRETTO_JOB": self.job,
            "STRETTO_POD": pod,
            "STRETTO_NATS_URL": self.url,
            "STRETTO_JOB_SPEC": str(self.spec_path),
            "STRETTO_PLAN_VERSION": "1",
            "STRETTO_CPU_CORES": "1",
            "STRETTO_MEMORY_BYTES": str(2**30),
            "STRETTO_STATE_FOLDER": str(self.folder / "state"),
            "STRETTO_PLANE_KEY": str(self.key_path),
            "TRACEPARENT": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            **self.environment,
            **extra,
        }
        self.logs[pod] = self.folder / f"{pod}.log"
        with open(self.logs[pod], "wb") as log:
            command = ("-m", "stretto.program" if self.spec.program is not None else f"stretto.{role}")
            if self._warm is None:
                process = subprocess.Popen(
                    [sys.executable, *command], env=environment, stdout=log, stderr=subprocess.STDOUT
                )
            else:
                with open(os.devnull) as nothing:
                    process = self._warm.start(*command, environment=environment, stdin=nothing, stdout=log, stderr=log)
        self.processes[pod] = process
        return process

    def own_folder(self, pod: str) -> dict[str, str]:
        """Return the variables of a pod that shares its machine: a folder of its own, where a server's socket lies."""
        folder = self.folder / "pods" / pod
        folder.mkdir(parents=True, exist_ok=True)
        return {"STRETTO_POD_FOLDER": str(folder)}

    def log(self, pod: str) -> str:
        return self.logs[pod].read_text()

    def ask(self, pod: str, request: Message, timeout_s: float = 60.0) -> Any:
        """Return the pod's reply; raise RuntimeError for an error reply."""
        message = self.run(
            self.nc.request(registry.subject_of(request, pod=pod), encode(request), timeout=timeout_s), timeout_s + 5
        )
        if message.headers and "error" in message.headers:
            raise RuntimeError(message.data.decode())
        reply = registry.channel_of(request).reply
        assert reply is not None
        return decode(reply, message.data)

    def ready(self, pod: str, timeout_s: float = 60.0) -> PodPingReply:
        def pinged() -> Any:
            assert self.processes[pod].poll() is None, self.log(pod)
            try:
                reply = self.ask(pod, PodPing(job=self.job), 1.0)
            except (nats.errors.Error, TimeoutError):
                return None
            return reply if reply.ready else None

        return wait_for(pinged, timeout_s, f"{pod} to be ready")

    def start_ps(self, *indices: int, claim: bool = True) -> None:
        for index in indices:
            self.launch(f"ps-{index}")
        for index in indices:
            self.servers[index] = self.ready(f"ps-{index}").address
        if claim:
            for index, (buckets, slices) in placement.claim(indices).items():
                claimed = ClaimBuckets(job=self.job, buckets=tuple(buckets), slices=tuple(slices))
                assert self.ask(f"ps-{index}", claimed).accepted
        self.announce()

    def server_list(self) -> tuple[ParameterServer, ...]:
        return tuple(ParameterServer(index=i, address=a) for i, a in self.servers.items())

    def announce(self) -> None:
        self.version += 1
        event = ServersChanged(job=self.job, version=self.version, servers=self.server_list())
        self.run(self.nc.publish(registry.subject_of(event), encode(event)))

    def announce_stages(self, *pods: str) -> None:
        """Name the workers of later stages that are asked for steps from now on."""
        members = list[GroupMember]()
        for pod in pods:
            stage, first_layer = self.stages[pod]
            members.append(
                GroupMember(
                    index=int(pod.partition("-")[2]),
                    address=self.ready(pod).address,
                    stage=stage,
                    first_layer=first_layer,
                )
            )
        self._announce(tuple(members), 0)

    def announce_group(self, *pods: str, wanted: int) -> None:
        """Name the workers that are the ranks of a program from now on."""
        found = {pod: self.ready(pod).address for pod in pods}
        members = (GroupMember(index=int(pod.partition("-")[2]), address=address) for pod, address in found.items())
        self._announce(tuple(members), wanted)

    def announce_data_workers(self, *pods: str) -> None:
        """Name the data workers that there are from now on, to workers that ask from now on."""
        found = {pod: self.ready(pod).address for pod in pods}
        self.data_version += 1
        self.data_workers = tuple(
            DataWorker(index=int(pod.partition("-")[2]), address=address) for pod, address in found.items()
        )

    def _announce(self, members: tuple[GroupMember, ...], wanted: int) -> None:
        self.group_version, self.group, self.group_wanted = self.group_version + 1, members, wanted
        event = GroupChanged(job=self.job, version=self.group_version, workers=members, wanted=wanted)
        self.run(self.nc.publish(registry.subject_of(event), encode(event)))

    def launch_stage(self, pod: str, stage: int, first_layer: int) -> None:
        """Start a worker of a later stage."""
        self.stages[pod] = stage, first_layer
        self.launch(pod, STRETTO_STAGE=str(stage), STRETTO_FIRST_LAYER=str(first_layer), **self.own_folder(pod))

    def kill(self, pod: str) -> None:
        """Kill -9 a pod, and requeue its shard as the dispatcher does."""
        self.processes[pod].send_signal(signal.SIGKILL)
        self.processes[pod].wait(60)
        self.run(self._requeue(pod))

    def terminate(self, pod: str, timeout_s: float = 60.0) -> int:
        self.processes[pod].terminate()
        return self.processes[pod].wait(timeout_s)

    async def _requeue(self, pod: str) -> None:
        self.killed.add(pod)
        self._take_back_ahead(pod)
        shard = self.leased.pop(pod, None)
        if shard is not None:
            self.todo.insert(0, replace(shard, attempt=shard.attempt + 1))

    def _take_back_ahead(self, pod: str) -> None:
        if (ahead := self.ahead.pop(pod, None)) is not None:
            self.todo.insert(0, ahead)

    # --- dispatcher and actuator --------------------------------------------------------------------------

    async def _telemetry(self, message: Any) -> None:
        report = registry.parse(message.subject, message.data)
        assert message.headers["ce-id"]
        assert not [name for name in message.headers if name.startswith("Nats-")]
        self.reports.append(report)

    async def _rpc(self, message: Any) -> None:
        request = registry.parse(message.subject, message.data)
        if getattr(request, "pod", "") in self.killed:
            return
        self.requests.append(request)
        request_id = (message.headers or {}).get("request-id") or getattr(request, "request_id", "")
        lane = request_id.rpartition(".")[0]
        known = self.remembered.get(lane)
        if known is not None and known[0] == request_id:
            self.repeated_requests += 1
            await message.respond(known[1])
            return
        reply = encode(self._handle(request))
        self.remembered[lane] = (request_id, reply)
        if self.deaf and isinstance(request, NextShard):
            self.deaf -= 1
            return
        await message.respond(reply)

    def _handle(self, request: Message) -> Message:
        if isinstance(request, GetServers):
            return GetServersReply(
                job=self.job,
                answer="ok",
                version=self.version,
                plan_version=1,
                servers=self.server_list(),
                group_version=self.group_version,
                group=self.group,
                group_wanted=self.group_wanted,
                data_version=self.data_version,
                data_workers=self.data_workers,
            )
        if isinstance(request, NextShard):
            return self._next(request)
        if isinstance(request, GetReportInterval):
            return GetReportIntervalReply(job=self.job, interval_s=1.0)
        if isinstance(request, ShardHeartbeat):
            held = self.leased.get(request.pod)
            same = held is not None and (held.id, held.attempt) == (request.shard, request.attempt)
            return ShardHeartbeatReply(job=self.job, answer="ok" if same or self.silent else "stale")
        assert isinstance(request, ReleaseShard)
        self.released.append(request)
        self._take_back_ahead(request.pod)
        shard = self.leased.pop(request.pod, None)
        if shard is None or shard.id != request.shard:
            return ReleaseShardReply(job=self.job, answer="stale")
        if request.failure:
            self.failed.append(request)
            self.done[shard.id] = shard
        else:
            self.todo.insert(0, replace(shard, attempt=shard.attempt + 1, offset=request.offset))
        return ReleaseShardReply(job=self.job, answer="ok")

    def _next(self, request: NextShard) -> Message:
        stale = False
        if request.complete is not None:
            held = self.leased.pop(request.pod, None)
            stale = held is None or (held.id, held.attempt) != (request.complete.id, request.complete.attempt)
            if held is not None and not stale:
                self.done[held.id] = held
                self.forget.append(held.id)
        forget, self.forget = tuple(self.forget[:-2]), self.forget[-2:]
        again = self.leased.get(request.pod)  # it has dropped its lease
        shard = self.reserved.pop(request.pod, None) or again or self.ahead.pop(request.pod, None)
        if shard is not None or self.todo:
            self.leased[request.pod] = shard = shard or self.todo.pop(0)
            if request.ahead and len(self.todo) > 2 and request.pod not in self.ahead:
                self.ahead[request.pod] = self.todo.pop(0)
            return NextShardReply(
                job=self.job,
                answer="shard",
                shard=shard,
                stale=stale,
                forget=forget,
                lineage=self.lineage,
                ahead=self.ahead.get(request.pod) if request.ahead else None,
            )
        answer = "wait" if self.leased or self.reserved else "end"
        return NextShardReply(job=self.job, answer=answer, wait_s=0.1, stale=stale, forget=forget)

    def go_back(self, lineage: int) -> None:
        """Lease all shards anew under ids and attempts that were never leased, as a restored ledger does."""

        async def restore() -> None:
            held = (*self.leased.values(), *self.ahead.values())
            shards = sorted((*self.done.values(), *held, *self.todo), key=lambda shard: shard.start)
            first = 1 + max(shard.id for shard in shards)
            self.todo = [replace(shard, id=first + i, attempt=1, offset=0) for i, shard in enumerate(shards)]
            self.done, self.leased, self.ahead, self.forget = {}, {}, {}, []
            self.lineage = lineage

        self.run(restore())

    def keep_for(self, *pods: str) -> None:
        """Let pods that are to join train a shard each, however fast the others are."""

        async def keep() -> None:
            self.reserved |= {pod: self.todo.pop() for pod in pods}

        self.run(keep())

    def end_soon(self) -> int:
        """Leave out the shards that nobody has begun; return the samples of the others."""

        async def leave_out() -> int:
            self.todo.clear()
            held = (*self.leased.values(), *self.ahead.values())
            return sum(shard.length for shard in (*self.done.values(), *held))

        return int(self.run(leave_out()))

    def finished(self) -> bool:
        return not (self.todo or self.leased or self.reserved)

    # --- measures -----------------------------------------------------------------------------------------

    def books(self, *indices: int) -> list[GetBooksReply]:
        return [self.ask(f"ps-{i}", GetBooks(job=self.job)) for i in indices]

    def evaluated(self, worker: str, samples: int) -> Evaluation:
        """Return what a worker finds on samples behind those that train."""
        request = EvaluateModel(job=self.job, samples=samples)
        reply = wait_for(lambda: (lambda r: r if r.state != "running" else None)(self.ask(worker, request)), 60)
        assert reply.state == "done", reply.detail
        return reply.evaluation

    def worker_reports(self) -> list[WorkerReported]:
        return [r for r in self.reports if isinstance(r, WorkerReported)]

    def ps_reports(self) -> list[PsReported]:
        return [r for r in self.reports if isinstance(r, PsReported)]

    def spans(self) -> list[dict[str, Any]]:
        files = (self.folder / "state" / "spans").rglob("*.jsonl")
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def spec_of(samples: int, **changes: Any) -> JobSpec:
    document: dict[str, Any] = {
        "name": "tiny",
        "model": {
            "entry": "stretto.examples.wide_deep:WideDeep",
            "arguments": {"seed": 5, "categories": 2000, "hidden": "16"},
            "embedding_dim": 8,
        },
        "dataset": {"samples": samples, "batch_size": 256, "batches_per_shard": 8, "seed": 3},
        "resources": {},
    }
    for name, value in changes.items():
        document[name] = {**document.get(name, {}), **value} if isinstance(value, dict) else value
    return JobSpec.parse(document)
