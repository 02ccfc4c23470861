"""An owner without a bus: a bucket of subject -> data in the order of writing, and what makes its machines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stretto_bus.reading.ordered_consumer import Stored
from stretto_bus.writer import OutgoingMessage
from stretto_core.machine import Action


def put(bucket: dict[str, bytes], outputs: Iterable[OutgoingMessage]) -> None:
    """Store outputs."""
    for each in outputs:
        bucket.pop(each.subject, None)
        bucket[each.subject] = each.data


def entries_of(bucket: dict[str, bytes]) -> list[Stored]:
    """Return the entries as a server would give them to a reader."""
    return [
        Stored(seq, 0.0, subject, {} if data else {"Nats-TTL": "60s"}, data)
        for seq, (subject, data) in enumerate(bucket.items(), start=1)
    ]


class Shelf:
    """``(name, value)`` puts an item on the shelf, ``(name, None)`` takes it away.

    ``state_type`` keeps the items under ``kept``; a snapshot has them in parts if ``parted`` says so.
    """

    parted = kept = "items"
    state_type: type[Any]

    def __init__(self, state: Any) -> None:
        self.state = state or self.state_type()
        self.changed: set[str] = set()

    def handle(self, event: tuple[str, int | None], now: float) -> list[Action]:
        name, value = event
        self.state.handled += 1
        self.changed.add(name)
        items = getattr(self.state, self.kept)
        items.pop(name, None)
        if value is not None:
            items[name] = self.item(value)
        return []

    def item(self, value: int) -> Any:
        return value


class Factory:
    """Service as ``Machines`` ask for it: machines of one kind, with a state for each scope."""

    name, forgotten_after_s = "counting", 1e9

    def __init__(self, kind: type[Any], **state_types: type[Any]) -> None:
        self.machine, self.version, self.state_types = lambda key, state: kind(state), kind.version, state_types
