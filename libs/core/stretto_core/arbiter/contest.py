"""Input of a choice over all jobs, and the outcome of an algorithm's answer."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from typing import NamedTuple

from stretto_messages.values import Plan, Resources, Round

from stretto_core.arbiter.desk import Desk
from stretto_core.arbiter.register import Prospect
from stretto_core.arbiter.selection import Contender, Option, SelectionProblem
from stretto_core.arbiter.selection.relaxation import relaxed
from stretto_core.arbiter.selection.table import Table
from stretto_core.arbiter.state import JobState
from stretto_core.arbiter.worth import by_resource


class Chosen(NamedTuple):
    """A job's option of a round, and its term of the objective."""

    contender: Contender
    option: Option
    term: float


class Outcome(NamedTuple):
    """The choice of a round and its value."""

    chosen: list[Chosen]
    round: Round


def contest(desk: Desk, now: float, free: Resources, among: Container[str] | None = None) -> SelectionProblem:
    """Over every job whose candidates are current and worth a change, or those of them that are ``among`` these."""
    done, found = desk.state.samples_done, list[Contender]()
    names = [name for name in desk.register.offering if among is None or name in among]
    for job in desk.register.ordered(names):
        options = _offer(desk, job, desk.register.offering[job.job], now)
        if options:
            remaining = max(job.profile.samples - done.get(job.job, 0), 0)
            weight = job.profile.weight * job.urgency(done.get(job.job, 0), now)
            throughput = desk.register.offering[job.job].computed.throughput
            found.append(Contender(job.job, remaining, tuple(options), weight, throughput))
    return SelectionProblem(tuple(found), by_resource(free), desk.settings.objective, desk.settings.rho)


def _offer(desk: Desk, job: JobState, prospect: Prospect, now: float) -> list[Option]:
    """Return the job's options for the round; none until its last change has settled."""
    if now - job.changed_s < desk.settings.settle_s:
        return []
    if job.returned_s is None or now - job.returned_s >= desk.settings.return_again_s:
        return prospect.options
    return [option for option in prospect.options if not job.had_before(plan_of(prospect, option))]


def plan_of(prospect: Prospect, option: Option) -> Plan:
    """Return the plan of the candidate behind an option."""
    return prospect.computed.candidates[int(option.id)].plan


def outcome(algorithm: str, problem: SelectionProblem, chosen: Mapping[str, str | None], bound: float) -> Outcome:
    """Return the outcome of a choice, computed here and not taken from a plug-in. Without a bound of its own it gets
    the relaxation's.

    Nothing of a choice that overdraws the capacity is followed.
    """
    found = list[Chosen]()
    for contender in problem.contenders:
        if (wanted := chosen.get(contender.job)) is not None:
            options = [option for option in contender.options if option.id == wanted]
            found += [Chosen(contender, option, problem.value(contender, option)) for option in options]
    if not problem.fits([each.option for each in found]):
        found = []
    value = math.fsum(each.term for each in found)
    proven = bound if math.isfinite(bound) else relaxed(Table.of(problem)).bound
    highest = max(proven, value)
    return Outcome(
        found,
        Round(
            algorithm=algorithm,
            objective=problem.objective,
            jobs=len(problem.contenders),
            value=value,
            bound=highest,
            gap=(highest - value) / highest if highest > 0 else 0.0,
            term=0.0,
        ),
    )
