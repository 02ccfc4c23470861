"""The counting service of the next version: its state is named otherwise, and its outputs say who decided them.

``python runtime_upgraded.py`` runs one replica of it. ``STRETTO_EPOCH=0``: it decides everything as before.
``STRETTO_WAY_BACK=true``: the version before may come back; only a job that got ``LARGE`` has no way back.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from runtime_counting import Counter, Counting, CountingSettings, CountState
from stretto_messages.dispatcher import JobProgressed
from stretto_runtime import run


@dataclass
class UpgradedState:
    count: int = 0
    sum: int = 0
    ticks: int = 0
    seen: dict[str, int] = field(default_factory=dict)


class Renamed(Counter):
    """The same machine under a new version that cannot read earlier snapshots."""

    version = 2

    def __init__(self, state: UpgradedState | None = None) -> None:
        state = state or UpgradedState()
        super().__init__(CountState(state.count, state.sum, state.ticks, state.seen))

    @property
    def state(self) -> Any:
        return UpgradedState(self._state.count, self._state.total, self._state.ticks, self._state.seen)

    @state.setter
    def state(self, state: CountState) -> None:
        self._state = state

    def handle(self, event: Any, now: float) -> Any:
        inner = Counter(self._state)
        return inner.handle(event, now)


class Migrating(Renamed):
    @staticmethod
    def migrate(state: dict[str, Any], from_version: int) -> dict[str, Any]:
        assert from_version == 1
        return {**{name: value for name, value in state.items() if name != "total"}, "sum": state["total"]}


LARGE = 599


class Returning(Migrating):
    """Lets the version before come back, but loses on the way that there was a large number."""

    storage_version = 1

    @staticmethod
    def migrate_back(state: dict[str, Any], to_version: int) -> dict[str, Any]:
        assert to_version == 1
        return {"count": state["count"], "total": state["sum"], "ticks": state["ticks"], "seen": {}}

    def handle(self, event: Any, now: float) -> Any:
        actions = super().handle(event, now)
        if getattr(event, "value", 0) == LARGE:
            self._state.seen["large"] = LARGE
        return actions


class UpgradedSettings(CountingSettings):
    epoch: int = 1
    way_back: bool = False


class Stuck(Counting):
    """Version 2 without a migration."""

    version = 2
    settings_type = UpgradedSettings
    state_types = {"job": UpgradedState}  # noqa: RUF012

    def machine(self, key: str, state: Any) -> Renamed:
        return Renamed(state)

    def to_message(self, key: str, fact: Any) -> Any:
        message = super().to_message(key, fact)
        decided = isinstance(message, JobProgressed)
        return replace(message, epoch=self.settings.epoch) if decided else message


class Upgraded(Stuck):
    def machine(self, key: str, state: Any) -> Migrating:
        return Returning(state) if self.settings.way_back else Migrating(state)


if __name__ == "__main__":
    run(Upgraded)
