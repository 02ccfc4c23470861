"""kill -9 of the dispatcher in the middle of a job: every shard is completed once, by the worker that held it."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, Process
from collections import Counter
from pathlib import Path

from stretto_runtime import Client, EmbeddedServer, provision
from stretto_wire import events, requests
from stretto_wire.spec import JobSpec

JOB, SAMPLES, WORKERS = "killed", 12_000, 4


async def replica(server: EmbeddedServer, folder: Path) -> Process:
    environment = {
        **os.environ,
        "STRETTO_NATS_URL": server.url,
        "STRETTO_STATE_FOLDER": str(folder),
        "STRETTO_LEASE_S": "1",
    }
    command = (sys.executable, "-m", "stretto_dispatcher")
    return await asyncio.create_subprocess_exec(*command, env=environment, stdout=DEVNULL, stderr=DEVNULL)


async def work(client: Client, pod: str, trained: Counter[int]) -> None:
    """Lease, train, complete until the end, as fast as it goes."""
    number, done = 0, None
    while True:
        number += 1
        request = requests.NextShard(job=JOB, request_id=f"{pod}.{number}", pod=pod, complete=done)
        reply = await client.call(request, timeout_s=60)
        assert not reply.stale
        if reply.answer == "end":
            return
        done = None
        if reply.answer == "wait":
            await asyncio.sleep(0.05)
            continue
        assert reply.shard is not None, reply
        trained.update(range(reply.shard.start, reply.shard.start + reply.shard.length))
        done = requests.ShardReport(id=reply.shard.id, attempt=reply.shard.attempt)
        await asyncio.sleep(0.005)


async def test_no_lease_and_no_completion_is_lost_when_the_dispatcher_is_killed(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path / "nats", secured=False)
    await server.start()
    client = await Client.connect(server.url)
    await provision(client.bus)
    replicas = [await replica(server, tmp_path / "state") for _ in range(2)]
    dataset = {"samples": SAMPLES, "batch_size": 10, "batches_per_shard": 1}
    spec = JobSpec.parse({"name": JOB, "model": {"entry": "a:B"}, "dataset": dataset})
    await client.publish(events.JobSubmitted(job=JOB, spec=spec))
    trained: Counter[int] = Counter()
    try:
        while (await client.call(requests.MarkLedger(job=JOB, request_id=os.urandom(8).hex()), 60)).answer != "ok":
            await asyncio.sleep(0.05)
        workers = [asyncio.create_task(work(client, f"worker-{n}", trained)) for n in range(WORKERS)]
        for third in (1, 2):
            while sum(trained.values()) < third * SAMPLES / 3:
                await asyncio.sleep(0.01)
                assert not any(task.done() for task in workers)
            replicas.pop(0).kill()
            replicas.append(await replica(server, tmp_path / "state"))
        await asyncio.gather(*workers)
    finally:
        for process in replicas:
            process.kill()
            await process.wait()
        said = [event.message async for event in client.events(follow=False)]
        await client.close()
        server.stop()
    assert trained == Counter({sample: 1 for sample in range(SAMPLES)})
    completed = [message for message in said if isinstance(message, events.JobCompleted)]
    assert [(c.samples, c.requeued) for c in completed] == [(SAMPLES, 0)]
