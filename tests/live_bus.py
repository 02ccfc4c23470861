"""A bus on which tests run services, and what they publish there first: a job, its plan, and that it was decided."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import stretto_wire as wire
from stretto_bus import Client
from stretto_installation.access.keys import Keys
from stretto_installation.provision import provision
from stretto_installation.server import EmbeddedServer, binary, tied
from stretto_messages.actuator import JobFinished
from stretto_messages.arbiter import PlanDecided
from stretto_messages.dispatcher import JobCompleted, JobProgressed
from stretto_messages.planner import CandidatesComputed
from stretto_messages.values import Candidate, Interval, Plan
from stretto_runtime.access.identity import Key, mint

from tests.waits import wait_until


@asynccontextmanager
async def live_bus(folder: Path, secured: bool = True) -> AsyncIterator[tuple[EmbeddedServer, Client]]:
    """Run a server with the streams of an installation; yield it and its operator's client."""
    server = EmbeddedServer(folder / "nats", secured=secured)
    await server.start()
    try:
        client = await Client.connect(server.url, *([server.login()] if secured else []))
        await provision(client.bus)
        yield server, client
        await client.close()
    finally:
        server.kill()


@contextmanager
def nats_server(configuration: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run a nats-server with a configuration that somebody else wrote, from when it listens at ``port``."""
    log = configuration.with_name("nats.log")
    with log.open("wb") as out:
        server = subprocess.Popen(tied([binary(), "-c", str(configuration)], signal.SIGKILL), stdout=out, stderr=out)

    def listens() -> bool:
        assert server.poll() is None, log.read_text()
        with socket.socket() as trying:
            return trying.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_until(listens)
        yield server
    finally:
        server.kill()
        server.wait()


def pod_file(keys: Keys | None, file: Path, job: str, pod: str, life_s: float = 60.0, ago_s: float = 0.0) -> Path:
    """Write the credentials of a pod, as an actuator made them ``ago_s`` ago; return the file."""
    assert keys is not None
    key = Key(keys.signing_file.read_text().strip())
    file.write_text(mint(key, keys.pods_account, job, pod, time.time() - ago_s, life_s))
    return file


def submission(job: str, **more: Any) -> wire.JobSubmitted:
    """Return the submission of a job of 1,000 samples."""
    document = {"name": job, "model": {"entry": "m:M"}, "dataset": {"samples": 1000}, **more}
    return wire.JobSubmitted(job=job, spec=wire.JobSpec.parse(document))


def plan_of(workers: int = 1, ps: int = 1, cores: float = 0.5, memory: int = 2**30, ps_memory: int = 0) -> Plan:
    """Return a plan of equal pods; ``ps_memory``: bytes of a server, if they are others."""
    cpu = {"worker_cpu_cores": cores, "ps_cpu_cores": cores}
    return Plan(workers=workers, ps=ps, **cpu, worker_memory_bytes=memory, ps_memory_bytes=ps_memory or memory)


def decision(job: str, plan: Plan, version: int = 1, **more: Any) -> PlanDecided:
    """Return the arbiter's decision for a plan."""
    fields: dict[str, Any] = dict.fromkeys(("previous", "throughput", "throughput_interval", "throughput_before"))
    fields |= {"kind": "initial", "cost_per_hour": 0.0, "reasons": ("test",), "alternatives": (), "algorithm": "test"}
    fields |= {"free_cpu_cores": 0.0, "free_memory_bytes": 0, **more}
    return PlanDecided(job=job, version=version, plan=plan, **fields)


def candidate(name: str, plan: Plan, rate: float, cost: float, spread: float = 0.1, overhead_s: float = 5.0) -> Any:
    """Return a candidate of ``rate`` samples/s and its interval, a share around it; 1,000 are trained now."""
    interval = Interval(low=rate * (1 - spread), high=rate * (1 + spread))
    more = {"throughput_interval": interval, "gain": rate - 1000.0, "overhead_s": overhead_s}
    return Candidate(id=name, plan=plan, cost_per_hour=cost, throughput=rate, **more)


def computed(job: str, plan: Plan, *candidates: Candidate, version: int = 1) -> CandidatesComputed:
    """Return the planner's candidates for a job that trains 1,000 samples/s under ``plan``."""
    facts: dict[str, Any] = {"throughput": 1000.0, "algorithm": "exact", "plans_considered": 9}
    return CandidatesComputed(job=job, plan_version=version, plan=plan, candidates=candidates, **facts)


def progressed(job: str, done: int, total: int, rate: float = 1.0) -> JobProgressed:
    """Return the ledger's word on how far a job is, in its first epoch."""
    ledger = {"epoch": 0, "samples_per_s": rate, "shards_leased": 1, "shards_requeued_total": 0}
    return JobProgressed(job=job, samples_done=done, samples_total=total, **ledger)  # type: ignore[arg-type]


def completed(job: str, samples: int, abandoned: int = 0, shards: int = 1, **more: Any) -> JobCompleted:
    """Return the ledger's word that nothing is left to be trained."""
    counts = {"samples": samples, "samples_abandoned": abandoned, "shards": shards, "epochs": 1, "requeued": 0}
    return JobCompleted(job=job, **{**counts, "started_at_s": 0.0, **more})


def finished(job: str, samples: int = 1, **more: Any) -> JobFinished:
    """Return the end of a job with exact books."""
    exact = {"samples_expected": samples, "samples_applied": samples, "samples_lost": 0, "samples_repeated": 0}
    return JobFinished(job=job, **{**exact, "repeats_recognised": 0, "rows": 1, **more})


def python_of(file: Path, program: Path, **environment: Any) -> str:
    """Write a program that runs another one in the place of a pod, whatever it is asked to run; return its path."""
    told = "".join(f"{name}={value} " for name, value in environment.items())
    file.write_text(f"#!/bin/sh\n{told}exec {sys.executable} {program}\n")
    file.chmod(0o755)
    return str(file)


def unpacked(data: bytes) -> str:
    """Return stored bytes as text, and after them what they hold compressed."""
    at = data.find(b"\x78\x01")
    inner = b""
    if at >= 0:
        with contextlib.suppress(zlib.error):
            inner = zlib.decompressobj().decompress(data[at:])
    return (data + inner).decode(errors="replace")
