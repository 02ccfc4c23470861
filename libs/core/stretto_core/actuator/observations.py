"""Observations of the actuator: journalled inputs, from which its decisions replay.

Where an observation is already the fact that follows from it, the service proposes that message itself: PodStarted,
PodPending, PodExited and PodResized of :mod:`stretto_messages.actuator`. The machine accepts each at most once and
publishes it. Observations with other fields are here, in the words of the facts that follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import MaxLen
from stretto_messages.base import Bytes, Count, Message, PodId, Record, Seconds, Text
from stretto_messages.books import AppliedBooks
from stretto_messages.values import PS_MAX, Evaluation

Servers = Annotated[tuple[PodId, ...], MaxLen(PS_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PodGivenUp(Message):
    """A pod has waited too long for room."""

    pod: PodId


@dataclass(frozen=True, slots=True, kw_only=True)
class PodResizeRefused(Message):
    """A running pod cannot get other limits in place."""

    pod: PodId


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketsClaimed(Message):
    """Each of these new parameter servers owns its part of an empty model."""

    pods: Servers


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerEmptied(Message):
    """A parameter server that lives on holds nothing any more."""

    pod: PodId
    version: Count
    """Names the return of the job that it was emptied for, so that a late observation is recognised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MovesStarted(Message):
    """Buckets begin to move towards layout ``number``."""

    number: Count
    """Counts the layouts that were wanted, so that a late observation is recognised."""
    sources: Servers
    destinations: Servers
    buckets: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class MovesFinished(Message):
    """Nothing is left to move for layout ``number``."""

    number: Count
    buckets: Count
    moved_bytes: Bytes
    longest_freeze_s: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanConverged(Message):
    """Pods are as the plan of this version wants them, and workers know it."""

    version: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanFound(Message):
    """A pod runs that the state does not know; the service ends it.

    It decides nothing. Only the owner of the job can journal it, and only the owner may end the pod.
    """

    pod: PodId


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCounts(Record):
    """One parameter server's own counts at the end."""

    skipped_repeats: Count
    rows: Count
    checksum: Annotated[str, MaxLen(100)]
    """Hexadecimal and free of order: the sums over all servers of two runs compare."""
    applied: AppliedBooks


@dataclass(frozen=True, slots=True, kw_only=True)
class CountsTaken(Message):
    """The counts of all parameter servers, and the evaluation of the model."""

    servers: Annotated[tuple[ServerCounts, ...], MaxLen(PS_MAX)]
    evaluation: Evaluation | None
    evaluation_failure: Text = ""
    """Why there is none although the job wants one."""


OBSERVATIONS = (
    PodGivenUp,
    PodResizeRefused,
    BucketsClaimed,
    ServerEmptied,
    MovesStarted,
    MovesFinished,
    PlanConverged,
    OrphanFound,
    CountsTaken,
)
