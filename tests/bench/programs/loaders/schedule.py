"""One schedule of kills and resizes, the same for every loader; and the sizes of the job that it falls upon."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

SAMPLES, BATCH, WORKERS = 19_968, 64, 2
"""312 batches: two and three workers both end with whole ones."""
SAMPLE_S = 0.001
"""Seconds that a worker computes for a sample; it sleeps, so that two cores are enough for three workers."""
CHECKPOINT_STEPS = 16
"""Steps between two checkpoints."""
SHARD_BATCHES = 8
"""Batches that a worker is given at once, where it is given shards."""
_EARLIEST, _LATEST = 0.1, 0.9
_DOES: tuple[tuple[Literal["kill", "resize"], int], ...] = (
    ("kill", 0),
    ("resize", 3),
    ("kill", 0),
    ("resize", 2),
    ("kill", 0),
)


@dataclass(frozen=True, slots=True)
class Event:
    """A kill by SIGKILL, or a resize.

    at_samples: written by all workers together when the event is due, samples that are trained again included.
    chance: in [0, 1), says which worker is killed. delay_s: from the next step's begin to the kill.
    """

    does: Literal["kill", "resize"]
    at_samples: int
    workers: int
    chance: float
    delay_s: float


def events(seed: int) -> list[Event]:
    """Return the events of a seed: a kill, one more worker, a kill, one worker less, a kill; each in its own fifth."""
    chances = random.Random(seed)
    fifth = (_LATEST - _EARLIEST) / len(_DOES)
    return [
        Event(
            does,
            int(SAMPLES * (_EARLIEST + fifth * (index + chances.random()))),
            workers,
            chances.random(),
            chances.random() * BATCH * SAMPLE_S,
        )
        for index, (does, workers) in enumerate(_DOES)
    ]
