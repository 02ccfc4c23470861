"""Roles of the bus in requests (:class:`stretto_gateway.streams.bus.StreamBus` has all of them)."""

from __future__ import annotations

from typing import Protocol

from stretto_messages.base import Message


class Publisher(Protocol):
    """A bus that stores events."""

    async def publish(self, message: Message, msg_id: str, last: int | None = None, trace: str = "") -> int | None:
        """Store an event; returns its sequence.

        last: store it only if the last event of its subject has this sequence (0: the subject has none); else None.
        """
        ...


class Asker(Protocol):
    """A bus that asks services."""

    async def call(self, request: Message, timeout_s: float) -> Message:
        """Ask the owner of a job. Raises CallTimeout, or Problem if the owner refused."""
        ...


class PodAsker(Asker, Protocol):
    """A bus that asks services and pods."""

    async def call_pod(self, pod: str, request: Message, timeout_s: float) -> Message:
        """Ask one pod. Raises CallTimeout."""
        ...
