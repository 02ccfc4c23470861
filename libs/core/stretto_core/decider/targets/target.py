"""A target: a kind of objects, the part of each that is sized, its pods, and the fields that give them another size."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from stretto_core.decider.fields import GROUP, Object, UnfitObject, annotations_of
from stretto_core.decider.observations import WorkloadSeen

Ending = tuple[Literal["", "complete", "failed", "gone"], str]


@dataclass(frozen=True, slots=True)
class Part:
    """The part of an object that is sized: the name of its pod set to Kueue, the pods asked for, their template."""

    name: str
    count: int
    template: Object
    least: int = 1
    most: int | None = None
    """Most pods that the object itself allows; None: any number."""


@dataclass(frozen=True, slots=True)
class Pods:
    """The pods of a part. ``due``: those that run of those asked for; ``most``: those that there is work for."""

    active: int
    ready: int
    terminating: int
    due: int | None = None
    most: int | None = None


class Target(ABC):
    """A kind of objects. ``children``: the Jobs that an object owns."""

    kind: ClassVar[str]
    group: ClassVar[str]
    version: ClassVar[str]
    plural: ClassVar[str]
    needs_queue: ClassVar[bool] = False
    """Nothing is decided for an object that no queue bounds."""
    is_elastic: ClassVar[bool] = True
    """Kueue follows the size of an object that runs."""

    @abstractmethod
    def part(self, one: Object) -> Part:
        """Return the part that is sized. Raises UnfitObject."""

    @abstractmethod
    def pods(self, one: Object, part: Part, children: Sequence[Object]) -> Pods:
        """Return the pods that the object has."""

    @abstractmethod
    def ending(self, one: Object) -> Ending:
        """Return how the object ended, and why; empty: it has not."""

    def held(self, one: Object, part: Part, children: Sequence[Object]) -> tuple[WorkloadSeen, ...]:
        """Return the sizes that the object's own controller has taken over, of an object without a queue."""
        return ()

    @abstractmethod
    def resized(self, one: Object, part: Part, count: int) -> Object:
        """Return the fields of ``spec`` that give the part another size."""


def chosen(one: Object, among: Sequence[Object], name: str, kind: str) -> Object:
    """Return the part that the object's annotation names, or the only one. Raises UnfitObject."""
    wanted, names = annotations_of(one).get(GROUP), [str(each.get(name)) for each in among]
    if wanted is None and len(among) == 1:
        return among[0]
    if wanted not in names:
        raise UnfitObject(GROUP, wanted, f"name the {kind} to size: {', '.join(names) or 'there is none'}")
    return among[names.index(wanted)]


def condition_ending(one: Object, complete: str, failed: str) -> Ending:
    """Return the ending that one of two conditions tells."""
    for condition in (one.get("status") or {}).get("conditions") or ():
        if condition["type"] in (complete, failed) and condition["status"] == "True":
            told = condition.get("message") or condition.get("reason") or "the object's controller says so"
            return ("complete" if condition["type"] == complete else "failed"), told
    return "", ""
