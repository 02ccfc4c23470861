"""The journal of a job: stored messages, a line each. The last line says that it is complete."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable

from ..errors import Unreachable
from .connection import GatewayConnection, GatewayRequest, TransportFault, below
from .exchange import accepted, error_of, opened


async def journal(
    connection: GatewayConnection, job: str, parameters: Iterable[tuple[str, str]]
) -> AsyncGenerator[bytes]:
    """Yield the lines of an excerpt but the last: the stream's facts, then the messages. Their reader may be slow.

    Raises ClientError; Unreachable for an answer that broke off.
    """
    request = GatewayRequest("GET", below("jobs", job, "journal"), tuple(parameters))
    last, rest, count = b"", b"", 0
    try:
        async with opened(connection, request) as (answer, parts):
            accepted(answer)
            async for part in parts:
                *lines, rest = (rest + part).split(b"\n")
                for line in lines:
                    if last:
                        yield last
                    last, count = line, count + 1
    except TransportFault as fault:
        raise error_of(fault) from fault
    _check_end(last, count)


def _check_end(last: bytes, count: int) -> None:
    """Check that the last of ``count`` lines is the end of a whole journal. Raises Unreachable."""
    try:
        end = json.loads(last)
        messages, fault = end["messages"], end["fault"]
    except (ValueError, KeyError, TypeError):
        messages, fault = None, None
    if fault is not None:
        raise Unreachable(f"the gateway could not read the journal to its end: {fault}; ask again")
    if messages != count - 2:  # beside the messages there are the stream's facts and the end
        raise Unreachable(f"the journal broke off after {count} lines; ask again")
