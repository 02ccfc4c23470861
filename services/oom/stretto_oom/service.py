"""The memory watch as a service."""

from __future__ import annotations

from typing import ClassVar

from stretto_core.algorithms import OOM
from stretto_core.oom.machine import OomMachine
from stretto_core.oom.state import JobOpened, WatchSettings, WatchState
from stretto_messages.base import Message
from stretto_runtime import Meta, Service
from stretto_runtime.algorithms import algorithm
from stretto_runtime.profile import profile_of
from stretto_runtime.settings import machine_settings
from stretto_wire.contract.submission import JobSubmitted

from stretto_oom.settings import OomSettings


class Oom(Service[OomSettings, WatchState, OomMachine]):
    """Forecasts the memory of every job's parameter servers, and requests what they need."""

    name = "oom"
    version = OomMachine.version
    settings_type = OomSettings
    state_types: ClassVar[dict[str, type]] = {"job": WatchState}

    def __init__(self, settings: OomSettings) -> None:
        super().__init__(settings)
        self._watch = machine_settings(WatchSettings, settings)
        self._law = algorithm(OOM, settings.algorithm, "STRETTO_OOM_ALGORITHM")

    def machine(self, key: str, state: WatchState | None) -> OomMachine:
        return OomMachine(state, self._watch, self._law)

    def to_event(self, message: Message, meta: Meta) -> Message | JobOpened:
        """Return what the watch needs to know of a new job; every other message is an event as it is."""
        if not isinstance(message, JobSubmitted):
            return message
        spec = message.spec
        bounds = spec.resources.ps.memory
        return JobOpened(spec.samples_total, bounds.min, bounds.max, profile_of(spec))
