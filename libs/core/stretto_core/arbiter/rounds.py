"""Step 4 of the cycle: the round, one choice over all jobs with candidates (DLRover-RM Eq. 11-14)."""

from __future__ import annotations

import math
from dataclasses import replace

from stretto_messages.base import GIB
from stretto_messages.values import Candidate

from stretto_core.arbiter import studies
from stretto_core.arbiter.contest import Chosen, contest, outcome
from stretto_core.arbiter.desk import Answer, Desk
from stretto_core.arbiter.explanation import Choice, alternatives, why
from stretto_core.arbiter.observations import StudyDone
from stretto_core.arbiter.selection import SelectionAlgorithm, SelectionProblem
from stretto_core.arbiter.state import JobState

ALTERNATIVES_MAX = 8


def due(desk: Desk, now: float) -> bool:
    """Return True if a round is due: not while jobs wait for a study, at once when they no longer do."""
    if (study := desk.state.study) is not None:
        if now - study.begun_s < desk.settings.patience_s:
            return False
        if desk.state.last_round_s <= study.begun_s:
            return True
    return now - desk.state.last_round_s >= desk.settings.round_s


def choose(desk: Desk, select: SelectionAlgorithm, now: float, done: StudyDone | None = None) -> list[Answer]:
    """One selection over every job whose candidates are current and worth a change; ``done``: the study's answer."""
    study = desk.state.study
    if done is not None:
        desk.state.study = None
    desk.state.last_round_s = now
    facts = [fact for job in desk.register.ordered(desk.register.untold) for fact in _out_of_reach(desk, job)]
    free = desk.to_give()
    problem = contest(desk, now, free)
    if not problem.contenders:
        return facts
    selection = select(problem)
    found = outcome(desk.select_name, problem, selection.chosen, selection.bound)
    if study is not None and done is not None:
        found = studies.judged(desk, select, problem, found, study, done)
    else:
        found = studies.in_background(desk, problem, found, now)
    for contender, option, term in _in_turn(desk, problem, found.chosen, now):
        job = desk.state.jobs[contender.job]
        if job.candidates is not None:
            minimum, this = desk.settings.gain_fraction_min, replace(found.round, term=term)
            choice = Choice(job.candidates, job.profile, contender, problem, int(option.id), free, minimum, this)
            facts.append(_improve(desk, job, choice, now))
    return facts


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
