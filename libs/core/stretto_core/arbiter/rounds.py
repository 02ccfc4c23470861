"""Step 4 of the cycle: the round, one choice over all jobs with candidates (DLRover-RM Eq. 11-14)."""

from __future__ import annotations

import math
from dataclasses import replace

from stretto_messages.base import GIB
from stretto_messages.values import Candidate

from stretto_core.arbiter import background
from stretto_core.arbiter.contest import Chosen, contest, outcome, urgency
from stretto_core.arbiter.context import Answer, StepContext
from stretto_core.arbiter.explanation import Choice, alternatives, why
from stretto_core.arbiter.observations import BackgroundSolved
from stretto_core.arbiter.selection import SelectionAlgorithm, SelectionProblem
from stretto_core.arbiter.state import JobState
from stretto_core.arbiter.teams import Share

ALTERNATIVES_MAX = 8


def due(context: StepContext, now: float) -> bool:
    """Return True if a round is due: none while jobs wait for a background solve, one as soon as this wait ends."""
    if (pending := context.state.background_solve) is not None:
        if now - pending.begun_s < context.settings.patience_s:
            return False
        if context.state.last_round_s <= pending.begun_s:
            return True
    return now - context.state.last_round_s >= context.settings.round_s


def choose(
    context: StepContext, select: SelectionAlgorithm, now: float, background_answer: BackgroundSolved | None = None
) -> list[Answer]:
    """Select over all jobs whose candidates are current and worth a change, and decide for the jobs in turn.

    ``background_answer``: that of the pending background solve, if it is the event.
    """
    pending = context.state.background_solve
    if background_answer is not None:
        context.state.background_solve = None
    context.state.last_round_s = now
    facts = [
        fact
        for job in context.register.ordered(context.register.unreachable)
        for fact in _refuse_unreachable(context, job)
    ]
    free = context.available()
    problem = contest(context, now, free)
    if not problem.contenders:
        return facts
    selection, shares = select(problem), context.teams.shares()
    found = outcome(context.select_name, problem, selection)
    if pending is not None and background_answer is not None and found.round.objective == problem.objective:
        found = background.judged(context, select, problem, found, pending, background_answer)
    else:
        found = background.begin(context, problem, found, now)
    for contender, option, term in _in_turn(context, problem, found.chosen, now):
        job = context.state.jobs[contender.job]
        if job.candidates is not None:
            choice = Choice(
                computed=job.candidates,
                profile=job.profile,
                contender=contender,
                problem=problem,
                index=int(option.id),
                free=free,
                gain_fraction_min=context.settings.gain_fraction_min,
                round=replace(found.round, term=term),
            )
            if not context.teams.returnable(job, choice.candidate.plan):
                continue  # another job of the team has got that room in this round
            facts.append(_improve(context, job, choice, now, shares.get(job.team)))
    return facts


def _in_turn(context: StepContext, problem: SelectionProblem, chosen: list[Chosen], now: float) -> list[Chosen]:
    """Return the choices to decide now: the job that was deferred longest first, then the largest terms.

    The others are deferred: the next round chooses them again, or gives their room to better plans. A job that every
    round chooses waits for no more rounds than deciding on all jobs takes.
    """
    since = context.state.deferred
    order = sorted(chosen, key=lambda each: (since.get(each.contender.job, math.inf), -each.term))
    first = {each.contender.job for each in order[: context.settings.decisions_most]}
    contending = {contender.job for contender in problem.contenders}
    waiting = {job: since_s for job, since_s in since.items() if job in contending and job not in first}
    later = (each.contender.job for each in order[context.settings.decisions_most :])
    context.state.deferred = {**{job: now for job in later}, **waiting}
    return [each for each in chosen if each.contender.job in first]


def _improve(context: StepContext, job: JobState, choice: Choice, now: float, share: Share | None) -> Answer:
    """Decide the chosen plan, with its reasons and alternatives."""
    plan, others, reasons = choice.candidate.plan, alternatives(choice, ALTERNATIVES_MAX), why(choice)
    if (factor := urgency(context, job, now)) > 1:
        late = f"at {job.throughput:.0f} samples/s it ends after its deadline"
        reasons.append(f"{late}: its weight counts {factor:.1f} times")
    if share is not None:
        held = f"team {job.team} holds {share.held:.0%} of the cluster, its fair share is {share.fair:.0%}"
        reasons.append(f"{held}: its jobs' weights count {share.factor:.2f} times")
    if job.had_before(plan):
        job.returned_s = now
        reasons.append("the job had this plan before: its throughput was measured, it goes back to it once")
    return context.decide(job, "improve", plan, reasons, now, choice.candidate, others, choice.round)


def _refuse_unreachable(context: StepContext, job: JobState) -> list[Answer]:
    """Refuse to go back to a plan that was measured to be better: its PSes would need more memory than is allowed."""
    context.register.unreachable.discard(job.job)
    if (prospect := context.register.prospect(job.job)) is None or prospect.unreachable is None:
        return []
    reasons = _memory_shortage(prospect.unreachable, job)
    facts = context.refuse(job, "improve", prospect.unreachable.plan, reasons)
    context.register.unreachable.discard(job.job)  # the refusal filed the job anew
    return facts


def _memory_shortage(best: Candidate, job: JobState) -> list[str]:
    wanted, high = best.plan, job.profile.limits.high
    return [
        f"measured before: {best.throughput:.0f} samples/s with {wanted.describe()}",
        f"{wanted.ps} PS would have to hold {wanted.ps_memory_bytes / GIB:.2f} GiB each, the job's limits end at"
        f" {high.ps_memory_bytes / GIB:.2f} GiB: raise them",
    ]
