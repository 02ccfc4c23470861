"""The same ledger workload on DLRover's local master: 8 clients lease a shard and report it done.

``DLROVER_PYTHON`` names the Python of a separate environment with ``dlrover[k8s]==0.6.1``; if it is unset, the row says
so and has no figure. Both run on this machine in turns, each with 8 clients in 2 processes. One difference favours the
peer: its ledger is in memory only, while ours is on the stream before the reply leaves. Another favours us: a pair is
two requests there (``get_task``, ``report_task_result``) and one here (``next-shard``), as in each system's own client.
The peer's transport is gRPC, the faster of its two.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from stretto_installation.server import free_port

from tests.bench.log.dispatcher import CLIENTS, PROCESSES, ROUND_S, WARM_S, a_round, dispatching
from tests.bench.rows import Row, row

PYTHON = "DLROVER_PYTHON"
CLIENT = Path(__file__).with_name("peer_client.py")
ROUNDS, READY_S, BAR = 3, 60.0, 2.0
ENVIRONMENT = {"DLROVER_MASTER_SERVICE_TYPE": "grpc", "NODE_TYPE": "worker", "DLROVER_LOG_LEVEL": "WARNING"}


def run() -> list[Row]:
    """Return one row: our durable pairs, with the peer's as the baseline."""
    python = os.environ.get(PYTHON, "")
    if not python:
        return [_row(None, None, f"skipped: {PYTHON} is not set (an environment with dlrover[k8s]==0.6.1)")]
    ours, theirs = asyncio.run(_measure(python))
    spread = " ".join(f"{one / other:.1f}" for one, other in zip(ours, theirs, strict=True))
    note = f"median of {ROUNDS} rounds ({spread}); ours durable, the peer's in memory; load {os.getloadavg()[0]:.1f}"
    return [_row(statistics.median(ours), statistics.median(theirs), note)]


def _row(ours: float | None, theirs: float | None, note: str) -> Row:
    ratio = ours / theirs if ours and theirs else None
    value, ok = float("nan") if ours is None else ours, None if ratio is None else ratio >= BAR
    name = "durable next beside DLRover's local master"
    return row(name, value, "pairs/s", f">= {BAR:g} x the peer", ok, note, theirs)


async def _measure(python: str) -> tuple[list[float], list[float]]:
    ours: list[float] = []
    theirs: list[float] = []
    async with dispatching() as dispatcher:
        for number in range(ROUNDS):
            async with _master(python) as port:  # a new master each time: it keeps all completed tasks
                theirs.append(await _peer_round(python, port))
            ours.append((await a_round(dispatcher, number)).pairs)
    return ours, theirs


@asynccontextmanager
async def _master(python: str) -> AsyncIterator[int]:
    """Start the peer's master; give its port once it accepts connections."""
    port = free_port()
    arguments = f"--platform local --port {port} --node_num 1 --job_name bench --service_type grpc".split()
    with tempfile.TemporaryFile() as log:
        master = await asyncio.create_subprocess_exec(
            *(python, "-m", "dlrover.python.master.main", *arguments),
            env={**os.environ, **ENVIRONMENT},
            stdout=log,
            stderr=log,
        )
        try:
            async with asyncio.timeout(READY_S):
                while not await _accepts(port):
                    if master.returncode is not None:
                        log.seek(0)
                        last = log.read().decode(errors="replace").strip().splitlines()[-1:]
                        raise RuntimeError(f"the peer's master ended with {master.returncode}: {last}")
                    await asyncio.sleep(0.1)
            yield port
        finally:
            with contextlib.suppress(ProcessLookupError):
                master.kill()
            await master.wait()


async def _accepts(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


async def _peer_round(python: str, port: int) -> float:
    """Return the pairs a second of all clients."""
    share = CLIENTS // PROCESSES
    clients = []
    for index in range(PROCESSES):
        arguments = [str(int(each)) for each in (port, index * share, share, WARM_S, ROUND_S)]
        client = await asyncio.create_subprocess_exec(
            *(python, str(CLIENT), *arguments),
            env={**os.environ, **ENVIRONMENT},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        clients.append(client)
        await _until_ready(client)
    told = await asyncio.gather(*(client.communicate(b"go") for client in clients))
    if any(client.returncode for client in clients):
        raise RuntimeError("a client of the peer failed")
    return sum(json.loads(out.decode().strip().splitlines()[-1]) for out, _ in told) / ROUND_S


async def _until_ready(client: asyncio.subprocess.Process) -> None:
    """Wait for the line ``ready``, which lines of the log may precede."""
    assert client.stdout is not None
    while line := await client.stdout.readline():
        if line.strip() == b"ready":
            return
    raise RuntimeError("a client of the peer did not start")
