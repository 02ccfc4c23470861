"""A bucket without a server: subject -> data in the order of writing."""

from __future__ import annotations

from collections.abc import Iterable

from stretto_bus.ordered_consumer import Stored
from stretto_bus.writer import OutgoingMessage


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
