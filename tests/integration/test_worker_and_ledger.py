"""A real worker with a real dispatcher: data that arrive, a range nobody can read, and evaluations in between.

The parameter server is in the worker's process, which is this one; what says where it is stands in for the actuator.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from pathlib import Path
from typing import Any

import nats
import pytest
from stretto_bus import Client
from stretto_core.dispatcher import Applied, Counted, prove
from stretto_dispatcher.service import Dispatcher
from stretto_dispatcher.settings import DispatcherSettings
from stretto_messages.actuator import GetServersReply
from stretto_messages.dispatcher import AuditLedger, EvaluationMeasured, JobCompleted
from stretto_messages.gateway import DataArrived
from stretto_messages.values import DataPartition, ParameterServer
from stretto_runtime import EmbeddedServer, provision, serve
from stretto_wire import encode
from stretto_wire.spec import JobSpec
from stretto_wire.submission import JobSubmitted

pytestmark = pytest.mark.slow

JOB = "growing"
MODEL = """
import keras
import numpy as np


class Days:
    def build(self):
        rows = keras.Input((2, 8), name="rows")
        return keras.Model(rows, keras.layers.Dense(1)(keras.layers.Flatten()(rows)))

    def read(self, start, length, partition):
        if partition == "torn" and start + length > 640 and start < 1024:
            raise IOError(f"sector {start} of {partition} is unreadable")
        ids = np.random.default_rng(list(partition.encode())).integers(0, 50, (start + length, 2))[start:]
        return {"label": (ids[:, 0] % 2).astype(np.float32), "categorical": ids}
"""
SPEC = {
    "name": JOB,
    "model": {"entry": "days_of_a_test:Days", "learning_rate": 0.5, "embedding_dim": 8},
    "dataset": {
        "growing": True,
        "partitions": [{"name": "torn", "samples": 1536}],
        "held_out": "test",
        "batch_size": 128,
        "batches_per_shard": 4,
    },
    "evaluate": 3000,
    "evaluate_every_samples": 8000,
    "restarts": {"shard_failures": 2},
}


async def test_a_worker_trains_what_arrives_names_what_it_cannot_read_and_evaluates_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tensorflow as tf
    from stretto.engine import ParameterServer as Server
    from stretto.pod import Pod, PodSettings
    from stretto.worker import Worker

    (tmp_path / "days_of_a_test.py").write_text(MODEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    for kind in ("intra", "inter"):  # cannot be changed any more if another test has used TensorFlow in this process
        monkeypatch.setattr(tf.config.threading, f"set_{kind}_op_parallelism_threads", lambda threads: None)
    server = EmbeddedServer(tmp_path / "nats", secured=False)
    await server.start()
    client = await Client.connect(server.url)
    await provision(client.bus)
    stop, spec = asyncio.Event(), JobSpec.parse(SPEC)
    settings = DispatcherSettings(nats_url=server.url, state_folder=tmp_path / "state", progress_every_s=0.2)
    dispatcher = asyncio.create_task(serve(Dispatcher(settings), stop))
    await client.publish(JobSubmitted(job=JOB, spec=spec))

    listed: list[ParameterServer] = []

    async def actuator(message: Any) -> None:
        if ".get-servers." in message.subject:
            reply = GetServersReply(job=JOB, answer="ok", version=1, plan_version=1, servers=tuple(listed))
            await message.respond(encode(reply))

    beside = await nats.connect(server.url)
    await beside.subscribe("rpc.>", cb=actuator)

    pod = Pod(PodSettings(JOB, "worker-0", server.url, None, None, spec, 1, 1.0, 2**30, None, None, ""))
    await asyncio.to_thread(pod.join)
    worker, ended = Worker(pod), list[int]()
    thread = threading.Thread(target=lambda: ended.append(worker.run()), daemon=True)
    thread.start()

    async def until(reached: Any, limit_s: float = 60) -> Any:
        deadline = time.monotonic() + limit_s
        while not (found := await reached()):
            assert time.monotonic() < deadline
            assert thread.is_alive()
            await asyncio.sleep(0.1)
        return found

    async def program() -> Any:
        return getattr(worker, "program", None)

    async def books() -> Any:
        return (await client.call(AuditLedger(job=JOB))).ledger

    async def is_done(samples: int) -> Any:
        told = await books()
        return told if told is not None and told.samples_done == samples else None

    layout = (await until(program)).layout
    ps = Server(0, layout)
    ps.own(range(layout.columns))
    listed.append(ParameterServer(index=0, address=ps.address))
    try:
        waiting = await until(lambda: is_done(1536 - 384))  # one batch of the torn shard could be read
        assert (waiting.samples_given_up, waiting.growing, waiting.closed) == (384, True, "")
        parts = (DataPartition(name="day=1", samples=10_000), DataPartition(name="day=2", samples=9_000, priority=2))
        await client.publish(DataArrived(job=JOB, partitions=parts))
        await client.publish(DataArrived(job=JOB, closed=True))
        told = await until(lambda: is_done(20_536 - 384))
        applied = ps.control.applied()
        counted = [Counted((i,), int(n), int(p)) for i, (n, p) in
                   enumerate(zip(applied.samples, applied.fingerprints, strict=True))]  # fmt: skip
        (dead,) = told.books.given_up
        parts_of = [Applied(dead.shard, (i,), dead.offset, dead.offset) for i in range(layout.columns)]
        prints = int(told.books.fingerprint, 16)
        assert not prove(told.samples_done, prints, layout.columns, counted, parts_of).faults
        assert (dead.partition, dead.start, dead.length, dead.offset) == ("torn", 640, 384, 128)
        assert "failed 2 times" in dead.reason
        assert "read(640, 128, 'torn') failed: OSError: sector 640 of torn is unreadable" in dead.reason
        said = [event.message async for event in client.events(follow=False)]
        assert len([message for message in said if isinstance(message, JobCompleted)]) == 1
        curve = [message for message in said if isinstance(message, EvaluationMeasured)]
        assert [point.evaluation.samples for point in curve] == [3000, 3000]
        last = worker.evaluate(3000)
        assert curve[-1].evaluation.loss < curve[0].evaluation.loss
        assert (last.auc, last.loss) == pytest.approx((curve[-1].evaluation.auc, curve[-1].evaluation.loss), abs=0.1)
    finally:
        pod.leaving.set()
        await asyncio.to_thread(thread.join, 20)
        pod.bus.close()
        ps.control.close()
        await beside.close()
        stop.set()
        await dispatcher
        await client.close()
        server.stop()
        sys.modules.pop("days_of_a_test", None)
    assert ended == [0]
