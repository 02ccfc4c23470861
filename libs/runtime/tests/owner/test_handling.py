"""Effect of one message on the machines of a partition, without a bus."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest
from runtime_counting import Add, Counting, CountingSettings, CountState
from stretto_bus.connection import lines_of
from stretto_bus.received import header_lines
from stretto_messages.base import example_of
from stretto_messages.dispatcher import NextShard
from stretto_runtime.owner.handling import REPLIES_MAX, Handling, Ports, Request, Takeover
from stretto_runtime.owner.machines import Machines
from stretto_wire.contract.cloudevents import event_lines, headers_of
from stretto_wire.contract.registry import CHANNELS


def handling_of(service: Counting) -> Handling:
    arrivals: list[Any] = []
    routes = SimpleNamespace(
        arrivals=lambda stored, number: [stored], message=lambda arrival: Add("a", arrival.value), seen=arrivals
    )
    context = SimpleNamespace(service=service, metrics=MagicMock(), routes=routes, tracing=MagicMock())
    ports = Ports(MagicMock(full=False), MagicMock(add=AsyncMock()), MagicMock(), AsyncMock())
    return Handling(context, Takeover(0), Machines(service), ports)  # type: ignore[arg-type]


def stored(value: int, seq: int) -> Any:
    meta = SimpleNamespace(seq=seq, report_seq=0, request_id="", time_s=1000.0)
    return SimpleNamespace(
        kind="message", key="a", source=str(seq), meta=meta, trace="", subject="evt.v1.gateway.job-cancelled.a",
        data=b"", value=value, time_s=1000.0, seq=seq,
    )  # fmt: skip


@pytest.mark.parametrize("bad", [-1, 666])
async def test_edges_hear_of_the_machine_that_takes_the_place_of_a_broken_one(bad: int) -> None:
    """Side effects keep the machine that they were given: without news they would act on a state that stands still."""
    service = Counting(CountingSettings())
    service.to_event = lambda message, meta: message  # type: ignore[method-assign]
    handling = handling_of(service)
    handling._trace = lambda *_: ""  # type: ignore[method-assign]
    handling.go_live()
    await handling.handle(stored(1, 1))
    kept = handling.machines.slots["a"].machine
    handling.changed.clear()
    await handling.handle(stored(bad, 2))
    assert handling.machines.slots["a"].machine is not kept
    assert handling.machines.slots["a"].machine.state == CountState(count=1, total=1)
    assert handling.changed == {"a"}


def test_a_request_that_is_repeated_without_end_is_answered_at_its_last_inboxes() -> None:
    """A repetition costs its caller nothing of its budget, so it may cost the owner no memory."""
    request = Request("rpc.v1.dispatcher.next-shard.a", b"{}", example_of(NextShard), ["_INBOX.a.0"])
    for number in range(1, 1000):
        request.repeated(f"_INBOX.a.{number}")
    assert request.replies == [f"_INBOX.a.{number}" for number in range(1000 - REPLIES_MAX, 1000)]


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("trace", ["", f"00-{7:032x}-{9:016x}-01", "00-a\nevil: 1"])
def test_the_headers_of_an_output_are_those_of_any_event(kept: bool, trace: str) -> None:
    kind = next(one.message for one in CHANNELS if one.kind == "evt" and (one.kept_s is None) == kept)
    message = replace(example_of(kind), job="a")
    headers = headers_of(message, "dispatcher:7:0", 1795312000.123, "dispatcher", trace)
    lines = event_lines(message, "dispatcher:7:0", 1795312000.123, "dispatcher", trace)
    assert header_lines(f"Nats-Msg-Id: dispatcher:7:0\r\n{lines}") == header_lines(lines_of(headers))
