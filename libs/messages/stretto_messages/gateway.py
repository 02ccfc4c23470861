"""Facts of the gateway: what users asked for.

``JobSubmitted`` carries a specification: ``stretto_wire.contract.submission``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Le, MaxLen

from stretto_messages.base import Count, Message, Name, Text, example
from stretto_messages.scenario import JOB, WIDER
from stretto_messages.values import DataPartition, Plan

CallerRole = Literal["viewer", "observer", "submitter", "admin"]
"""Roles of a caller of the gateway. Each role may change what the roles before it may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCancelled(Message):
    """A user ended the job."""

    by: Name = "anonymous"
    reason: Text = ""


example(JobCancelled(job=JOB, by="ada", reason="the features of yesterday were wrong"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequested(Message):
    """A user wants the job to have this plan, within the limits of its specification. It need not bring any gain."""

    plan: Plan
    by: Name = "anonymous"


example(PlanRequested(job=JOB, plan=WIDER, by="ada"))


@dataclass(frozen=True, slots=True, kw_only=True)
class DataWorkersRequested(Message):
    """A user wants so many data workers beyond the plan, whatever they bring; None: what the queue tells again."""

    count: Count | None
    by: Name = "anonymous"


example(DataWorkersRequested(job=JOB, count=2, by="ada"))


@dataclass(frozen=True, slots=True, kw_only=True)
class DataArrived(Message):
    """New totals of partitions of a growing dataset. Totals only grow. ``closed``: no more data will come."""

    partitions: Annotated[tuple[DataPartition, ...], MaxLen(1000)] = ()
    closed: bool = False


example(DataArrived(job=JOB, partitions=(DataPartition(name="day=2026-11-21", samples=1_440_000, priority=1),)))


NO_JOB = "unknown"
"""Job of a refused change that named none, or none that could be understood."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeAudited(Message):
    """A change that somebody asked the gateway for, with its outcome; refused changes are published, too."""

    actor: Name
    """Name of the token, or ``oidc:`` and the subject. ``anonymous``: not authenticated."""
    role: Text = ""
    """Role of the actor: viewer, submitter or admin. Empty: not authenticated."""
    action: Name
    """Submit, cancel, scale, data or checkpoint."""
    outcome: Literal["done", "refused", "failed"]
    status: Annotated[int, Ge(100), Le(599)]
    """Status of the HTTP answer."""
    problem: Text = ""
    """Kind of problem in the answer."""
    address: Text = ""
    """Address of the client."""
    suppressed_count: Count = 0
    """Number of earlier refusals that were not published, because there were too many."""


example(
    ChangeAudited(
        job=JOB,
        actor="bob",
        role="submitter",
        action="cancel",
        outcome="refused",
        status=403,
        problem="not-yours",
        address="10.1.2.3",
    )
)
