"""A slower algorithm's look at a round, beside it: what it is asked, who waits for it, what its answer counts.

A round whose proven gap exceeds ``study_gap`` is decided at once for every job whose plan no better choice changes
(``doubtful``). The others wait for the study, ``patience_s`` at most: a job that is resized twice loses more than that
moment. Jobs start, measure and get memory meanwhile. The answer is an input like any other, and is judged by what holds
when it comes: of it stands what concerns jobs whose plans are as they were, the fast algorithm chooses for all others
beside that, and the whole is followed if it fits and exceeds the fast algorithm's own choice of now by ``study_gap``.
What comes after the patience is judged in the same way: it can still serve those who got nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from stretto_messages.base import bounded
from stretto_messages.values import Plan, Studied

from stretto_core.algorithms import SELECT
from stretto_core.arbiter.contest import Chosen, Outcome, contest, outcome, plan_of
from stretto_core.arbiter.desk import Desk
from stretto_core.arbiter.observations import StudyDone
from stretto_core.arbiter.selection import Option, Selection, SelectionAlgorithm, SelectionProblem
from stretto_core.arbiter.selection.doubt import doubtful
from stretto_core.arbiter.state import Study

STUDIED_MOST = 1000
"""jobs of one study, those of the largest terms: its answer is one message"""


@dataclass(frozen=True, slots=True)
class Task:
    """The question to ``algorithm``. ``plans``: the plan of each option, by job and id; ``job`` is one that asks."""

    number: int
    job: str
    algorithm: str
    problem: SelectionProblem
    plans: dict[str, dict[str, Plan]]

    def solved(self) -> StudyDone:
        """Return the answer at once: a simulation's clock stands still while it is worked out."""
        return self.answered(SELECT.named(self.algorithm)(self.problem), 0.0)

    def answered(self, selection: Selection, took_s: float) -> StudyDone:
        """With a choice; a plug-in's may name what nobody offered, and prove nothing."""
        named = {job: self.plans.get(job, {}).get(option or "") for job, option in selection.chosen.items()}
        chosen = {job: wanted for job, wanted in named.items() if wanted is not None}
        bound, value = selection.bound, selection.value
        gap = max((bound - value) / bound, 0.0) if bound > 0 else 0.0
        proven = math.isfinite(bound) and math.isfinite(value)
        return StudyDone(job=self.job, number=self.number, plans=chosen, gap=gap if proven else None, took_s=took_s)

    def failed(self, fault: str, took_s: float) -> StudyDone:
        """With none."""
        return StudyDone(job=self.job, number=self.number, plans={}, gap=None, took_s=took_s, fault=bounded(fault))


def task(desk: Desk) -> Task | None:
    """Return the input of the pending study in the present state."""
    if (study := desk.state.study) is None:
        return None
    names = {job for job, version in study.jobs.items() if _is_as_it_was(desk, job, version)}
    problem = contest(desk, study.begun_s, desk.to_give(), names)
    problem = replace(problem, free={name: min(free, study.room[name]) for name, free in problem.free.items()})
    plans = {
        each.job: {option.id: plan_of(desk.register.offering[each.job], option) for option in each.options}
        for each in problem.contenders
    }
    return Task(study.number, next(iter(study.jobs)), study.algorithm, problem, plans)


def expire(desk: Desk, now: float) -> None:
    """Ask no longer what takes too long, what concerns nobody any more, or what settings do not want any more."""
    if (study := desk.state.study) is None:
        return
    concerned = any(_is_as_it_was(desk, job, version) for job, version in study.jobs.items())
    in_time = now - study.begun_s <= desk.settings.study_timeout_s
    if not (concerned and in_time and study.algorithm == desk.settings.background_algorithm):
        desk.state.study = None


def in_background(desk: Desk, problem: SelectionProblem, found: Outcome, now: float) -> Outcome:
    """Return the part of a fast choice that is decided now: all, except jobs that a starting study may improve."""
    algorithm, study = desk.settings.background_algorithm, desk.state.study
    if algorithm in ("", desk.select_name) or found.round.gap <= desk.settings.study_gap:
        return found
    if study is not None:
        reason = f"at work for {now - study.begun_s:.1f} s: nobody waits for it any longer"
        return _told(found, Studied(algorithm=algorithm, outcome="begun", reason=bounded(reason)))
    gain = desk.settings.study_gap
    chosen = {each.contender.job: each for each in found.chosen}
    ids = {job: each.option.id for job, each in chosen.items()}
    doubted = doubtful(problem, ids, found.round.value * (1 + gain))
    if not doubted:
        return found
    if len(doubted) > STUDIED_MOST:
        terms = {job: chosen[job].term if job in chosen else 0.0 for job in doubted}
        doubted = set(sorted(doubted, key=lambda job: (-terms[job], job))[:STUDIED_MOST])
    settled = [each for each in found.chosen if each.contender.job not in doubted]
    versions = {job: desk.state.jobs[job].version for job in sorted(doubted)}
    desk.state.studies += 1
    desk.state.study = Study(desk.state.studies, algorithm, now, versions, _left(problem, settled))
    reason = (
        f"looks for a better choice for {len(doubted)} of {len(problem.contenders)} jobs; this plan is part of every"
        f" one that is better by {gain:.1%}"
    )
    return _told(Outcome(settled, found.round), Studied(algorithm=algorithm, outcome="begun", reason=bounded(reason)))


def judged(
    desk: Desk, select: SelectionAlgorithm, problem: SelectionProblem, found: Outcome, study: Study, done: StudyDone
) -> Outcome:
    """Return the decision: the study's choice, as far as it holds and if clearly better, else the fast one."""
    told = Studied(
        algorithm=study.algorithm,
        outcome="dropped",
        reason="",
        instead_of=found.round.value,
        gap=done.gap,
        took_s=done.took_s,
    )
    if done.fault:
        return _told(found, replace(told, reason=bounded(f"it failed: {done.fault}")))
    kept = _standing(desk, problem, study, done)
    if not kept:
        return _told(found, replace(told, reason="the jobs that it was about have changed meanwhile"))
    chosen = {job: option.id for job, option in kept.items() if option is not None}
    others = tuple(contender for contender in problem.contenders if contender.job not in kept)
    if others:
        free = _left(
            problem, [Chosen(each, option, 0.0) for each in problem.contenders if (option := kept.get(each.job))]
        )
        beside_it = select(replace(problem, contenders=others, free=free)).chosen
        chosen |= {job: option for job, option in beside_it.items() if option is not None}
    second = outcome(study.algorithm, problem, chosen, found.round.bound)
    value, before, gain = second.round.value, found.round.value, desk.settings.study_gap
    told = replace(told, value=value)
    if value > before * (1 + gain):
        reason = f"better by {value / before - 1:.2%}" if before > 0 else "better than nothing"
        return _told(second, replace(told, outcome="adopted", reason=reason))
    if chosen and not second.chosen:
        return _told(found, replace(told, reason="what it chose does not fit any more"))
    return _told(found, replace(told, reason=f"not better by more than {gain:.1%}"))


def _standing(desk: Desk, problem: SelectionProblem, study: Study, done: StudyDone) -> dict[str, Option | None]:
    """Return the study's choice for jobs with an unchanged plan that can still get it; None: they keep that plan."""
    kept: dict[str, Option | None] = {}
    for contender in problem.contenders:
        job = contender.job
        if job not in study.jobs or not _is_as_it_was(desk, job, study.jobs[job]):
            continue
        wanted, prospect = done.plans.get(job), desk.register.offering[job]
        option = next((each for each in contender.options if plan_of(prospect, each) == wanted), None)
        if option is not None or wanted is None:
            kept[job] = option
    return kept


def _is_as_it_was(desk: Desk, name: str, version: int) -> bool:
    job = desk.state.jobs.get(name)
    return job is not None and job.version == version


def _left(problem: SelectionProblem, chosen: Iterable[Chosen]) -> dict[str, float]:
    """Return the free resources that these choices leave."""
    amounts = [each.option.amounts for each in chosen]
    return {name: free - math.fsum(each.get(name, 0.0) for each in amounts) for name, free in problem.free.items()}


def _told(found: Outcome, study: Studied) -> Outcome:
    return Outcome(found.chosen, replace(found.round, study=study))
