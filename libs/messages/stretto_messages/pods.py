"""Messages of pods: telemetry that they report about once a second, and requests that they answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Gt, Le, Lt, MaxLen

from stretto_messages.base import (
    GIB,
    Bytes,
    Cores,
    Count,
    EpochSeconds,
    Fraction,
    Message,
    Name,
    PodId,
    Record,
    RowBytes,
    Seconds,
    Text,
    example,
)
from stretto_messages.books import ALL_ROWS, AppliedBooks, RowBooks
from stretto_messages.scenario import APPLIED, CHECKPOINT, JOB, MISS_RATIOS, NOW_S, SERVERS, TIMES
from stretto_messages.values import CheckpointRef, Evaluation, MissRatios, ParameterServer, ReadRate, Stage, StepTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReported(Message):
    """A worker's last window. ``steps_total`` and ``samples_total`` never fall within the life of a pod."""

    pod: PodId
    plan_version: Count
    """Plan under which it trains."""
    ended_at_s: EpochSeconds
    window_s: Annotated[Seconds, Gt(0)]
    steps: Count
    """Steps finished in the window."""
    steps_total: Count
    samples_total: Count
    step_time_s: Seconds
    """Mean time of a step in the window, waiting for shards excluded."""
    longest_gap_s: Seconds
    """Longest time between two finished steps in the window."""
    times: StepTimes
    prepared_elsewhere: Fraction = 0.0
    """Share of the window's batches that data workers prepared."""
    prepare_s: Seconds = 0.0
    """Time that the worker last needed to prepare a batch; 0: not known."""
    prepare_cpu_s: Seconds = 0.0
    """Processor time that the worker last needed to prepare a batch."""
    step_bytes: Bytes = 0
    """Size of what a step with the last batch's keys sends to parameter servers and gets from them, without heads; 0:
    not told, since everything travels in float32."""
    step_bytes_exact: Bytes = 0
    """The same size if everything travelled in float32 with each step."""
    cpu_used_cores: Cores
    cpu_limit_cores: Cores
    memory_used_bytes: Bytes
    memory_limit_bytes: Bytes
    stage: Stage = 0
    """Above 0, a step is what another worker has asked for: ``times.grad_s`` is its computing, ``times.sync_s`` pulling
    and pushing, and no sample is counted."""

    SELDOM: ClassVar[frozenset[str]] = frozenset({"stage"})


example(
    WorkerReported(
        job=JOB,
        pod="worker-0",
        plan_version=1,
        ended_at_s=NOW_S,
        window_s=1.0,
        steps=35,
        steps_total=9952,
        samples_total=5_095_424,
        step_time_s=0.0281,
        longest_gap_s=0.041,
        times=TIMES,
        cpu_used_cores=1.91,
        cpu_limit_cores=2.0,
        memory_used_bytes=1_610_612_736,
        memory_limit_bytes=4 * GIB,
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PsReported(Message):
    """A parameter server's last window."""

    pod: PodId
    ended_at_s: EpochSeconds
    window_s: Annotated[Seconds, Gt(0)]
    updates: Count
    """Pushes applied in the window."""
    update_time_s: Seconds
    """Mean time of a push, queueing included."""
    applied_samples_total: Count
    """Samples whose dense gradient it has applied so far."""
    categories: Count
    """Rows in its embedding tables."""
    row_bytes: RowBytes
    """Mean over those rows; while there is none, over the tables of the layout. 0: no worker has told the layout."""
    table_bytes: Bytes
    """Exact size of rows, entries, indices and dense parameters: the pages that they touch."""
    rows: RowBooks = ALL_ROWS
    buckets: Annotated[int, Ge(0), Le(1024)]
    cpu_used_cores: Cores
    cpu_limit_cores: Cores
    memory_used_bytes: Bytes
    memory_limit_bytes: Bytes
    cold_rows: Count = 0
    """Rows on its disk; they are among its categories."""
    log_bytes: Bytes = 0
    """Size of the file that holds them."""
    warm_rows: Count = 0
    """Rows that are rounded to bfloat16 in its memory, for lack of room; they are among its categories."""
    warm_bytes: Bytes = 0
    """Memory that they take, but for their entries and index."""
    disk_free_bytes: Bytes = 0
    rows_pulled: Count = 0
    """Rows that training pulled in the window, each once a batch."""
    rows_read: Count = 0
    """Rows that batches of training had read from the disk in the window, not for copies or evaluations."""
    disk_reads_per_s: ReadRate = 0.0
    """Random reads of a row that its disk can do at depth; 0: not measured."""
    miss_ratios: MissRatios = ()
    spill_fault: Text = ""
    """Why its rows find no room: the disk refuses them, or memory is too small for what stays there; empty: they do."""


example(
    PsReported(
        job=JOB,
        pod="ps-0",
        ended_at_s=NOW_S,
        window_s=1.0,
        updates=70,
        update_time_s=0.0032,
        applied_samples_total=10_190_848,
        categories=602_004,
        row_bytes=152.6,
        table_bytes=97_517_568,
        buckets=32,
        cpu_used_cores=0.71,
        cpu_limit_cores=1.0,
        memory_used_bytes=162_529_280,
        memory_limit_bytes=2 * GIB,
        disk_free_bytes=48 * GIB,
        rows_pulled=96_400,
        disk_reads_per_s=41_000.0,
        miss_ratios=MISS_RATIOS,
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataWorkerReported(Message):
    """A data worker's last window."""

    pod: PodId
    ended_at_s: EpochSeconds
    window_s: Annotated[Seconds, Gt(0)]
    lanes: Count
    """Batches that it prepares at once."""
    batches: Count
    """Batches prepared in the window."""
    busy_s: Seconds
    """Time that lanes spent on them, summed over lanes."""
    cpu_used_cores: Cores
    cpu_limit_cores: Cores
    memory_used_bytes: Bytes
    memory_limit_bytes: Bytes


example(
    DataWorkerReported(
        job=JOB,
        pod="data-0",
        ended_at_s=NOW_S,
        window_s=1.0,
        lanes=1,
        batches=36,
        busy_s=0.93,
        cpu_used_cores=0.94,
        cpu_limit_cores=1.0,
        memory_used_bytes=402_653_184,
        memory_limit_bytes=2 * GIB,
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPing(Message):
    """Ask whether the pod is ready, and for its address."""


example(PodPing(job=JOB))


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPingReply(Message):
    """``ready``: the parameter server serves, or the worker has imported the model and may lease."""

    ready: bool
    address: Annotated[str, MaxLen(300)] = ""
    detail: Text = ""


example(PodPingReply(job=JOB, ready=True, address="10.4.0.11:40101"))


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketMove(Record):
    """A column that moves: an embedding bucket, or the number of buckets plus a dense slice."""

    bucket: Annotated[int, Ge(0), Lt(1024)]
    source: Annotated[int, Ge(0)]
    """Index of the parameter server that owns it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeBuckets(Message):
    """Request to the destination of a migration: take over these buckets, one by one, while training goes on.

    Repeating the request after a crash resumes it; buckets already here are skipped.
    """

    moves: Annotated[tuple[BucketMove, ...], MaxLen(1100)]
    servers: Annotated[tuple[ParameterServer, ...], MaxLen(1000)]


example(
    TakeBuckets(
        job=JOB,
        moves=(BucketMove(bucket=0, source=0), BucketMove(bucket=33, source=1), BucketMove(bucket=70, source=1)),
        servers=(*SERVERS, ParameterServer(index=2, address="10.4.0.13:40103")),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeBucketsReply(Message):
    """The move was accepted or not. The reply comes at once; GetMoveStatus asks for progress."""

    accepted: bool
    detail: Text = ""


example(TakeBucketsReply(job=JOB, accepted=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class GetMoveStatus(Message):
    """Ask for the progress of the migration into this parameter server."""


example(GetMoveStatus(job=JOB))


@dataclass(frozen=True, slots=True, kw_only=True)
class GetMoveStatusReply(Message):
    """Progress of a migration. It is finished when ``running`` is false and ``done`` equals ``total``."""

    running: bool
    done: Count
    total: Count
    moved_bytes: Bytes
    longest_freeze_s: Seconds
    error: Text | None = None


example(
    GetMoveStatusReply(
        job=JOB, running=True, done=11, total=25, moved_bytes=39_370_533, longest_freeze_s=0.09, error=None
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GetOwnership(Message):
    """Ask which buckets and dense slices this parameter server owns. The servers alone know a job's layout.

    ``base_id``: the complete checkpoint that the next one may add to; empty: none.
    """

    base_id: Annotated[str, MaxLen(200)] = ""


example(GetOwnership(job=JOB, base_id="ctr-ranking-42-000002"))


@dataclass(frozen=True, slots=True, kw_only=True)
class GetOwnershipReply(Message):
    """Per bucket and per dense slice: 0 not mine, 1 mine, 2 frozen. With sizes for balanced moves.

    ``image_bytes``: upper bound of the size of its checkpoint, as an addition to the one that was named.
    """

    buckets: Annotated[tuple[Annotated[int, Ge(0), Le(2)], ...], MaxLen(1024)]
    slices: Annotated[tuple[Annotated[int, Ge(0), Le(2)], ...], MaxLen(1024)]
    bucket_rows: Annotated[tuple[Count, ...], MaxLen(1024)]
    applied_samples: Count = 0
    image_bytes: Bytes = 0


example(
    GetOwnershipReply(
        job=JOB,
        buckets=(1, 1, 2, 0),
        slices=(1, 0),
        bucket_rows=(18_812, 18_790, 18_904, 0),
        applied_samples=10_190_848,
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimBuckets(Message):
    """Request to a parameter server of a new job: own these columns, empty. Refused if it owns others already."""

    buckets: Annotated[tuple[Annotated[int, Ge(0), Lt(1024)], ...], MaxLen(1024)]
    slices: Annotated[tuple[Annotated[int, Ge(0), Lt(1024)], ...], MaxLen(1024)]


example(ClaimBuckets(job=JOB, buckets=(0, 1, 2, 3), slices=(0, 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimBucketsReply(Message):
    """``accepted``: it owns exactly these columns."""

    accepted: bool
    detail: Text = ""


example(ClaimBucketsReply(job=JOB, accepted=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyServer(Message):
    """Request to a parameter server: drop everything, as a process that has just started. The job goes back.

    Whatever is on its way to the server from before changes nothing any more.
    """

    version: Annotated[int, Ge(1)]
    """Version of the ServersChanged that named no server; it names the return of the job."""


example(EmptyServer(job=JOB, version=5))


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyServerReply(Message):
    """``accepted``: it owns nothing. A request of an earlier return that comes late is refused."""

    accepted: bool
    detail: Text = ""


example(EmptyServerReply(job=JOB, accepted=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportState(Message):
    """Copy everything owned, column by column; each carries its progress, so no push is refused.

    ``memory_path``: a file in shared memory that was reserved for the copy. If it is empty or missing, the copy goes to
    the pod's disk and the cache. The copy goes on to the store in the background under ``checkpoint_id``.
    ``base_id``: a complete checkpoint; a server that took part in it copies only rows that have changed since. Without
    one, the copy is full.
    """

    checkpoint_id: Name
    cache_url: Annotated[str, MaxLen(1000)]
    store_url: Annotated[str, MaxLen(1000)]
    memory_path: Annotated[str, MaxLen(1000)] = ""
    base_id: Annotated[str, MaxLen(200)] = ""


example(
    ExportState(
        job=JOB,
        checkpoint_id="ctr-ranking-42-000003",
        cache_url="redis://127.0.0.1:6379/0",
        store_url="file:///data/checkpoints/ctr-ranking-42/000003",
        base_id="ctr-ranking-42-000002",
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportStateReply(Message):
    """The copy of this parameter server. No push waited longer than ``pause_s`` for it; pulls never wait.

    ``in_memory``: the copy is in the reserved file. ``difference``: it adds to the checkpoint that was named.
    """

    accepted: bool
    size_bytes: Bytes = 0
    in_memory: bool = False
    difference: bool = False
    digest: Annotated[str, MaxLen(200)] = ""
    pause_s: Seconds = 0.0
    detail: Text = ""


example(ExportStateReply(job=JOB, accepted=True, size_bytes=134_217_728, digest="sha256:51fe", pause_s=0.004))


@dataclass(frozen=True, slots=True, kw_only=True)
class GetExportStatus(Message):
    """Ask where the copy of a checkpoint is."""

    checkpoint_id: Name


example(GetExportStatus(job=JOB, checkpoint_id="ctr-ranking-42-000003"))


@dataclass(frozen=True, slots=True, kw_only=True)
class GetExportStatusReply(Message):
    """``part`` describes this server's file for the manifest (JSON), set once it is stored."""

    stage: Literal["unknown", "memory", "cached", "stored", "failed"]
    part: Annotated[str, MaxLen(100_000)] = ""
    detail: Text = ""


example(GetExportStatusReply(job=JOB, stage="stored", part='{"file":"ps-0.bin","bytes":134217728}'))


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportState(Message):
    """Request to a parameter server: load and own these columns of a checkpoint.

    ``number`` counts the job's restores. A request with a lower number than the last is late, and
    refused. ``cache_url``: a cache that may hold the images; empty: none.
    """

    checkpoint: CheckpointRef
    number: Count = 0
    buckets: Annotated[tuple[Annotated[int, Ge(0), Lt(1024)], ...], MaxLen(1024)]
    slices: Annotated[tuple[Annotated[int, Ge(0), Lt(1024)], ...], MaxLen(1024)]
    cache_url: Annotated[str, MaxLen(1000)] = ""
    beside: bool = False
    """The server owns other columns and trains on with them: it loads the named ones that it does not own yet. With
    no column named, the reply comes once every import under a lower number is over."""
    lineage: Count = 0
    """Number of the return to a checkpoint that all parameters of the job come from once this is loaded; 0: none."""


example(ImportState(job=JOB, checkpoint=CHECKPOINT, buckets=(0, 1, 2, 3), slices=(0, 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportStateReply(Message):
    """``accepted``: the columns are loaded and their checksums verified. ``damaged``: no copy is whole."""

    accepted: bool
    damaged: bool = False
    size_bytes: Bytes = 0
    detail: Text = ""


example(ImportStateReply(job=JOB, accepted=True, size_bytes=89_478_485))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainUnder(Message):
    """Request to a worker: report telemetry under this plan, and adapt the number of threads to the CPU limit."""

    plan_version: Count
    cpu_cores: Annotated[float, Gt(0), Le(1024)]


example(TrainUnder(job=JOB, plan_version=2, cpu_cores=2.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainUnderReply(Message):
    """Acknowledges TrainUnder."""

    ok: bool = True


example(TrainUnderReply(job=JOB))


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateModel(Message):
    """Request to a worker: evaluate the model as it stands. A repeated request returns the progress."""

    samples: Annotated[int, Ge(1)]


example(EvaluateModel(job=JOB, samples=100_000))


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateModelReply(Message):
    """State of the evaluation; ``evaluation`` is set once it is done."""

    state: Literal["running", "done", "failed"]
    evaluation: Evaluation | None = None
    detail: Text = ""


example(EvaluateModelReply(job=JOB, state="done", evaluation=Evaluation(samples=100_000, loss=0.4512, auc=0.7983)))


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBooks(Message):
    """Ask what this parameter server has applied, counted where gradients land, independent of the ledger.

    ``shards``: also report the progress of its columns with these. ``checksum=False`` spares reading all rows.
    """

    shards: Annotated[tuple[Count, ...], MaxLen(2000)] = ()
    checksum: bool = True


example(GetBooks(job=JOB, shards=(311,)))


@dataclass(frozen=True, slots=True, kw_only=True)
class GetBooksReply(Message):
    """Totals so far, and the counts of each column. ``steady``: all of one instant between two pushes."""

    applied_samples: Count
    skipped_repeats: Count
    """Samples of repeated pushes that were recognised and not applied."""
    rejected_pushes: Count
    owns_dense: bool
    rows: Count
    checksum: Annotated[str, MaxLen(100)] = ""
    """Order-free, over keys, rows and slots."""
    applied: AppliedBooks = field(default_factory=AppliedBooks)
    steady: bool = True


example(
    GetBooksReply(
        job=JOB,
        applied_samples=91_681_234,
        skipped_repeats=1536,
        rejected_pushes=48,
        owns_dense=True,
        rows=1_405_951,
        checksum="9f1c2d",
        applied=APPLIED,
    )
)
