"""Messages as they are received: cut out of the bytes of a read; headers are read when somebody asks for one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nats.aio.msg import Msg
from nats.errors import ProtocolError
from nats.protocol.parser import Parser

HEAD = "NATS/1.0"
END = b"\r\n"
BLANK = " \t\n\v\f\r"


def header_lines(lines: str) -> dict[str, str]:
    """Headers by name, from lines ``name: value``."""
    found: dict[str, str] = {}
    for line in lines.split("\r\n"):
        name, colon, value = line.partition(":")
        if colon:
            found[name.strip(BLANK)] = value.strip(BLANK)
    return found


class Headers(Mapping[str, str]):
    """The headers of one message. ``Status`` and ``Description`` come from the server itself."""

    __slots__ = ("_block", "_found")

    def __init__(self, block: bytes = b"") -> None:
        self._block = block
        self._found: dict[str, str] | None = None

    def get(self, key: str, default: Any = None) -> Any:
        if not self._block:
            return default
        if self._found is None and key not in ("Status", "Description"):
            name = key.encode()
            times = self._block.count(name)
            if not times:
                return default
            if times == 1 and (at := self._block.find(b"\r\n%b:" % name)) >= 0:  # to read all takes ten times as long
                line, _, _ = self._block[at + len(name) + 3 :].partition(END)
                return line.decode("utf-8", "replace").strip(BLANK)
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
            status_line = {"Status": status, "Description": description.strip(BLANK)}
            self._found = {name: text for name, text in status_line.items() if text} | header_lines(lines)
        return self._found


class Received(Msg):
    """A message for a ``direct`` handler."""

    def __init__(self, subject: str, reply: str, data: bytes, block: bytes) -> None:
        self.subject = subject
        self.reply = reply
        self.data = data
        self.headers = Headers(block) if block else None  # type: ignore[assignment]


class Messages(Parser):
    """The parser of nats-py, which finds a message by one search, and calls the handler of a ``direct`` subscription.

    The original tries a regular expression for each kind of line, and copies each message into a buffer and out of it.
    """

    nc: Any
    """The connection."""
    _whole_bytes = 0
    """Size of the message at the beginning of the buffer, of which a part is missing; 0: unknown."""

    def reset(self) -> None:
        """Forget what has arrived of a message."""
        super().reset()
        self._whole_bytes = 0

    async def parse(self, data: bytes = b"") -> None:
        """Hand over every whole message of what has arrived. Raises ProtocolError."""
        if self.buf:
            self.buf += data
            if len(self.buf) < self._whole_bytes:
                return
            data = bytes(self.buf)
            self.reset()
        begin = 0
        while (end := data.find(END, begin)) >= 0:
            words, body = data[begin:end].split(b" "), end + 2
            has_headers = words[0] == b"HMSG"
            if not has_headers and words[0] != b"MSG":
                await super().parse(data[begin:body])
                if not self.nc.is_connected:  # what follows is of a line that broke
                    return
                begin = body
                continue
            try:
                after, number = body + int(words[-1]), int(words[2])
                start = body + int(words.pop(-2)) if has_headers else body
                subject, reply = words[1], words[3] if len(words) == 5 else b""
            except (ValueError, IndexError):
                raise ProtocolError from None
            if not (body <= start <= after and len(words) <= 5):
                raise ProtocolError
            if after + 2 > len(data):
                self._whole_bytes = after + 2 - begin
                break
            begin = after + 2
            if (handler := self.nc.handler_of(number)) is None:
                await self.nc._process_msg(number, subject, reply, data[start:after], data[body:start])
                continue
            try:
                # a subject that is no UTF-8 must not be missing among those that are delivered in order
                text = subject.decode("utf-8", "replace")
                handler(Received(text, reply.decode(), data[start:after], data[body:start]))
            except Exception as error:  # must not end the reading task
                await self.nc._error_cb(error)
        self.buf += data[begin:]
