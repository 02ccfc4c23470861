"""Step 4 of the cycle: the round, one choice over all jobs with candidates (DLRover-RM Eq. 11-14)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from stretto_core.arbiter.desk import Answer, Desk
from stretto_core.arbiter.register import Prospect
from stretto_core.arbitration import by_resource
from stretto_core.candidates import Candidate
from stretto_core.cluster import JobState
from stretto_core.explanation import Choice, alternatives, why
from stretto_core.jobs import Round
from stretto_core.selection import Contender, Option, Selection, SelectionAlgorithm, SelectionProblem
from stretto_core.selection.relaxation import relaxed
from stretto_core.selection.table import Table
from stretto_core.types import GIB

ALTERNATIVES_MAX = 8


class Chosen(NamedTuple):
    """A job's option of a round, and its term of the objective."""

    contender: Contender
    option: Option
    term: float


def choose(desk: Desk, select: SelectionAlgorithm, now: float) -> list[Answer]:
    """One selection over every job whose candidates are current and worth a change."""
    desk.state.last_round_s = now
    facts = [fact for job in desk.register.ordered(desk.register.untold) for fact in _out_of_reach(desk, job)]
    contenders = _contenders(desk, now)
    if not contenders:
        return facts
    free = desk.to_give()
    problem = SelectionProblem(contenders, by_resource(free), desk.settings.objective, desk.settings.rho)
    selection = select(problem)
    chosen = _chosen(problem, selection)
    found = _reached(desk.select_name, problem, chosen, selection.bound)
    for contender, option, term in _in_turn(desk, problem, chosen, now):
        job = desk.state.jobs[contender.job]
        if job.candidates is not None:
            minimum, this = desk.settings.gain_fraction_min, replace(found, term=term)
            choice = Choice(job.candidates, job.profile, contender, problem, int(option.id), free, minimum, this)
            facts.append(_improve(desk, job, choice, now))
    return facts


def _chosen(problem: SelectionProblem, selection: Selection) -> list[Chosen]:
    """What was chosen, in the contenders' order; nothing of a plug-in's choice that overdraws the capacity."""
    chosen: list[Chosen] = []
    for contender in problem.contenders:
        if (wanted := selection.chosen.get(contender.job)) is not None:
            options = [option for option in contender.options if option.id == wanted]
            chosen += [Chosen(contender, option, problem.value(contender, option)) for option in options]
    return chosen if problem.fits([each.option for each in chosen]) else []


def _reached(algorithm: str, problem: SelectionProblem, chosen: list[Chosen], bound: float) -> Round:
    """What the choice comes to, whatever a plug-in says of it; one that proves nothing gets the relaxation's bound."""
    value = math.fsum(each.term for each in chosen)
    proven = bound if math.isfinite(bound) else relaxed(Table.of(problem)).bound
    return Round(algorithm, problem.objective, len(problem.contenders), value, max(proven, value), 0.0)


def _in_turn(desk: Desk, problem: SelectionProblem, chosen: list[Chosen], now: float) -> list[Chosen]:
    """Those to decide on now: who was deferred longest, then the largest terms. The others are chosen again in the
    next round, or their room goes to better plans; who keeps being chosen waits for no more rounds than all need."""
    since = desk.state.deferred
    order = sorted(chosen, key=lambda each: (since.get(each.contender.job, math.inf), -each.term))
    first = {each.contender.job for each in order[: desk.settings.decisions_most]}
    contending = {contender.job for contender in problem.contenders}
    waiting = {job: s for job, s in since.items() if job in contending and job not in first}
    later = (each.contender.job for each in order[desk.settings.decisions_most :])
    desk.state.deferred = {**{job: now for job in later}, **waiting}
    return [each for each in chosen if each.contender.job in first]


def _contenders(desk: Desk, now: float) -> tuple[Contender, ...]:
    done, found = desk.state.samples_done, list[Contender]()
    for job in desk.register.ordered(desk.register.offering):
        options = _offer(desk, job, desk.register.offering[job.job], now)
        if options:
            remaining = max(job.profile.samples - done.get(job.job, 0), 0)
            weight = job.profile.weight * job.urgency(done.get(job.job, 0), now)
            throughput = desk.register.offering[job.job].computed.throughput
            found.append(Contender(job.job, remaining, tuple(options), weight, throughput))
    return tuple(found)


def _offer(desk: Desk, job: JobState, prospect: Prospect, now: float) -> list[Option]:
    """What the job brings into the round; nothing while its last change has not settled."""
    if now - job.changed_s < desk.settings.settle_s:
        return []
    if job.returned_s is None or now - job.returned_s >= desk.settings.return_again_s:
        return prospect.options
    candidates = prospect.computed.candidates
    return [option for option in prospect.options if not job.had_before(candidates[int(option.id)].plan)]


def _improve(desk: Desk, job: JobState, choice: Choice, now: float) -> Answer:
    plan, others, reasons = choice.candidate.plan, alternatives(choice, ALTERNATIVES_MAX), why(choice)
    if (urgency := job.urgency(desk.state.samples_done.get(job.job, 0), now)) > 1:
        late = f"at {job.throughput:.0f} samples/s it ends after its deadline"
        reasons.append(f"{late}: its weight counts {urgency:.1f} times")
    if job.had_before(plan):
        job.returned_s = now
        reasons.append("the job had this plan before: its throughput was measured, it goes back to it once")
    return desk.decide(job, "improve", plan, reasons, now, choice.candidate, others, choice.round)


def _out_of_reach(desk: Desk, job: JobState) -> list[Answer]:
    """Say why a plan that was measured to be better is not gone back to: its PSes would need too much memory."""
    desk.register.untold.discard(job.job)
    if (prospect := desk.register.prospect(job.job)) is None or prospect.beyond is None:
        return []
    reasons = _memory_that_lacks(prospect.beyond, job)
    facts = desk.refuse(job, "improve", prospect.beyond.plan, reasons)
    desk.register.untold.discard(job.job)
    return facts


def _memory_that_lacks(best: Candidate, job: JobState) -> list[str]:
    wanted, high = best.plan, job.profile.limits.high
    return [
        f"measured before: {best.throughput:.0f} samples/s with {wanted.describe()}",
        f"{wanted.ps} PS would have to hold {wanted.ps_memory_bytes / GIB:.2f} GiB each, the job's limits end at"
        f" {high.ps_memory_bytes / GIB:.2f} GiB: raise them",
    ]
