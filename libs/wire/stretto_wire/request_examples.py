"""One realistic instance of every request and reply; see examples.py."""

from __future__ import annotations

from . import books as b
from . import requests as r
from . import values as v
from .base import Message
from .refusals import Refusal, Refused

JOB = "ctr-ranking-42"
SHARD = v.Shard(id=311, attempt=1, epoch=0, start=10_190_848, length=32_768, offset=0)
SERVERS = (
    v.ParameterServer(index=0, address="10.4.0.11:40101"),
    v.ParameterServer(index=1, address="10.4.0.12:40102"),
)
CHECKPOINT = v.CheckpointRef(
    id="ctr-ranking-42-000003",
    url="file:///data/checkpoints/ctr-ranking-42/000003/manifest.json",
    samples=10_158_080,
    size_bytes=268_435_456,
    ps=2,
)
LEDGER = '{"epoch":0,"next":311,"open":[[311,12288]]}'

APPLIED = b.AppliedBooks(
    columns_total=76,
    columns=(b.ColumnBooks(columns=tuple(range(76)), samples=91_681_234, fingerprint="53a1bd0c77e94f18"),),
)
COMPLETED = b.CompletedBooks(fingerprint="53a1bd0c77e94f18")
BOOKS = b.LedgerBooks(
    samples_total=91_681_234,
    epoch_samples=45_840_617,
    samples_done=10_190_848,
    samples_given_up=0,
    samples_waiting=81_457_618,
    epochs=(b.EpochBooks(epoch=0, waiting=35_617_001, in_flight=32_768, given_up=0, done=10_190_848),),
    open=(b.Lease(pod="worker-1", shard=SHARD),),
    books=b.CompletedBooks(fingerprint="a90d4be216c0773f"),
)

DISPATCHER: tuple[Message, ...] = (
    r.NextShard(job=JOB, request_id="worker-1:312", pod="worker-1", complete=r.ShardReport(id=310, attempt=1)),
    r.NextShardReply(job=JOB, answer="shard", shard=SHARD, forget=(307, 308)),
    r.ShardHeartbeat(job=JOB, pod="worker-1", shard=311, attempt=1, offset=12_288, samples_per_s=17_700.0),
    r.ShardHeartbeatReply(job=JOB, answer="ok"),
    r.ReleaseShard(job=JOB, pod="worker-1", shard=311, attempt=1, offset=12_288),
    r.ReleaseShardReply(job=JOB, answer="ok"),
    r.MarkLedger(job=JOB, request_id="checkpoint-000003"),
    r.MarkLedgerReply(job=JOB, answer="ok", ledger=LEDGER, samples_done=10_158_080),
    r.AuditLedger(job=JOB),
    r.AuditLedgerReply(job=JOB, answer="ok", ledger=BOOKS),
)

OWNERS: tuple[Message, ...] = (
    r.GetServers(job=JOB, request_id="worker-1:servers:0", pod="worker-1"),
    r.GetServersReply(job=JOB, answer="ok", version=2, plan_version=1, servers=SERVERS),
    r.RenewCredentials(job=JOB, pod="worker-1", token="eyJ0eXAiOiJKV1QifQ.eyJuYW1lIjoid29ya2VyLTEifQ.c2lnbmF0dXJl"),
    r.RenewCredentialsReply(job=JOB, answer="ok", token="eyJ0eXAiOiJKV1QifQ.eyJuYW1lIjoid29ya2VyLTEifQ.bGF0ZXItZW5k"),
    r.SaveCheckpoint(job=JOB, request_id="ada-2026-11-20T11:06:40Z"),
    r.SaveCheckpointReply(job=JOB, answer="begun", id="ctr-ranking-42-000003"),
)

PODS: tuple[Message, ...] = (
    r.PodPing(job=JOB),
    r.PodPingReply(job=JOB, ready=True, address="10.4.0.11:40101"),
    r.TakeBuckets(
        job=JOB,
        moves=(r.BucketMove(bucket=0, source=0), r.BucketMove(bucket=33, source=1), r.BucketMove(bucket=70, source=1)),
        servers=(*SERVERS, v.ParameterServer(index=2, address="10.4.0.13:40103")),
    ),
    r.TakeBucketsReply(job=JOB, accepted=True),
    r.GetMoveStatus(job=JOB),
    r.GetMoveStatusReply(
        job=JOB, running=True, done=11, total=25, moved_bytes=39_370_533, longest_freeze_s=0.09, error=None
    ),
    r.GetOwnership(job=JOB),
    r.GetOwnershipReply(
        job=JOB,
        buckets=(1, 1, 2, 0),
        slices=(1, 0),
        bucket_rows=(18_812, 18_790, 18_904, 0),
        applied_samples=10_190_848,
    ),
    r.ClaimBuckets(job=JOB, buckets=(0, 1, 2, 3), slices=(0, 1)),
    r.ClaimBucketsReply(job=JOB, accepted=True),
    r.ExportState(
        job=JOB,
        checkpoint_id="ctr-ranking-42-000003",
        cache_url="redis://127.0.0.1:6379/0",
        store_url="file:///data/checkpoints/ctr-ranking-42/000003",
    ),
    r.ExportStateReply(job=JOB, accepted=True, size_bytes=134_217_728, digest="sha256:51fe", pause_s=0.004),
    r.GetExportStatus(job=JOB, checkpoint_id="ctr-ranking-42-000003"),
    r.GetExportStatusReply(job=JOB, stage="stored", part='{"file":"ps-0.bin","bytes":134217728}'),
    r.ImportState(job=JOB, checkpoint=CHECKPOINT, buckets=(0, 1, 2, 3), slices=(0, 1)),
    r.ImportStateReply(job=JOB, accepted=True, size_bytes=89_478_485),
    r.TrainUnder(job=JOB, plan_version=2, cpu_cores=2.0),
    r.TrainUnderReply(job=JOB),
    r.EvaluateModel(job=JOB, samples=100_000),
    r.EvaluateModelReply(job=JOB, state="done", evaluation=v.Evaluation(samples=100_000, loss=0.4512, auc=0.7983)),
    r.GetBooks(job=JOB, shards=(311,)),
    r.GetBooksReply(
        job=JOB,
        applied_samples=91_681_234,
        skipped_repeats=1_536,
        rejected_pushes=48,
        owns_dense=True,
        rows=1_405_951,
        checksum="9f1c2d",
        applied=APPLIED,
    ),
)

REFUSAL = Refused(
    error=Refusal(
        code="invalid",
        message="offset = -1: a whole number, at least 0 and at most 1000000000000000",
        field="offset",
        value="-1",
        remedy="a whole number, at least 0 and at most 1000000000000000",
    )
)

REQUESTS: tuple[Message, ...] = (*DISPATCHER, *OWNERS, *PODS)
