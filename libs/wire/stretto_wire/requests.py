"""Requests and their replies: to the owner of a job (``rpc``, journalled before the reply), or to a pod (``pod``)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from .base import Bytes, Count, Message, Name, PodId, Rate, Record, RequestId, Seconds, Text
from .books import AppliedBooks, LedgerBooks
from .values import CheckpointRef, Evaluation, ParameterServer, PartialEvaluation, Shard

# dispatcher ------------------------------------------------------------------------------------------------------


class ShardReport(Record):
    """A worker's word on a shard: every sample of it has been applied by the parameter servers, or was evaluated."""

    id: Count
    attempt: Annotated[int, Field(ge=1)]
    evaluation: PartialEvaluation | None = None


class NextShard(Message):
    """Complete one shard and lease another, in one request. The same ``request_id`` gets the same reply."""

    request_id: RequestId
    pod: PodId
    complete: ShardReport | None = None


class NextShardReply(Message):
    """``shard``: train it; ``wait``: nothing free now, ask again; ``end``: the job is over; ``unknown``: see below.

    ``unknown``: there is no such job, or the pod is known to have exited. ``stale`` tells that the completion was of a
    lease which somebody else holds now.
    """

    answer: Literal["shard", "wait", "end", "unknown"]
    shard: Shard | None = None
    wait_s: Seconds = 0.0
    stale: bool = False
    forget: Annotated[tuple[Count, ...], Field(max_length=256)] = Field(
        default=(), description="finished shards whose progress records the parameter servers may delete"
    )


class ShardHeartbeat(Message):
    """A worker lives and has processed ``offset`` samples of its shard."""

    pod: PodId
    shard: Count
    attempt: Annotated[int, Field(ge=1)]
    offset: Count
    samples_per_s: Rate


class ShardHeartbeatReply(Message):
    """``stale``: the lease is somebody else's now; stop training it and ask for the next.

    ``unknown``: there is no such job, or the pod is known to have exited.
    """

    answer: Literal["ok", "stale", "unknown"]


class ReleaseShard(Message):
    """A worker that leaves gives its shard back."""

    pod: PodId
    shard: Count
    attempt: Annotated[int, Field(ge=1)]
    offset: Count
    failure: Text | None = Field(default=None, description="set when the data themselves failed, not the pod")


class ReleaseShardReply(Message):
    """Whether the lease was this worker's."""

    answer: Literal["ok", "stale", "unknown"]


class MarkLedger(Message):
    """Ask for the ledger's state at this instant, for a checkpoint whose pushes are frozen now.

    Images that are copied while training goes on need two marks: one before the first image, and one after the last,
    with ``after`` the ``request_id`` of the first. The second belongs to the images: it lists as outstanding
    whatever was not complete at the first or was leased since, and the records in the images filter it.
    """

    request_id: RequestId
    after: RequestId | None = None


class MarkLedgerReply(Message):
    """``ledger`` restores the state (CheckpointRestored carries it back); opaque to everybody but the dispatcher."""

    answer: Literal["ok", "unknown"]
    ledger: Annotated[str, Field(max_length=200_000)] = ""
    samples_done: Count = 0


class AuditLedger(Message):
    """Show the books at this instant. Changes nothing."""


class AuditLedgerReply(Message):
    """Everything the ledger knows of where the samples are."""

    answer: Literal["ok", "unknown"]
    ledger: LedgerBooks | None = None


# actuator --------------------------------------------------------------------------------------------------------


class GetServers(Message):
    """A pod asks which parameter servers its job has."""

    request_id: RequestId
    pod: PodId


class GetServersReply(Message):
    """The servers as of ``version`` (0: none yet), and the plan that pods are to train under."""

    answer: Literal["ok", "unknown"]
    version: Count = 0
    plan_version: Count = 0
    servers: Annotated[tuple[ParameterServer, ...], Field(max_length=1000)] = ()


class RenewCredentials(Message):
    """A pod shows the token of its credentials and gets it back with a later end; its key it keeps to itself."""

    pod: PodId
    token: Annotated[str, StringConstraints(min_length=1, max_length=8192)]


class RenewCredentialsReply(Message):
    """``unknown``: there is no such pod any more."""

    answer: Literal["ok", "unknown"]
    token: Annotated[str, StringConstraints(max_length=8192)] = ""


# checkpoints -----------------------------------------------------------------------------------------------------


class SaveCheckpoint(Message):
    """Take a checkpoint now."""

    request_id: RequestId


class SaveCheckpointReply(Message):
    """Whether it has begun; CheckpointSaved follows."""

    answer: Literal["begun", "busy", "unknown"]
    id: Name | None = None


# to pods ---------------------------------------------------------------------------------------------------------


class PodPing(Message):
    """Is the pod ready, and where does it listen?"""


class PodPingReply(Message):
    """``ready``: a parameter server serves, a worker has imported the model and may lease."""

    ready: bool
    address: Annotated[str, Field(max_length=300)] = ""
    detail: Text = ""


class BucketMove(Record):
    """A column that moves: an embedding bucket, or the number of buckets plus a dense slice."""

    bucket: Annotated[int, Field(ge=0, lt=1024)]
    source: Annotated[int, Field(ge=0, description="index of the parameter server that owns it")]


class TakeBuckets(Message):
    """To the destination of a migration: take these buckets over, one by one, while training goes on.

    Repeating the request after a crash resumes it; buckets already here are skipped.
    """

    moves: Annotated[tuple[BucketMove, ...], Field(max_length=1100)]
    servers: Annotated[tuple[ParameterServer, ...], Field(max_length=1000)]


class TakeBucketsReply(Message):
    """Progress is published as telemetry; the reply comes at once, ``MoveStatus`` tells how far it is."""

    accepted: bool
    detail: Text = ""


class GetMoveStatus(Message):
    """How far is the migration into this parameter server?"""


class GetMoveStatusReply(Message):
    """``running`` false and ``done`` equal to ``total``: finished."""

    running: bool
    done: Count
    total: Count
    moved_bytes: Bytes
    longest_freeze_s: Seconds
    error: Text | None = None


class GetOwnership(Message):
    """Which buckets and dense slices does this parameter server own? The truth of a job's layout lives here."""


class GetOwnershipReply(Message):
    """Per bucket and per dense slice: 0 not mine, 1 mine, 2 frozen. With sizes for balanced moves.

    ``image_bytes``: what a checkpoint of it would take at most.
    """

    buckets: Annotated[tuple[Annotated[int, Field(ge=0, le=2)], ...], Field(max_length=1024)]
    slices: Annotated[tuple[Annotated[int, Field(ge=0, le=2)], ...], Field(max_length=1024)]
    bucket_rows: Annotated[tuple[Count, ...], Field(max_length=1024)]
    applied_samples: Count = 0
    image_bytes: Bytes = 0


class ClaimBuckets(Message):
    """To a parameter server of a new job: own these, empty. Refused when it owns others already."""

    buckets: Annotated[tuple[Annotated[int, Field(ge=0, lt=1024)], ...], Field(max_length=1024)]
    slices: Annotated[tuple[Annotated[int, Field(ge=0, lt=1024)], ...], Field(max_length=1024)]


class ClaimBucketsReply(Message):
    """Whether it owns exactly these now."""

    accepted: bool
    detail: Text = ""


class ExportState(Message):
    """Copy everything owned, column by column; each carries its progress, so no push is refused.

    ``memory_path``: a file in shared memory that was reserved for it; empty, or not there: to the pod's disk and the
    cache. The copy goes on to the store in the background under ``checkpoint_id``.
    """

    checkpoint_id: Name
    cache_url: Annotated[str, Field(max_length=1000)]
    store_url: Annotated[str, Field(max_length=1000)]
    memory_path: Annotated[str, Field(max_length=1000)] = ""


class ExportStateReply(Message):
    """What this parameter server copied. ``pause_s``: no push waited longer than that for it; pulls never wait.

    ``in_memory``: to the file that was reserved for it.
    """

    accepted: bool
    size_bytes: Bytes = 0
    in_memory: bool = False
    digest: Annotated[str, Field(max_length=200)] = ""
    pause_s: Seconds = 0.0
    detail: Text = ""


class GetExportStatus(Message):
    """Where is that copy now?"""

    checkpoint_id: Name


class GetExportStatusReply(Message):
    """``part`` describes this server's file for the manifest (JSON), set once it is stored."""

    stage: Literal["unknown", "memory", "cached", "stored", "failed"]
    part: Annotated[str, Field(max_length=100_000)] = ""
    detail: Text = ""


class ImportState(Message):
    """To a parameter server of a job that starts from a checkpoint: load and own these buckets and slices.

    ``number``: of the return to a checkpoint that it belongs to. One with a lower number than another that the server
    has heard of is late, and refused. ``cache_url``: where images may lie nearer than in the store; empty: nowhere.
    """

    checkpoint: CheckpointRef
    number: Count = 0
    buckets: Annotated[tuple[Annotated[int, Field(ge=0, lt=1024)], ...], Field(max_length=1024)]
    slices: Annotated[tuple[Annotated[int, Field(ge=0, lt=1024)], ...], Field(max_length=1024)]
    cache_url: Annotated[str, Field(max_length=1000)] = ""


class ImportStateReply(Message):
    """Whether it has them; checksums were verified. ``damaged``: no copy is whole, so trying again will not help."""

    accepted: bool
    damaged: bool = False
    size_bytes: Bytes = 0
    detail: Text = ""


class TrainUnder(Message):
    """To a worker: telemetry belongs to this plan from now on; the CPU limit it should adapt its threads to."""

    plan_version: Count
    cpu_cores: Annotated[float, Field(gt=0, le=1024)]


class TrainUnderReply(Message):
    """Taken note of."""

    ok: bool = True


class EvaluateModel(Message):
    """To a worker: evaluate the model as it stands. Asked again, it tells how far it is."""

    samples: Annotated[int, Field(ge=1)]


class EvaluateModelReply(Message):
    """``evaluation`` is set once it is done."""

    state: Literal["running", "done", "failed"]
    evaluation: Evaluation | None = None
    detail: Text = ""


class GetBooks(Message):
    """What has this parameter server applied? Counted where gradients land, independent of the ledger.

    ``shards``: also how far its columns are with these. ``checksum`` false spares it to read all its rows.
    """

    shards: Annotated[tuple[Count, ...], Field(max_length=2000)] = ()
    checksum: bool = True


class GetBooksReply(Message):
    """The totals of all time, and what each column counted: of one instant between two pushes if ``steady``."""

    applied_samples: Count
    skipped_repeats: Annotated[
        Count, Field(description="samples of repeated pushes that were recognised and not applied")
    ]
    rejected_pushes: Count
    owns_dense: bool
    rows: Count
    checksum: Annotated[str, Field(max_length=100, description="order-free, over keys, rows and slots")] = ""
    applied: AppliedBooks = AppliedBooks()
    steady: bool = True
