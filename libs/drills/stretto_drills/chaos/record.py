"""The stored events and telemetry of a job under fire, and its present state folded from them.

The source is the bus, not the gateway: faults may kill both, but only the bus comes back with everything. Every stored
message is read once, in order, whatever happens in between.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import Any

from stretto_bus import BusFault, Client
from stretto_bus.faults import Fault
from stretto_messages.base import Message
from stretto_messages.pods import PsReported, WorkerReported
from stretto_wire import channel_at, document_of

AGAIN_S = 0.3
ENDS = {"job-finished": "finished", "job-failed": "failed", "job-cancelled": "cancelled"}
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Happened:
    """One stored fact of the job. ``time_s``: when the server stored it."""

    time_s: float
    seq: int
    name: str
    data: Json


@dataclass(slots=True)
class PodLife:
    """A pod's life, from the events."""

    name: str
    role: str
    started_s: float
    stage: int = 0
    exited_s: float | None = None
    reason: str = ""


@dataclass(slots=True)
class StreamRecord:
    """State folded from the stream; ``facts`` leaves out the many events of shards."""

    job: str
    facts: list[Happened] = field(default_factory=list[Happened])
    workers: list[WorkerReported] = field(default_factory=list[WorkerReported])
    servers: list[PsReported] = field(default_factory=list[PsReported])
    progress: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    pods: dict[str, PodLife] = field(default_factory=dict[str, PodLife])
    plan: Json | None = None
    applied: Json | None = None
    migration: Json | None = None
    """The migration in progress, if any."""
    applying: bool = False
    samples_done: int = 0
    samples_total: int = 1
    requeued: int = 0
    queued: str = ""
    """Reason why the job has no plan yet."""
    started: bool = False
    completed: bool = False
    ended: str = ""
    reason: str = ""
    last_seq: int = 0
    last_report_seq: int = 0

    @property
    def share(self) -> float:
        """Return the share of the samples that are trained."""
        return self.samples_done / self.samples_total

    @property
    def over(self) -> bool:
        """Return whether nothing is left to train."""
        return bool(self.ended) or self.completed

    def running(self, role: str) -> list[str]:
        """Return the running pods of a role, by number."""
        found = [pod.name for pod in self.pods.values() if pod.role == role and pod.exited_s is None]
        return sorted(found, key=lambda name: int(name.rpartition("-")[2]))

    def take(self, seq: int, time_s: float, subject: str, message: Message) -> None:
        """Fold one stored event in."""
        self.last_seq, name = seq, channel_at(subject).name
        if name in ("shard-leased", "shard-completed"):
            return
        data = document_of(message)
        self.facts.append(Happened(time_s, seq, name, data))
        handle = getattr(self, "_on_" + name.replace("-", "_"), None)
        if handle is not None:
            handle(time_s, data)
        if name in ENDS:
            self.ended, self.reason = ENDS[name], data.get("reason", "")

    def _on_pod_started(self, time_s: float, data: Json) -> None:
        self.pods[data["pod"]] = PodLife(data["pod"], data["role"], time_s, data.get("stage", 0))

    def _on_pod_exited(self, time_s: float, data: Json) -> None:
        pod = self.pods.setdefault(data["pod"], PodLife(data["pod"], data["role"], time_s))
        pod.exited_s, pod.reason = time_s, data["reason"]

    def _on_plan_decided(self, time_s: float, data: Json) -> None:
        self.plan, self.applying, self.queued = data["plan"], True, ""

    def _on_plan_refused(self, time_s: float, data: Json) -> None:
        if self.plan is None:
            self.queued = "; ".join(data["reasons"])

    def _on_plan_applied(self, time_s: float, data: Json) -> None:
        self.applied, self.applying = data["plan"], False

    def _on_migration_started(self, time_s: float, data: Json) -> None:
        self.migration = data

    def _on_migration_finished(self, time_s: float, data: Json) -> None:
        self.migration = None

    def _on_servers_changed(self, time_s: float, data: Json) -> None:
        if not data["servers"]:  # the parameters are lost, and their migration with them
            self.migration = None

    def _on_shard_requeued(self, time_s: float, data: Json) -> None:
        self.requeued += 1

    def _on_job_progressed(self, time_s: float, data: Json) -> None:
        self.samples_done, self.samples_total = data["samples_done"], data["samples_total"]
        self.started, self.completed = True, False
        self.progress.append((time_s, data["samples_done"]))

    def _on_job_completed(self, time_s: float, data: Json) -> None:
        self.completed = True
        self.progress.append((time_s, self.samples_total))


async def follow(client: Client, record: StreamRecord) -> None:
    """Read everything about the job until its end, through every restart of the bus."""
    reading = asyncio.create_task(_follow_reports(client, record))
    try:
        while not record.ended:
            with contextlib.suppress(BusFault, Fault, OSError):
                async for event in client.events(record.last_seq + 1, (f"evt.v1.*.*.{record.job}",)):
                    if event.message is not None:
                        record.take(event.seq, event.time_s, event.subject, event.message)
                    if record.ended:
                        return
            await asyncio.sleep(AGAIN_S)
    finally:
        reading.cancel()


async def _follow_reports(client: Client, record: StreamRecord) -> None:
    while True:
        with contextlib.suppress(BusFault, Fault, OSError):
            async for event in client.reports(record.last_report_seq + 1, (f"tel.v1.*.*.{record.job}",)):
                record.last_report_seq = event.seq
                if isinstance(event.message, WorkerReported):
                    record.workers.append(event.message)
                elif isinstance(event.message, PsReported):
                    record.servers.append(event.message)
        await asyncio.sleep(AGAIN_S)
