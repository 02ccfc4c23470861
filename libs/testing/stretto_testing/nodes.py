"""The processes of a simulation: each is a set of tasks that can be killed or frozen between any two of its steps."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from enum import Enum, auto
from random import Random
from typing import Any

from stretto_wire.surroundings import CURRENT, Surroundings


class Wording(Enum):
    """How a process writes records: as its version does (``processes.versions``)."""

    PRESENT = auto()
    OLDER = auto()
    """Fields that have their default are left out: they came with a later version."""
    NEWER = auto()
    """Each record has a field that nobody else knows."""


@dataclass(slots=True, eq=False)
class SimulatedProcess:
    """One simulated process: its callbacks run in their order, whatever other processes do in between.

    ``is_frozen``: the process is stopped, as by SIGSTOP; what becomes due waits. ``is_dead``: it was killed; nothing of
    it runs any more, not even a ``finally``.
    """

    name: str
    context: Context
    ready: deque[asyncio.Handle] = field(default_factory=deque[asyncio.Handle])
    is_frozen: bool = False
    is_dead: bool = False
    fuse: int = -1
    """Number of steps until ``burnt`` is called; negative: never."""
    burnt: Callable[[], None] | None = None
    wording: Wording = Wording.PRESENT
    wall_ahead_ns: int = 0
    """The process's wall clock less the simulation's."""
    tasks: list[asyncio.Task[Any]] = field(default_factory=list[Any])


NODE: ContextVar[SimulatedProcess | None] = ContextVar("stretto simulated process", default=None)


def new_node(
    name: str, chance: Random, wall_ns: Callable[[], int], monotonic_s: Callable[[], float]
) -> SimulatedProcess:
    """Return a process with its own clocks and chance, which its tasks inherit."""
    context = copy_context()
    node = SimulatedProcess(name, context)
    context.run(NODE.set, node)
    own = Surroundings(lambda: wall_ns() + node.wall_ahead_ns, monotonic_s, chance)
    context.run(CURRENT.set, own)
    return node
