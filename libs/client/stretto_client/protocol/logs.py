"""The log of a pod: its last lines, and those that follow.

The gateway has no positions in a log, only its end. So each look asks for the last lines, and goes on where the look
before ended (:func:`continuation`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from ..errors import Refused
from .connection import GatewayConnection, GatewayRequest, below, unless_unchanged
from .exchange import NOT_MODIFIED, document, document_of
from .outage import lasting

POLL_S = 1.0
LOG_LINES = 1000
"""Lines of a log that are given if no number is asked for."""
LOOK_LINES = 1000
WIDE_LINES = 100_000
"""The gateway's bound; it keeps 20,000 lines and a megabyte at most."""
OVERLAP_LINES_MIN = 20
"""Two looks that share fewer lines may do so by accident: then a wide look decides."""
KEPT_WITHIN_S = 15.0
"""Time after a pod's end within which the store has its log."""
GAP = "[lines are missing here: more was written between two looks than the gateway keeps]"


@dataclass(frozen=True, slots=True)
class Look:
    """A look at the end of a log. ``text`` is None if nothing has changed since the look with the tag before, or if no
    log is kept yet. ``kept``: false then, and for the short end of a failed pod, until the store has its log."""

    text: str | None
    tag: str
    kept: bool = True


async def log(connection: GatewayConnection, job: str, pod: str, lines: int) -> list[str]:
    """Return the last lines of a pod's log."""
    found = await document(connection, _request(job, pod, lines, ""))
    return str(found["text"]).split("\n")


async def follow_log(connection: GatewayConnection, job: str, pod: str, lines: int) -> AsyncGenerator[str]:
    """Yield the last lines of a pod's log and those that follow, until it has ended and its log is complete.

    1. Look at the last ``LOOK_LINES``; where they do not surely continue the look before, look at all.
    2. Yield what is new. A last line that may go on is yielded by the first look that finds nothing new.
    3. End when a look that began after the pod's end finds nothing new. Where no log is kept then, it is on its way
       into the store, and has the pod's last words: wait for it for ``KEPT_WITHIN_S``. Only then is the short end of
       a failed pod believed.
    """
    tail, tag = Tail(lines), ""
    ended_at_s: float | None = None
    while True:
        is_begin = tail.all_is_new and not tail.window
        look = await _look(connection, job, pod, WIDE_LINES if is_begin else max(lines, LOOK_LINES), tag)
        tag = look.tag
        if look.kept and look.text is not None and tail.window and continuation(tail.window, look.text) is None:
            look = await _look(connection, job, pod, WIDE_LINES, "")
        now_s = connection.now()
        if look.kept or (ended_at_s is not None and now_s - ended_at_s > KEPT_WITHIN_S):
            found, is_quiet = tail.look(look)
            for line in found:
                yield line
            if is_quiet and ended_at_s is not None:
                return
        if ended_at_s is None:
            if await _has_ended(connection, job, pod):
                ended_at_s = connection.now()
            elif not tail.window:  # it has yet to write its first line
                tail.all_is_new = True
        await connection.pause(POLL_S)


def _request(job: str, pod: str, lines: int, tag: str) -> GatewayRequest:
    return GatewayRequest(
        "GET", below("jobs", job, "pods", pod, "log"), (("lines", str(lines)),), unless_unchanged(tag)
    )


async def _look(connection: GatewayConnection, job: str, pod: str, lines: int, tag: str) -> Look:
    try:
        answer = await lasting(connection, _request(job, pod, lines, tag))
    except Refused as refused:
        if refused.kind != "no-log":  # the pod starts, or its log is on the way into the store
            raise
        return Look(None, "", kept=False)
    if answer.status == NOT_MODIFIED:
        return Look(None, tag)
    found = document_of(answer)
    if found.get("is_short_end", False):
        return Look(str(found["text"]), "", kept=False)
    return Look(str(found["text"]), answer.headers.get("etag", ""))


async def _has_ended(connection: GatewayConnection, job: str, pod: str) -> bool:
    """Return whether a pod has ended, or its job: no pod of it will begin then."""
    request = GatewayRequest("GET", below("jobs", job, "parts"), (("part", "pods"), ("part", "head")))
    found = document_of(await lasting(connection, request))
    return found["ended_at_s"] is not None or found["pods"].get(pod, {}).get("state") == "exited"


class Tail:
    """The end of a log as it was last seen, and the part of its last line that was not given yet.

    ``lines``: number of lines to give of those that are there at the beginning.
    """

    def __init__(self, lines: int) -> None:
        self.window = ""
        self.all_is_new = False
        """Nothing was written before the beginning: no line is cut."""
        self._lines = lines
        self._pending = ""
        self._cut = False
        """The last line was given, and may go on."""

    def look(self, look: Look) -> tuple[list[str], bool]:
        """Return the lines that a look has beyond the looks before, and whether it has nothing new."""
        before, found = self.window, list[str]()
        if look.text is not None:
            found = self.take(look.text) if look.kept else self.take_short_end(look.text)
        is_quiet = self.window == before
        return [*found, *self.rest()] if is_quiet else found, is_quiet

    def take(self, window: str) -> list[str]:
        """Return the lines that are complete with this look; its last line is kept back, as it may go on."""
        if not self.window:
            self.window = window
            return self._begun(window.split("\n"))
        return self._taken(window, continuation(self.window, window))

    def take_short_end(self, end: str) -> list[str]:
        """Return the lines that are complete with the last ones of a failed pod, whose log is kept nowhere. As they are
        its last, one line in common is enough; the first may be cut, and counts only if none is in common."""
        if not self.window:
            return self.take(end)
        _, feed, whole_lines = end.partition("\n")
        added = continuation(self.window, end, 0)
        if added is None and feed:
            added = continuation(self.window, whole_lines, 0)
        return self._taken(end, added)

    def _begun(self, old: list[str]) -> list[str]:
        if self._lines == 0 and not self.all_is_new:
            self._cut = True
            return []
        *whole, self._pending = old if self.all_is_new else old[-self._lines :]
        return whole

    def _taken(self, window: str, added: str | None) -> list[str]:
        if added == "":
            return []
        if added is None:
            lost = [*self.rest(), GAP]
            self.window, self._cut = window, False
            *whole, self._pending = window.split("\n")
            return [*lost, *whole]
        self.window = window
        if self._cut and added.startswith("\n"):  # the line that was given ended there
            added = added[1:]
        self._cut = False
        *whole, self._pending = (self._pending + added).split("\n")
        return whole

    def rest(self) -> list[str]:
        """Return the last line, if nothing more has come since it was kept back."""
        if not self.window or self._cut:
            return []
        line, self._pending, self._cut = self._pending, "", True
        return [line]


def continuation(before: str, now: str, overlap_lines_min: int = OVERLAP_LINES_MIN) -> str | None:
    """Return the text that ``now`` has beyond ``before``, two looks at the end of one log; None: they do not surely
    touch, as they share fewer lines than ``overlap_lines_min``. A look begins with a line.

    1. The log has not grown beyond a look: ``now`` begins with ``before``.
    2. It has: ``now`` begins with an end of ``before``, of which the longest counts.
    3. ``now`` was a wider look: ``before`` is within it.
    4. ``now`` is the short end that is kept of a failed pod, and was seen before: nothing is new.

    A look that holds nothing but repetitions of one pattern could be laid over the next in several ways, and the one
    with the fewest new lines counts: only there lines may be missing.
    """
    begin = 0
    while True:
        shared = before[begin:]
        enough = begin == 0 or (shared != "" and shared.count("\n") >= overlap_lines_min)
        if enough and now.startswith(shared):
            return now[len(shared) :]
        begin = before.find("\n", begin) + 1
        if begin == 0:
            break
    if (place := f"\n{now}".rfind(f"\n{before}")) >= 0:
        return now[place + len(before) :]
    return "" if before.endswith(now) else None
