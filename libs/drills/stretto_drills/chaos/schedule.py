"""The schedule of faults for a job, drawn from a seed: the same seed gives the same schedule on every machine.

A fault is due once a certain share of the samples is trained, so that a slow machine gets the same schedule as a fast
one, and it may wait for a moment, such as a migration. Its victim is drawn as a number, since the running pods are
known only when it strikes. No process is handled here.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Literal

from stretto_wire.contract.registry import SERVICES

FIRST_AT, LAST_AT = 0.06, 0.84
"""Shares of the samples: earlier, there is hardly anything to lose; later, the job may end before the fault does."""
APART = 0.004
"""Share between a change of the plan and the fault that waits for its migration."""

Moment = Literal["", "migration", "migration-start"]
"""The moment that a fault waits for: any moment of a migration, or its beginning."""
ANY = "any"


class Intensity(StrEnum):
    """Number and severity of the faults that hit a job."""

    CALM = "calm"
    ROUGH = "rough"
    FIERCE = "fierce"


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A kind of fault or of planned change. ``lasts_s``: least and most seconds until it is healed.

    ``restores``: the job returns to a checkpoint, which costs more than all else. ``service``: the process to hit; ANY:
    drawn. ``weight``: how often the kind is drawn.
    """

    title: str
    weight: float = 1.0
    lasts_s: tuple[float, float] = (0.0, 0.0)
    restores: bool = False
    during: Moment = ""
    service: str = ""
    planned: bool = False


KINDS: dict[str, FaultKind] = {
    "worker-kill": FaultKind("kill -9 of a worker", 2),
    "worker-kill-migrating": FaultKind("kill -9 of a worker while parameters move", 1.5, during="migration"),
    "worker-stop": FaultKind("a worker frozen for longer than its lease (SIGSTOP), then a zombie", 1.5, (7.0, 9.0)),
    "worker-slow": FaultKind("a worker ten times slower", 1, (6.0, 9.0)),
    "stage-kill": FaultKind("kill -9 of a worker of a later stage", 1.5),
    "ps-kill": FaultKind("kill -9 of a parameter server", 1.5, restores=True),
    "ps-kill-cold": FaultKind("kill -9 of a parameter server whose images are in no cache", 1, restores=True),
    "ps-hot": FaultKind("a parameter server throttled to 3 % of a core", 1, (6.0, 9.0)),
    "mover-kill": FaultKind(
        "kill -9 of the parameter server that takes buckets, between freeze and flip", 1.5, restores=True,
        during="migration-start",
    ),
    "actuator-kill-migrating": FaultKind(
        "kill -9 of the actuator while parameters move", 1.5, during="migration", service="actuator"
    ),
    "data-kill": FaultKind("kill -9 of a data worker", 1),
    "data-stop": FaultKind("a data worker frozen for a while (SIGSTOP)", 1, (4.0, 8.0)),
    "service-kill": FaultKind("kill -9 of a service", 3, service=ANY),
    "service-freeze": FaultKind("a service frozen for longer than its lease", 2, (4.0, 6.0), service=ANY),
    "service-stop": FaultKind("a service stopped in good order", 1, service=ANY),
    "bus-kill": FaultKind("kill -9 of nats-server", 2, service="nats"),
    "redis-kill": FaultKind("kill -9 of redis-server", 0.7, service="redis"),
    "shm-full": FaultKind("shared memory full", 0.7, (5.0, 8.0)),
    "checkpoint-damage": FaultKind(
        "the newest checkpoint damaged, then kill -9 of a parameter server", 1.2, restores=True
    ),
    "spill-full": FaultKind("no room on the disk for a parameter server's cold rows", 0.7, (5.0, 8.0)),
    "spill-damage": FaultKind("cold rows of a parameter server damaged on the disk", 1, restores=True),
    "hostile": FaultKind("a pod of another job sends whatever its credentials allow", 1.5, (6.0, 9.0)),
    "scale-workers": FaultKind("another number of workers", planned=True),
    "scale-ps": FaultKind("another number of parameter servers: a live migration", planned=True),
}  # fmt: skip
SPILLING = frozenset({"spill-full", "spill-damage"})
"""Faults that want parameter servers with less memory than their rows take."""
STAGED = frozenset({"stage-kill"})
"""Faults that want a job whose workers ask those of a second stage."""
FAULTS = tuple(name for name, kind in KINDS.items() if not kind.planned)
CHANGES = tuple(name for name, kind in KINDS.items() if kind.planned)


@dataclass(frozen=True, slots=True)
class _Measure:
    """Numbers of an intensity: faults, changes of the plan, returns to a checkpoint, faults at once."""

    faults: int
    changes: int
    restores: int
    at_once: int
    samples: int
    training_s: float
    """Least training time: on a fast machine the job would end before a migration begins."""


_MEASURES = {
    Intensity.CALM: _Measure(3, 1, 1, 1, 600_000, 15.0),
    Intensity.ROUGH: _Measure(6, 2, 2, 2, 1_000_000, 45.0),
    Intensity.FIERCE: _Measure(12, 4, 3, 4, 2_000_000, 90.0),
}


@dataclass(frozen=True, slots=True)
class Planned:
    """One entry of a schedule. ``at``: share of the samples from which on it is due.

    ``chance`` in [0, 1) chooses among the possible victims; ``number`` counts from 1 in the order of ``at``.
    """

    number: int
    kind: str
    at: float
    during: Moment
    chance: float
    lasts_s: float
    service: str

    @property
    def planned(self) -> bool:
        """Return whether it is a change of the plan, not a fault."""
        return KINDS[self.kind].planned


@dataclass(frozen=True, slots=True)
class Schedule:
    """All faults and changes of one run; at most ``at_once`` faults are active at the same time."""

    seed: int
    intensity: Intensity
    at_once: int
    planned: tuple[Planned, ...]

    def document(self) -> dict[str, Any]:
        """Return the schedule for JSON."""
        return {
            "seed": self.seed,
            "intensity": str(self.intensity),
            "at_once": self.at_once,
            "planned": [asdict(one) for one in self.planned],
        }


def kinds_for(only: Collection[str] = (), without: Collection[str] = ()) -> list[str]:
    """Return the kinds of faults that the user allows.

    Kinds that cannot be done on this machine are drawn too and skipped when due: otherwise a seed would give another
    schedule on another machine.
    """
    return [name for name in FAULTS if (not only or name in only) and name not in without]


def samples_for(intensity: Intensity) -> int:
    """Return the samples that a job needs to live through a whole schedule."""
    return _MEASURES[intensity].samples


def training_s_for(intensity: Intensity) -> float:
    """Return the least training time of a job that lives through a whole schedule."""
    return _MEASURES[intensity].training_s


def draw(seed: int, intensity: Intensity, kinds: list[str]) -> Schedule:
    """Draw the schedule of a seed from these kinds of faults; without any, it holds only changes of the plan."""
    # a string seed is hashed by SHA-512, the same everywhere; its number grows with every new kind
    dice = random.Random(f"stretto-chaos 4 {seed} {intensity}")
    measure = _MEASURES[intensity]
    chosen = _kinds(dice, measure, kinds)
    waiting = [name for name in chosen if KINDS[name].during]
    free = [name for name in chosen if not KINDS[name].during]
    # a fault that waits for a migration needs a change that causes one; the other changes are drawn
    changes = ["scale-ps"] * len(waiting)
    while len(changes) < measure.changes:
        changes.append(CHANGES[_below(dice, len(CHANGES))])
    slots = _spread(dice, len(free) + len(changes))
    order = _shuffled(dice, [*free, *changes])
    rows: list[tuple[float, str]] = []
    for slot, name in zip(slots, order, strict=True):
        at = max(slot, rows[-1][0]) if rows else slot  # not before the fault that waits for the previous migration
        rows.append((at, name))
        if name == "scale-ps" and waiting:
            rows.append((at + APART, waiting.pop(0)))
    planned = [_planned(dice, number, name, at) for number, (at, name) in enumerate(rows, start=1)]
    return Schedule(seed, intensity, measure.at_once, tuple(planned))


def _kinds(dice: random.Random, measure: _Measure, kinds: list[str]) -> list[str]:
    """Draw each kind once before any twice; kinds that return to a checkpoint at most ``restores`` times."""
    chosen: list[str] = []
    pool = list(kinds)
    while len(chosen) < measure.faults and pool:
        full = sum(KINDS[name].restores for name in chosen) >= measure.restores
        pool = [name for name in pool if not (full and KINDS[name].restores)]
        if not pool:
            pool = [name for name in kinds if not (full and KINDS[name].restores)]
            if not pool:
                break
        name = pool[_weighted(dice, [KINDS[name].weight for name in pool])]
        chosen.append(name)
        pool.remove(name)
        if not pool:
            pool = list(kinds)
    return chosen


def _planned(dice: random.Random, number: int, name: str, at: float) -> Planned:
    kind = KINDS[name]
    low, high = kind.lasts_s
    chance, length, which = dice.random(), dice.random(), _below(dice, len(SERVICES))
    return Planned(
        number=number,
        kind=name,
        at=round(at, 4),
        during=kind.during,
        chance=round(chance, 6),
        lasts_s=round(low + (high - low) * length, 2),
        service=SERVICES[which] if kind.service == ANY else kind.service,
    )


def _spread(dice: random.Random, count: int) -> list[float]:
    """Draw one point in each of ``count`` equal stretches."""
    width = (LAST_AT - FIRST_AT) / max(count, 1)
    return [FIRST_AT + width * (index + dice.random()) for index in range(count)]


# only random() is guaranteed to stay the same between versions of Python; the rest is derived from it


def _below(dice: random.Random, count: int) -> int:
    return min(int(dice.random() * count), count - 1)


def _weighted(dice: random.Random, weights: list[float]) -> int:
    left = dice.random() * sum(weights)
    for index, weight in enumerate(weights):
        left -= weight
        if left < 0:
            return index
    return len(weights) - 1


def _shuffled(dice: random.Random, names: list[str]) -> list[str]:
    return [name for _, name in sorted((dice.random(), name) for name in names)]
