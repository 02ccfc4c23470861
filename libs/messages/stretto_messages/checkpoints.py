"""Facts of the checkpoints service, and the request that it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, MaxLen

from stretto_messages.base import Bytes, Count, EpochSeconds, Message, Name, RequestId, Seconds, Text, example
from stretto_messages.scenario import CHECKPOINT, JOB
from stretto_messages.values import CheckpointRef


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved(Message):
    """A checkpoint was copied while training went on; no push waited longer than ``pause_s`` for it.

    ``memory_bytes`` of it are in shared memory, for a fast restore; the rest had no room there and went to disk.
    """

    checkpoint: CheckpointRef
    pause_s: Seconds
    took_s: Seconds
    memory_bytes: Bytes = 0


example(CheckpointSaved(job=JOB, checkpoint=CHECKPOINT, pause_s=0.004, took_s=0.9, memory_bytes=CHECKPOINT.size_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFlushed(Message):
    """A checkpoint is complete in the persistent store.

    ``best``: it was taken after the best evaluation so far, and is kept until there is a better one.
    """

    checkpoint: CheckpointRef
    took_s: Seconds
    best: bool = False
    stored_bytes: Bytes | None = None
    """Bytes of all checkpoints of the job that the store keeps now, this one included. None: not told."""


example(CheckpointFlushed(job=JOB, checkpoint=CHECKPOINT, took_s=4.7, stored_bytes=CHECKPOINT.size_bytes + 96_468_992))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRestored(Message):
    """Parameters and ledger of the job are those of the checkpoint. ``ledger`` is the document of MarkLedgerReply."""

    checkpoint: CheckpointRef
    ps: Count
    ledger: Annotated[str, MaxLen(200_000)]
    request_id: RequestId


example(
    CheckpointRestored(
        job=JOB,
        checkpoint=CHECKPOINT,
        ps=3,
        ledger='{"epoch":0,"next":311,"open":[[311,12288]]}',
        request_id="restore-ctr-ranking-42-000003",
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnsRestored(Message):
    """The columns that a lost parameter server owned are back, as they were in the checkpoint; all others went on."""

    loss: Annotated[int, Ge(1)]
    """Version of the ParametersLost."""
    checkpoint: CheckpointRef
    columns: Count
    """Number of embedding buckets and dense slices that were imported."""
    size_bytes: Bytes
    took_s: Seconds
    """Time from the loss until their new owners serve them."""


example(ColumnsRestored(job=JOB, loss=4, checkpoint=CHECKPOINT, columns=38, size_bytes=89_478_485, took_s=0.7))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFailed(Message):
    """A checkpoint could not be taken, flushed or read; the previous one stands."""

    id: Name
    reason: Text
    next_try_at_s: EpochSeconds | None = None
    """Earliest time of the next try at the final checkpoint of a trained job. None: it is not tried again."""


example(CheckpointFailed(job=JOB, id="ctr-ranking-42-000004", reason="the store is full: 0 bytes free"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCheckpoint(Message):
    """Take a checkpoint now."""

    request_id: RequestId


example(SaveCheckpoint(job=JOB, request_id="ada-2026-11-20T11:06:40Z"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCheckpointReply(Message):
    """Answer to SaveCheckpoint. ``begun``: CheckpointSaved follows."""

    answer: Literal["begun", "busy", "unknown"]
    id: Name | None = None


example(SaveCheckpointReply(job=JOB, answer="begun", id="ctr-ranking-42-000003"))
