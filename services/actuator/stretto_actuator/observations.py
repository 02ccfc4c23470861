"""What only the actuator's edge sees; journalled, so that decisions replay from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le, MaxLen
from stretto_core.actuator.state import WaitReason
from stretto_messages.base import Bytes, Cores, Count, Message, Name, PodId, Record, Seconds, Text
from stretto_messages.books import AppliedBooks

from .backend import ExitReason


@dataclass(frozen=True, slots=True, kw_only=True)
class PodReady(Message):
    """A pod answers that it is ready."""

    pod: PodId
    address: Annotated[str, MaxLen(300)]
    took_s: Seconds
    cpu_cores: Cores
    memory_bytes: Bytes
    limits: Annotated[tuple[Name, ...], MaxLen(8)]
    adopted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PodWaits(Message):
    """A pod cannot run yet."""

    pod: PodId
    reason: WaitReason
    detail: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodGivenUp(Message):
    """A pod has waited too long for room."""

    pod: PodId


@dataclass(frozen=True, slots=True, kw_only=True)
class PodGone(Message):
    """A pod has exited, or is not where it was."""

    pod: PodId
    reason: ExitReason
    exit_code: Annotated[int, Ge(-255), Le(255)] | None
    detail: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodLimited(Message):
    """The limits of a running pod are these now."""

    pod: PodId
    cpu_cores: Cores
    memory_bytes: Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFixed(Message):
    """A running pod cannot get other limits where it is."""

    pod: PodId


@dataclass(frozen=True, slots=True, kw_only=True)
class ServersClaimed(Message):
    """These parameter servers own their parts of a new model."""

    pods: Annotated[tuple[PodId, ...], MaxLen(1000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveBegun(Message):
    """What has to move to reach layout ``number``."""

    number: Count
    sources: Annotated[tuple[PodId, ...], MaxLen(1000)]
    destinations: Annotated[tuple[PodId, ...], MaxLen(1000)]
    buckets: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveEnded(Message):
    """Layout ``number`` is reached."""

    number: Count
    buckets: Count
    moved_bytes: Bytes
    longest_freeze_s: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReached(Message):
    """Pods are as the plan of this version wants them, and workers know it."""

    version: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanFound(Message):
    """A pod runs that the state does not know; it is ended. Decides nothing: writing it proves the right to."""

    pod: PodId


@dataclass(frozen=True, slots=True, kw_only=True)
class BookOfPs(Record):
    """One parameter server's count at the end."""

    skipped_repeats: Count
    rows: Count
    checksum: Annotated[str, MaxLen(100)]
    applied: AppliedBooks


@dataclass(frozen=True, slots=True, kw_only=True)
class BooksTaken(Message):
    """The counts of all parameter servers, and the evaluation: samples, loss, AUC."""

    books: Annotated[tuple[BookOfPs, ...], MaxLen(1000)]
    evaluation: tuple[int, float, float] | None


OBSERVATIONS = (
    PodReady,
    PodWaits,
    PodGivenUp,
    PodGone,
    PodLimited,
    PodFixed,
    ServersClaimed,
    MoveBegun,
    MoveEnded,
    PlanReached,
    OrphanFound,
    BooksTaken,
)
