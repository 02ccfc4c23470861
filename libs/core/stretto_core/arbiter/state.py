"""The arbiter's settings and its state: every job's claim and requests."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from stretto_messages.arbiter import PlanRefused
from stretto_messages.base import DEFAULT_TEAM
from stretto_messages.planner import CandidatesComputed, DataWorkersProposed, PlanProposed
from stretto_messages.values import NOTHING, Plan, PlanKind, Remedy, Resources, larger, total

from stretto_core.arbiter.selection import OBJECTIVE, RHO, Objective
from stretto_core.arbiter.worth import same_shape
from stretto_core.model.teams import Quotas, TeamQuota
from stretto_core.model.types import DeviceType, JobProfile

URGENCY_MAX = 10.0


@dataclass(frozen=True, slots=True)
class ArbiterSettings:
    """Capacity, objective, hysteresis and time limits of the arbiter.

    ``capacity`` is the cluster's. The request of a pod that finds no room is subtracted from it, until ``no_room_s``
    have passed: then it is tried again. A job is resized for throughput only when the predicted gain exceeds
    ``gain_fraction_min`` plus one standard deviation of the prediction, and its last change is ``settle_s`` ago.
    A completed job's claim stands until it is finished, or for ``leave_timeout_s``, which is more than a final
    checkpoint and an evaluation may take; then until the last of its pods that had started is gone, at most for
    ``stop_grace_s``, the time that pods get to leave. The claim of a stopped job stands for ``stop_grace_s``. A job
    that went back to a plan it had before does so again only after ``return_again_s``, so that noise does not make it
    alternate. A round decides on ``decisions_most`` jobs, each with its reasons: every event that comes meanwhile waits
    for all of them.

    ``devices``: types whose units ``capacity`` counts beside cores.

    ``quotas``: those of teams (``arbiter.teams``); none: all jobs are one team's.

    ``background_algorithm`` solves rounds of a gap above ``background_gap`` again in the background; empty: no
    algorithm does. The jobs that may profit from it wait ``patience_s``, and it is given up after
    ``background_timeout_s`` (``arbiter.background``).
    """

    capacity: Resources
    objective: Objective = OBJECTIVE
    rho: float = RHO
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
    background_gap: float = 0.001
    patience_s: float = 1.0
    background_timeout_s: float = 60.0
    no_room_s: float = 300.0
    devices: tuple[DeviceType, ...] = ()
    quotas: Quotas = field(default_factory=dict[str, TeamQuota])


@dataclass(frozen=True, slots=True)
class Unplaced:
    """Request of a pod that no node can place, the time since when, and the backend's reason."""

    amount: Resources
    since_s: float
    detail: str


@dataclass(slots=True)
class JobState:
    """One job's claim and requests.

    ``plan`` is the last decided one, None until the job starts. ``applying``: the plan's pods are not all there, and
    ``before``, the previous plan, is claimed as well. ``applied_plans`` were in force, or are. ``leaving_s``: the time
    since when the job has ended and waits only for its pods to go. ``pods`` have started and not ended; once the job is
    ``finished``, it waits for these alone. ``replacing``: the parameter server that an
    additional one, beyond the plan, is to replace. ``unplaced``: the plan's pods that wait for room, by name.
    ``ps_memory_bytes`` and ``shrink_to_bytes``: the forecast's need of each PS if it is more, or less, than the plan's.
    ``ps_base_bytes``: what each PS takes beside its rows. ``spill``: what spilling would cost by the forecast.
    ``spilling``: it was decided under the present plan.

    ``data``: data workers beyond the plan. They are no part of what the job holds: plans are decided as if there were
    none. ``data_told``: their number by the last decision, ``data_version``; an ended job has none, and is told
    nothing. ``data_pinned``: the number that a user asks for instead of the queue.
    ``data_limit``: more found no room on any node at ``data_limited_s``.
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
    ps_base_bytes: int = 0
    shrink_to_bytes: int = 0
    applied_plans: list[Plan] = field(default_factory=list[Plan])
    returned_s: float | None = None
    submitted_s: float = 0.0
    completed: bool = False
    finished: bool = False
    pods: list[str] = field(default_factory=list[str])
    replacing: str = ""
    team: str = DEFAULT_TEAM
    unplaced: dict[str, Unplaced] = field(default_factory=dict[str, Unplaced])
    data: int = 0
    data_told: int = 0
    data_version: int = 0
    data_proposal: DataWorkersProposed | None = None
    data_pinned: int | None = None
    data_limit: int | None = None
    data_limited_s: float = 0.0
    spill: Remedy | None = None
    spilling: bool = False

    @property
    def data_wanted(self) -> int:
        """Number of data workers beyond the plan that the job has use for; 0 where it does not say what one has."""
        if self.profile.data.each == NOTHING:
            return 0
        if self.data_pinned is not None:
            return self.data_pinned
        return self.data_proposal.count if self.data_proposal is not None else 0

    @property
    def data_most(self) -> int:
        """Number of data workers beyond the plan that it gets if there is room: no more than nodes had room for."""
        if self.plan is None or self.leaving_s is not None:
            return 0
        return self.data_wanted if self.data_limit is None else min(self.data_wanted, self.data_limit)

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
        return self.profile.resources(replace(plan, ps=plan.ps + 1) if self.replacing else plan)

    @property
    def changing(self) -> bool:
        """True while its pods change; until then only memory is decided."""
        return self.applying or bool(self.replacing)

    @property
    def may_get_memory(self) -> bool:
        """True if memory may be decided.

        That includes the time while a change is applied: servers that are killed for memory as often as they start
        would never complete it. It excludes a change of their number, because the forecast was for another number.
        """
        same = self.plan is not None and (self.before is None or self.before.ps == self.plan.ps)
        return self.leaving_s is None and (not self.applying or same)

    def urgency(self, samples_done: int, now: float, ceiling: float | None) -> float:
        """Factor of a deadline on the weight: (remaining time at the present throughput) / (time left to it).

        1 without a deadline or when it will be met, at most ``URGENCY_MAX``: also when it has passed. No deadline lifts
        a job above ``ceiling``, the greatest priority of its team's jobs if there is one.
        """
        if self.profile.deadline_s is None or self.throughput <= 0:
            return 1.0
        needs_s = max(self.profile.samples - samples_done, 0) / self.throughput
        left_s = self.submitted_s + self.profile.deadline_s - now
        most = URGENCY_MAX if ceiling is None else min(URGENCY_MAX, max(ceiling / self.profile.weight, 1.0))
        return min(max(needs_s / max(left_s, 1e-9), 1.0), most)

    def least_plan(self, proposal: PlanProposed) -> Plan:
        """Return the smallest plan that the job can start with."""
        return proposal.plan if self.profile.fixed else self.profile.limits.low

    def least(self, proposal: PlanProposed) -> Resources:
        """Resources that the job needs to start."""
        return self.profile.resources(self.least_plan(proposal))

    @property
    def requested(self) -> bool:
        """True while a user's plan request awaits its decision; no other request replaces it."""
        return self.proposal is not None and self.proposal.kind == "requested"

    def answered(self, kind: PlanKind, plan: Plan) -> None:
        """Clear the pending request once ``plan`` is decided.

        A user's request keeps waiting for its own answer. If memory needs more servers by now, it asks for as many.
        """
        request = self.proposal if self.requested and kind != "requested" else None
        if request is not None and self.plan is not None and plan.ps > self.plan.ps:
            request = replace(request, plan=replace(request.plan, ps=max(request.plan.ps, plan.ps)))
        self.proposal, self.refused, self.candidates, self.spilling = request, None, None, False

    def had_before(self, plan: Plan) -> bool:
        """Return True if the job ran with these counts and cores; memory is not compared."""
        return any(same_shape(plan, earlier) for earlier in self.applied_plans)


@dataclass(frozen=True, slots=True)
class BackgroundSolve:
    """A choice that ``algorithm`` was asked for: over ``jobs`` at these plan versions, within ``room``."""

    number: int
    algorithm: str
    begun_s: float
    jobs: dict[str, int]
    room: dict[str, float]


@dataclass(slots=True)
class ArbiterState:
    """All jobs that hold or want capacity, by name; apart from them ``samples_done``, which changes most often.

    ``deferred``: the time since when a job waits that was chosen in a round of too many decisions.
    ``background_solve``: the pending one; ``background_solves``: how many were begun.
    """

    jobs: dict[str, JobState] = field(default_factory=dict[str, JobState])
    submitted: int = 0
    last_round_s: float = 0.0
    samples_done: dict[str, int] = field(default_factory=dict[str, int])
    deferred: dict[str, float] = field(default_factory=dict[str, float])
    background_solve: BackgroundSolve | None = None
    background_solves: int = 0

    def claimed(self) -> Resources:
        """Resources that all jobs hold."""
        return total(job.held for job in self.jobs.values())
