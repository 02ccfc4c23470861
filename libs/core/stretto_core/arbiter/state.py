"""The arbiter's settings and its state: every job's claim and requests."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from stretto_messages.arbiter import PlanRefused
from stretto_messages.planner import CandidatesComputed, PlanProposed
from stretto_messages.values import NOTHING, Plan, PlanKind, Resources, total

from stretto_core.arbiter.selection import Objective
from stretto_core.arbiter.worth import larger, same_shape
from stretto_core.model.types import JobProfile

URGENCY_MAX = 10.0


@dataclass(frozen=True, slots=True)
class ArbiterSettings:
    """``capacity`` of the cluster; what a pod finds no room for is not believed to be there, for ``no_room_s`` at most:
    then it is tried again. A job is resized for throughput only when the predicted gain exceeds
    ``gain_fraction_min`` plus one standard deviation of the prediction, and its last change is ``settle_s`` ago.
    A completed job's claim stands until its pods are gone, or ``leave_timeout_s``: above what a final checkpoint and
    an evaluation may take. A stopped one's stands for ``stop_grace_s``, the time that pods get to leave.
    A job that went back to a plan it had before does so again only after ``return_again_s``: noise swings no job.
    A round decides on ``decisions_most`` jobs, each with its reasons: whatever happens meanwhile waits for all of them.
    ``background_algorithm``: the slower algorithm that solves rounds of a gap above ``study_gap`` again in the
    background; empty: none does. The jobs that it may serve better wait ``patience_s`` for it, and it is given up after
    ``study_timeout_s`` (``arbiter.studies``).
    """

    capacity: Resources
    objective: Objective = "efficiency"
    rho: float = 2.5
    gain_fraction_min: float = 0.10
    settle_s: float = 20.0
    return_again_s: float = 900.0
    round_s: float = 2.0
    apply_timeout_s: float = 300.0
    leave_timeout_s: float = 900.0
    stop_grace_s: float = 20.0
    shrink_after_s: float = 60.0
    decisions_most: int = 100
    background_algorithm: str = "exact"
    study_gap: float = 0.001
    patience_s: float = 1.0
    study_timeout_s: float = 60.0
    no_room_s: float = 300.0


@dataclass(frozen=True, slots=True)
class Unplaced:
    """Request of a pod that no node can place, the time since when, and the backend's reason."""

    amount: Resources
    since_s: float
    detail: str


@dataclass(slots=True)
class JobState:
    """One job's claim and wishes.

    ``plan`` is the last decided one, None until it starts; ``applying`` until its pods are there, with ``before`` still
    claimed. ``had`` are the plans that were in force. ``leaving_s``: since when it only waits for its pods to go.
    ``replacing``: the parameter server beside which another one has room, beyond the plan, to take its place.
    ``unplaced``: by pod, those of the plan that wait for room.
    """

    job: str
    profile: JobProfile
    order: int
    plan: Plan | None = None
    before: Plan | None = None
    version: int = 0
    applying: bool = False
    changed_s: float = 0.0
    leaving_s: float | None = None
    throughput: float = 0.0
    proposal: PlanProposed | None = None
    refused: PlanRefused | None = None
    candidates: CandidatesComputed | None = None
    ps_memory_bytes: int = 0
    shrink_to_bytes: int = 0
    had: list[Plan] = field(default_factory=list[Plan])
    returned_s: float | None = None
    submitted_s: float = 0.0
    completed: bool = False
    replacing: str = ""
    unplaced: dict[str, Unplaced] = field(default_factory=dict[str, Unplaced])

    @property
    def without_room(self) -> Resources:
        """Resources requested by the job's pods that no node can place."""
        return total(waiting.amount for waiting in self.unplaced.values())

    @property
    def held(self) -> Resources:
        """Resources that its pods may hold: during a change, the larger of both plans in each resource."""
        if self.plan is None:
            return NOTHING
        now = self.footprint(self.plan)
        return now if self.before is None else larger(now, self.footprint(self.before))

    def footprint(self, plan: Plan) -> Resources:
        """Return the resources that the job holds under ``plan``, a replacement server included."""
        return replace(plan, ps=plan.ps + 1).resources if self.replacing else plan.resources

    @property
    def changing(self) -> bool:
        """True while its pods change; until then only memory is decided."""
        return self.applying or bool(self.replacing)

    @property
    def may_get_memory(self) -> bool:
        """Also while a change is applied: one whose servers are killed as often as they start would never be. Not while
        their number changes: the forecast was of others."""
        same = self.plan is not None and (self.before is None or self.before.ps == self.plan.ps)
        return self.leaving_s is None and (not self.applying or same)

    def urgency(self, samples_done: int, now: float) -> float:
        """Factor of a deadline on the weight: (remaining time at the present throughput) / (time left to it).

        1 without a deadline or when it will be met, at most ``URGENCY_MAX``: also when it has passed.
        """
        if self.profile.deadline_s is None or self.throughput <= 0:
            return 1.0
        needs_s = max(self.profile.samples - samples_done, 0) / self.throughput
        left_s = self.submitted_s + self.profile.deadline_s - now
        return min(max(needs_s / max(left_s, 1e-9), 1.0), URGENCY_MAX)

    def least(self, proposal: PlanProposed) -> Resources:
        """Resources that the job needs to start."""
        return (proposal.plan if self.profile.fixed else self.profile.limits.low).resources

    @property
    def requested(self) -> bool:
        """True while a user's plan request awaits its decision; no other request replaces it."""
        return self.proposal is not None and self.proposal.kind == "requested"

    def answered(self, kind: PlanKind, plan: Plan) -> None:
        """Clear the pending request once ``plan`` is decided. A user's request keeps waiting for its own answer; if
        memory needs more servers by now, it asks for no fewer."""
        wish = self.proposal if self.requested and kind != "requested" else None
        if wish is not None and self.plan is not None and plan.ps > self.plan.ps:
            wish = replace(wish, plan=replace(wish.plan, ps=max(wish.plan.ps, plan.ps)))
        self.proposal, self.refused, self.candidates = wish, None, None

    def had_before(self, plan: Plan) -> bool:
        """Return True if the job ran with these counts and cores; memory is not compared."""
        return any(same_shape(plan, earlier) for earlier in self.had)


@dataclass(frozen=True, slots=True)
class Study:
    """A background task of ``algorithm``: a choice over ``jobs`` at these plan versions, within ``room``."""

    number: int
    algorithm: str
    begun_s: float
    jobs: dict[str, int]
    room: dict[str, float]


@dataclass(slots=True)
class ArbiterState:
    """All jobs that hold or want capacity, by name; ``samples_done`` of each, which changes oftenest, apart.

    ``deferred``: since when a job waits whose plan was chosen in a round that had more than it could decide on.
    ``study``: the one that is not answered yet; ``studies`` were begun in all.
    """

    jobs: dict[str, JobState] = field(default_factory=dict[str, JobState])
    submitted: int = 0
    last_round_s: float = 0.0
    samples_done: dict[str, int] = field(default_factory=dict[str, int])
    deferred: dict[str, float] = field(default_factory=dict[str, float])
    study: Study | None = None
    studies: int = 0

    def claimed(self) -> Resources:
        """Resources that all jobs hold."""
        return total(job.held for job in self.jobs.values())
