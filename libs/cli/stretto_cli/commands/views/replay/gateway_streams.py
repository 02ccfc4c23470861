"""The streams of an installation as its gateway hands them on, for the replay of one job."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import closing

from stretto_bus.reading.ordered_consumer import Stored
from stretto_client.answers.reading import read
from stretto_client.documents import Documents
from stretto_wire.contract.excerpts import Excerpt, Stream, StreamFacts
from stretto_wire.rest.journal import StoredMessage, parameters_of

from ....errors import translated


class GatewayStreams:
    """Reads by HTTP. It blocks the event loop, in which nothing else runs. Raises CliError.

    Errors are translated here: those of the client are also ValueErrors, which inside a replay mean damaged messages.
    """

    def __init__(self, gateway: Documents, job: str) -> None:
        self._gateway, self._job = gateway, job
        self._unreadable: dict[Stream, str] = {}

    async def facts(self, stream: Stream) -> StreamFacts:
        """Return the facts of a stream now."""
        with translated():
            first, *_ = self._gateway.journal(self._job, parameters_of(Excerpt(stream=stream)))
            facts = read(StreamFacts, first)
            self._unreadable[stream] = facts.unreadable
            return facts

    async def scan(self, excerpt: Excerpt) -> AsyncGenerator[Stored]:
        """Yield the messages of ``excerpt`` that are stored now."""
        with translated(), closing(self._gateway.journal(self._job, parameters_of(excerpt))) as lines:
            next(lines)  # the stream's facts
            for line in lines:
                found = read(StoredMessage, line)
                yield Stored(found.seq, found.time_s, found.subject, found.headers, found.data)

    async def unreadable(self) -> list[str]:
        """Return what the gateway has found that cannot be read."""
        return [text for text in self._unreadable.values() if text]
