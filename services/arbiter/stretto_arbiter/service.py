"""The arbiter: one machine for the cluster that decides every job's plan."""

from __future__ import annotations

from typing import Any, ClassVar

from stretto_core.algorithms import SELECT
from stretto_core.arbiter import ArbiterMachine
from stretto_core.arbiter.state import ArbiterState
from stretto_messages.actuator import (
    JobFailed,
    JobFinished,
    PlanApplied,
    PodExited,
    PodPending,
    PodStarted,
    ReplacementAsked,
    ReplacementEnded,
)
from stretto_messages.base import Message
from stretto_messages.dispatcher import JobCompleted, JobProgressed
from stretto_messages.gateway import JobCancelled, PlanRequested
from stretto_messages.oom import OomForecast
from stretto_messages.planner import CandidatesComputed, PlanProposed
from stretto_runtime import Input, Meta, Service
from stretto_runtime.algorithms import algorithm
from stretto_wire.submission import JobSubmitted

from stretto_arbiter import handlers
from stretto_arbiter.observations import OBSERVATIONS
from stretto_arbiter.settings import ArbiterSettings
from stretto_arbiter.studying import Studies


class Arbiter(Service):
    """Admits jobs, grants measurements and memory, and shares the cluster between all jobs."""

    name = "arbiter"
    version = ArbiterMachine.version
    settings_type = ArbiterSettings
    inputs = (
        Input(JobSubmitted, scope="cluster"),
        Input(JobCancelled, scope="cluster"),
        Input(PlanProposed, scope="cluster"),
        Input(PlanRequested, scope="cluster"),
        Input(CandidatesComputed, scope="cluster"),
        Input(OomForecast, scope="cluster"),
        Input(PlanApplied, scope="cluster"),
        Input(PodPending, scope="cluster"),
        Input(PodStarted, scope="cluster"),
        Input(PodExited, scope="cluster"),
        Input(ReplacementAsked, scope="cluster"),
        Input(ReplacementEnded, scope="cluster"),
        Input(JobProgressed, scope="cluster"),
        Input(JobCompleted, scope="cluster"),
        Input(JobFinished, scope="cluster"),
        Input(JobFailed, scope="cluster"),
    )
    observations = OBSERVATIONS
    tick_s = 1.0
    state_types: ClassVar[dict[str, type]] = {"cluster": ArbiterState}

    def __init__(self, settings: ArbiterSettings) -> None:
        super().__init__(settings)
        self._algorithm = algorithm(SELECT, settings.algorithm, "STRETTO_ARBITER_ALGORITHM")
        if settings.beside:
            algorithm(SELECT, settings.beside, "STRETTO_ARBITER_BESIDE")
        self._studies = Studies(self)

    def machine(self, key: str, state: ArbiterState | None) -> ArbiterMachine:
        return ArbiterMachine(state, self.settings.machine(), self._algorithm, self.settings.algorithm)

    def to_event(self, message: Message, meta: Meta) -> Any:
        return handlers.to_event(message, meta)

    def to_message(self, key: str, fact: Any) -> Message:
        return handlers.to_message(key, fact)

    async def reconcile(self, key: str, machine: ArbiterMachine) -> None:
        await self._studies.follow(machine)

    async def released(self, key: str) -> None:
        await self._studies.end()
