"""More telemetry than the profiler can take in: what the stream keeps is handled, and metrics name the backlog."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import stretto_wire as wire
from runtime_live import saved_state
from stretto_bus import Client
from stretto_installation.provision import provision
from stretto_installation.server import EmbeddedServer
from stretto_messages.actuator import PodStarted
from stretto_messages.pods import WorkerReported
from stretto_messages.values import StepTimes
from stretto_wire.codec import encode
from stretto_wire.contract.registry import subject_of

JOB, PODS, REPORTS = "j", 30, 1000
KEPT = wire.TELEMETRY_KEPT_PER_POD
MIB = 1 << 20
GIB = 1 << 30


async def test_the_last_reports_of_each_pod_are_handled_in_bounded_memory_after_a_flood(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path / "nats")
    await server.start()
    client = await Client.connect(server.url, server.login())
    await provision(client.bus)
    profiler = start({**server.environment("profiler"), "STRETTO_STATE_FOLDER": str(tmp_path)})
    try:
        spec = wire.JobSpec.parse({"name": JOB, "model": {"entry": "m:M"}, "dataset": {"samples": 10**9}})
        await client.publish(wire.JobSubmitted(job=JOB, spec=spec))
        for pod in range(PODS):
            await client.publish(started(pod))
        await flood(client, 1, 2)
        await handled(client, 1)
        before = memory(profiler, "VmRSS")
        profiler.send_signal(signal.SIGSTOP)  # nothing is taken in until all of it waits
        await flood(client, 2, REPORTS + 1)
        profiler.send_signal(signal.SIGCONT)
        waited = await handled(client, REPORTS, tmp_path)
        assert memory(profiler, "VmHWM") - before < 12 * MIB  # all of them at once would be 17
        assert waited > PODS * KEPT / 4
        assert not await client.dead_letters()
    finally:
        profiler.kill()
        profiler.wait()
        await client.close()
        server.kill()


def start(settings: dict[str, str]) -> subprocess.Popen[bytes]:
    # what leads to no event would be saved after half a minute only
    environment = {**os.environ, **settings, "STRETTO_SNAPSHOT_S": "0.05"}
    return subprocess.Popen([sys.executable, "-m", "stretto_profiler"], env=environment)


async def flood(client: Client, first: int, end: int) -> None:
    """Reports ``first`` to ``end - 1`` of every pod; returns once the stream has accepted them all."""
    for number in range(first, end):
        messages = [report(pod, number) for pod in range(PODS)]
        posted = [await client.bus.post(subject_of(one), encode(one)) for one in messages]
        await asyncio.gather(*posted)


async def handled(client: Client, reports: int, folder: Path | None = None) -> float:
    """Wait until the saved state has report ``reports`` of every pod; returns the largest backlog in the metrics."""
    waited = 0.0
    async with asyncio.timeout(60):
        while True:
            if folder is not None:
                waited = max(waited, await asyncio.to_thread(backlog, folder))
            state = await saved_state(client, "profiler", JOB) or {}
            books = state.get("pods", {})
            if len(books) == PODS and all(book["steps_total"] == 2 * reports for book in books.values()):
                return waited
            await asyncio.sleep(0.05)


def backlog(folder: Path) -> float:
    where = json.loads((folder / "run" / "profiler.json").read_text())
    with urllib.request.urlopen(f"http://{where['host']}:{where['port']}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line for line in lines if line.startswith("stretto_input_backlog{")).rpartition(" ")[2])


def memory(process: subprocess.Popen[bytes], name: str) -> int:
    """Bytes. ``VmRSS``: now; ``VmHWM``: the most that it ever was."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition(f"{name}:")[2].split()[0]) * 1024


def started(pod: int) -> PodStarted:
    return PodStarted(
        job=JOB, pod=f"worker-{pod}", role="worker", plan_version=1, address="", cpu_cores=1.0, memory_bytes=GIB,
        took_s=1.0, cause="plan",
    )  # fmt: skip


def report(pod: int, number: int) -> WorkerReported:
    return WorkerReported(
        job=JOB, pod=f"worker-{pod}", plan_version=1, ended_at_s=time.time(), window_s=0.1, steps=2,
        steps_total=2 * number, samples_total=1024 * number, step_time_s=0.05, longest_gap_s=0.06,
        times=StepTimes(emb_s=0.01, grad_s=0.02, upd_s=0.01, sync_s=0.01), cpu_used_cores=0.9,
        cpu_limit_cores=1.0, memory_used_bytes=GIB // 2, memory_limit_bytes=GIB,
    )  # fmt: skip
