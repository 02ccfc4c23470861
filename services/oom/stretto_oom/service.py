"""The memory watch over the parameter servers of every job."""

from __future__ import annotations

from typing import Any, ClassVar

from stretto_core.algorithms import OOM
from stretto_core.oom import OomMachine, WatchState
from stretto_messages.base import Message
from stretto_runtime import Meta, Service
from stretto_runtime.algorithms import algorithm

from stretto_oom import handlers
from stretto_oom.settings import OomSettings


class Oom(Service):
    """Hears what parameter servers use, says where it goes and what they need."""

    name = "oom"
    version = OomMachine.version
    settings_type = OomSettings
    state_types: ClassVar[dict[str, type]] = {"job": WatchState}

    def __init__(self, settings: OomSettings) -> None:
        super().__init__(settings)
        self._law = algorithm(OOM, settings.algorithm, "STRETTO_OOM_ALGORITHM")

    def machine(self, key: str, state: WatchState | None) -> OomMachine:
        return OomMachine(state, self.settings.watch(), self._law)

    def to_event(self, message: Message, meta: Meta) -> Any:
        return handlers.to_event(message, self.settings.table_slots)

    def to_message(self, key: str, fact: Any) -> Message:
        return handlers.to_message(key, fact)
