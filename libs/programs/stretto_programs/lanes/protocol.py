"""The messages between home and lanes, and the interface of the code that a lane runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Protocol

from stretto_pipeline.arrays import Arrays, Parts, Writer

REQUEST_BYTES_MAX = 2**31 - 1

Prepares = Callable[[Arrays], Arrays]
"""A pure function from raw arrays to prepared arrays."""


class LaneMessageKind(IntEnum):
    """Kinds of requests. An answer has the kind of its request."""

    TEACH = 1
    PREPARE = 2


class Preparation(Protocol):
    """A pure function of raw values, as home sees it. number: identifies the preparation within a program."""

    @property
    def number(self) -> int: ...

    def parts(self) -> Parts:
        """Return the preparation as parts of a message, for `Framework.taught`."""
        ...

    def arrays_of(self, values: Sequence[Any]) -> Arrays:
        """Return prepared values as the arrays that a lane answers with."""
        ...

    def size_of(self, values: Sequence[Any]) -> int:
        """Return the approximate bytes of prepared values."""
        ...

    def values_of(self, arrays: Arrays) -> list[Any]:
        """Return the prepared values of a lane's answer. Raises ArraysRefused."""
        ...


class Framework(Protocol):
    """A module that runs in lanes, named in `Settings.framework`."""

    def load(self) -> None:
        """Import the framework, and start nothing of it: this runs in the nursery, from which lanes are forked."""
        ...

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Configure a lane's process like home, so that the same operations give the same bits."""
        ...

    def taught(self, parts: Sequence[memoryview]) -> Prepares:
        """Return the function that `Preparation.parts` describes. Home is told of any exception."""
        ...


def request(number: int, raw: Arrays, writer: Writer) -> Parts:
    """Return the request to prepare a raw element."""
    return [str(number).encode(), *writer.parts(raw)]
