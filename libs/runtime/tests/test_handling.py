"""What one message does to the machines of a partition, without a bus."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest
from runtime_counting import Add, Counting, CountingSettings, CountState
from stretto_runtime.handling import Handling
from stretto_runtime.machines import Machines


def handling_of(service: Counting) -> Handling:
    arrivals: list[Any] = []
    routes = SimpleNamespace(
        arrivals=lambda stored, number: [stored], message=lambda arrival: Add("a", arrival.value), seen=arrivals
    )
    shell = SimpleNamespace(service=service, metrics=MagicMock(), routes=routes, tracing=MagicMock())
    return Handling(shell, 0, Machines(service), AsyncMock(), set(), 0, 0)  # type: ignore[arg-type]


def stored(value: int, seq: int) -> Any:
    meta = SimpleNamespace(seq=seq, request_id="")
    return SimpleNamespace(
        kind="message", key="a", source=str(seq), meta=meta, trace="", subject="evt.v1.gateway.job-cancelled.a",
        data=b"", value=value, time_s=1000.0, seq=seq,
    )  # fmt: skip


@pytest.mark.parametrize("bad", [-1, 666])
async def test_edges_hear_of_the_machine_that_takes_the_place_of_a_broken_one(bad: int) -> None:
    """They keep the object that they were given: without news they would act on a state nobody advances any more."""
    service = Counting(CountingSettings())
    service.to_event = lambda message, meta: message  # type: ignore[method-assign]
    handling = handling_of(service)
    handling._trace = lambda work: ""  # type: ignore[method-assign]
    handling.go_live()
    await handling.handle(stored(1, 1))
    kept = handling.machines.slots["a"].machine
    handling.changed.clear()
    await handling.handle(stored(bad, 2))
    assert handling.machines.slots["a"].machine is not kept
    assert handling.machines.slots["a"].machine.state == CountState(count=1, total=1)
    assert handling.changed == {"a"}
