"""Background solve: a slower algorithm works on a round of the fast one, while the arbiter goes on.

1 A round whose proven gap exceeds ``background_gap`` is decided at once for every job to which all better choices give
  the same plan (``selection.reduced_cost``). The other jobs wait for the background solve, ``patience_s`` at most: a
  second resize costs a job more than this wait. Jobs start, measure and get memory meanwhile.
2 The answer is an input like any other, and is judged in the state of its arrival. It holds for jobs whose plans have
  not changed; the fast algorithm chooses for the others within the resources that are left.
3 The combined choice is decided if it fits, and if its value exceeds that of the fast choice by ``background_gap``. The
  same holds for an answer that comes after ``patience_s``: some jobs may still have got nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from stretto_messages.base import bounded
from stretto_messages.values import BackgroundReport, Plan

from stretto_core.algorithms import SELECT
from stretto_core.arbiter.contest import Chosen, RoundChoice, contest, outcome, plan_of
from stretto_core.arbiter.context import StepContext
from stretto_core.arbiter.observations import BackgroundSolved
from stretto_core.arbiter.selection import Option, Selection, SelectionAlgorithm, SelectionProblem
from stretto_core.arbiter.selection.reduced_cost import ambiguous_jobs
from stretto_core.arbiter.state import BackgroundSolve

JOBS_MAX = 1000
"""Jobs of one background solve, those of the largest terms: its answer is one message."""


@dataclass(frozen=True, slots=True)
class BackgroundTask:
    """Input of the background algorithm.

    ``job`` is any of the jobs: the answer is observed under its name. ``plans``: the plan of each option, by job and
    option id.
    """

    number: int
    job: str
    algorithm: str
    problem: SelectionProblem
    plans: dict[str, dict[str, Plan]]

    def solved(self) -> BackgroundSolved:
        """Solve the problem here and now, for a simulation, whose clock stands still meanwhile."""
        return self.answered(SELECT.named(self.algorithm)(self.problem), 0.0)

    def answered(self, selection: Selection, took_s: float) -> BackgroundSolved:
        """Return the observation of an answer. A plug-in's unknown options are left out; its bound may be no number."""
        named = {job: self.plans.get(job, {}).get(option or "") for job, option in selection.chosen.items()}
        chosen = {job: wanted for job, wanted in named.items() if wanted is not None}
        bound, value = selection.bound, selection.value
        gap = max((bound - value) / bound, 0.0) if bound > 0 else 0.0
        proven_gap = gap if math.isfinite(bound) and math.isfinite(value) else None
        return BackgroundSolved(job=self.job, number=self.number, plans=chosen, gap=proven_gap, took_s=took_s)

    def failed(self, fault: str, took_s: float) -> BackgroundSolved:
        """Return the observation of a failure."""
        return BackgroundSolved(
            job=self.job, number=self.number, plans={}, gap=None, took_s=took_s, fault=bounded(fault)
        )


def task(context: StepContext) -> BackgroundTask | None:
    """Return the input of the pending background solve in the present state, or None if none is pending."""
    if (pending := context.state.background_solve) is None:
        return None
    names = {job for job, version in pending.jobs.items() if _unchanged(context, job, version)}
    problem = contest(context, pending.begun_s, context.available(), names)
    free = {name: min(amount, pending.room.get(name, amount)) for name, amount in problem.free.items()}
    problem = replace(problem, free=free)
    plans = {
        each.job: {option.id: plan_of(context.register.offering[each.job], option) for option in each.options}
        for each in problem.contenders
    }
    return BackgroundTask(pending.number, next(iter(pending.jobs)), pending.algorithm, problem, plans)


def expire(context: StepContext, now: float) -> None:
    """Give the pending solve up if it takes too long, if all its jobs have changed, or if settings name another
    algorithm."""
    if (pending := context.state.background_solve) is None:
        return
    concerned = any(_unchanged(context, job, version) for job, version in pending.jobs.items())
    in_time = now - pending.begun_s <= context.settings.background_timeout_s
    if not (concerned and in_time and pending.algorithm == context.settings.background_algorithm):
        context.state.background_solve = None


def begin(context: StepContext, problem: SelectionProblem, fast: RoundChoice, now: float) -> RoundChoice:
    """Begin a background solve if the fast choice's gap asks for one; return the part of this choice to decide now.

    That is all of it, except for jobs which the background solve may give a better plan. A choice by an objective of
    the algorithm's own stands.
    """
    algorithm, pending = context.settings.background_algorithm, context.state.background_solve
    if algorithm in ("", context.select_name) or fast.round.gap <= context.settings.background_gap:
        return fast
    if fast.round.objective != problem.objective:
        return fast  # the background algorithm would look for another optimum
    if pending is not None:
        reason = f"at work for {now - pending.begun_s:.1f} s: nobody waits for it any longer"
        return _reported(fast, BackgroundReport(algorithm=algorithm, outcome="begun", reason=bounded(reason)))
    gain = context.settings.background_gap
    chosen = {each.contender.job: each for each in fast.chosen}
    ids = {job: each.option.id for job, each in chosen.items()}
    ambiguous = ambiguous_jobs(problem, ids, fast.round.value * (1 + gain))
    if not ambiguous:
        return fast
    if len(ambiguous) > JOBS_MAX:
        terms = {job: chosen[job].term if job in chosen else 0.0 for job in ambiguous}
        ambiguous = set(sorted(ambiguous, key=lambda job: (-terms[job], job))[:JOBS_MAX])
    decided = [each for each in fast.chosen if each.contender.job not in ambiguous]
    versions = {job: context.state.jobs[job].version for job in sorted(ambiguous)}
    context.state.background_solves += 1
    context.state.background_solve = BackgroundSolve(
        context.state.background_solves, algorithm, now, versions, _left(problem, decided)
    )
    reason = (
        f"looks for a better choice for {len(ambiguous)} of {len(problem.contenders)} jobs; this plan is part of every"
        f" one that is better by {gain:.1%}"
    )
    report = BackgroundReport(algorithm=algorithm, outcome="begun", reason=bounded(reason))
    return _reported(RoundChoice(decided, fast.round), report)


def judged(
    context: StepContext,
    select: SelectionAlgorithm,
    problem: SelectionProblem,
    fast: RoundChoice,
    solve: BackgroundSolve,
    answer: BackgroundSolved,
) -> RoundChoice:
    """Return the choice to decide: the background answer combined with the fast algorithm's, if that is clearly better
    than the fast choice alone; else the fast choice."""
    report = BackgroundReport(
        algorithm=solve.algorithm,
        outcome="dropped",
        reason="",
        instead_of=fast.round.value,
        gap=answer.gap,
        took_s=answer.took_s,
    )
    if answer.fault:
        return _reported(fast, replace(report, reason=bounded(f"it failed: {answer.fault}")))
    valid = _still_valid(context, problem, solve, answer)
    if not valid:
        return _reported(fast, replace(report, reason="the jobs that it was about have changed meanwhile"))
    chosen: dict[str, str | None] = {job: option.id for job, option in valid.items() if option is not None}
    others = tuple(contender for contender in problem.contenders if contender.job not in valid)
    if others:
        taken = [Chosen(each, option, 0.0) for each in problem.contenders if (option := valid.get(each.job))]
        rest = select(replace(problem, contenders=others, free=_left(problem, taken))).chosen
        chosen |= {job: option for job, option in rest.items() if option is not None}
    combined = outcome(solve.algorithm, problem, Selection(chosen, 0.0, fast.round.bound))
    value, before, gain = combined.round.value, fast.round.value, context.settings.background_gap
    report = replace(report, value=value)
    if value > before * (1 + gain):
        reason = f"better by {value / before - 1:.2%}" if before > 0 else "better than nothing"
        return _reported(combined, replace(report, outcome="adopted", reason=reason))
    if chosen and not combined.chosen:
        return _reported(fast, replace(report, reason="what it chose does not fit any more"))
    return _reported(fast, replace(report, reason=f"not better by more than {gain:.1%}"))


def _still_valid(
    context: StepContext, problem: SelectionProblem, solve: BackgroundSolve, answer: BackgroundSolved
) -> dict[str, Option | None]:
    """Return the answered option of each job that has not changed and still has this option; None: it keeps its
    plan."""
    valid: dict[str, Option | None] = {}
    for contender in problem.contenders:
        job = contender.job
        if job not in solve.jobs or not _unchanged(context, job, solve.jobs[job]):
            continue
        wanted, prospect = answer.plans.get(job), context.register.offering[job]
        option = next((each for each in contender.options if plan_of(prospect, each) == wanted), None)
        if option is not None or wanted is None:
            valid[job] = option
    return valid


def _unchanged(context: StepContext, name: str, version: int) -> bool:
    """Return True if the job is there and has got no other plan since ``version``."""
    job = context.state.jobs.get(name)
    return job is not None and job.version == version


def _left(problem: SelectionProblem, chosen: Iterable[Chosen]) -> dict[str, float]:
    """Return the free resources that these choices leave."""
    amounts = [each.option.amounts for each in chosen]
    return {name: free - math.fsum(each.get(name, 0.0) for each in amounts) for name, free in problem.free.items()}


def _reported(found: RoundChoice, report: BackgroundReport) -> RoundChoice:
    """Return the outcome with the report on the background solve in its round."""
    return RoundChoice(found.chosen, replace(found.round, background=report))
