"""Waiting for a state of a job."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from ..errors import NotReady, Refused, Unreachable
from .connection import Answer, Emit, Now, Pause, Request, Steps, below
from .events import events
from .outage import lasting

POLL_S = 0.5
V = TypeVar("V")


def wait(
    job: str,
    read: Callable[[bytes], V],
    reached: Callable[[V], bool],
    timeout_s: float | None,
    after: int | None,
) -> Steps[V]:
    """Return the view of a job once a condition holds; emit the job's events after a sequence meanwhile.

    1. Ask for the view, which is answered only if it has changed.
    2. If it has, emit the events stored since. The last ones are emitted before the wait ends.

    ``read`` makes a view of an answer. ``after``: None: nobody reads the events. Raises NotReady after ``timeout_s``.
    """
    until_s = math.inf if timeout_s is None else (yield Now()) + timeout_s
    late = f"{job} has not reached the awaited state within {timeout_s or 0:g} s"
    tag, view = "", None
    while True:
        headers = {"If-None-Match": tag} if tag else dict[str, str]()
        try:
            answer: Answer = yield from lasting(Request("GET", below("jobs", job), (), headers), until_s)
        except (Refused, Unreachable) as error:
            if (yield Now()) < until_s:
                raise
            raise NotReady(f"{late}, as far as is known: {error}") from error
        if answer.status != 304:
            tag, view = answer.headers.get("etag", ""), read(answer.content)
            if after is not None:
                after = yield from events(job, after, False, (), has_answered=True)
        assert view is not None  # the first answer has one
        if reached(view):
            return view
        left_s = until_s - (yield Now())
        if left_s <= 0:
            raise NotReady(f"{late}; it goes on")
        yield Pause(min(POLL_S, left_s))


def changes(job: str, read: Callable[[bytes], V], over: Callable[[V], bool], interval_s: float) -> Steps[None]:
    """Emit the view of a job, and again whenever it has changed, until it is over."""
    tag, view = "", None
    while view is None or not over(view):
        headers = {"If-None-Match": tag} if tag else dict[str, str]()
        answer: Answer = yield from lasting(Request("GET", below("jobs", job), (), headers))
        if answer.status != 304:
            tag, view = answer.headers.get("etag", ""), read(answer.content)
            yield Emit(view)
        if view is not None and not over(view):
            yield Pause(interval_s)
