"""What is to happen to a job, drawn from a seed: the same seed, the same schedule, on every machine.

Nothing here knows of processes. A fault is due once so large a share of the samples is trained (a slow machine gets
the same schedule as a fast one), and may wait for a moment, such as a migration. Whom it hits is drawn, too, as a
number: those who are there are known only then.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Literal

from stretto_runtime.access.permissions import SERVICES

FIRST_AT, LAST_AT = 0.06, 0.84
"""shares of the samples: before, there is hardly anything to lose; after, the job may be over before the end of it"""
APART = 0.004
"""between a change of the plan and what waits for its migration"""

Moment = Literal["", "migration", "migration-start"]
"""what is waited for: a migration, and then any moment in it; or just its beginning"""
ANY = "any"


class Intensity(StrEnum):
    """How much happens."""

    CALM = "calm"
    ROUGH = "rough"
    FIERCE = "fierce"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault or of planned change. ``lasts_s``: least and most seconds until it is healed.

    ``restores``: the job goes back to a checkpoint, which costs more than all others. ``service``: the process that is
    meant; ANY: drawn. ``weight``: how often it is drawn.
    """

    title: str
    weight: float = 1.0
    lasts_s: tuple[float, float] = (0.0, 0.0)
    restores: bool = False
    during: Moment = ""
    service: str = ""
    planned: bool = False


KINDS: dict[str, Kind] = {
    "worker-kill": Kind("kill -9 of a worker", 2),
    "worker-kill-migrating": Kind("kill -9 of a worker while parameters move", 1.5, during="migration"),
    "worker-stop": Kind("a worker frozen for longer than its lease (SIGSTOP), then a zombie", 1.5, (7.0, 9.0)),
    "worker-slow": Kind("a worker ten times slower", 1, (6.0, 9.0)),
    "ps-kill": Kind("kill -9 of a parameter server", 1.5, restores=True),
    "ps-kill-cold": Kind("kill -9 of a parameter server whose images are in no cache", 1, restores=True),
    "ps-hot": Kind("a parameter server throttled to 3 % of a core", 1, (6.0, 9.0)),
    "mover-kill": Kind(
        "kill -9 of the parameter server that takes buckets, between freeze and flip", 1.5, restores=True,
        during="migration-start",
    ),
    "actuator-kill-migrating": Kind(
        "kill -9 of the actuator while parameters move", 1.5, during="migration", service="actuator"
    ),
    "service-kill": Kind("kill -9 of a service", 3, service=ANY),
    "service-freeze": Kind("a service frozen for longer than its lease", 2, (4.0, 6.0), service=ANY),
    "service-stop": Kind("a service stopped in good order", 1, service=ANY),
    "bus-kill": Kind("kill -9 of nats-server", 2, service="nats"),
    "redis-kill": Kind("kill -9 of redis-server", 0.7, service="redis"),
    "shm-full": Kind("shared memory full", 0.7, (5.0, 8.0)),
    "checkpoint-damage": Kind("the newest checkpoint damaged, then kill -9 of a parameter server", 1.2, restores=True),
    "scale-workers": Kind("another number of workers", planned=True),
    "scale-ps": Kind("another number of parameter servers: a live migration", planned=True),
}  # fmt: skip
FAULTS = tuple(name for name, kind in KINDS.items() if not kind.planned)
CHANGES = tuple(name for name, kind in KINDS.items() if kind.planned)


@dataclass(frozen=True, slots=True)
class _Measure:
    """What an intensity means: how many faults, changes of the plan, ways back to a checkpoint, faults at once."""

    faults: int
    changes: int
    restores: int
    at_once: int
    samples: int
    training_s: float
    """at least, of the job as planned: on a fast machine it would be over before a migration begins"""


_MEASURES = {
    Intensity.CALM: _Measure(3, 1, 1, 1, 600_000, 15.0),
    Intensity.ROUGH: _Measure(6, 2, 2, 2, 1_000_000, 45.0),
    Intensity.FIERCE: _Measure(12, 4, 3, 4, 2_000_000, 90.0),
}


@dataclass(frozen=True, slots=True)
class Planned:
    """One thing that is to happen. ``at``: the share of the samples from which on it is due.

    ``chance`` in [0, 1) chooses among those whom it can hit; ``number`` counts from 1 in the order of ``at``.
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
        """Whether it is a change of the plan, not a fault."""
        return KINDS[self.kind].planned


@dataclass(frozen=True, slots=True)
class Schedule:
    """Everything that is to happen in one run; ``at_once`` faults at most are not healed at the same time."""

    seed: int
    intensity: Intensity
    at_once: int
    planned: tuple[Planned, ...]

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "seed": self.seed,
            "intensity": str(self.intensity),
            "at_once": self.at_once,
            "planned": [asdict(one) for one in self.planned],
        }


def kinds_for(only: Collection[str] = (), without: Collection[str] = ()) -> list[str]:
    """Kinds of faults that are wished for. What cannot be done here is drawn too, and passed over when it is due: else
    a seed would bring another schedule on another machine."""
    return [name for name in FAULTS if (not only or name in only) and name not in without]


def samples_for(intensity: Intensity) -> int:
    """How many samples a job needs that all of it is to happen to."""
    return _MEASURES[intensity].samples


def training_s_for(intensity: Intensity) -> float:
    """How long it has to train at least, so that there is time for it."""
    return _MEASURES[intensity].training_s


def draw(seed: int, intensity: Intensity, kinds: list[str]) -> Schedule:
    """The schedule of a seed, out of these kinds of faults (none: only changes of the plan)."""
    dice = random.Random(f"stretto-chaos 1 {seed} {intensity}")  # a text: hashed by SHA-512, the same everywhere
    measure = _MEASURES[intensity]
    chosen = _kinds(dice, measure, kinds)
    waiting = [name for name in chosen if KINDS[name].during]
    free = [name for name in chosen if not KINDS[name].during]
    # what waits for a migration needs a change that causes one; else migrations and workers take turns by lot
    changes = ["scale-ps"] * len(waiting)
    while len(changes) < measure.changes:
        changes.append(CHANGES[_below(dice, len(CHANGES))])
    slots = _spread(dice, len(free) + len(changes))
    order = _shuffled(dice, [*free, *changes])
    rows: list[tuple[float, str]] = []
    for slot, name in zip(slots, order, strict=True):
        at = max(slot, rows[-1][0]) if rows else slot  # after what waits for the migration before
        rows.append((at, name))
        if name == "scale-ps" and waiting:
            rows.append((at + APART, waiting.pop(0)))
    planned = [_planned(dice, number, name, at) for number, (at, name) in enumerate(rows, start=1)]
    return Schedule(seed, intensity, measure.at_once, tuple(planned))


def _kinds(dice: random.Random, measure: _Measure, kinds: list[str]) -> list[str]:
    """Each kind once before any comes twice; those that go back to a checkpoint at most ``restores`` times."""
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
    """One in each of ``count`` equal stretches, anywhere in it."""
    width = (LAST_AT - FIRST_AT) / max(count, 1)
    return [FIRST_AT + width * (index + dice.random()) for index in range(count)]


# of a generator only random() is promised to stay the same between versions of Python


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
