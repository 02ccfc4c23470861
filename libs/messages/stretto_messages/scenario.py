"""Values that the examples have in common: a click-through model on two workers, growing to four."""

from __future__ import annotations

from stretto_messages.base import GIB
from stretto_messages.books import AppliedBooks, ColumnBooks, CompletedBooks, EpochBooks, Lease, LedgerBooks
from stretto_messages.values import CheckpointRef, Metadata, ParameterServer, Plan, Shard, StepTimes

JOB = "ctr-ranking-42"
OBJECT_JOB = "my-dlrm-3f2a91bc"
"""The job of an object that another controller runs."""
NOW_S = 1_795_000_000.25

PLAN = Plan(
    workers=2, ps=2, worker_cpu_cores=2.0, ps_cpu_cores=1.0, worker_memory_bytes=4 * GIB, ps_memory_bytes=2 * GIB
)
WIDER = Plan(
    workers=4, ps=2, worker_cpu_cores=2.0, ps_cpu_cores=1.5, worker_memory_bytes=4 * GIB, ps_memory_bytes=2 * GIB
)
LARGEST = Plan(
    workers=8, ps=4, worker_cpu_cores=4.0, ps_cpu_cores=2.0, worker_memory_bytes=4 * GIB, ps_memory_bytes=2 * GIB
)
OBJECT_PLAN = Plan(
    workers=6, ps=1, worker_cpu_cores=2.0, ps_cpu_cores=0.001, worker_memory_bytes=4 * GIB, ps_memory_bytes=2**20
)
TIMES = StepTimes(emb_s=0.0041, grad_s=0.0185, upd_s=0.0032, sync_s=0.0027)
MISS_RATIOS = (
    0.34,
    0.22,
    0.161,
    0.123,
    0.098,
    0.079,
    0.064,
    0.052,
    0.043,
    0.035,
    0.028,
    0.022,
    0.016,
    0.01,
    0.005,
    0.0,
)
METADATA: Metadata = {"family": "wide-deep", "dense_features": 13, "sparse_features": 26, "owner": "ads"}
SERVERS = (ParameterServer(index=0, address="10.4.0.11:40101"), ParameterServer(index=1, address="10.4.0.12:40102"))
SHARD = Shard(id=311, attempt=1, epoch=0, start=10_190_848, length=32_768, offset=0)
REST = Shard(id=311, attempt=2, epoch=0, start=10_190_848, length=32_768, offset=12_288)
LEDGER = '{"epoch":0,"next":311,"open":[[311,12288]]}'
CHECKPOINT = CheckpointRef(
    id="ctr-ranking-42-000003",
    url="file:///data/checkpoints/ctr-ranking-42/000003/manifest.json",
    samples=10_158_080,
    size_bytes=268_435_456,
    ps=2,
)
APPLIED = AppliedBooks(
    columns_total=76,
    columns=(ColumnBooks(columns=tuple(range(76)), samples=91_681_234, fingerprint="53a1bd0c77e94f18"),),
)
COMPLETED = CompletedBooks(fingerprint="53a1bd0c77e94f18")
BOOKS = LedgerBooks(
    samples_total=91_681_234,
    epoch_samples=45_840_617,
    samples_done=10_190_848,
    samples_given_up=0,
    samples_waiting=81_457_618,
    epochs=(EpochBooks(epoch=0, waiting=35_617_001, in_flight=32_768, given_up=0, done=10_190_848),),
    open=(Lease(pod="worker-1", shard=SHARD),),
    books=CompletedBooks(fingerprint="a90d4be216c0773f"),
)
