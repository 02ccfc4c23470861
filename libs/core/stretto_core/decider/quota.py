"""Room in a queue of Kueue, counted by pods.

Kueue gives quota back as soon as a workload is smaller or evicted, while the pods that held it still end. Quota is free
only when those pods are gone:

    free = nominal - used - sum over Jobs of max(pods - admitted, 0) x requests of a pod

``used`` is what Kueue counts, for each Job its admitted pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Amounts = Mapping[str, int]
"""Thousandths of each resource's unit, by the resource's name: whole numbers, whose sums are exact."""


@dataclass(frozen=True, slots=True)
class PodsInQueue:
    """The pods of one Job in a queue, those that end included, the number that Kueue counts, and a pod's requests."""

    pods: int
    admitted: int
    each: Amounts


def free_pods(nominal: Amounts, used: Amounts, jobs: Iterable[PodsInQueue], each: Amounts) -> int:
    """Return how many more pods that request ``each`` the queue's nominal quota has room for.

    A resource without quota bounds nothing. A pod that requests nothing that has quota finds no room: nothing tells how
    many of them there may be.
    """
    leaving = [(job.each, job.pods - job.admitted) for job in jobs if job.pods > job.admitted]
    rooms = [
        (total - used.get(name, 0) - sum(pods * of.get(name, 0) for of, pods in leaving)) // each[name]
        for name, total in nominal.items()
        if each.get(name, 0) > 0
    ]
    return max(min(rooms, default=0), 0)
