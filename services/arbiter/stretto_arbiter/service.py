"""The arbiter: one machine for the cluster that decides every job's plan."""

from __future__ import annotations

from typing import ClassVar

from stretto_core.algorithms import SELECT, SHARE
from stretto_core.arbiter.machine import ArbiterMachine
from stretto_core.arbiter.observations import BackgroundSolved
from stretto_core.arbiter.state import ArbiterState
from stretto_core.model.types import JobOpened
from stretto_messages.arbiter import GetCluster
from stretto_messages.base import Message
from stretto_runtime import CLUSTER, Meta, Service
from stretto_runtime.algorithms import algorithm
from stretto_runtime.profile import opened
from stretto_wire.contract.submission import JobSubmitted

from stretto_arbiter.background import BackgroundSolver
from stretto_arbiter.settings import ArbiterSettings


class Arbiter(Service[ArbiterSettings, ArbiterState, ArbiterMachine]):
    """Admits jobs, grants measurements and memory, and shares the cluster between all jobs."""

    name = "arbiter"
    version = ArbiterMachine.version
    settings_type = ArbiterSettings
    observations = (BackgroundSolved,)
    tick_s = 1.0
    state_types: ClassVar[dict[str, type]] = {"cluster": ArbiterState}

    def __init__(self, settings: ArbiterSettings) -> None:
        super().__init__(settings)
        self._algorithm = algorithm(SELECT, settings.algorithm, "STRETTO_ARBITER_ALGORITHM")
        if settings.background_algorithm:
            algorithm(SELECT, settings.background_algorithm, "STRETTO_ARBITER_BACKGROUND_ALGORITHM")
        self._ranking = algorithm(SHARE, settings.data_workers, "STRETTO_ARBITER_DATA_WORKERS")
        self._background = BackgroundSolver(self)

    def machine(self, key: str, state: ArbiterState | None) -> ArbiterMachine:
        settings = self.settings
        return ArbiterMachine(
            state, settings.machine(), self._algorithm, settings.algorithm, self._ranking, settings.data_workers
        )

    def answer(self, query: Message, machine: ArbiterMachine | None) -> Message:
        """Return who holds the cluster, and who waits for it."""
        assert isinstance(query, GetCluster)
        return (machine or self.machine(CLUSTER, None)).survey(query)

    def to_event(self, message: Message, meta: Meta) -> Message | JobOpened:
        return opened(message) if isinstance(message, JobSubmitted) else message

    async def reconcile(self, key: str, machine: ArbiterMachine) -> None:
        await self._background.follow(machine)

    async def released(self, key: str) -> None:
        await self._background.end()
