"""The profiler as a service."""

from __future__ import annotations

from typing import Any, ClassVar

from stretto_core.algorithms import DETECT
from stretto_core.profiler.books import ProfilerState
from stretto_core.profiler.machine import ProfilerMachine
from stretto_runtime import Meta, Service
from stretto_runtime.algorithms import algorithm

from . import handlers
from .settings import ProfilerSettings


class Profiler(Service):
    """See the README."""

    name = "profiler"
    version = ProfilerMachine.version
    settings_type = ProfilerSettings
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
