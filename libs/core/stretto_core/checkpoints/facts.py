"""What the checkpoints service is told of a job, what it tells, and what it remembers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

FINAL = "-final"
"""how the name of the checkpoint after the last shard ends"""
RESTORE = "-restore-"
"""part of the name of a return to a checkpoint"""
EXPIRED_KEPT = 16


def is_final(name: str) -> bool:
    """Whether this checkpoint was taken after the last shard."""
    return name.endswith(FINAL)


def is_restore(name: str) -> bool:
    """Whether this names a return to a checkpoint."""
    return RESTORE in name


# what happens ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """A job's policy. ``every_s`` None: only on demand. ``folder``: URL below which its checkpoints stay."""

    job: str
    folder: str
    every_s: float | None = None
    keep: int = 2
    restore_from: str | None = None
    final: bool = False


@dataclass(frozen=True, slots=True)
class ServersChanged:
    """The numbers of the parameter servers. None: the parameters are gone, the next servers are empty."""

    version: int
    servers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MigrationStarted:
    """Buckets change their owners from now on."""


@dataclass(frozen=True, slots=True)
class MigrationFinished:
    """Buckets stay where they are."""


@dataclass(frozen=True, slots=True)
class JobCompleted:
    """The last shard was trained. Said while the parameters are lost, it is of a time that will be undone."""


@dataclass(frozen=True, slots=True)
class JobEnded:
    """Finished, failed or cancelled: its pods go."""

    finished: bool = False


@dataclass(frozen=True, slots=True)
class SaveAsked:
    """Somebody wants a checkpoint now."""


@dataclass(frozen=True, slots=True)
class Saved:
    """Observed: all images are in memory. ``ledger``: the mark that was taken before them."""

    id: str
    ledger: str
    samples: int
    size_bytes: int
    pause_s: float
    took_s: float
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Stored:
    """Observed: all images are in the store, and the manifest with them."""

    id: str
    took_s: float


@dataclass(frozen=True, slots=True)
class Broken:
    """Observed: it could not be taken, stored or (``id`` of the restore) read.

    ``damaged``: what was read is not a sound checkpoint, and will not be one if it is read again.
    """

    id: str
    reason: str
    damaged: bool = False


@dataclass(frozen=True, slots=True)
class Loaded:
    """Observed: every parameter server has its part of the checkpoint."""

    id: str
    checkpoint: Checkpoint
    ledger: str
    servers: tuple[int, ...]


# what is told ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint: ``url`` of its manifest, samples trained, bytes, how many servers wrote it."""

    id: str
    url: str
    samples: int
    size_bytes: int
    ps: int


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """Copied; no push waited longer than ``pause_s`` for it. ``memory_bytes`` of it are in shared memory."""

    checkpoint: Checkpoint
    pause_s: float
    took_s: float
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CheckpointFlushed:
    """Complete in the store."""

    checkpoint: Checkpoint
    took_s: float


@dataclass(frozen=True, slots=True)
class CheckpointRestored:
    """Parameters are those of the checkpoint; the ledger has to go back to ``ledger``."""

    checkpoint: Checkpoint
    ps: int
    ledger: str
    request_id: str


@dataclass(frozen=True, slots=True)
class CheckpointFailed:
    """The previous one stands."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class SaveAnswered:
    """Whether a checkpoint has begun."""

    answer: Literal["begun", "busy", "unknown"]
    id: str | None = None


# what is remembered ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Attempt:
    """A checkpoint on its way: ``taking`` until it is in memory, then ``storing``."""

    id: str
    url: str
    servers: list[int]
    began_at_s: float
    final: bool
    stage: Literal["taking", "storing"] = "taking"
    ledger: str = ""
    samples: int = 0
    size_bytes: int = 0


@dataclass(slots=True)
class Restore:
    """Empty servers that wait for a checkpoint. ``failures``: how often it could not be read since they wait."""

    id: str
    url: str
    servers: list[int]
    failures: int = 0

    @property
    def number(self) -> int:
        """Higher than that of any return before it."""
        return int(self.id.rpartition(RESTORE)[2])


@dataclass(slots=True)
class CheckpointState:
    """Everything that the checkpoints service knows of one job."""

    job: str = ""
    folder: str = ""
    every_s: float | None = None
    keep: int = 2
    ended: bool = False
    completed: bool = False
    final: bool = False
    """a checkpoint is taken after the last shard"""
    final_due: bool = False
    final_failures: int = 0
    final_not_before_s: float = 0.0

    servers: list[int] = field(default_factory=list[int])
    servers_version: int = 0
    migrating: bool = False
    lost: bool = False
    """the next servers are empty and wait for the parameters"""
    restore_from: str | None = None

    attempt: Attempt | None = None
    restore: Restore | None = None
    complete: list[Checkpoint] = field(default_factory=list[Checkpoint])
    expired: list[str] = field(default_factory=list[str])
    """manifests whose folders may go: the latest, and all at the end"""
    next_number: int = 1
    last_began_at_s: float = 0.0
    asked: bool = False
    """a checkpoint is due as soon as it can be taken"""
