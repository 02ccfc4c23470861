"""Dead letters of heirs, where the server has forgotten the ids of their predecessors' letters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from stretto_bus.bus import Bus
from stretto_bus.faults import Unreadable
from stretto_bus.reading.ordered_consumer import last_of
from stretto_bus.writer import Fence, Writer
from stretto_installation.provision import make_stream
from stretto_runtime.owner import dead_letters
from stretto_runtime.owner.dead_letters import DeadLetters
from stretto_runtime.owner.state.seals import Damage
from stretto_testing.invariants import Watch
from stretto_testing.jetstream.streams import Kept, KeptStream
from stretto_testing.simulation import URL, Simulation
from stretto_wire.contract.registry import DEAD_LETTERS, STATE_PREFIX, STREAM

PLACE = "snap.dispatcher.0.a"
WINDOW_S, AWAY_S = 0.1, 1.0


async def letters_after(*owners: Sequence[int]) -> int:
    """Let one owner after the other set damages of one subject aside; return how many letters there are."""
    bus = await Bus.connect(URL)
    config = {"name": DEAD_LETTERS, "subjects": ["dlq.>"], "duplicate_window": int(WINDOW_S * 1e9)}
    await make_stream(bus, config)
    context: Any = SimpleNamespace(bus=bus, service=SimpleNamespace(name="dispatcher"), metrics=MagicMock())
    for seqs in owners:
        letters = DeadLetters(context, Writer(bus, Fence("fence", 0), asyncio.Event()))
        await letters.set_aside([Damage(f"{STATE_PREFIX}{PLACE}", seq, "damaged", b"x") for seq in seqs])
        await asyncio.sleep(AWAY_S)
    last = await last_of(bus, f"dlq.state.{PLACE}")
    await bus.close()
    return last


def test_an_heir_whose_server_lags_sets_nothing_aside_again() -> None:
    with Simulation(0) as simulation:
        simulation.server.lag_share = 1.0
        assert simulation.run(letters_after([1, 2], [1, 2], [3, 2])) == 3


def test_a_damaged_letter_keeps_no_heir_from_its_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scan(*_: Any, **__: Any) -> AsyncGenerator[Any]:
        yield SimpleNamespace(headers={"Nats-Msg-Id": "dlq:dispatcher:state.1"})
        raise Unreadable("message 2 cannot be read")

    monkeypatch.setattr(dead_letters, "scan", scan)
    with Simulation(0) as simulation:
        assert simulation.run(letters_after([1, 2])) == 1


@pytest.mark.parametrize(("message", "wrong"), [("poison:1", 0), ("gateway:1", 1)])
def test_a_letter_is_of_what_nobody_can_read_also_where_its_sender_had_no_answer(message: str, wrong: int) -> None:
    watch = Watch(["dispatcher"], 1.0)
    for stream, subject, seq, header in (
        (STREAM, "3.evt.v1.gateway.job-cancelled.a", 7, f"ce-id: {message}"),
        (DEAD_LETTERS, "dlq.a", 1, "error: unreadable\r\nNats-Msg-Id: dlq:dispatcher:7"),
    ):
        kept = Kept(seq, subject, f"NATS/1.0\r\n{header}\r\n\r\n".encode(), b"{", 0)
        watch.stored(KeptStream({"name": stream, "subjects": [">"]}, lambda: 0), kept, "a")
    assert len(watch.letters()) == wrong
