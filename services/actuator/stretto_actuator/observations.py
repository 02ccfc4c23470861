"""What only the actuator's edge sees; journalled, so that decisions replay from it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from stretto_core.actuator.state import WaitReason
from stretto_wire import AppliedBooks
from stretto_wire.base import Bytes, Cores, Count, Message, Name, PodId, Record, Seconds, Text

from .backend import ExitReason


class PodReady(Message):
    """A pod answers that it is ready."""

    pod: PodId
    address: Annotated[str, Field(max_length=300)]
    took_s: Seconds
    cpu_cores: Cores
    memory_bytes: Bytes
    limits: Annotated[tuple[Name, ...], Field(max_length=8)]
    adopted: bool


class PodWaits(Message):
    """A pod cannot run yet."""

    pod: PodId
    reason: WaitReason
    detail: Text = ""


class PodGivenUp(Message):
    """A pod has waited too long for room."""

    pod: PodId


class PodGone(Message):
    """A pod has exited, or is not where it was."""

    pod: PodId
    reason: ExitReason
    exit_code: Annotated[int, Field(ge=-255, le=255)] | None
    detail: Text = ""


class PodLimited(Message):
    """The limits of a running pod are these now."""

    pod: PodId
    cpu_cores: Cores
    memory_bytes: Bytes


class PodFixed(Message):
    """A running pod cannot get other limits where it is."""

    pod: PodId


class ServersClaimed(Message):
    """These parameter servers own their parts of a new model."""

    pods: Annotated[tuple[PodId, ...], Field(max_length=1000)]


class MoveBegun(Message):
    """What has to move to reach layout ``number``."""

    number: Count
    sources: Annotated[tuple[PodId, ...], Field(max_length=1000)]
    destinations: Annotated[tuple[PodId, ...], Field(max_length=1000)]
    buckets: Count


class MoveEnded(Message):
    """Layout ``number`` is reached."""

    number: Count
    buckets: Count
    moved_bytes: Bytes
    longest_freeze_s: Seconds


class PlanReached(Message):
    """Pods are as the plan of this version wants them, and workers know it."""

    version: Count


class OrphanFound(Message):
    """A pod runs that the state does not know; it is ended. Decides nothing: writing it proves the right to."""

    pod: PodId


class BookOfPs(Record):
    """One parameter server's count at the end."""

    skipped_repeats: Count
    rows: Count
    checksum: Annotated[str, Field(max_length=100)]
    applied: AppliedBooks


class BooksTaken(Message):
    """The counts of all parameter servers, and the evaluation: samples, loss, AUC."""

    books: Annotated[tuple[BookOfPs, ...], Field(max_length=1000)]
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
