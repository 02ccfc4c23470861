"""Profiles of a job from the telemetry of its pods."""

from stretto_core.profiling.books import ProfilerState
from stretto_core.profiling.facts import (
    HotPsDetected,
    ImpossibleTelemetry,
    JobEnded,
    JobSubmitted,
    MigrationFinished,
    MigrationStarted,
    PlanApplied,
    PlanDecided,
    PodExited,
    PodStarted,
    ProfileMeasured,
    ProfilingRules,
    PsProfile,
    PsReported,
    StepTimes,
    StragglerCleared,
    StragglerDetected,
    WorkerProfile,
    WorkerReported,
)
from stretto_core.profiling.machine import ProfilerMachine

__all__ = [
    "HotPsDetected",
    "ImpossibleTelemetry",
    "JobEnded",
    "JobSubmitted",
    "MigrationFinished",
    "MigrationStarted",
    "PlanApplied",
    "PlanDecided",
    "PodExited",
    "PodStarted",
    "ProfileMeasured",
    "ProfilerMachine",
    "ProfilerState",
    "ProfilingRules",
    "PsProfile",
    "PsReported",
    "StepTimes",
    "StragglerCleared",
    "StragglerDetected",
    "WorkerProfile",
    "WorkerReported",
]
