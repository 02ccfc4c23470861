"""The messages between home and its lanes, and a preparation as lanes get it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any

from numpy.typing import NDArray

from ..arrays import Arrays, Parts, Reader, Writer
from .values import packed, unpacked

REQUEST_BYTES_MAX = 2**31 - 1


class Kind(IntEnum):
    """Kinds of requests; an answer has the kind of its request."""

    TEACH = 1
    PREPARE = 2


@dataclass(frozen=True, slots=True)
class Table:
    """A lookup table that never changes: the placeholder of its handle, and TensorFlow's types."""

    placeholder: str
    keys: str
    values: str


@dataclass(frozen=True)
class Preparation:
    """A pure function of raw tensors, as a graph of TensorFlow.

    feeds: tensors for the raw values; fetches: tensors of the answer, with their types. constants: placeholders of
    fixed values. contents: these values, then keys and values of each table.
    """

    number: int
    graph: bytes
    feeds: tuple[str, ...]
    fetches: tuple[str, ...]
    types: tuple[str, ...]
    constants: tuple[str, ...]
    tables: tuple[Table, ...]
    contents: tuple[NDArray[Any], ...]

    def parts(self) -> Parts:
        """Return it as parts of one message."""
        head = {
            "number": self.number,
            "feeds": self.feeds,
            "fetches": self.fetches,
            "types": self.types,
            "constants": self.constants,
            "tables": [asdict(each) for each in self.tables],
        }
        return [json.dumps(head).encode(), self.graph, *Writer().parts(packed(self.contents))]


def preparation_of(parts: Sequence[memoryview]) -> Preparation:
    """Read a preparation that another process sent."""
    head = json.loads(bytes(parts[0]))
    return Preparation(
        number=head["number"],
        graph=bytes(parts[1]),
        feeds=tuple(head["feeds"]),
        fetches=tuple(head["fetches"]),
        types=tuple(head["types"]),
        constants=tuple(head["constants"]),
        tables=tuple(Table(**each) for each in head["tables"]),
        contents=tuple(unpacked(Reader().arrays(parts[2:]))),
    )


def request(number: int, raw: Arrays, writer: Writer) -> Parts:
    """Return the request to prepare one raw element."""
    return [str(number).encode(), *writer.parts(raw)]
