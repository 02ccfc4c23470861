"""The machine that decides every job's plan: one choice over all jobs, under the cluster's capacity.

One numbered cycle after every event: 1 memory that is about to run out, 2 jobs that wait to start, 3 measurements,
4 the weighted greedy round over all jobs with candidates (DLRover-RM Eq. 11-14), 5 memory that can be given back.
No job is decided on while its last decision is being applied, but for memory (`JobState.may_get_memory`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from stretto_core.arbitration import (
    by_resource,
    claim,
    fit_into,
    give_back,
    holdable,
    in_words,
    required_gain,
    shortage,
    worthwhile,
)
from stretto_core.candidates import MEMORY_STEP_BYTES, Candidate
from stretto_core.cluster import ArbiterSettings, ArbiterState, JobState
from stretto_core.explanation import Choice, alternatives, why
from stretto_core.jobs import (
    Alternative,
    CandidatesComputed,
    JobEnded,
    JobProgressed,
    JobSubmitted,
    OomForecast,
    PlanApplied,
    PlanDecided,
    PlanKind,
    PlanProposed,
    PlanRefused,
)
from stretto_core.machine import Action, Emit, as_it_was
from stretto_core.selection import (
    Contender,
    Option,
    SelectionAlgorithm,
    SelectionProblem,
    weighted_greedy,
)
from stretto_core.types import GIB, NOTHING, Plan, Resources

ALTERNATIVES_MAX = 8
SHRINK_GAIN_MIN = 0.1


class ArbiterMachine:
    """Decides plans; one for the whole cluster."""

    version = 3
    migrate = staticmethod(as_it_was)

    def __init__(
        self,
        state: ArbiterState | None = None,
        settings: ArbiterSettings | None = None,
        select: SelectionAlgorithm = weighted_greedy,
        select_name: str = "weighted-greedy",
    ) -> None:
        self.state = state or ArbiterState()
        self.settings = settings or ArbiterSettings(Resources(1e9, 2**60))
        self.select, self.select_name = select, select_name

    def handle(self, event: object, now: float) -> list[Action]:
        """Take in an event of any job, or a Tick, then run the cycle."""
        self._hear(event, now)
        self._expire(now)
        return [Emit(fact) for fact in self._cycle(now)]

    @property
    def ticking(self) -> bool:
        """Whether time matters: not in a cluster without jobs."""
        return bool(self.state.jobs)

    # ---- what is heard ----------------------------------------------------------------------------------------

    def _hear(self, event: object, now: float) -> None:
        if isinstance(event, JobSubmitted):
            if event.job not in self.state.jobs:
                self.state.submitted += 1
                self.state.jobs[event.job] = JobState(event.job, event.profile, self.state.submitted, submitted_s=now)
            return
        job = self.state.jobs.get(getattr(event, "job", ""))
        if job is None:
            return
        match event:
            case PlanProposed() if event.kind == "requested" or not job.requested:
                job.proposal = event
            case CandidatesComputed() if event.plan_version == job.version:
                job.candidates, job.throughput = event, event.throughput
            case PlanApplied() if event.version == job.version and job.applying:
                self._applied(job, event.plan, now)
            case JobProgressed():
                job.samples_done = event.samples_done  # less than before after a restore
                if job.completed:
                    job.leaving_s, job.completed = None, False
            case OomForecast():
                self._forecast(job, event)
            case JobEnded():
                self._ended(job, event, now)
            case _:
                pass

    @staticmethod
    def _applied(job: JobState, plan: Plan, now: float) -> None:
        if job.before is not None and job.before.ps != plan.ps:
            job.ps_memory_bytes = job.shrink_to_bytes = 0  # said of servers that held more, or less
        job.applying, job.before, job.changed_s = False, None, now
        if not job.had_before(plan):
            job.had.append(plan)

    def _forecast(self, job: JobState, event: OomForecast) -> None:
        need, high = event.recommended_ps_memory_bytes, job.profile.limits.high.ps_memory_bytes
        wanted = math.ceil(need / MEMORY_STEP_BYTES) * MEMORY_STEP_BYTES
        if need <= high < wanted:
            wanted = high  # a maximum need not be a whole number of steps
        job.ps_memory_bytes = wanted if event.action == "grow" else 0
        job.shrink_to_bytes = wanted if event.action == "shrink" else 0

    def _ended(self, job: JobState, event: JobEnded, now: float) -> None:
        """Pods hold their resources until they are gone: a completed job saves and evaluates, others are stopped."""
        if event.outcome == "gone" or job.plan is None:
            del self.state.jobs[job.job]
        elif job.leaving_s is None or job.completed:
            job.leaving_s, job.completed = now, event.outcome == "completed"

    def _expire(self, now: float) -> None:
        """Nobody waits for ever for an actuator that says nothing."""
        for job in list(self.state.jobs.values()):
            holds_s = self.settings.leave_timeout_s if job.completed else self.settings.stop_grace_s
            if job.leaving_s is not None and now - job.leaving_s > holds_s:
                del self.state.jobs[job.job]
            elif job.applying and now - job.changed_s > self.settings.apply_timeout_s:
                job.applying, job.before, job.changed_s = False, None, now

    # ---- the cycle --------------------------------------------------------------------------------------------

    def _cycle(self, now: float) -> list[PlanDecided | PlanRefused]:
        facts: list[PlanDecided | PlanRefused] = []
        ready = [job for job in self.state.by_priority() if not job.applying and job.leaving_s is None]
        for job in self.state.by_priority():
            if job.plan is not None and job.may_get_memory and job.ps_memory_bytes > job.plan.ps_memory_bytes:
                facts += self._grow_memory(job, job.plan, now)
        for job in ready:
            if job.plan is None and job.proposal is not None:
                facts += self._admit(job, job.proposal, now)
        for job in ready:
            if job.plan is not None and job.proposal is not None and not job.applying:
                facts += self._measure(job, job.plan, job.proposal, now)
        if now - self.state.last_round_s >= self.settings.round_s:
            facts += self._round([job for job in ready if not job.applying], now)
        for job in ready:
            if job.plan is not None and not job.applying and job.shrink_to_bytes:
                facts += self._shrink_memory(job, job.plan, now)
        return facts

    def free(self) -> Resources:
        """What nobody holds; negative where the capacity was lowered below the claims."""
        return self.settings.capacity - self.state.claimed()

    def _decide(
        self,
        job: JobState,
        kind: PlanKind,
        plan: Plan,
        reasons: Sequence[str],
        now: float,
        predicted: PlanProposed | Candidate | None = None,
        others: Sequence[Alternative] = (),
    ) -> PlanDecided:
        previous, before = job.plan, job.throughput or None
        job.answered(kind, plan)
        job.before, job.plan = job.before if job.applying else previous, plan
        job.version += 1
        job.applying, job.changed_s = True, now
        free = self.free()
        return PlanDecided(
            job=job.job,
            version=job.version,
            kind=kind,
            plan=plan,
            previous=previous,
            cost_per_hour=job.profile.prices.cost_per_hour(plan.resources),
            reasons=tuple(reasons),
            algorithm=self.select_name,
            free=Resources(max(free.cpu_cores, 0.0), max(free.memory_bytes, 0)),
            throughput=predicted.throughput if predicted else None,
            throughput_low=predicted.throughput_low if predicted else None,
            throughput_high=predicted.throughput_high if predicted else None,
            throughput_before=before,
            alternatives=tuple(others[:ALTERNATIVES_MAX]),
        )

    def _refuse(self, job: JobState, kind: PlanKind, wanted: Plan, reasons: Sequence[str]) -> list[PlanRefused]:
        """Say so once; the same wish is not refused twice in words."""
        fact = PlanRefused(job.job, kind, wanted, tuple(reasons))
        if job.refused is not None and (job.refused.kind, job.refused.wanted) == (kind, wanted):
            return []
        job.refused = fact
        return [fact]

    # ---- 1 and 5: memory --------------------------------------------------------------------------------------

    def _grow_memory(self, job: JobState, plan: Plan, now: float) -> list[PlanDecided | PlanRefused]:
        """More memory for every PS or, beyond what one PS may have, more PSes. No hysteresis: it would be lost."""
        need, high = job.ps_memory_bytes, job.profile.limits.high
        forecast = f"the forecast asks for {need / GIB:.2f} GiB per PS, each has {plan.ps_memory_bytes / GIB:.2f} GiB"
        spread = min(math.ceil(plan.ps * need / high.ps_memory_bytes), high.ps)
        larger = replace(plan, ps_memory_bytes=min(need, high.ps_memory_bytes))
        wider = replace(larger, ps=max(spread, plan.ps))
        target = wider if need > high.ps_memory_bytes else larger
        room = self.free() + plan.resources
        if target == plan:
            job.ps_memory_bytes = 0
            reason = f"the job's limits end at {high.ps} PSes of {high.ps_memory_bytes / GIB:.2f} GiB: raise them"
            return list(self._refuse(job, "memory", plan, [forecast, reason]))
        if not claim(target, plan).fits(room):
            reason = (
                f"{in_words(room - plan.resources)} are free, {in_words(target.resources - plan.resources)} are missing"
            )
            return list(self._refuse(job, "memory", target, [forecast, reason]))
        job.ps_memory_bytes = 0
        reasons = [forecast, "memory is decided at once: a PS that runs out loses more than any plan gains"]
        if target.ps > plan.ps:
            reasons.append(
                f"one PS may have {high.ps_memory_bytes / GIB:.2f} GiB: its buckets move to {target.ps} PSes"
            )
        return [self._decide(job, "memory", target, reasons, now)]

    def _shrink_memory(self, job: JobState, plan: Plan, now: float) -> list[PlanDecided]:
        target = replace(plan, ps_memory_bytes=max(job.shrink_to_bytes, job.profile.limits.low.ps_memory_bytes))
        saved = plan.resources.memory_bytes - target.resources.memory_bytes
        if saved < SHRINK_GAIN_MIN * plan.ps * plan.ps_memory_bytes:
            job.shrink_to_bytes = 0
            return []
        if now - job.changed_s < self.settings.shrink_after_s:
            return []
        job.shrink_to_bytes = 0
        reason = f"the forecast needs {target.ps_memory_bytes / GIB:.2f} GiB per PS: {saved / GIB:.2f} GiB given back"
        return [self._decide(job, "memory", target, [reason], now)]

    # ---- 2 and 3: admission and measurements ------------------------------------------------------------------

    def _admit(self, job: JobState, proposal: PlanProposed, now: float) -> list[PlanDecided | PlanRefused]:
        """Start the job with the proposed plan, or with what of it fits."""
        free = self.free()
        state = f"{in_words(free)} of {in_words(self.settings.capacity)} are free"
        if proposal.plan.resources.fits(free):
            return [self._decide(job, proposal.kind, proposal.plan, [*proposal.reasons, state], now, proposal)]
        if not job.profile.fixed:
            smaller = fit_into(proposal.plan, job.profile.limits, free)
            if smaller is not None:
                reasons = [*proposal.reasons, f"proposed was {proposal.plan.describe()}; {state}: reduced to fit"]
                return [self._decide(job, "fit-capacity", smaller, reasons, now)]
        least = job.least(proposal)
        reasons = [state, f"the least that the job can start with is {in_words(least)}: it waits"]
        if not least.fits(self.settings.capacity):
            reasons.append("that is more than the whole cluster: lower the job's limits, or cancel it")
        return [*self._refuse(job, proposal.kind, proposal.plan, reasons), *self._rebalance(job, least, now)]

    def _rebalance(self, waiting: JobState, least: Resources, now: float) -> list[PlanDecided]:
        """Take what is missing from jobs of no higher weight, the least important first; nothing if that is too little.

        While any change is applied, room may be about to come free: nobody is asked then.
        """
        others = [job for job in reversed(self.state.by_priority()) if job.plan is not None and job.leaving_s is None]
        if any(job.applying for job in others):
            return []
        free = self.free()
        targets: list[tuple[JobState, Plan]] = []
        for job in others:
            if job.plan is None or job.profile.fixed or job.profile.weight > waiting.profile.weight:
                continue
            smaller = give_back(job.plan, job.profile.limits, shortage(least, free))
            if smaller != job.plan:
                targets.append((job, smaller))
                free = free + (job.plan.resources - smaller.resources)
            if least.fits(free):
                reason = f"{waiting.job} waits for {in_words(least)}; this job holds more than its least"
                return [self._decide(donor, "rebalance", plan, [reason], now) for donor, plan in targets]
        return []

    def _to_give(self) -> Resources:
        """What running jobs may still get: nothing while another waits to start that ever could."""
        for job in self.state.jobs.values():
            waits = job.plan is None and job.refused is not None
            if waits and job.proposal is not None and job.least(job.proposal).fits(self.settings.capacity):
                return NOTHING
        return self.free()

    def _measure(
        self, job: JobState, plan: Plan, proposal: PlanProposed, now: float
    ) -> list[PlanDecided | PlanRefused]:
        """A measurement needs room now, or the planner looks for another one."""
        # proposed before the last decision on memory was heard: what that gave stays
        held = math.ceil(plan.ps_memory_bytes * max(plan.ps / proposal.plan.ps, 1))
        most = max(job.profile.limits.high.ps_memory_bytes, proposal.plan.ps_memory_bytes)
        memory = max(proposal.plan.ps_memory_bytes, job.ps_memory_bytes, min(held, most))
        wanted = replace(proposal.plan, ps_memory_bytes=memory)
        job.proposal = None
        if wanted == plan:
            return []
        room = self._to_give() + plan.resources
        if claim(wanted, plan).fits(room):
            return [self._decide(job, proposal.kind, wanted, proposal.reasons, now, proposal)]
        more, left = in_words(wanted.resources - plan.resources), in_words(room - plan.resources)
        job.refused = None
        return list(self._refuse(job, proposal.kind, proposal.plan, [f"it needs {more} more, {left} are free"]))

    # ---- 4: the round -----------------------------------------------------------------------------------------

    def _round(self, ready: Sequence[JobState], now: float) -> list[PlanDecided | PlanRefused]:
        """Weighted greedy selection over every job whose candidates are current and worth a change."""
        self.state.last_round_s = now
        facts = [fact for job in ready for fact in self._out_of_reach(job)]
        offers = {job.job: self._offer(job, now) for job in ready}
        contenders = tuple(
            Contender(
                job=job.job,
                remaining_samples=max(job.profile.samples - job.samples_done, 0),
                options=tuple(offers[job.job]),
                weight=job.profile.weight * job.urgency(now),
            )
            for job in ready
            if offers.get(job.job)
        )
        if not contenders:
            return facts
        free = self._to_give()
        problem = SelectionProblem(contenders, by_resource(free), self.settings.objective, self.settings.rho)
        selection = self.select(problem)
        chosen = [o for c in contenders for o in c.options if o.id == selection.chosen.get(c.job)]
        if not problem.fits(chosen):
            return facts  # a plug-in that overdraws the capacity is not followed
        for contender in contenders:
            job = self.state.jobs[contender.job]
            if (chosen_id := selection.chosen.get(contender.job)) is None or job.candidates is None:
                continue
            choice = Choice(
                job.candidates,
                job.profile,
                contender,
                problem,
                int(chosen_id),
                free,
                self.settings.gain_fraction_min,
            )
            plan, others = choice.candidate.plan, alternatives(choice)
            reasons = why(choice)
            if (urgency := job.urgency(now)) > 1:
                late = f"at {job.throughput:.0f} samples/s it ends after its deadline"
                reasons.append(f"{late}: its weight counts {urgency:.1f} times")
            if job.had_before(plan):
                job.returned_s = now
                reasons.append("the job had this plan before: its throughput was measured, it goes back to it once")
            facts.append(self._decide(job, "improve", plan, reasons, now, choice.candidate, others))
        return facts

    def _offer(self, job: JobState, now: float) -> list[Option]:
        """What the job brings into the round; nothing while its last change has not settled."""
        settled = now - job.changed_s >= self.settings.settle_s
        if job.plan is None or job.candidates is None or not settled or job.profile.fixed:
            return []
        options = worthwhile(job.candidates, job.plan, job.profile, self.settings.gain_fraction_min)
        if job.returned_s is None or now - job.returned_s >= self.settings.return_again_s:
            return options
        candidates = job.candidates.candidates
        return [option for option in options if not job.had_before(candidates[int(option.id)].plan)]

    def _out_of_reach(self, job: JobState) -> list[PlanDecided | PlanRefused]:
        """Say why a plan that was measured to be better is not gone back to: its PSes would need too much memory."""
        computed, limits = job.candidates, job.profile.limits
        if computed is None or job.plan is None:
            return []
        better = [
            candidate
            for candidate in computed.candidates
            if not holdable(candidate.plan, limits, job.plan)
            and job.had_before(candidate.plan)
            and candidate.gain / computed.throughput >= required_gain(candidate, self.settings.gain_fraction_min)
        ]
        if not better:
            return []
        best = max(better, key=lambda candidate: candidate.gain)
        wanted = best.plan
        reasons = [
            f"measured before: {best.throughput:.0f} samples/s with {wanted.describe()}",
            f"{wanted.ps} PS would have to hold {wanted.ps_memory_bytes / GIB:.2f} GiB each, the job's limits end at"
            f" {limits.high.ps_memory_bytes / GIB:.2f} GiB: raise them",
        ]
        return list(self._refuse(job, "improve", wanted, reasons))
