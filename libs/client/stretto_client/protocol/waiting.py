"""Waiting for a state of a job."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TypeVar

from ..errors import NotReady, Refused, Unreachable
from . import operations
from .connection import GatewayConnection
from .events import Event, events
from .exchange import NOT_MODIFIED
from .outage import lasting

POLL_S = 0.5
V = TypeVar("V")


async def wait(
    connection: GatewayConnection,
    job: str,
    read: Callable[[bytes], V],
    reached: Callable[[V], bool],
    timeout_s: float | None,
    on_event: Callable[[Event], None] | None,
    after: int,
) -> V:
    """Return the view of a job once a condition holds; give the job's events after a sequence to ``on_event``.

    1. Ask for the view, which is answered only if it has changed.
    2. If it has, give the events stored since. The last ones are given before the wait ends.

    ``read`` makes a view of an answer. Raises NotReady after ``timeout_s``.
    """
    until_s = math.inf if timeout_s is None else connection.now() + timeout_s
    late = f"{job} has not reached the awaited state within {timeout_s or 0:g} s"
    tag, view = "", None
    while True:
        try:
            answer = await lasting(connection, operations.job(job, tag), until_s)
        except (Refused, Unreachable) as error:
            if connection.now() < until_s:
                raise
            raise NotReady(f"{late}, as far as is known: {error}") from error
        if answer.status != NOT_MODIFIED:
            tag, view = answer.headers.get("etag", ""), read(answer.content)
            if on_event is not None:
                async with aclosing(events(connection, job, after, False, (), has_answered=True)) as stored:
                    async for event in stored:
                        after = event.id
                        on_event(event)
        assert view is not None  # the first answer has one
        if reached(view):
            return view
        left_s = until_s - connection.now()
        if left_s <= 0:
            raise NotReady(f"{late}; it goes on")
        await connection.pause(min(POLL_S, left_s))


async def changes(
    connection: GatewayConnection, job: str, read: Callable[[bytes], V], over: Callable[[V], bool], interval_s: float
) -> AsyncGenerator[V]:
    """Yield the view of a job, and again whenever it has changed, until it is over."""
    tag, view = "", None
    while view is None or not over(view):
        answer = await lasting(connection, operations.job(job, tag))
        if answer.status != NOT_MODIFIED:
            tag, view = answer.headers.get("etag", ""), read(answer.content)
            yield view
        if view is not None and not over(view):
            await connection.pause(interval_s)
