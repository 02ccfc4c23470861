"""The profiler as a service."""

from __future__ import annotations

from typing import Any, ClassVar

import stretto_wire as wire
from stretto_core.algorithms import DETECT
from stretto_core.profiler.books import ProfilerState
from stretto_core.profiler.machine import ProfilerMachine
from stretto_messages.actuator import (
    JobFailed,
    MigrationFinished,
    MigrationStarted,
    PlanApplied,
    PodExited,
    PodResized,
    PodStarted,
)
from stretto_messages.arbiter import PlanDecided
from stretto_messages.dispatcher import JobCompleted, JobProgressed
from stretto_messages.gateway import JobCancelled
from stretto_messages.pods import PsReported, WorkerReported
from stretto_runtime import Input, Meta, Service
from stretto_runtime.algorithms import algorithm

from . import handlers
from .settings import ProfilerSettings


class Profiler(Service):
    """See the README."""

    name = "profiler"
    version = ProfilerMachine.version
    settings_type = ProfilerSettings
    inputs = (
        Input(wire.JobSubmitted),
        Input(JobCancelled),
        Input(JobCompleted),
        Input(JobProgressed),
        Input(JobFailed),
        Input(PlanDecided),
        Input(PlanApplied),
        Input(PodStarted),
        Input(PodExited),
        Input(PodResized),
        Input(MigrationStarted),
        Input(MigrationFinished),
        Input(WorkerReported),
        Input(PsReported),
    )
    state_types: ClassVar[dict[str, type]] = {"job": ProfilerState}

    def __init__(self, settings: ProfilerSettings) -> None:
        super().__init__(settings)
        self._detector = algorithm(DETECT, settings.algorithm, "STRETTO_PROFILER_ALGORITHM")

    def machine(self, key: str, state: Any) -> ProfilerMachine:
        return ProfilerMachine(state, self.settings.rules, self._detector)

    def to_event(self, message: Any, meta: Meta) -> Any:
        return handlers.to_event(message)

    def to_message(self, key: str, fact: Any) -> Any:
        return handlers.to_message(key, fact)
