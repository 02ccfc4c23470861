"""A message as it was received; its headers are read when somebody asks for one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nats.aio.msg import Msg

HEAD = "NATS/1.0"
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
