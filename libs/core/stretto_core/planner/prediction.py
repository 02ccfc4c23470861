"""The speed of a live job under another plan, by its own fitted model."""

from __future__ import annotations

import math

from stretto_messages.base import RATE_MAX
from stretto_messages.fitter import ModelFitted
from stretto_messages.planner import PlanPrediction
from stretto_messages.values import Interval, Plan

from stretto_core.model.mixed import MixedWorkers
from stretto_core.model.throughput import KNOWS_NOTHING, Configuration
from stretto_core.model.types import JobProfile


def prediction(workers: MixedWorkers, fitted: ModelFitted, profile: JobProfile, wanted: Plan) -> PlanPrediction:
    """Return the prediction for the plan within the job's limits. Throughput is n x B / T (samples per second)."""
    plan = profile.limits.clamp(wanted)
    if plan.groups:
        return _mixed(workers, fitted, profile, plan)
    (found,) = workers.model.predicted([Configuration.of(plan, fitted.batch_size)])
    samples = plan.workers * fitted.batch_size
    return PlanPrediction(
        plan=plan,
        step_time_s=found.step_time_s,
        step_time_interval_s=Interval(low=found.low_s, high=found.high_s),
        throughput=min(samples / found.step_time_s, RATE_MAX),
        throughput_interval=Interval(
            low=min(samples / found.high_s, RATE_MAX), high=min(samples / found.low_s, RATE_MAX)
        ),
        cost_per_hour=profile.cost_per_hour(plan),
        plan_version=fitted.plan_version,
    )


def _mixed(workers: MixedWorkers, fitted: ModelFitted, profile: JobProfile, plan: Plan) -> PlanPrediction:
    """Return the prediction for a plan with groups, whose step time is the mean over all workers that take batches."""
    throughput = min(workers.throughput(plan), RATE_MAX)
    noisy_sd = math.hypot(float(workers.log_sd([plan])[0]), fitted.log_sd)
    factor = math.exp(min(workers.model.quantile() * noisy_sd, KNOWS_NOTHING))
    taking = sum(count for place, count in plan.worker_places.items() if not place.stage)
    step_time_s = taking * fitted.batch_size / throughput
    return PlanPrediction(
        plan=plan,
        step_time_s=step_time_s,
        step_time_interval_s=Interval(low=step_time_s / factor, high=step_time_s * factor),
        throughput=throughput,
        throughput_interval=Interval(low=throughput / factor, high=min(throughput * factor, RATE_MAX)),
        cost_per_hour=profile.cost_per_hour(plan),
        plan_version=fitted.plan_version,
    )
