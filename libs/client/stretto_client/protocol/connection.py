"""The outside of the protocol: a connection that sends requests, pauses and tells the time."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Literal, Protocol

from stretto_messages.base import JOB_PATTERN

from ..errors import Unusable


@dataclass(frozen=True, slots=True)
class GatewayRequest:
    """An HTTP request below ``/api/v1``."""

    method: str
    path: str
    params: tuple[tuple[str, str], ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    content: bytes | None = None


def below(*parts: str) -> str:
    """Return the path that has these parts. Raises Unusable for a part that is no name: it could lead elsewhere."""
    for part in parts:
        if not re.fullmatch(JOB_PATTERN, part):
            remedy = "names of jobs and pods are lower-case letters, digits and hyphens, at most 63"
            raise Unusable(f"{part!a} is no name; {remedy}")
    return "".join(f"/{part}" for part in parts)


def unless_unchanged(tag: str) -> Mapping[str, str]:
    """Return the header by which an answer with this tag is not sent once more."""
    return {"If-None-Match": tag} if tag else {}


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer. ``headers`` are asked for in lower case; ``url``: the address that was asked; ``gateway``: the
    address of the gateway, with which the addresses of its pages begin."""

    status: int
    headers: Mapping[str, str]
    content: bytes
    url: str = ""
    gateway: str = ""


FaultKind = Literal["nobody", "certificate", "broken", "other"]


class TransportFault(Exception):
    """A request that failed below HTTP.

    ``nobody``: no connection; ``certificate``: not trusted; ``broken``: the connection broke or fell silent; ``other``:
    anything else.
    """

    def __init__(self, kind: FaultKind, text: str) -> None:
        super().__init__(text)
        self.kind, self.text = kind, text


class GatewayConnection(Protocol):
    """A connection to one gateway, with the clock that its pauses advance."""

    async def send(self, request: GatewayRequest) -> Answer:
        """Return the answer to a request. Raises TransportFault."""
        ...

    def stream(self, request: GatewayRequest) -> AbstractAsyncContextManager[tuple[Answer, AsyncIterator[bytes]]]:
        """Open an answer and the parts of its body; only an error has a ``content``. Raises TransportFault."""
        ...

    async def pause(self, duration_s: float) -> None:
        """Wait for a time."""
        ...

    def now(self) -> float:
        """Return the seconds of a monotonic clock."""
        ...
