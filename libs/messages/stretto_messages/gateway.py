"""Facts of the gateway: what users asked for. ``JobSubmitted`` carries a specification: ``stretto_wire.submission``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Le, MaxLen

from stretto_messages.base import Count, Message, Name, Text, example
from stretto_messages.scenario import JOB, WIDER
from stretto_messages.values import DataPartition, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCancelled(Message):
    """A user ended the job."""

    by: Name = "anonymous"
    reason: Text = ""


example(JobCancelled(job=JOB, by="ada", reason="the features of yesterday were wrong"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequested(Message):
    """A user wants the job to have this plan, within the limits that its specification sets. No gain is asked of it."""

    plan: Plan
    by: Name = "anonymous"


example(PlanRequested(job=JOB, plan=WIDER, by="ada"))


@dataclass(frozen=True, slots=True, kw_only=True)
class DataArrived(Message):
    """Partitions of a growing dataset have these totals now, which only grow. ``closed``: nothing more comes."""

    partitions: Annotated[tuple[DataPartition, ...], MaxLen(1000)] = ()
    closed: bool = False


example(DataArrived(job=JOB, partitions=(DataPartition(name="day=2026-11-21", samples=1_440_000, priority=1),)))


NO_JOB = "unknown"
"""Job of a refused change that named none, or none that could be understood."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeAudited(Message):
    """Somebody asked the gateway for a change: who, what, and what came of it, also when it was refused."""

    actor: Name
    """Name of the token, or oidc: and the subject; anonymous: not let in."""
    role: Text = ""
    """Of the actor: viewer, submitter or admin; empty: not let in."""
    action: Name
    """Submit, cancel, scale, data or checkpoint."""
    outcome: Literal["done", "refused", "failed"]
    status: Annotated[int, Ge(100), Le(599)]
    """Of the HTTP answer."""
    problem: Text = ""
    """What kind of problem it was answered with."""
    address: Text = ""
    """Of the client."""
    untold: Count = 0
    """Refusals before this one that were too many to be told."""


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
