"""A counting service whose jobs end with the number 0, and are forgotten after a short while.

``python runtime_ending.py`` runs one replica of it, for tests that kill.
"""

from __future__ import annotations

from typing import Any

from runtime_counting import Add, Counter, Counting
from stretto_core.machine import Action
from stretto_runtime import run

FORGOTTEN_AFTER_S = 2.0


class EndingCounter(Counter):
    """Ends with 0 as long as nothing else comes."""

    def handle(self, event: Any, now: float) -> list[Action]:
        actions = super().handle(event, now)
        self.state.ticks = 1 if isinstance(event, Add) and event.value == 0 else 0
        return actions

    @property
    def ended(self) -> bool:
        """True after 0."""
        return self.state.ticks == 1


class Ending(Counting):
    forgotten_after_s = FORGOTTEN_AFTER_S

    def machine(self, key: str, state: Any) -> EndingCounter:
        return EndingCounter(state)


if __name__ == "__main__":
    run(Ending)
