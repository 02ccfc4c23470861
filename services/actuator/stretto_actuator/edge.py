"""The service as its parts see it: what the reconciler, the start of pods, moving and closing need of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from stretto_messages.base import Message


class Edge(Protocol):
    """The part of the service that one job's reconciler and its helpers use."""

    async def observe(self, key: str, message: Message, trace: str = "") -> None: ...
    async def call_pod(self, pod: str, request: Message, timeout_s: float = 5.0, trace: str = "") -> Any: ...
    def identity(self, job: str, pod: str) -> Mapping[str, bytes]: ...
    def now(self) -> float: ...
    def trace_of(self, key: str) -> str: ...
