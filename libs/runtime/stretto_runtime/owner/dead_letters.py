"""Dead letters: inputs that a service refuses or breaks on, set aside with the reason."""

from __future__ import annotations

import structlog
from stretto_bus.ordered_consumer import read
from stretto_bus.writer import Writer
from stretto_wire.registry import DEAD_LETTERS

from stretto_runtime.inputs import Arrival
from stretto_runtime.owner.context import Context

ERROR_CHARACTERS_MAX = 2000
FIELD_CHARACTERS_MAX = 500

log = structlog.get_logger("stretto.handling")


class DeadLetters:
    """Writes the dead letters of one partition, each once: a replay leaves out those that a predecessor wrote."""

    def __init__(self, context: Context, writer: Writer) -> None:
        self._context = context
        self._writer = writer
        self._service = context.service.name
        self._written: dict[str, set[str]] = {}
        """subject -> ids of the letters of predecessors, read at the first letter of a replay"""

    def go_live(self) -> None:
        """Forget the letters of predecessors: no further input was theirs."""
        self._written.clear()

    async def add(self, arrival: Arrival, reason: str, text: str, more: dict[str, str], live: bool) -> None:
        """Set an input aside; ``more`` are further headers, of which empty ones are left out.

        Raises:
            BusFault: the letters of predecessors could not be read.
        """
        subject = f"dlq.{arrival.subject or f'tick.{self._service}'}"
        letter_id = f"dlq:{self._service}:{arrival.source}"
        if not live and letter_id in await self._ids(subject):
            return
        headers = {
            "Nats-Msg-Id": letter_id,
            "reason": reason,
            "error": text[:ERROR_CHARACTERS_MAX],
            "service": self._service,
            "seq": str(arrival.meta.seq),
            **{name: value[:FIELD_CHARACTERS_MAX] for name, value in more.items() if value},
        }
        if arrival.trace:
            headers["traceparent"] = arrival.trace
        self._context.metrics.dead_letters.labels(self._service, reason).inc()
        log.warning(
            "dead letter",
            subject=subject.removeprefix("dlq."),
            reason=reason,
            error=text[:FIELD_CHARACTERS_MAX],
            seq=arrival.meta.seq,
            job=arrival.key,
            trace_id=arrival.trace[3:35],
        )
        self._writer.send_plain(subject, arrival.data, headers)

    async def _ids(self, subject: str) -> set[str]:
        """Return the ids that predecessors used: the server forgets ids sooner than an outage may last."""
        if subject not in self._written:
            found = await read(self._context.bus, DEAD_LETTERS, [subject], headers_only=True)
            self._written[subject] = {stored.headers.get("Nats-Msg-Id", "") for stored in found}
        return self._written[subject]
