"""Our cheaper internals of nats-py against the originals."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client as Original
from stretto_runtime import Client
from stretto_runtime.connection import Connection

names = st.from_regex(r"[A-Za-z][A-Za-z0-9-]{0,20}", fullmatch=True)
values = st.text(st.characters(exclude_characters="\r\n", exclude_categories=("Cs", "Cc")), max_size=30)


@given(st.dictionaries(names, values, max_size=8))
def test_headers_parse_as_in_the_original(headers: dict[str, str]) -> None:
    raw = "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode() + b"\r\n"
    assert Connection._parse_header_lines(raw) == Original._parse_header_lines(raw)


async def test_what_is_sent_arrives_and_a_line_break_cannot_forge_a_header(client: Client) -> None:
    got: asyncio.Queue[Any] = asyncio.Queue()
    await client.bus.subscribe("probe.>", got.put_nowait)
    connection = client.bus.connection
    await connection.publish("probe.plain", b"1")
    await connection.publish("probe.headers", b"2", reply="probe.back", headers={"a": "ä b", "empty": ""})
    await connection.publish("probe.forged", b"3", headers={"a": "x\r\nevil: 1", "b": "y"})
    plain, headed, forged = [await asyncio.wait_for(got.get(), 2) for _ in range(3)]
    assert (plain.subject, plain.data, plain.headers) == ("probe.plain", b"1", None)
    assert (headed.data, headed.reply, headed.headers) == (b"2", "probe.back", {"a": "ä b", "empty": ""})
    assert forged.headers == {"a": "x evil: 1", "b": "y"}


async def test_a_handler_that_raises_does_not_end_the_connection(client: Client) -> None:
    got: asyncio.Queue[Any] = asyncio.Queue()

    def handler(msg: Any) -> None:
        if msg.data == b"bad":
            raise RuntimeError("a bug")
        got.put_nowait(msg.data)

    await client.bus.subscribe("probe.x", handler)
    await client.bus.connection.publish("probe.x", b"bad")
    await client.bus.connection.publish("probe.x", b"good")
    assert await asyncio.wait_for(got.get(), 2) == b"good"
