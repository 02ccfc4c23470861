"""Explanation of a choice: why a plan was chosen and why the others were not, in sentences with figures."""

from __future__ import annotations

from dataclasses import dataclass

from stretto_messages.base import GIB, three_digits
from stretto_messages.planner import CandidatesComputed
from stretto_messages.values import Alternative, Candidate, Resources, Round

from stretto_core.arbiter.selection import Contender, Objective, Option, SelectionProblem
from stretto_core.arbiter.worth import as_option, holdable, identified, in_words, required_gain
from stretto_core.model.pareto import relative_error
from stretto_core.model.stages import in_words as stages_in_words
from stretto_core.model.types import HOUR_S, JobProfile

TERMS: dict[Objective, str] = {
    "efficiency": "gain / cost x weight (Eq. 12, rho {rho:g})",
    "gain": "gain",
    "completion": "seconds by which the job ends earlier",
    "cost": "gain / cost x weight, of plans that train a sample for less (Eq. 12, rho {rho:g})",
}


@dataclass(frozen=True, slots=True)
class Choice:
    """One job's choice in a round. ``index`` is the chosen candidate's; ``free``: the free resources of the round."""

    computed: CandidatesComputed
    profile: JobProfile
    contender: Contender
    problem: SelectionProblem
    index: int
    free: Resources
    gain_fraction_min: float
    round: Round

    @property
    def candidate(self) -> Candidate:
        """The chosen candidate."""
        return self.computed.candidates[self.index]

    @property
    def offered(self) -> dict[str, Option]:
        """Return the options of the round, by the candidates' indices."""
        return {option.id: option for option in self.contender.options}


def why(choice: Choice) -> list[str]:
    """Return the reasons of a decision: measurement, prediction, cost, and its term of the objective."""
    computed, candidate, problem = choice.computed, choice.candidate, choice.problem
    option = choice.offered[str(choice.index)]
    need = required_gain(candidate, choice.gain_fraction_min)
    term = TERMS[problem.objective].format(rho=problem.rho)
    jobs, found, interval = len(problem.contenders), choice.round, candidate.throughput_interval
    of = f"of {found.objective} " if found.objective != problem.objective else ""
    faster = candidate.throughput / computed.throughput - 1
    bar = f"{need:+.0%}: {choice.gain_fraction_min:.0%} and {relative_error(candidate):.0%} of error"
    if choice.profile.elsewhere:
        pods = f"{computed.plan.workers} to {candidate.plan.workers}"
        speed = [f"{pods} pods of an object whose speed nobody measures: it counts as that of its pods, {faster:+.0%}"]
        return [*speed, f"costs {option.cost:+.4f} per hour; {term} = {found.term:.3g}"]
    judged = (
        f"needed were {bar}"
        if faster >= need
        else f"below the {bar} needed for speed; accepted because the rest of the job becomes cheaper"
    )
    return [
        f"measured now: {computed.throughput:.0f} samples/s with {computed.plan.describe()}",
        f"predicted: {candidate.throughput:.0f} samples/s (90 %: {interval.low:.0f} to"
        f" {interval.high:.0f}), {faster:+.0%}; {judged}",
        f"costs {option.cost:+.4f} per hour; the change wastes about {candidate.overhead_s:.0f} s, which leaves a"
        f" gain of {candidate.gain:.0f} samples/s (Eq. 8)",
        f"{term} = {found.term:.3g}, {_rank(choice)} of {len(choice.contender.options)} worthwhile"
        f" plans, {jobs} job{'s' * (jobs != 1)} in the round",
        f"{found.algorithm} reaches {found.value:.4g} {of}in all; no choice exceeds {found.bound:.4g}: at most"
        f" {found.gap:.3%} are missing",
        *_mix_in_words(choice),
    ]


def _mix_in_words(choice: Choice) -> list[str]:
    """Compare a plan that has workers on devices with the fastest one of cores alone; tell what spot devices cost."""
    chosen = choice.candidate
    if not chosen.plan.groups:
        return []
    if chosen.plan.stages > 1:
        return [*_stages_in_words(choice), *_spot_in_words(choice)]
    words = [f"{count} x {place.device or 'cores'}" for place, count in chosen.plan.worker_places.items()]
    told = [f"workers are {' and '.join(words)}"]
    alone = [each for each in choice.computed.candidates if not each.plan.groups and identified(each)]
    if alone:
        best = max(alone, key=lambda each: each.throughput)
        told[0] += (
            f": {chosen.throughput / best.throughput:.2g} times the speed of {best.plan.workers} x cores, the fastest"
            f" plan without devices, for {chosen.cost_per_hour / best.cost_per_hour:.2g} of its price"
        )
    return told + _spot_in_words(choice)


def _stages_in_words(choice: Choice) -> list[str]:
    """Tell what each stage takes, and what a sample costs beside the best plan without stages."""
    chosen = choice.candidate
    told = [f"steps pass {chosen.plan.stages} stages: {stages_in_words(chosen.stage_times_s)}"]
    single = [each for each in choice.computed.candidates if each.plan.stages == 1 and identified(each)]
    if single:
        best, each = min(map(_million_cost, single)), _million_cost(chosen)
        told.append(
            f"a million samples cost {three_digits(each)} with stages, beside {three_digits(best)} of the cheapest plan"
            f" without: {each / best - 1:+.0%}"
        )
    return told


def _million_cost(candidate: Candidate) -> float:
    """Return the cost of a million samples under a plan."""
    return candidate.cost_per_hour / HOUR_S * 1e6 / candidate.throughput


def _spot_in_words(choice: Choice) -> list[str]:
    """Tell what interruptions of spot devices cost."""
    spot = {each.name: each for each in choice.profile.devices if each.interruptions_per_hour}
    return [
        f"{group.device} is taken away {spot[group.device].interruptions_per_hour:g} times an hour, which costs"
        f" {spot[group.device].lost(choice.computed.back_s):.1%} of the time of its workers"
        for group in choice.candidate.plan.groups
        if group.device in spot and choice.computed.back_s  # an earlier version did not tell it
    ]


def _rank(choice: Choice) -> str:
    """Describe the rank of the plan's term: not always the best, because a round may leave other jobs room."""
    terms = choice.problem.values(choice.contender, choice.contender.options)
    better = sum(term > choice.round.term for term in terms)
    return f"number {better + 1}" if better else "the best"


def alternatives(choice: Choice, most: int) -> list[Alternative]:
    """Return the other candidates with the reason against each: affordable ones first, then by their terms."""
    here, offered = choice.profile.resources(choice.computed.plan), choice.offered
    others = [
        (index, candidate)
        for index, candidate in enumerate(choice.computed.candidates)
        if index != choice.index and candidate.plan != choice.computed.plan
    ]
    options = [
        offered.get(str(index)) or as_option(index, candidate, choice.computed, here, choice.profile)
        for index, candidate in others
    ]
    terms = choice.problem.values(choice.contender, options)
    best_first = sorted(zip(terms, (candidate for _, candidate in others), strict=True), key=lambda row: -row[0])
    affordable, beyond = list[tuple[float, Candidate]](), list[tuple[float, Candidate]]()
    for term, candidate in best_first:
        if len(affordable) == most:  # the resources of a plan take longer than all else of a candidate
            break
        more = choice.profile.resources(candidate.plan) - here
        (affordable if identified(candidate) and more.fits(choice.free) else beyond).append((term, candidate))
    return [
        Alternative(
            plan=row.plan,
            throughput=row.throughput,
            cost_per_hour=row.cost_per_hour,
            efficiency=term,
            why_not=why_not(choice, row),
        )
        for term, row in [*affordable, *beyond][:most]
    ]


def why_not(choice: Choice, candidate: Candidate) -> str:
    """Return the first of the arbiter's conditions that the candidate fails."""
    net = candidate.gain / choice.computed.throughput
    need = required_gain(candidate, choice.gain_fraction_min)
    more = choice.profile.resources(candidate.plan) - choice.profile.resources(choice.computed.plan)
    if not identified(candidate):
        low, high = candidate.throughput_interval.low, candidate.throughput_interval.high
        return f"not identified: between {low:.0f} and {high:.0f} samples/s; nearer plans come first"
    limit = choice.profile.limits.high.ps_memory_bytes
    if not holdable(candidate.plan, choice.profile.limits, choice.computed.plan):
        return f"needs {candidate.plan.ps_memory_bytes / GIB:.2f} GiB per PS, the job's limits end at {limit / GIB:.2f}"
    if candidate.gain <= 0:
        return f"gains nothing once its overhead of {candidate.overhead_s:.0f} s is counted"
    if net < need:
        return f"predicted net gain {net:+.1%}, needed {need:+.1%}"
    if not more.fits(choice.free):
        return f"needs {in_words(more)} more, {in_words(choice.free)} were free"
    return "a smaller term of the objective, or its room went to another job"
