"""A real worker with a real dispatcher: data that arrive, a range nobody can read, and evaluations in between."""

from __future__ import annotations

from pathlib import Path

import pytest
from stretto_messages.dispatcher import EvaluationMeasured, JobCompleted
from stretto_messages.gateway import DataArrived
from stretto_messages.values import DataPartition

from tests.integration.live_job import live_job

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
        "evaluate_first": 500,
        "batch_size": 128,
        "batches_per_shard": 4,
    },
    "evaluate": 3000,
    "evaluate_every_samples": 8000,
    "best": {"metric": "auc"},
    "restarts": {"shard_failures": 2},
}


async def test_a_worker_trains_what_arrives_names_what_it_cannot_read_and_evaluates_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with live_job(tmp_path, monkeypatch, ("days_of_a_test", MODEL), SPEC) as job:
        waiting = await job.has_done(1536 - 384)  # one batch of the torn shard could be read
        assert (waiting.samples_done, waiting.samples_given_up) == (1536 - 384, 384)
        assert (waiting.growing, waiting.closed) == (True, "")
        parts = (DataPartition(name="day=1", samples=10_000), DataPartition(name="day=2", samples=9_000, priority=2))
        await job.client.publish(DataArrived(job=JOB, partitions=parts))
        await job.client.publish(DataArrived(job=JOB, closed=True))
        told = await job.has_done(20_536 - 384)
        assert told.samples_done == 20_536 - 384
        assert not job.faults(told)
        (dead,) = told.books.given_up
        assert (dead.partition, dead.start, dead.length, dead.offset) == ("torn", 640, 384, 128)
        assert "failed 2 times" in dead.reason
        assert "read(640, 128, 'torn') failed: OSError: sector 640 of torn is unreadable" in dead.reason
        said = [event.message async for event in job.client.events(follow=False)]
        assert len([message for message in said if isinstance(message, JobCompleted)]) == 1
        curve = [message for message in said if isinstance(message, EvaluationMeasured)]
        windows = [(one.partition, one.samples_done, one.evaluation.samples) for one in curve if one.trained_next]
        assert windows == [("day=2", 1152, 500), ("day=1", 10_152, 500)]
        curve = [point for point in curve if not point.trained_next]
        assert [point.evaluation.samples for point in curve] == [3000, 3000]
        assert curve[0].best
        last = job.worker.evaluate(3000)
        assert curve[-1].evaluation.loss < curve[0].evaluation.loss
        assert (last.auc, last.loss) == pytest.approx((curve[-1].evaluation.auc, curve[-1].evaluation.loss), abs=0.1)
    assert job.ended == [0]
