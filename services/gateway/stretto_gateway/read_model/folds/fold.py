"""The base of all folds: an event is applied to the view of its job, whose lists and histories are bounded."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple, Protocol, TypeVar

from stretto_messages.actuator import JobFinished
from stretto_messages.dispatcher import JobCompleted, LedgerReturn
from stretto_wire.rest import views

from ..parts import Revisions

LIST_LIMIT = 500
GIVEN_UP_SHOWN = 20
"""Number of shards that were given up in the view of a job, with their reasons; its audit lists ten times as many."""

T = TypeVar("T")


def push(items: list[T], item: T, limit: int = LIST_LIMIT) -> None:
    """Append to a bounded list, dropping the oldest item when it is full."""
    items.append(item)
    if len(items) > limit:
        del items[0]


class Timed(Protocol):
    """An item with the time of its event."""

    time_s: float


P = TypeVar("P", bound=Timed)
SHORTEST_SLOT = -10
"""Exponent of the shortest slot of time: about a millisecond."""


def record(items: list[P], item: P, limit: int) -> None:
    """Append to a bounded history. A full history keeps the first point of each slot of time, and the last point.

    A slot is a power of two of seconds long, so that a point that stays once stays until slots double. Slots are as
    short as leaves three quarters of the bound, so that a pause in measuring costs no points. Dropping every second
    point instead would thin old points again and again, until the beginning of the job is gone.
    """
    items.append(item)
    if len(items) <= limit:
        return
    for exponent in count(SHORTEST_SLOT):
        firsts = {one.time_s // 2.0**exponent: one for one in reversed(items[:-1])}
        if len(firsts) < 3 * limit // 4:
            items[:] = [*reversed(firsts.values()), items[-1]]
            return


class Returned(NamedTuple):
    """A return of the ledger to a checkpoint, with the sequence and time of the event that told it."""

    seq: int
    time_s: float
    change: LedgerReturn


@dataclass
class Fed:
    """Rates beside the last change of the number of data workers.

    plan_version, lanes: of the last windows; rates: theirs. plan_before: of the windows before the change. after: rates
    of the first windows after it.
    """

    plan_version: int = 0
    lanes: int = 0
    rates: list[float] = field(default_factory=list[float])
    plan_before: int = 0
    after: list[float] = field(default_factory=list[float])


@dataclass
class Spending:
    """Prices per hour of a job's plan and data workers, and rates of the windows under the first plan.

    changed: another plan was decided, or data workers beyond the plan.
    """

    of_plan: float = 0.0
    of_data_workers: float = 0.0
    first_version: int = 0
    began_s: float = 0.0
    first_rates: list[float] = field(default_factory=list[float])
    changed: bool = False


class Evidence:
    """Facts of a job that no view shows: the basis of its next decision, and the events that closed it."""

    def __init__(self) -> None:
        self.measured: views.Measured | None = None
        self.measured_settled: views.Measured | None = None
        self.proposals: dict[str, views.Proposal] = {}
        self.warm_start: views.WarmStart | None = None
        self.settled: dict[int, list[tuple[float, float]]] = {}
        self.completed: JobCompleted | None = None
        self.finished: JobFinished | None = None
        self.returns: list[Returned] = []
        self.revisions = Revisions()
        self.fed = Fed()
        self.spending = Spending()
        self.leases: dict[str, str] = {}
        """The shard that each worker leased last, by the worker's name."""


class Fold:
    """An event, to be applied to the view of its job."""

    def __init__(self, view: views.JobView, evidence: Evidence, seq: int, time_s: float) -> None:
        self.view = view
        self.evidence = evidence
        self.seq = seq
        self.time_s = time_s

    def _train(self) -> None:
        if self.view.status in ("submitted", "waiting", "starting"):
            self.view.status, self.view.reason = "training", ""
            self.view.started_at_s = self.view.progress.advanced_at_s = self.time_s

    def _forget_final_failure(self) -> None:
        """Forget why the final checkpoint is not stored: it is stored now, or it belonged to an undone completion."""
        self.view.final_checkpoint_failure = ""
        if self.view.status == "finishing":
            self.view.reason = ""

    def _enter(self, kind: views.PhaseKind, detail: str) -> None:
        self.view.phases[-1].ended_at_s = self.time_s
        push(self.view.phases, views.Phase(kind, self.view.plan_version, detail, self.time_s))
