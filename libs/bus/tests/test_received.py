"""Messages as they are received, and their headers."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.errors import ProtocolError
from nats.protocol.parser import Parser
from stretto_bus.received import Headers, Messages

STATUS = b"NATS/1.0 100 FlowControl Request\r\nNats-Last-Consumer: 5\r\n\r\n"


def test_a_header_is_found_by_its_name_and_a_value_is_no_name() -> None:
    headers = Headers(b"NATS/1.0\r\nce-id: traceparent\r\n\r\n")
    assert headers.get("traceparent", "none") == "none"
    assert (headers.get("reason"), headers["ce-id"]) == (None, "traceparent")
    assert Headers(STATUS) == {"Status": "100", "Description": "FlowControl Request", "Nats-Last-Consumer": "5"}


header_names = st.sampled_from(("ce-id", "ce-i", "id", "traceparent"))
header_values = st.sampled_from(("", "x", " ce-id: y ", "traceparent", "00-a-b-01 ", "\u00e9", "a:b"))


@given(st.lists(st.tuples(header_names, header_values), max_size=4), header_names, st.booleans())
def test_one_header_is_what_all_of_them_say(lines: list[tuple[str, str]], name: str, is_whole: bool) -> None:
    block = "NATS/1.0\r\n" + "\r\n".join(f"{name}:{value}" for name, value in lines)
    encoded = f"{block}\r\n\r\n".encode() if is_whole else block.encode()
    assert Headers(encoded).get(name, "none") == dict(Headers(encoded)).get(name, "none")


class Recorder:
    """Connection of a parser that keeps what it is handed, until its line breaks."""

    def __init__(self, parser: type[Parser]) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.is_connected = True
        self._parser = parser(self)

    def handler_of(self, sid: int) -> None:
        return None

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        self.told.append((sid, subject, reply, data, headers or b""))

    async def _process_ping(self) -> None:
        self.told.append(("PING",))

    async def _process_err(self, text: str) -> None:
        self.told.append((text,))
        self.is_connected = "permissions" in text
        if not self.is_connected:
            self._parser.reset()

    async def parse(self, reads: list[bytes]) -> list[tuple[Any, ...]]:
        """Return what it handed over, the kind of a fault last."""
        try:
            for read in reads:
                if self.is_connected:
                    await self._parser.parse(read)
        except ProtocolError:
            self.told.append(("fault",))
        return self.told


def _line(subject: str, reply: str, head: bytes, data: bytes) -> bytes:
    sizes = f"{len(head)} {len(head) + len(data)}" if head else f"{len(data)}"
    words = f"{'HMSG' if head else 'MSG'} {subject} 7 {reply + ' ' if reply else ''}{sizes}"
    return f"{words}\r\n".encode() + head + data + b"\r\n"


bodies = st.binary(max_size=40) | st.sampled_from((b"\r\n", b"MSG a 7 1\r\nx\r\n", b"x" * 5000))
messages = st.builds(
    _line,
    st.sampled_from(("a", "evt.v1.x.y.job-1")),
    st.sampled_from(("", "12", "$JS.ACK.S.C.1.2.3.4.5")),
    st.sampled_from((b"", STATUS, b"NATS/1.0\r\na: b\r\n\r\n")),
    bodies,
)
others = st.sampled_from(
    (b"PING\r\n", b"+OK\r\n", b"-ERR 'Permissions'\r\n", b"-ERR 'Stale Connection'\r\n", b"NO\r\n")
)


@given(st.lists(messages | others, max_size=12), st.data())
async def test_messages_are_those_of_the_original_wherever_a_read_ends(said: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(said)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    reads = [whole[begin:end] for begin, end in pairwise([0, *cuts, len(whole)])]
    assert await Recorder(Messages).parse(reads) == await Recorder(Parser).parse(said)


@pytest.mark.parametrize(
    "line", [b"MSG a\r\n", b"MSG a b 1\r\nx\r\n", b"HMSG a 7 9 8\r\n", b"MSG a 7 -15\r\n", b"MSG a 7 b c 1\r\n"]
)
async def test_a_message_that_makes_no_sense_breaks_the_line(line: bytes) -> None:
    assert await Recorder(Messages).parse([line]) == [("fault",)]
