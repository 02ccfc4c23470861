"""The selection problem of a round, and the outcome of an algorithm's answer to it."""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import replace
from typing import NamedTuple

from stretto_messages.values import Plan, Resources, Round, lesser

from stretto_core.arbiter.context import StepContext
from stretto_core.arbiter.register import Prospect
from stretto_core.arbiter.selection import Contender, Ending, Option, Selection, SelectionProblem
from stretto_core.arbiter.selection.relaxation import relaxed
from stretto_core.arbiter.selection.table import OptionTable
from stretto_core.arbiter.state import JobState
from stretto_core.arbiter.teams import by_team, of_team
from stretto_core.arbiter.worth import by_resource
from stretto_core.model.teams import quota_of


class Chosen(NamedTuple):
    """A job's option of a round, and its term of the objective."""

    contender: Contender
    option: Option
    term: float


class RoundChoice(NamedTuple):
    """The choice of a round and its value."""

    chosen: list[Chosen]
    round: Round


def contest(context: StepContext, now: float, free: Resources, among: Container[str] | None = None) -> SelectionProblem:
    """Return the problem over all jobs whose candidates are current and worth a change, or over those in ``among``."""
    samples_done, found = context.state.samples_done, list[Contender]()
    names = [name for name in context.register.offering if among is None or name in among]
    ordered, shares = context.register.ordered(names), context.teams.shares()
    offers = {job.job: _offer(context, job, context.register.offering[job.job], now) for job in ordered}
    limits = context.teams.round_limits(offers, free)
    for job in ordered:
        options = offers[job.job]
        if options:
            if job.team in limits:
                options = [of_team(option, job.team) for option in options]
            remaining = max(job.profile.samples - samples_done.get(job.job, 0), 0)
            weight = job.profile.weight * urgency(context, job, now)
            weight *= shares[job.team].factor if shares else 1.0
            throughput = context.register.offering[job.job].computed.throughput
            held = _held(job, limits) if context.looks_ahead else {}
            found.append(Contender(job.job, remaining, tuple(options), weight, throughput, held))
    room = by_resource(free)
    for team, limit in limits.items():
        # a team without a limit of its own on devices may get those of the cluster
        room |= by_team(by_resource(replace(limit, extended=lesser(limit, free).extended)), team)
    endings = _endings(context, {each.job for each in found}, limits, now) if context.looks_ahead else ()
    return SelectionProblem(tuple(found), room, context.settings.objective, context.settings.rho, endings=endings)


def _held(job: JobState, limits: Container[str]) -> dict[str, float]:
    """Return what the job holds, counted against its team's quota too if the quota is limited."""
    held = by_resource(job.held)
    return held | by_team(held, job.team) if job.team in limits else held


def _endings(
    context: StepContext, contending: Container[str], limits: Container[str], now: float
) -> tuple[Ending, ...]:
    """Return when the other jobs are expected to end: those that train, at their present speed, and those that have
    ended and wait for their pods to go."""
    found = list[Ending]()
    for name, job in context.state.jobs.items():
        if name in contending or job.plan is None:
            continue
        left = max(job.profile.samples - context.state.samples_done.get(name, 0), 0)
        if job.leaving_s is not None:
            found.append(Ending(0.0, _held(job, limits)))
        elif job.throughput > 0:
            found.append(Ending(left / job.throughput, _held(job, limits)))
    return tuple(found)


def _offer(context: StepContext, job: JobState, prospect: Prospect, now: float) -> list[Option]:
    """Return the job's options for the round; none until its last change has settled."""
    if now - job.changed_s < context.settings.settle_s:
        return []
    options = prospect.options
    if job.returned_s is not None and now - job.returned_s < context.settings.return_again_s:
        options = [option for option in options if not job.had_before(plan_of(prospect, option))]
    if context.teams.guaranteed(job.team):
        options = [option for option in options if context.teams.returnable(job, plan_of(prospect, option))]
    return options


def urgency(context: StepContext, job: JobState, now: float) -> float:
    """Return the factor of the job's deadline on its weight, within the ceiling of its team."""
    ceiling = quota_of(context.settings.quotas, job.team).priority_max
    return job.urgency(context.state.samples_done.get(job.job, 0), now, ceiling)


def plan_of(prospect: Prospect, option: Option) -> Plan:
    """Return the plan of the candidate behind an option."""
    return prospect.computed.candidates[int(option.id)].plan


def outcome(algorithm: str, problem: SelectionProblem, selection: Selection) -> RoundChoice:
    """Return the outcome of a choice. Its value is computed here: a plug-in's is not trusted.

    A choice that exceeds the capacity is dropped as a whole. One without a finite bound gets the relaxation's. An
    algorithm with an objective of its own tells the value and the bound itself.
    """
    found = list[Chosen]()
    for contender in problem.contenders:
        if (wanted := selection.chosen.get(contender.job)) is not None:
            options = [option for option in contender.options if option.id == wanted]
            found += [Chosen(contender, option, problem.value(contender, option)) for option in options]
    fits = problem.fits([each.option for each in found])
    own = fits and selection.objective and math.isfinite(selection.value) and math.isfinite(selection.bound)
    if not fits:
        found = []
    value = selection.value if own else math.fsum(each.term for each in found)
    proven = selection.bound if math.isfinite(selection.bound) else relaxed(OptionTable.of(problem)).bound
    highest = max(proven, value)
    return RoundChoice(
        found,
        Round(
            algorithm=algorithm,
            objective=selection.objective if own else problem.objective,
            jobs=len(problem.contenders),
            value=value,
            bound=highest,
            gap=(highest - value) / highest if highest > 0 else 0.0,
            term=0.0,
        ),
    )
