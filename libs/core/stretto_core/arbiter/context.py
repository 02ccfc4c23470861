"""Context of every step of the arbiter: the state, the register, and the ways to answer a job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stretto_messages.arbiter import DataWorkersDecided, PlanDecided, PlanRefused, ReplacementDecided
from stretto_messages.planner import PlanProposed
from stretto_messages.values import NOTHING, Alternative, Candidate, Plan, PlanKind, Resources, Round, larger, total

from stretto_core.arbiter.register import Register
from stretto_core.arbiter.state import ArbiterSettings, ArbiterState, JobState
from stretto_core.arbiter.teams import TeamShares
from stretto_core.arbiter.worth import in_words
from stretto_core.model.sharing import Ranking

NAMED_MOST = 5
"""Pods named in a reason."""

Answer = PlanDecided | PlanRefused | ReplacementDecided | DataWorkersDecided


class StepContext:
    """The state, its index, the settings, the name of the selection algorithm, and the ranking of data workers.

    ``looks_ahead``: the selection algorithm asks for what jobs hold and when they end (``SelectionAlgorithm``).
    """

    def __init__(
        self,
        state: ArbiterState,
        settings: ArbiterSettings,
        select_name: str,
        ranking: Ranking,
        ranking_name: str,
        looks_ahead: bool = False,
    ) -> None:
        self.state, self.settings, self.select_name, self.looks_ahead = state, settings, select_name, looks_ahead
        self.ranking, self.ranking_name = ranking, ranking_name
        self.register = Register(state, settings)
        self.teams = TeamShares(state, settings, self.register)

    @property
    def capacity(self) -> Resources:
        """Usable capacity: the configured one minus requests that no node can place."""
        return self.settings.capacity - self.register.without_room

    def free(self) -> Resources:
        """Resources that no plan holds; negative where the capacity was lowered below the claims."""
        return self.capacity - self.register.held

    def available(self) -> Resources:
        """Resources that running jobs may still get; none while a job waits that the empty cluster could start.

        Jobs that wait for devices alone keep only what they need to start: devices are rarer than cores, and their
        holders may train for days.
        """
        free = larger(self.free(), NOTHING)
        if not self.teams.blocking:
            return free
        if self.teams.limited or not self.settings.capacity.extended:
            return NOTHING
        least = [
            job.least(job.proposal)
            for job in map(self.state.jobs.__getitem__, self.register.blocking)
            if job.proposal is not None
        ]
        only_devices = all(replace(each, extended=()).fits(free) for each in least)
        return larger(free - total(least), NOTHING) if only_devices else NOTHING

    def available_to(self, job: JobState) -> Resources:
        """Resources that this running job may still get."""
        return NOTHING if self.teams.blocked(job.team) else larger(self.teams.room(job, self.available()), NOTHING)

    def free_in_words(self) -> str:
        """Describe the free resources out of the usable capacity, for reasons and refusals."""
        without_room = self.register.without_room
        lacking = (
            f"; {in_words(without_room)} of it are spread over nodes too full for one pod"
            if without_room != NOTHING
            else ""
        )
        capacity = self.settings.capacity
        return f"{in_words(self.free(), capacity)} of {in_words(capacity)} are free{lacking}"

    def decide(
        self,
        job: JobState,
        kind: PlanKind,
        plan: Plan,
        reasons: Sequence[str],
        now: float,
        predicted: PlanProposed | Candidate | None = None,
        others: Sequence[Alternative] = (),
        round_: Round | None = None,
    ) -> PlanDecided:
        """Decide that the job gets this plan; return the decision.

        ``predicted`` has its throughput, ``others`` are the plans not chosen, ``round_`` the choice that it is part of.
        """
        previous, before = job.plan, job.throughput or None
        reasons = [*reasons, *_no_room_for(job)]
        job.answered(kind, plan)
        job.before, job.plan = job.before if job.applying else previous, plan
        job.version += 1
        job.applying, job.changed_s = True, now
        self.register.touch(job.job)
        reasons += self.teams.borrowing_in_words(job.team)
        free = larger(self.free() - self.register.data_workers.held, NOTHING)
        return PlanDecided(
            job=job.job,
            version=job.version,
            kind=kind,
            plan=plan,
            previous=previous,
            cost_per_hour=job.profile.cost_per_hour(plan),
            reasons=tuple(reasons),
            algorithm=round_.algorithm if round_ else self.select_name,
            free_cpu_cores=free.cpu_cores,
            free_memory_bytes=free.memory_bytes,
            free_extended={name: free.count_of(name) for name, _ in self.settings.capacity.extended},
            throughput=predicted.throughput if predicted else None,
            throughput_interval=predicted.throughput_interval if predicted else None,
            throughput_before=before,
            alternatives=tuple(others),
            round=round_,
        )

    def already_refused(self, job: JobState, kind: PlanKind, wanted: Plan) -> bool:
        """Return True if the job's last answer was the same refusal."""
        return job.refused is not None and (job.refused.kind, job.refused.wanted) == (kind, wanted)

    def refuse(self, job: JobState, kind: PlanKind, wanted: Plan, reasons: Sequence[str]) -> list[Answer]:
        """Refuse a request; return nothing if the job's last answer was this refusal."""
        if self.already_refused(job, kind, wanted):
            return []
        job.refused = PlanRefused(job=job.job, kind=kind, wanted=wanted, reasons=tuple(reasons))
        self.register.touch(job.job)
        return [job.refused]


def _no_room_for(job: JobState) -> list[str]:
    """Return the reason if pods of the previous plan found no room."""
    if not job.unplaced:
        return []
    pods, last = sorted(job.unplaced), max(job.unplaced.values(), key=lambda waiting: waiting.since_s)
    named = ", ".join(pods[:NAMED_MOST]) + f" and {len(pods) - NAMED_MOST} more" * (len(pods) > NAMED_MOST)
    return [f"there is no room for {named} of the plan before ({in_words(job.without_room)}): {last.detail}"]
