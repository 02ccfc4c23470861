"""Facts of the fitter: the throughput model of a job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, MaxLen

from stretto_messages.base import Count, Message, Name, Seconds, example
from stretto_messages.scenario import JOB, PLAN
from stretto_messages.values import Interval, MeasuredConfiguration, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFitted(Message):
    """The throughput model of the job (DLRover-RM Eq. 1-6, or the form that measured data support)."""

    form: Literal["default", "paper"]
    coefficients: Annotated[dict[Name, Annotated[float, Ge(0)]], MaxLen(20)]
    overlap: Annotated[float, Ge(1)] = 1.0
    """Overlap of the paths of a step. 1: their times add up."""
    log_sd: Annotated[float, Ge(0)]
    """Posterior standard deviation of the noise of log step time."""
    covariance: Annotated[tuple[tuple[float, ...], ...], MaxLen(20)] = ()
    """Posterior covariance of the coefficients, in their order, per unit of ``log_sd`` squared."""
    degrees_of_freedom: Annotated[float, Gt(0), Le(10**6)] = 4.0
    """Degrees of freedom of the t quantile of intervals."""
    measured: Annotated[tuple[MeasuredConfiguration, ...], MaxLen(64)] = ()
    rmsle: Annotated[float, Ge(0)]
    """Error over the points used."""
    points: Count
    """Number of windows used."""
    configurations: Count
    """Number of distinct plans measured."""
    unidentified: Annotated[tuple[Name, ...], MaxLen(20)]
    plan_version: Count
    plan: Plan
    batch_size: Annotated[int, Ge(1)]
    measured_step_time_s: Seconds
    predicted_step_time_s: Seconds
    predicted_interval_s: Interval


example(
    ModelFitted(
        job=JOB,
        form="default",
        coefficients={"a1": 3.6e-05, "a3": 0.0016, "a4": 0.0013, "a5": 0.0, "a6": 0.0, "a7": 4e-06, "a2": 0.0021},
        log_sd=0.031,
        covariance=tuple(tuple(2.5e-07 if i == j else 0.0 for j in range(7)) for i in range(7)),
        degrees_of_freedom=7.8,
        measured=(
            MeasuredConfiguration(
                workers=2,
                ps=1,
                worker_cpu_cores=1.0,
                ps_cpu_cores=0.5,
                batch_size=512,
                step_time_s=0.0285,
                windows=12,
                log_sd=0.012,
            ),
        ),
        rmsle=0.018,
        points=24,
        configurations=3,
        unidentified=("a1", "a2"),
        plan_version=1,
        plan=PLAN,
        batch_size=512,
        measured_step_time_s=0.0285,
        predicted_step_time_s=0.0281,
        predicted_interval_s=Interval(low=0.0267, high=0.0296),
    )
)
