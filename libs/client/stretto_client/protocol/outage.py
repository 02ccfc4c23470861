"""Outages of the gateway: an operation that waits goes on over a restart."""

from __future__ import annotations

import math

from ..errors import ClientError, Refused, Unreachable
from . import operations
from .connection import Answer, GatewayConnection, GatewayRequest, TransportFault
from .exchange import accepted, answered, document_of, error_of, problem

RECONNECT_S = 30.0
"""Time for which an operation that waits does without the gateway."""
RECONNECT_PAUSE_S = 0.5
UNAVAILABLE = (502, 503, 504)
"""Statuses by which a gateway says that it is not ready, or a proxy that the gateway behind it is down."""


class Unavailable(Exception):
    """An answer of a gateway that is not ready. ``error``: for people, if it never is."""

    def __init__(self, error: ClientError) -> None:
        super().__init__(str(error))
        self.error = error


def available(answer: Answer) -> Answer:
    """Return an answer of a gateway that is ready. Raises Unavailable."""
    if answer.status in UNAVAILABLE:
        raise Unavailable(problem(answer))
    return answer


class Patience:
    """The time that one outage may last."""

    def __init__(self, connection: GatewayConnection, until_s: float = math.inf) -> None:
        self._connection, self._until_s = connection, until_s
        self._ends_s: float | None = None

    def over(self) -> None:
        """Note that the gateway has answered: the next failure is another outage."""
        self._ends_s = None

    async def outlast(self, error: ClientError) -> None:
        """Wait until the gateway answers and has read the whole stream: before, it does not know older jobs.

        ``error``: the request's own, to be raised if it fails though the gateway is there all the time, or if the
        gateway's answer to it was the last that was heard of it. Raises ClientError.
        """
        now_s = self._connection.now()
        ends_s = self._ends_s
        if ends_s is None:
            self._ends_s = ends_s = min(now_s + RECONNECT_S, self._until_s)
        elif now_s + RECONNECT_PAUSE_S >= ends_s:
            raise error
        else:  # the gateway is back, and the request failed again
            await self._connection.pause(RECONNECT_PAUSE_S)
        await _wait_back(self._connection, ends_s, error)


async def lasting(
    connection: GatewayConnection, request: GatewayRequest, until_s: float = math.inf, *, met: bool = True
) -> Answer:
    """Send a request that may be repeated, again after an outage; return its answer below 400.

    ``met``: the gateway was there before; of another one that nobody reaches, it is not waited for. Raises ClientError,
    at ``until_s`` if there is none before.
    """
    patience = Patience(connection, until_s)
    while True:
        try:
            return accepted(available(await answered(connection, request, until_s)))
        except Unavailable as unavailable:
            error: ClientError = unavailable.error
        except TransportFault as fault:
            if fault.kind == "certificate" or (fault.kind == "nobody" and not met):
                raise error_of(fault) from fault
            error = error_of(fault)
        met = True
        await patience.outlast(error)


async def _wait_back(connection: GatewayConnection, deadline_s: float, error: ClientError) -> None:
    """Return once the gateway is ready. Raises ClientError at the deadline: ``error`` if the gateway gave it."""
    reason = "it does not answer"
    while (now_s := connection.now()) < deadline_s:
        try:
            answer = await connection.send(operations.status())
            if answer.status == 200 and document_of(answer)["ready"]:
                return
            if 300 <= answer.status < 500 and answer.status != 429:  # the request itself tells more
                return
            reason = f"it is still reading the stream ({answer.status})"
        except TransportFault as fault:
            if fault.kind == "certificate":
                raise error_of(fault) from fault
            reason = fault.text
        await connection.pause(min(RECONNECT_PAUSE_S, deadline_s - now_s))
    if isinstance(error, Refused):  # it has a remedy, for a full disk for instance
        raise error
    raise Unreachable(f"the gateway went away: {reason}; see `stretto status`")
