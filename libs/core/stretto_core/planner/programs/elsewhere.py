"""Candidates of an object that another controller runs: nobody measures its speed, which is taken from its pods.

With nothing known but the pods, w pods are taken for w times the speed of one. A round then weighs objects by what
their pods cost and by their priorities, and never gives one more than its own limits.
"""

from __future__ import annotations

import math
from dataclasses import replace

from stretto_messages.planner import CandidatesComputed
from stretto_messages.values import Candidate, Interval, Plan

from stretto_core.model.types import JobProfile

CANDIDATES_MAX = 48
"""Sizes that are offered. Of more, those nearest to even steps are."""


def sizes(low: int, high: int) -> list[int]:
    """Return the numbers of pods that are offered, both ends among them."""
    step = max(math.ceil((high - low) / (CANDIDATES_MAX - 1)), 1)
    return sorted({*range(low, high, step), high})


def proportional(job: str, version: int, plan: Plan, profile: JobProfile) -> CandidatesComputed:
    """Return the plans that an object may have beside the one in force; throughputs are numbers of pods."""
    limits = profile.limits
    offered = sizes(limits.low.workers, limits.high.workers)
    plans = [replace(plan, workers=workers) for workers in offered if workers != plan.workers]
    return CandidatesComputed(
        job=job,
        plan_version=version,
        plan=plan,
        throughput=float(plan.workers),
        algorithm="proportional",
        plans_considered=len(offered),
        candidates=tuple(
            Candidate(
                id=f"w{each.workers}",
                plan=each,
                cost_per_hour=profile.cost_per_hour(each),
                throughput=float(each.workers),
                throughput_interval=Interval(low=float(each.workers), high=float(each.workers)),
                gain=float(each.workers - plan.workers),
                overhead_s=0.0,
            )
            for each in plans
        ),
    )
