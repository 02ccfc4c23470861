"""Simulated jobs: the telemetry of real pods without their training.

A job under a plan trains in lockstep with its equation T(workers, ps) = a + b / ps + c workers / ps (seconds a step);
its reports are those of ``stretto.worker`` and ``stretto.ps``, counters included.
"""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
from stretto_bus import Client
from stretto_messages.actuator import PlanApplied, PodExited, PodStarted
from stretto_messages.base import Message, example_of
from stretto_messages.dispatcher import JobProgressed
from stretto_messages.pods import PsReported, WorkerReported
from stretto_messages.values import Plan, StepTimes
from stretto_wire.codec import encode
from stretto_wire.contract.cloudevents import headers_of
from stretto_wire.contract.registry import subject_of
from stretto_wire.contract.submission import JobSubmitted

from tests import live_bus
from tests.live_bus import plan_of, submission

GIB, MIB = 2**30, 2**20
GIVE_UP_S = 180.0
BATCH_SIZE = 512
IN_FLIGHT = 500


@dataclass
class Pod:
    """One pod. ``told_s``: end of its last report."""

    name: str
    told_s: float
    steps: int = 0

    @property
    def role(self) -> str:
        return self.name.partition("-")[0]


@dataclass
class Job:
    """One job: its plan in force, and its pods."""

    name: str
    plan: Plan
    version: int = 1
    pods: list[Pod] = field(default_factory=list[Pod])
    progressed_s: float = 0.0
    next_number: dict[str, int] = field(default_factory=lambda: {"worker": 0, "ps": 0})

    @property
    def step_time_s(self) -> float:
        workers, ps = self.plan.workers, self.plan.ps
        return 0.02 + 0.02 / ps + 0.004 * workers / ps

    def submitted(self, samples: int) -> JobSubmitted:
        dataset = {"samples": samples, "batch_size": BATCH_SIZE}
        return submission(self.name, dataset=dataset, resources={"initial": asdict(self.plan)})

    def progressed(self, now: float) -> JobProgressed:
        """Return the progress event of the job's ledger."""
        self.progressed_s = now
        done = sum(pod.steps for pod in self.pods if pod.role == "worker") * BATCH_SIZE
        rate = BATCH_SIZE * self.plan.workers / self.step_time_s
        return replace(live_bus.progressed(self.name, done, 10**12, rate), shards_leased=self.plan.workers)

    def under(self, plan: Plan, version: int, now: float) -> list[Message]:
        """Return the events of the actuator once the pods match ``plan``."""
        self.plan, self.version = plan, version
        told: list[Message] = []
        for role, wanted in (("ps", plan.ps), ("worker", plan.workers)):
            own = [pod for pod in self.pods if pod.role == role]
            for pod in own[wanted:]:
                self.pods.remove(pod)
                told.append(
                    PodExited(job=self.name, pod=pod.name, role=pod.role, reason="stopped", exit_code=0)  # type: ignore[arg-type]
                )
            told += [self._started(role, now) for _ in range(wanted - len(own))]
        return [*told, PlanApplied(job=self.name, version=version, plan=plan, took_s=1.0)]

    def _started(self, role: str, now: float) -> PodStarted:
        number = self.next_number[role]
        self.next_number[role] += 1
        pod = Pod(f"{role}-{number}", now)
        self.pods.append(pod)
        given = {"plan_version": self.version, "cpu_cores": 1.0, "memory_bytes": GIB}
        return replace(example_of(PodStarted), job=self.name, pod=pod.name, role=role, **given)  # type: ignore[arg-type]

    def report(self, pod: Pod, now: float) -> WorkerReported | PsReported:
        """Return the pod's report at ``now`` for the time since its last report."""
        window_s = max(now - pod.told_s, 1e-3)
        steps = int(window_s / self.step_time_s)
        pod.told_s, pod.steps = now, pod.steps + steps
        common: dict[str, Any] = {"job": self.name, "pod": pod.name, "ended_at_s": now, "window_s": window_s}
        common |= {"cpu_used_cores": 0.7, "memory_used_bytes": GIB // 2, "memory_limit_bytes": GIB}
        samples = pod.steps * BATCH_SIZE
        if pod.role == "ps":
            done = {"updates": steps * self.plan.workers, "applied_samples_total": samples * self.plan.workers}
            kept = {"categories": 100_000, "table_bytes": 16_000_000, "buckets": max(1, 256 // self.plan.ps)}
            return replace(example_of(PsReported), cpu_limit_cores=1.0, **common, **done, **kept)
        step_s = self.step_time_s
        times = StepTimes(emb_s=0.3 * step_s, grad_s=0.4 * step_s, upd_s=0.2 * step_s, sync_s=0.1 * step_s)
        done = {"plan_version": self.version, "steps": steps, "steps_total": pod.steps, "samples_total": samples}
        of_step = {"step_time_s": step_s, "longest_gap_s": 1.5 * step_s, "times": times}
        return replace(example_of(WorkerReported), cpu_limit_cores=1.0, **common, **done, **of_step)


def fleet(count: int, workers: int, ps: int) -> list[Job]:
    """Return jobs with one plan and no pods yet."""
    plan = plan_of(workers, ps, cores=1.0)
    return [Job(f"job-{number}", plan) for number in range(count)]


def sent(message: Message, now: float) -> tuple[str, bytes, dict[str, str]]:
    """Return subject, data and headers of a pod's report."""
    message_id = f"{message.job}:{getattr(message, 'pod', '')}:{now}"
    return subject_of(message), encode(message), headers_of(message, message_id, now, "pod", "")


async def store(client: Client, messages: list[Message]) -> None:
    """Publish messages in order, many at a time."""
    for begin in range(0, len(messages), IN_FLIGHT):
        part = messages[begin : begin + IN_FLIGHT]
        await asyncio.gather(*[await client.bus.post(subject_of(each), encode(each)) for each in part])


def cpu_s(pid: int) -> float:
    """Return the user and system seconds of a process so far."""
    return sum(psutil.Process(pid).cpu_times()[:2])


class Replica:
    """A service in a separate process, observed through its metrics."""

    def __init__(self, service: str, pid: int, folder: Path) -> None:
        self.pid = pid
        self._service = service
        self._run = folder / "run" / f"{service}.json"

    async def handled(self) -> int:
        """Return the messages handled since the start; 0 before it answers."""
        return await self._metric(f'stretto_inputs_total{{kind="message",service="{self._service}"}}')

    async def backlog(self) -> int:
        """Return the messages that are stored and not handled yet; 0 before it answers."""
        return await self._metric(f'stretto_input_backlog{{service="{self._service}"}}')

    async def _metric(self, name: str) -> int:
        try:
            address = json.loads(self._run.read_text())
            if address["pid"] != self.pid:
                return 0
            url = f"http://127.0.0.1:{address['port']}/metrics"
            text = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=10).read().decode())
        except (OSError, ValueError):
            return 0
        return int(float(next((line.split()[-1] for line in text.splitlines() if line.startswith(name)), "0")))

    async def until(self, count: int) -> None:
        """Wait until the service has handled ``count`` messages."""
        give_up_s = time.monotonic() + GIVE_UP_S
        while (handled := await self.handled()) < count:
            if time.monotonic() > give_up_s:
                raise RuntimeError(f"{self._service} has handled {handled} messages in {GIVE_UP_S:.0f} s, not {count}")
            await asyncio.sleep(0.05)

    def resident_mib(self) -> float:
        return psutil.Process(self.pid).memory_info().rss / MIB
