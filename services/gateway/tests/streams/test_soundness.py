"""Words of the gateway about damage, before and after it has looked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from stretto_bus.faults import BusFault
from stretto_bus.reading.damage import UNREAD, Damage
from stretto_gateway.streams import soundness
from stretto_gateway.streams.soundness import AGAIN_S, DAY_S, LOOKED_AT, Soundness
from stretto_wire.contract.registry import STREAM

from tests.waits import until


class Bus:
    """A bus whose first answers of its log, which is damaged, are faults. ``at_look`` is called at each look."""

    def __init__(self, at_look: Callable[[], object], faults: int = 1) -> None:
        self._at_look, self._faults = at_look, faults
        self.looked_at: list[str] = []

    async def damage(self, stream: str) -> Damage | None:
        self._at_look()
        self.looked_at.append(stream)
        if stream == STREAM and self.looked_at.count(STREAM) <= self._faults:
            raise BusFault("busy")
        return Damage(STREAM, ((7, 7),), {"3.evt.v1.x.y.b": 1}) if stream == STREAM else None


async def test_nothing_is_called_sound_before_each_stream_was_looked_at_and_a_fault_is_no_day_of_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(soundness, "AGAIN_S", 0.01)
    told: list[list[str]] = []
    looked = Soundness(Bus(lambda: told.append(looked.warnings)), lambda: True)
    looking = asyncio.create_task(looked.run())
    await until(lambda: looked.damages)
    *first, last = told
    assert len(first) == len(LOOKED_AT)
    assert all(UNREAD in warnings for warnings in first)
    assert last == [f"the stream {STREAM} could not be looked at: whether it is whole is not known"]
    (damage,) = looked.warnings
    assert "sequence 7: everything else goes on" in damage
    assert "job b" not in damage, "who asks for the health of the gateway may not know of jobs"
    looking.cancel()


async def test_a_stream_that_cannot_be_looked_at_is_tried_less_and_less_often_and_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Method: pauses take no time, and whoever has nothing to do for a day waits for ever."""
    pauses_s: list[float] = []

    async def sleep(duration_s: float) -> None:
        pauses_s.append(duration_s)
        await (asyncio.sleep(0) if duration_s < DAY_S else asyncio.Event().wait())

    monkeypatch.setattr(soundness, "asyncio", SimpleNamespace(sleep=sleep, Lock=asyncio.Lock, gather=asyncio.gather))
    bus = Bus(lambda: None, faults=99)
    looking = asyncio.create_task(Soundness(bus, lambda: True).run())
    await until(lambda: pauses_s.count(DAY_S) == len(LOOKED_AT))
    assert [pause_s for pause_s in pauses_s if pause_s < DAY_S] == [AGAIN_S * 2**n for n in range(11)]
    assert all(bus.looked_at.count(stream) == 1 for stream in LOOKED_AT if stream != STREAM)
    looking.cancel()
