"""What the server sends, taken apart at a third of nats-py's price: for each event that is handled come two messages.

Whole messages are cut out of what has arrived, and headers are looked at when somebody asks for one. All other lines of
the protocol are rare and left to the original. The version is pinned; ``test_parser`` holds both against each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nats.aio.msg import Msg
from nats.errors import ProtocolError
from nats.protocol.parser import Parser as Original

HEAD = "NATS/1.0"
BLANK = " \t\n\v\f\r"
END = b"\r\n"
MOST_WORDS = {b"MSG": 5, b"HMSG": 6}
"""of the line before a message; with a reply subject it has them all"""


def header_lines(lines: str) -> dict[str, str]:
    """``name: value`` by name."""
    found: dict[str, str] = {}
    for line in lines.split("\r\n"):
        name, colon, value = line.partition(":")
        if colon:
            found[name.strip(BLANK)] = value.strip(BLANK)
    return found


class Headers(Mapping[str, str]):
    """The headers of one message, as they came. ``Status`` and ``Description``: what the server itself has to say."""

    __slots__ = ("_block", "_found")

    def __init__(self, block: bytes = b"") -> None:
        self._block = block
        self._found: dict[str, str] | None = None

    def get(self, key: str, default: Any = None) -> Any:
        if self._found is None and key not in ("Status", "Description") and key.encode() not in self._block:
            return default
        return self._parsed().get(key, default)

    def __getitem__(self, key: str) -> str:
        return self._parsed()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parsed())

    def __len__(self) -> int:
        return len(self._parsed())

    def __bool__(self) -> bool:
        return bool(self._block)

    def __repr__(self) -> str:
        return repr(self._parsed())

    def _parsed(self) -> dict[str, str]:
        if self._found is None:
            first, _, lines = self._block.decode("utf-8", "replace").partition("\r\n")
            status, _, description = first.removeprefix(HEAD).strip(BLANK).partition(" ")
            said = {"Status": status, "Description": description.strip(BLANK)}
            self._found = {name: text for name, text in said.items() if text} | header_lines(lines)
        return self._found


class Received(Msg):
    """A message for a ``direct`` handler."""

    def __init__(self, subject: str, reply: str, data: bytes, block: bytes) -> None:
        self.subject = subject
        self.reply = reply
        self.data = data
        self.headers = Headers(block) if block else None  # type: ignore[assignment]


class Parser(Original):
    """Hands messages to ``direct`` handlers itself, and everything else to the client."""

    nc: Any

    def reset(self) -> None:
        """Begin with a new line to the server."""
        super().reset()
        self._rest = bytearray()
        self._enough = 0
        """so long must ``_rest`` be to hold another whole message"""
        self._line = object()

    async def parse(self, data: bytes = b"") -> None:
        """Take in what has arrived. Raises ProtocolError."""
        if self._rest:
            self._rest += data
            if len(self._rest) < self._enough:
                return
            data, self._rest = bytes(self._rest), bytearray()
        line, begin, end = self._line, 0, len(data)
        while begin < end and line is self._line:  # else the rest was said on a line that is no more
            eol = data.find(END, begin)
            if eol < 0:
                self._keep(data, begin, 0)
                return
            words = data[begin:eol].split()
            most = MOST_WORDS.get(words[0]) if words else None
            if most is None:
                await super().parse(data[begin : eol + 2])
                begin = eol + 2
                continue
            try:
                number, size, head = int(words[2]), int(words[-1]), int(words[-2]) if most == 6 else 0
            except (ValueError, IndexError):
                raise ProtocolError(f"nats: malformed {words[0].decode()}") from None
            body, after = eol + 2 + head, eol + 4 + size
            if after > end:
                self._keep(data, begin, after - begin)
                return
            reply = words[3] if len(words) == most else b""
            handler = self._handler(number)
            begin, message, block = after, data[body : after - 2], data[eol + 2 : body]
            if handler is None:
                await self.nc._process_msg(number, words[1], reply, message, block)
                continue
            try:
                handler(Received(words[1].decode(), reply.decode(), message, block))
            except Exception as error:  # must not end the reading task
                await self.nc._error_cb(error)

    def _keep(self, data: bytes, begin: int, enough: int) -> None:
        self._rest, self._enough = bytearray(data[begin:]), enough

    def _handler(self, number: int) -> Callable[[Msg], None] | None:
        try:
            return self.nc._subs[number]._cb.handler
        except (KeyError, AttributeError):  # it is gone, or has a queue
            return None
