"""Facts of the decider: objects that another controller runs, and the sizes that Stretto writes into them.

``ObjectAdopted`` carries a specification: ``stretto_wire.contract.submission``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge

from stretto_messages.actuator import PlanApplied
from stretto_messages.base import Count, Message, Text, example
from stretto_messages.scenario import OBJECT_JOB, OBJECT_PLAN

Purpose = Literal["grow", "shrink", "back", "fit"]
"""Purpose of a patch: more pods, fewer pods, a refused growth taken back, or as many pods as a queue can admit."""
Outcome = Literal["accepted", "refused", "taken"]
"""End of a decision: the object has that size, did not get that size in time, or its controller wrote another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeDecided(Message):
    """An object is to have another number of pods: one patch is written for it."""

    number: Annotated[int, Ge(1)]
    """Counts the decisions on this object; the object's annotation ``stretto.dev/decision`` names the last one."""
    purpose: Purpose
    before: Count
    count: Count
    reason: Text


example(
    SizeDecided(
        job=OBJECT_JOB, number=1, purpose="grow", before=2, count=6, reason="4 pods of the queue's quota are free"
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeSettled(PlanApplied):
    """The plan is in force as far as the object's controller lets it be: the plan is what the object may have at most.

    ``plan.workers`` is that number, and ``count`` the number of pods that the object has.
    """

    number: Count
    """Decision that ended; 0: nothing was written."""
    outcome: Outcome
    count: Count
    reason: Text


example(
    SizeSettled(
        job=OBJECT_JOB,
        version=2,
        plan=OBJECT_PLAN,
        took_s=14.0,
        number=1,
        outcome="accepted",
        count=6,
        reason="6 pods are admitted and ready",
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectReleased(Message):
    """An object is Stretto's no more: it has ended, is gone, or asks for no size any more."""

    ending: Literal["complete", "failed", "gone"]
    reason: Text


example(ObjectReleased(job=OBJECT_JOB, ending="complete", reason="the Job is complete"))
