"""One realistic instance of every fact of the ledger; see examples.py."""

from __future__ import annotations

from . import ledger_events as e
from . import values as v
from .base import Message
from .request_examples import COMPLETED, JOB, SHARD

REST = v.Shard(id=311, attempt=2, epoch=0, start=10_190_848, length=32_768, offset=12_288)

LEDGER: tuple[Message, ...] = (
    e.ShardLeased(job=JOB, shard=SHARD, pod="worker-1"),
    e.ShardCompleted(job=JOB, shard=SHARD, pod="worker-1"),
    e.ShardRequeued(job=JOB, shard=REST, pod="worker-1", reason="pod-exited"),
    e.ShardAbandoned(job=JOB, shard=REST, reason="3 attempts failed: row 10191002 has 38 columns instead of 39"),
    e.JobProgressed(
        job=JOB,
        samples_done=10_190_848,
        samples_total=91_681_234,
        epoch=0,
        samples_per_s=35_900.0,
        shards_leased=2,
        shards_requeued_total=1,
    ),
    e.JobCompleted(
        job=JOB,
        samples=91_681_234,
        samples_abandoned=0,
        epochs=2,
        shards=2_798,
        requeued=1,
        started_at_s=1_794_998_598.25,
        books=COMPLETED,
    ),
    e.EvaluationMeasured(
        job=JOB,
        samples_done=10_000_000,
        samples_done_after=10_190_848,
        evaluation=v.Evaluation(samples=100_000, loss=0.4633, auc=0.7871),
    ),
    e.DataArrived(
        job=JOB,
        partitions=(v.DataPartition(name="day=2026-11-21", samples=1_440_000, priority=1),),
    ),
)
