"""State of the decider's machine: one object, the size that it may have, and the decision that is under way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stretto_messages.objects.decider import Outcome, Purpose
from stretto_messages.values import Plan

from stretto_core.decider.observations import ObjectObserved


@dataclass(frozen=True, slots=True)
class DeciderRules:
    """Settings of the decisions.

    ``refused_after_s``: a size that is not accepted for so long counts as refused. Pods have to be placed, to pull
    their image and to get ready within it.
    """

    refused_after_s: float = 300.0


@dataclass(frozen=True, slots=True)
class SpecificationFound:
    """The job of an object, as planner and arbiter shall see it: a specification as JSON, which no machine reads."""

    job: str
    spec: str


@dataclass(slots=True)
class SizeWrite:
    """A decision and its one patch. ``written``: the object names the decision, so that the patch is in force.
    ``opens``: the patch opens the object's admission gate too."""

    number: int
    purpose: Purpose
    before: int
    count: int
    reason: str
    decided_s: float
    written: bool = False
    opens: bool = False


@dataclass(slots=True)
class RefusedGrowth:
    """A growth that was refused, or that an order took back: none is tried again before there is more room than the
    least since, or another plan.

    ``least_room``: of the times at which the object was at rest; None: it has not been since.
    """

    version: int
    least_room: int | None = None


@dataclass(frozen=True, slots=True)
class SizeOrder:
    """A size that another one than Stretto wrote: nothing is written against that size before there is another plan."""

    version: int
    count: int


@dataclass(frozen=True, slots=True)
class RejectedSize:
    """A size that the API server refuses for good: no such patch is decided again for the same plan and size."""

    purpose: Purpose
    count: int
    version: int
    before: int


@dataclass(slots=True)
class DeciderState:
    """State of one object."""

    job: str = ""
    least: int = 1
    released: bool = False
    plan: Plan | None = None
    """The arbiter's plan: what the object may have at most."""
    version: int = 0
    decided_s: float = 0.0
    """Time of the arbiter's decision."""
    told_version: int = 0
    """Last version of the plan that was told to be in force."""
    seen: ObjectObserved | None = None
    size: int = 0
    """Pods that the object asked for when it was last looked at without an open decision; 0: not seen yet."""
    number: int = 0
    """Decisions so far."""
    write: SizeWrite | None = None
    """The open decision."""
    refused: RefusedGrowth | None = None
    rejected: RejectedSize | None = None
    order: SizeOrder | None = None
    ends: int = 0
    """Ends that were told so far; ``outcome`` and ``outcome_reason``: the last one."""
    outcome: Outcome | Literal[""] = ""
    outcome_reason: str = ""
    waits_since_s: float | None = None
    """Time since when no workload of the object is admitted."""
