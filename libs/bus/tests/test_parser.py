"""Our parser of the server's lines against the original, however they are cut into pieces."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.errors import ProtocolError
from nats.protocol.parser import Parser as Original
from stretto_bus.connection import direct
from stretto_bus.parser import Headers, Parser

BLOCK = b"NATS/1.0\r\nce-id: profiler:7:0\r\ntraceparent: 00-a-b-01\r\n\r\n"
STATUS = b"NATS/1.0 100 FlowControl Request\r\nNats-Last-Consumer: 5\r\n\r\n"


class Told:
    """A client that writes down what its parser hands it. Subscription 1 is direct, 2 is not, 3 is unknown."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.stats: dict[str, int] = {"in_msgs": 0, "in_bytes": 0}
        self._subs = {1: Subscription(direct(self._direct)), 2: Subscription(None)}

    def _direct(self, message: Any) -> None:
        headers = dict(message.headers) if message.headers is not None else None
        self.seen.append(("message", message.subject, message.reply, message.data, headers))

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, block: bytes | None) -> None:
        headers = dict(Headers(block)) if block else None
        self.seen.append(("message", subject.decode(), reply.decode(), data, headers))

    async def _process_ping(self) -> None:
        self.seen.append("ping")

    async def _process_pong(self) -> None:
        self.seen.append("pong")

    async def _process_err(self, text: str) -> None:
        self.seen.append(text)

    async def _process_info(self, info: dict[str, Any]) -> None:
        self.seen.append(info)


class Subscription:
    def __init__(self, callback: Any) -> None:
        self._cb = callback


def message(number: int, reply: bytes, data: bytes, block: bytes) -> bytes:
    before = b" ".join(part for part in (b"evt.a.b", b"%d" % number, reply) if part)
    if block:
        return b"HMSG %b %d %d\r\n%b%b\r\n" % (before, len(block), len(block) + len(data), block, data)
    return b"MSG %b %d\r\n%b\r\n" % (before, len(data), data)


lines = st.one_of(
    st.builds(
        message,
        st.integers(1, 3),
        st.sampled_from([b"", b"$JS.ACK.S.c.1.9.1.170.0"]),
        st.sampled_from([b"", b"{}", b"\r\n", b"MSG a 1 2\r\n", b"x" * 300]),
        st.sampled_from([b"", BLOCK, STATUS]),
    ),
    st.sampled_from([b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b'INFO {"a": 1}\r\n', b"-ERR 'Some Violation'\r\n"]),
)


@given(st.lists(lines, max_size=8), st.lists(st.integers(1, 400), max_size=30))
def test_however_it_is_cut_the_same_is_seen_as_by_the_original(said: list[bytes], cuts: list[int]) -> None:
    everything = b"".join(said)
    assert asyncio.run(_seen(Parser, everything, cuts)) == asyncio.run(_seen(Original, everything, cuts))


async def _seen(parser_type: type[Original], everything: bytes, cuts: list[int]) -> list[Any]:
    client = Told()
    parser = parser_type(client)
    for size in cuts:
        piece, everything = everything[:size], everything[size:]
        await parser.parse(piece)
    await parser.parse(everything)
    return client.seen


@pytest.mark.parametrize("line", [b"NONSENSE\r\n", b"\r\n", b"MSG a\r\n", b"MSG a 1 x\r\n", b"HMSG a 1\r\n"])
async def test_what_is_no_line_of_the_protocol_is_an_error(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        await Parser(Told()).parse(line)


async def test_what_was_said_before_a_break_is_not_heard_after_it() -> None:
    client = Told()
    parser = Parser(client)

    async def breaks(text: str) -> None:
        parser.reset()

    client._process_err = breaks  # type: ignore[method-assign]
    await parser.parse(b"-ERR 'bye'\r\nPING\r\nMSG a 1 1\r\n")
    await parser.parse(b"PONG\r\n")
    assert client.seen == ["pong"]


def test_a_header_is_found_by_its_name_and_a_value_is_no_name() -> None:
    headers = Headers(b"NATS/1.0\r\nce-id: traceparent\r\n\r\n")
    assert headers.get("traceparent", "none") == "none"
    assert (headers.get("reason"), headers["ce-id"]) == (None, "traceparent")
    assert Headers(STATUS) == {"Status": "100", "Description": "FlowControl Request", "Nats-Last-Consumer": "5"}
