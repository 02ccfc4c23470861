"""Words of the gateway about damage, before and after it has looked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from stretto_bus.damage import UNREAD, Damage
from stretto_bus.faults import BusFault
from stretto_gateway.streams import soundness
from stretto_gateway.streams.soundness import LOOKED_AT, Soundness
from stretto_wire.contract.registry import STREAM

from tests.waits import until


class Bus:
    """A bus whose first answer is a fault, and whose log is damaged. ``at_look`` is called at each look."""

    def __init__(self, at_look: Callable[[], object]) -> None:
        self._at_look, self._looks = at_look, 0

    async def damage(self, stream: str) -> Damage | None:
        self._at_look()
        self._looks += 1
        if self._looks == 1:
            raise BusFault("busy")
        return Damage(STREAM, ((7, 7),), {"3.evt.v1.x.y.b": 1}) if stream == STREAM else None


async def test_nothing_is_called_sound_before_each_stream_was_looked_at_and_a_fault_is_no_day_of_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(soundness, "AGAIN_S", 0.01)
    told: list[list[str]] = []
    looked = Soundness(Bus(lambda: told.append(looked.warnings)), lambda: True)
    looking = asyncio.create_task(looked.run())
    await until(lambda: told and UNREAD not in looked.warnings)
    assert len(told) == 2 * len(LOOKED_AT)
    assert all(UNREAD in warnings for warnings in told)
    (damage,) = looked.warnings
    assert "sequence 7: everything else goes on" in damage
    assert "job b" not in damage, "who asks for the health of the gateway may not know of jobs"
    looking.cancel()
