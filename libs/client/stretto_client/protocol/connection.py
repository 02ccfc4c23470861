"""Commands of the protocol, their results, and the course of one generator, which a driver takes to its end."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import quote

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request below ``/api/v1``."""

    method: str
    path: str
    params: tuple[tuple[str, str], ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    content: bytes | None = None


def below(*parts: str) -> str:
    """Return the path that has these parts; a part with a slash or question mark in it stays one."""
    return "".join(f"/{quote(part, safe='')}" for part in parts)


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer. The names of ``headers`` are in lower case; ``url``: the address that was asked."""

    status: int
    headers: Mapping[str, str]
    content: bytes
    url: str = ""


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request. Result: the Answer."""

    request: Request


@dataclass(frozen=True, slots=True)
class Open:
    """Send a request whose body is read part by part. Result: the Answer, with a content only if it is an error."""

    request: Request


@dataclass(frozen=True, slots=True)
class Read:
    """Read the next part of the open body. Result: bytes, empty at the end."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait. Result: None."""

    duration_s: float


@dataclass(frozen=True, slots=True)
class Now:
    """Read the monotonic clock. Result: seconds."""


@dataclass(frozen=True, slots=True)
class Emit(Generic[T]):
    """Give an item to the reader of a stream. Result: None."""

    item: T


Command = Send | Open | Read | Pause | Now | Emit[Any]
Steps = Generator[Command, Any, T]
"""An operation: yields commands, a stream also its items as Emit, and returns its result."""
FaultKind = Literal["nobody", "certificate", "broken", "other"]


class TransportFault(Exception):
    """A command that failed below HTTP.

    ``nobody``: no connection; ``certificate``: it is not trusted; ``broken``: the connection broke or fell silent;
    ``other``: anything else.
    """

    def __init__(self, kind: FaultKind, text: str) -> None:
        super().__init__(text)
        self.kind, self.text = kind, text


class Course(Generic[T]):
    """The way of one generator: a driver performs ``command`` and calls ``answer`` or ``fail`` until it is None."""

    def __init__(self, steps: Steps[T]) -> None:
        self._steps = steps
        self._result: list[T] = []
        self.command: Command | None = None
        self._advance(None)

    @property
    def result(self) -> T:
        """Return the operation's result, which it has when ``command`` is None."""
        return self._result[0]

    def answer(self, value: object) -> None:
        """Go on with the result of the command."""
        self._advance(value)

    def fail(self, fault: TransportFault) -> None:
        """Go on with its fault."""
        self._advance(None, fault)

    def close(self) -> None:
        """End the generator where it is."""
        self._steps.close()

    def _advance(self, value: object, fault: TransportFault | None = None) -> None:
        try:
            self.command = self._steps.send(value) if fault is None else self._steps.throw(fault)
        except StopIteration as end:
            self.command = None
            self._result = [end.value]
