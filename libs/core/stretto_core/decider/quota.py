"""Room in a queue of Kueue, counted by pods.

Kueue gives quota back as soon as a workload is smaller or evicted, while the pods that held it still end. Quota is free
only when those pods are gone:

    free = nominal - used - sum over Jobs of max(pods - admitted, asked - admitted, 0) x requests of a pod

``used`` is what Kueue counts, for each Job its admitted pods. What a Job asks for is not free even before Kueue admits
that much.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

UNBOUNDED = 10**6
"""Room of an object that no quota bounds: more pods than any object may have."""
Amounts = Mapping[str, int]
"""Thousandths of each resource's unit, by the resource's name: whole numbers, whose sums are exact."""


@dataclass(frozen=True, slots=True)
class PodsInQueue:
    """The pods of one Job in a queue: those that there are, that end included, that the Job asks for, and that Kueue
    counts; and a pod's requests."""

    pods: int
    asked: int
    admitted: int
    each: Amounts


def held_by(jobs: Iterable[PodsInQueue], *, asked: bool) -> dict[str, int]:
    """Return the quota of pods beyond those that Kueue counts; with ``asked`` also of pods to come."""
    held: dict[str, int] = {}
    for job in jobs:
        uncounted = max(job.pods, job.asked if asked else 0) - job.admitted
        for name, amount in job.each.items() if uncounted > 0 else ():
            held[name] = held.get(name, 0) + uncounted * amount
    return held


def free_pods(nominal: Amounts, used: Amounts, held: Amounts, each: Amounts) -> int:
    """Return the number of further pods, of which one requests ``each``, that the queue's nominal quota has room for.

    ``held``: ``held_by`` the queue's Jobs. A resource without quota bounds nothing. A pod that requests nothing that
    has quota finds no room: nothing tells how many of them there may be.
    """
    rooms = [
        (total - used.get(name, 0) - held.get(name, 0)) // each[name]
        for name, total in nominal.items()
        if each.get(name, 0) > 0
    ]
    return max(min(rooms, default=0), 0)
