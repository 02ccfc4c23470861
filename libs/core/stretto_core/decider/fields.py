"""Fields of objects as the API server shows them, in JSON: annotations, labels, quantities, a pod's requests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from stretto_core.machine import CoreError

Object = dict[str, Any]
SIZE, LEAST, MOST, GROUP, DECISION = (f"stretto.dev/{name}" for name in ("size", "min", "max", "group", "decision"))
"""Annotations of Stretto. ``GROUP`` names the part that is sized, of an object that has several."""
OWN = (SIZE, LEAST, MOST, GROUP, DECISION)
QUEUE, ELASTIC = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/elastic-job"
GATES = "kueue.x-k8s.io/admission-gated-by"
"""Names, split by commas, of those who have to decide before Kueue (0.19 or later) admits. Stretto's is ``SIZE``."""
TRUE = ("1", "t", "T", "true", "TRUE", "True")
"""Values that are true to strconv.ParseBool of Go. Of ``ELASTIC`` only "true" is."""
SUFFIXES = {
    **{
        name: Decimal(1000) ** power for power, name in enumerate(("n", "u", "m", "", "k", "M", "G", "T", "P", "E"), -3)
    },
    **{f"{name}i": Decimal(1024) ** power for power, name in enumerate("KMGTPE", 1)},
}


class UnfitObject(CoreError):
    """An object that asks for a size and cannot get one: the field, what it says, and the remedy."""

    def __init__(self, field: str, value: object, remedy: str) -> None:
        super().__init__(f"{field} is {'not stated' if value is None else repr(value)}; {remedy}")


def annotations_of(one: Object) -> Mapping[str, str]:
    return one["metadata"].get("annotations") or {}


def labels_of(one: Object) -> Mapping[str, str]:
    return one["metadata"].get("labels") or {}


def gates(one: Object) -> list[str]:
    return [name for each in annotations_of(one).get(GATES, "").split(",") if (name := each.strip())]


def is_true(one: Object, condition: str) -> bool:
    """Return True if the object's status has this condition."""
    found = (one.get("status") or {}).get("conditions") or ()
    return any(each["type"] == condition and each["status"] == "True" for each in found)


def requests_of(template: Object) -> dict[str, int]:
    """Return what one pod of a template requests, in thousandths of each unit; a limit stands for a request left out.

    A pod requests its overhead, and the most of what runs at a time: an init container after the sidecars before it, or
    containers and sidecars, which are init containers that restart always.
    """
    spec = template.get("spec") or {}
    sidecars: dict[str, int] = {}
    starting: dict[str, int] = {}
    for container in spec.get("initContainers") or ():
        now = _sum(sidecars, _requests(container.get("resources") or {}))
        starting = {name: max(starting.get(name, 0), now.get(name, 0)) for name in starting | now}
        if container.get("restartPolicy") == "Always":
            sidecars = now
    running = sidecars
    for container in spec.get("containers") or ():
        running = _sum(running, _requests(container.get("resources") or {}))
    most = {name: max(starting.get(name, 0), running.get(name, 0)) for name in starting | running}
    return _sum(most, _requests({"requests": spec.get("overhead")})) | {"pods": 1000}


def _requests(resources: Object) -> dict[str, int]:
    given = (resources.get("limits") or {}) | (resources.get("requests") or {})
    return {name: thousandths(amount, f"{name} of a container's resources") for name, amount in given.items()}


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}


def thousandths(quantity: object, field: str = "a quantity") -> int:
    """Return a quantity of Kubernetes, as in 500m or 2Gi, in whole thousandths of its unit. Raises UnfitObject."""
    found = re.fullmatch(r"([+-]?[\d.]+(?:[eE][+-]?\d{1,3})?)([A-Za-z]{0,2})", str(quantity))
    try:
        return int(Decimal(found[1]) * SUFFIXES[found[2]] * 1000)  # type: ignore[index]
    except (TypeError, KeyError, InvalidOperation):
        raise UnfitObject(field, quantity, "state a number, as in 500m or 2Gi") from None
