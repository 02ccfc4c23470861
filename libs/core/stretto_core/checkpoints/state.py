"""State of the checkpoints machine, and the event that opens a job."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from stretto_messages.values import CheckpointRef

from stretto_core.checkpoints.names import COLUMNS, restore_number


@dataclass(frozen=True, slots=True)
class JobOpened:
    """A job's policy, from its specification."""

    job: str
    folder: str
    """URL below which its checkpoints are stored."""
    every_s: float | None = None
    """None: only on demand."""
    keep: int = 2
    """Full checkpoints that are kept, each with its differences."""
    restore_from: str | None = None
    final: bool = False
    """Take a checkpoint after the last shard."""


@dataclass(slots=True)
class Attempt:
    """A checkpoint on its way: ``taking`` until its images are in memory, then ``storing``."""

    id: str
    url: str
    servers: list[int]
    began_at_s: float
    final: bool
    base: str = ""
    """The complete checkpoint that it may add to; once it is saved, the one that it does add to. "": it is full."""
    stage: Literal["taking", "storing"] = "taking"
    ledger: str = ""
    samples: int = 0
    size_bytes: int = 0
    best: bool = False
    """The first checkpoint after the best evaluation so far."""

    @property
    def reference(self) -> CheckpointRef:
        """The checkpoint that this becomes."""
        return CheckpointRef(
            id=self.id, url=self.url, samples=self.samples, size_bytes=self.size_bytes, ps=len(self.servers)
        )


@dataclass(slots=True)
class Restore:
    """Empty servers that wait for a checkpoint."""

    id: str
    url: str
    servers: list[int]
    failures: int = 0
    """Failed attempts to read this checkpoint."""

    @property
    def number(self) -> int:
        """Grows with every return of the job to a checkpoint."""
        return restore_number(self.id)


@dataclass(slots=True)
class ColumnRestore:
    """Lost columns that come back from a checkpoint on servers that go on with theirs.

    ``loading`` until every column has an owner, then ``deciding`` until the dispatcher says whether it can hand out
    what they lack, or ``given-up`` until the actuator goes back with everything.
    """

    id: str
    loss: int
    """Version of the ParametersLost."""
    checkpoint: CheckpointRef
    servers: list[int]
    """All servers that survive."""
    takers: list[int]
    """Numbers of the servers that take columns."""
    began_at_s: float
    failures: int = 0
    """Failed attempts to read the checkpoint."""
    lineage: int = 0
    """Lineage of all columns that the job has."""
    stage: Literal["loading", "deciding", "given-up"] = "loading"

    @property
    def number(self) -> int:
        """Grows with every return of columns, or of the whole job, to a checkpoint."""
        return int(self.id.rpartition(COLUMNS)[2])


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
    """A checkpoint is taken after the last shard."""
    final_due: bool = False
    final_failures: int = 0
    final_failure: str = ""
    """Reason of the last failure of the final checkpoint."""
    final_not_before_s: float = 0.0

    servers: list[int] = field(default_factory=list[int])
    servers_version: int = 0
    migrating: bool = False
    lost: bool = False
    """The next servers are empty and wait for the parameters."""
    restore_from: str | None = None
    lineage: int = 0
    """Number of the return to a checkpoint that the parameters come from; 0: none."""
    restored: CheckpointRef | None = None
    """The checkpoint of that return, perhaps another job's."""

    attempt: Attempt | None = None
    restore: Restore | None = None
    columns: ColumnRestore | None = None
    complete: list[CheckpointRef] = field(default_factory=list[CheckpointRef])
    """The newest `keep` chains and the chain of the best checkpoint, in order of time (chains.py)."""
    bases: dict[str, str] = field(default_factory=dict[str, str])
    """Checkpoint that each difference adds to."""
    expired: list[str] = field(default_factory=list[str])
    """Manifests whose folders may be removed: the latest while the job lives, all at its end."""
    given_up: list[str] = field(default_factory=list[str])
    """Expired manifests of attempts that were given up since a checkpoint was complete. Those that are whole stay until
    the next one is: the installation may have been restored from a backup that did not know the end of an attempt."""
    unreadable: list[str] = field(default_factory=list[str])
    """The latest manifests from which no return succeeded."""
    renamed: bool = False
    """An attempt has begun again behind the numbers of the store, and no checkpoint is complete since."""
    next_number: int = 1
    last_began_at_s: float = 0.0
    requested: bool = False
    """A checkpoint is due as soon as it can be taken."""
    best: str = ""
    """Name of the complete checkpoint after the best evaluation."""
    best_due: bool = False
    """There was a better evaluation since, and no checkpoint after it yet."""

    def faults(self) -> list[str]:
        """Return what must not be: images taken of columns that move or come back, a checkpoint that is kept twice."""
        taking = self.attempt is not None and self.attempt.stage == "taking"
        kept = [reference.id for reference in self.complete]
        faults = ["images are taken while columns move"] if taking and self.migrating else []
        faults += ["images are taken while parameters come back"] if self.attempt and self.restore else []
        return faults + (["a checkpoint is kept twice"] if len(set(kept)) < len(kept) else [])
