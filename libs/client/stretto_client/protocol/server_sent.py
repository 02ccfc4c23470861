"""Server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html), from any pieces of a stream."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Frame:
    """One event of a stream. ``id``: of the last field ``id`` so far."""

    id: str
    name: str
    data: str


class Parser:
    """Cuts a stream into events. An event counts when its last byte, the empty line, is there."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
        self._text = ""
        self._id = self._name = ""
        self._data: list[str] = []

    def feed(self, part: bytes) -> Iterator[Frame]:
        """Yield the events that are complete with this part."""
        self._text += self._decoder.decode(part)
        begin = 0
        while (cut := self._line_end(begin)) is not None:
            line, begin = self._text[begin : cut[0]], cut[1]
            if (found := self._take(line)) is not None:
                yield found
        self._text = self._text[begin:]

    def _line_end(self, begin: int) -> tuple[int, int] | None:
        """Return where the line ends that begins here, and where the next begins; None: its end is not there yet."""
        ends = [place for mark in "\r\n" if (place := self._text.find(mark, begin)) >= 0]
        if not ends:
            return None
        end = min(ends)
        if self._text[end] == "\r":
            if end + 1 == len(self._text):  # a line feed may follow, which belongs to it
                return None
            return end, end + (2 if self._text[end + 1] == "\n" else 1)
        return end, end + 1

    def _take(self, line: str) -> Frame | None:
        if line == "":
            found = Frame(self._id, self._name or "message", "\n".join(self._data)) if self._data else None
            self._name, self._data = "", []
            return found
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "id" and "\0" not in value:
            self._id = value
        elif name == "event":
            self._name = value
        elif name == "data":
            self._data.append(value)
        return None
