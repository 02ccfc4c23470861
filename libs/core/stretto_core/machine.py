"""The shape of every decision: a pure, deterministic machine.

``machine.handle(event, now) -> list[Action]``. A machine owns one state document (of one job, or of the whole
cluster), never waits, and never reads a clock, a random generator, an environment variable or a socket: ``now``
is the stored timestamp of the event, randomness comes from seeds inside events. Service, simulator, what-if
command and notebook run the same object (DESIGN, section 4).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

Event = TypeVar("Event", contravariant=True)
State = TypeVar("State")


class CoreError(Exception):
    """Base of every error of this package; says what failed, with which value, and what to do.

    ``unchanged``: raised before the machine changed anything, so nobody has to put its state back.
    """

    unchanged: bool = False


@dataclass(frozen=True, slots=True)
class Emit:
    """Publish ``fact`` (a frozen dataclass of this package). The runtime gives it its identity."""

    fact: Any


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer the request that is being handled with ``body``."""

    body: Any


Action = Emit | Reply


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; ``now`` says how far. Comes through the journal, so replay sees the same ticks."""


class Machine(Protocol, Generic[Event, State]):
    """A decision with a memory.

    ``version`` is raised whenever the same inputs would produce other actions; a snapshot carries it. What an earlier
    version saved is continued only if the class has ``migrate(state, from_version) -> state``, a static method from
    JSON to JSON (unchanged, where only the decisions are others).
    ``state`` is a dataclass of JSON-able fields: what a snapshot stores and ``__init__`` takes back.
    One of a large state may name a field of it in ``parted``, a dict by job, that is saved entry by entry, and in the
    set ``changed`` the entries that are others than when they were saved last; whoever saves them clears it.
    """

    version: int
    state: State

    def __init__(self, state: State | None = None) -> None: ...

    def handle(self, event: Event, now: float) -> list[Action]:
        """Advance by one event.

        ``now`` in seconds since the epoch. Handling the same event twice must be harmless.
        """
        ...


def as_it_was(state: dict[str, Any], from_version: int) -> dict[str, Any]:
    """``migrate`` of a machine that decides otherwise than its last version, and remembers the same."""
    return state
