"""The shape of every decision: a pure, deterministic machine.

``machine.handle(event, now) -> list[Action]``. A machine owns one state document (of one job, or of the whole
cluster), never waits, and never reads a clock, a random generator, an environment variable or a socket: ``now``
is the stored timestamp of the event, randomness comes from seeds inside events. Service, simulator, what-if
command and notebook run the same object (libs/core/README.md).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

Event = TypeVar("Event", contravariant=True)
State = TypeVar("State")


class CoreError(Exception):
    """Base of every error of this package. Its text names what failed, the value, and the remedy.

    ``unchanged`` is True if the machine raised it before any change, so that its state needs no restoring.
    """

    unchanged: bool = False


class ValueRefused(CoreError):
    """A value that cannot be: its ``field``, the ``value``, and the ``remedy``."""

    def __init__(self, field: str, value: object, remedy: str) -> None:
        self.field, self.value, self.remedy = field, value, remedy
        super().__init__(f"{field} is {value!r}; give {remedy}")


@dataclass(frozen=True, slots=True)
class Emit:
    """Publish ``fact`` (a frozen dataclass). The runtime gives it its identity."""

    fact: object


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer the request that is being handled with ``body``."""

    body: object


Action = Emit | Reply


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; ``now`` is the new time. Ticks are journalled, so a replay handles the same ones.

    machines: number of the partition's machines that get this tick; 0: not told.
    """

    machines: int = 0


class Machine(Protocol, Generic[Event, State]):
    """A decision with a state.

    ``version`` grows whenever the same inputs would produce other actions; a snapshot carries it. A snapshot of an
    earlier version is used only if the class has ``migrate(state, from_version) -> state``, a static method from JSON
    to JSON. It returns the state unchanged if only decisions differ.

    While an earlier version may still come back, the class names it in ``storage_version`` and has the inverse,
    ``migrate_back(state, to_version) -> state``: snapshots are then stored in that version's shape.

    ``state`` is a dataclass of JSON-able fields, which a snapshot stores and ``__init__`` restores. A machine with a
    large state may name one of its fields, a dict by job, in ``parted``: it is saved entry by entry. The set
    ``changed`` then holds the entries changed since the last snapshot. The snapshot writer clears this set.

    A machine may have ``ended``: True once it is finished for good, and wants no ticks. It then rests until a late
    event comes. Long after its last event it is forgotten: an event that comes even later finds a fresh machine.
    """

    version: int
    state: State

    def __init__(self, state: State | None = None) -> None: ...

    def handle(self, event: Event, now: float) -> list[Action]:
        """Advance by one event.

        ``now`` in seconds since the epoch. Handling the same event twice must be harmless. A machine of one job ends by
        ``assert_no_new_fault``: the runtime takes an event back that brought a fault, and keeps it as a dead letter.
        """
        ...


def assert_no_new_fault(before: Collection[str], after: Collection[str]) -> None:
    """Assert that an event has brought nothing into a state that must not be there.

    A fault that was there before, as in a snapshot of a release with a defect, stops no event: the job can be ended.
    """
    new = [fault for fault in after if fault not in before]
    assert not new, "; ".join(new)
