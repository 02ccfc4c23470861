"""The messages between home and its lanes, and how the code that a lane runs looks to both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Protocol

from stretto_pipeline.arrays import Arrays, Parts, Writer

REQUEST_BYTES_MAX = 2**31 - 1

Prepares = Callable[[Arrays], Arrays]
"""A pure function of raw arrays."""


class Kind(IntEnum):
    """Kinds of requests; an answer has the kind of its request."""

    TEACH = 1
    PREPARE = 2


class Preparation(Protocol):
    """A pure function of raw values, as home sees it. number: its name among those of one program."""

    @property
    def number(self) -> int: ...

    def parts(self) -> Parts:
        """Return it as parts of one message, for `Framework.taught`."""
        ...

    def arrays_of(self, values: Sequence[Any]) -> Arrays:
        """Return prepared values as arrays, as a lane gives them."""
        ...

    def size_of(self, values: Sequence[Any]) -> int:
        """Return about how many bytes prepared values have."""
        ...

    def values_of(self, arrays: Arrays) -> list[Any]:
        """Return prepared values of a lane's arrays. Raises ArraysRefused."""
        ...


class Framework(Protocol):
    """A module whose code runs in lanes, named in `Settings.framework`; imported there only."""

    def load(self) -> None:
        """Import the framework, and start nothing of it: lanes are forked from the process that did so."""
        ...

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Set a lane's process up as home is, so that the same operations give the same bits."""
        ...

    def taught(self, parts: Sequence[memoryview]) -> Prepares:
        """Return the function that `Preparation.parts` describes. What it raises is told to home."""
        ...


def request(number: int, raw: Arrays, writer: Writer) -> Parts:
    """Return the request to prepare one raw element."""
    return [str(number).encode(), *writer.parts(raw)]
