"""The arbiter: one machine for the cluster that decides every job's plan."""

from __future__ import annotations

from typing import Any, ClassVar

from stretto_core.algorithms import SELECT
from stretto_core.arbiter import ArbiterMachine
from stretto_core.arbiter.state import ArbiterState
from stretto_messages.base import Message
from stretto_runtime import Meta, Service
from stretto_runtime.algorithms import algorithm

from stretto_arbiter import handlers
from stretto_arbiter.observations import OBSERVATIONS
from stretto_arbiter.settings import ArbiterSettings
from stretto_arbiter.studying import Studies


class Arbiter(Service):
    """Admits jobs, grants measurements and memory, and shares the cluster between all jobs."""

    name = "arbiter"
    version = ArbiterMachine.version
    settings_type = ArbiterSettings
    observations = OBSERVATIONS
    tick_s = 1.0
    state_types: ClassVar[dict[str, type]] = {"cluster": ArbiterState}

    def __init__(self, settings: ArbiterSettings) -> None:
        super().__init__(settings)
        self._algorithm = algorithm(SELECT, settings.algorithm, "STRETTO_ARBITER_ALGORITHM")
        if settings.background_algorithm:
            algorithm(SELECT, settings.background_algorithm, "STRETTO_ARBITER_BACKGROUND_ALGORITHM")
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
