"""Finds out whether a server has lost the end of the log, as it does without power where nobody syncs every write.

The log then goes on from where it was cut: sequences that were handled are given again, to other messages. Owners know
when the server stored the inputs that they handled, so one look at a sequence tells whether the log has that message.
States keep what was handled; inputs that were stored since the loss are handled like any others.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from stretto_wire.contract.registry import STREAM

from stretto_bus.bus import Bus
from stretto_bus.faults import BusFault
from stretto_bus.reading.ordered_consumer import SILENCE_S, OrderedConsumer, Stored

LOOKS_MOST, LOOKS_AGAIN_S = 6, 0.5
"""Looks at a place of the log of which a server tells nothing, and the pause between them: the server may lag."""
TIME_EXACT_S = 2e-6
"""Times that differ by less are one: a cursor has microseconds, and a float of today some tenths of one."""


class _Single(OrderedConsumer):
    """A consumer that asks for hardly more than one message."""

    queue_max = 2
    pulls = True


async def first_from(bus: Bus, stream: str, seq: int) -> Stored | None:
    """Return the first message of a stream from a sequence on, without its body; None: the server has none yet, and it
    may lag behind another one. Raises BusFault.
    """
    consumer = await _Single.open(bus, stream, [">"], seq, headers_only=True)
    try:
        if not consumer.backlog:
            return None
        async with asyncio.timeout(SILENCE_S):
            return next(iter(await consumer.batch(1)), None)
    except TimeoutError:
        raise BusFault(f"the server did not send the message {seq} of {stream}") from None
    finally:
        await consumer.close()


async def _first_surely(bus: Bus, seq: int) -> Stored | None:
    """Return the first message of the log from a sequence on; None: several looks found none. Raises BusFault."""
    for looks_left in reversed(range(LOOKS_MOST)):
        if (found := await first_from(bus, STREAM, seq)) is not None or not looks_left:
            return found
        await asyncio.sleep(LOOKS_AGAIN_S)
    return None


class LogPlace(NamedTuple):
    """A place of the log: the sequence ``seq``. ``time_s``: when the server stored the message there, seconds since the
    epoch; 0: unknown.

    ``or_at``: a subject whose messages may have other times: a report that a journal frame stands for has its own.
    """

    seq: int
    time_s: float
    or_at: str = ""


async def is_replaced(bus: Bus, place: LogPlace) -> bool:
    """Return whether the log has another message at a place. One that has left the log is none. Raises BusFault."""
    return await _is_there(bus, place) is False


async def _is_there(bus: Bus, place: LogPlace) -> bool | None:
    """Return whether the message at a place is the one of then; None: nobody knows, or none is there."""
    found = await _first_surely(bus, place.seq) if place.time_s else None
    if found is None or found.seq != place.seq or found.subject == place.or_at:
        return None
    return abs(found.time_s - place.time_s) <= TIME_EXACT_S


async def state_of(bus: Bus) -> dict[str, Any]:
    """Return the state of the log: its ``first_seq``, ``last_seq`` … Raises BusFault."""
    return (await bus.ask(f"STREAM.INFO.{STREAM}"))["state"]


async def kept_until(bus: Bus, saved: LogPlace, place: LogPlace, end: int) -> int:
    """Return the last sequence that a log with a lost end has kept. The log has a message at ``end`` since the loss.

    ``place`` has the last input that was handled, and ``saved`` the last one that the cursor contains, which is kept
    where its message is still there. Between them the sequence is found by bisection, with a look for each doubling of
    the log. Where the time is unknown, or the server's clock went back meanwhile, it may be too high: inputs up to
    there are passed over. Where the clock went back before, or ``place`` has the time of a report, it may be too low,
    at the least ``saved``: inputs from there on are handled again. Raises BusFault.
    """
    low, high = saved.seq if await _is_there(bus, saved) else 0, end
    while place.time_s and high - low > 1:
        middle = (low + high) // 2
        found = await _first_surely(bus, middle)
        if found is None:  # there is ``end`` at least
            raise BusFault(f"the server tells of no message of {STREAM} from {middle} on: it lags")
        if found.time_s > place.time_s + TIME_EXACT_S:
            high = middle
        else:
            low = min(found.seq, high - 1)
    return high - 1


class Breaks:
    """The break of a connection after which no owner has looked at the log yet."""

    def __init__(self) -> None:
        self._at: tuple[int, LogPlace] | None = None
        """The sequence up to which inputs were handled or outputs stored before the break, and the last input"""

    @property
    def pending(self) -> bool:
        """Return whether there was a break."""
        return self._at is not None

    def note(self, reached: int, handled: LogPlace) -> None:
        """Note a break; of several, the first one tells what was handled before."""
        self._at = self._at or (reached, handled)

    async def look(self, bus: Bus) -> None:
        """Look at the log. If nobody tells now, as while a leader is elected, the break stays pending, and the fence
        protects until then. Raises BusFault: a server has lost the log's end.
        """
        if self._at is None:
            return
        reached, handled = self._at
        try:
            end = int((await state_of(bus))["last_seq"])
            replaced = end >= reached and await is_replaced(bus, handled)
        except BusFault:
            return
        self._at = None
        if end < reached:
            raise BusFault(f"{STREAM} ends at {end}, and {reached} was handled or stored: its server lost the rest")
        if replaced:
            raise BusFault(f"{STREAM} has another message at {handled.seq} than was handled: its server lost its end")
