"""What is known of the objects of one kind: a pure view, fed by listings, watch events and answers to own writes.

The API server numbers every change of everything (``resourceVersion``). Whatever comes twice, late or in another order
is told by its number: the view depends on which changes were seen, never on how.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from .api import Object
from .faults import EXPIRED, KubeFault


@dataclass(frozen=True, slots=True)
class Change:
    """An object is new, is different, or (``gone``) was deleted; then this is the last that was seen of it."""

    object: Object
    gone: bool = False


@dataclass(slots=True)
class Store:
    """``objects`` by name. ``version``: everything up to it is known, so a watch goes on from there."""

    objects: dict[str, Object] = field(default_factory=dict[str, Object])
    version: int = 0
    _listed: int = 0
    _deleted: dict[str, int] = field(default_factory=dict[str, int])

    def listed(self, objects: Iterable[Object], version: int) -> list[Change]:
        """All objects that there were at ``version``."""
        present = {name_of(one): one for one in objects}
        changes = [change for one in present.values() if (change := self.seen(one)) is not None]
        for name in [*self.objects]:
            if name not in present and version_of(self.objects[name]) <= version:
                changes.append(Change(self.objects.pop(name), gone=True))
        self._listed = max(self._listed, version)
        self._deleted = {name: at for name, at in self._deleted.items() if at > self._listed}
        self.version = max(self.version, version)
        return changes

    def seen(self, one: Object) -> Change | None:
        """An object as it is, or was: from a listing, or the answer to a write."""
        name, version = name_of(one), version_of(one)
        if version <= self._known(name):
            return None
        self.objects[name] = one
        return Change(one)

    def take(self, event: Object) -> Change | None:
        """An event of a watch. Raises KubeFault: the watch cannot go on."""
        kind, one = event["type"], event["object"]
        if kind == "ERROR":
            status = int(one.get("code", EXPIRED))
            raise KubeFault("watch", status, str(one.get("reason", "")), str(one.get("message", "")))
        version = version_of(one)
        self.version = max(self.version, version)
        if kind == "DELETED":
            return self._remove(one, version)
        return self.seen(one) if kind in ("ADDED", "MODIFIED") else None

    def _remove(self, one: Object, version: int) -> Change | None:
        name = name_of(one)
        known = self.objects.get(name)
        if version <= self._listed or version < self._known(name):
            return None
        self._deleted[name] = version
        self.objects.pop(name, None)
        return Change(one, gone=True) if known is not None else None

    def _known(self, name: str) -> int:
        """The newest change of this name that is accounted for."""
        known = self.objects.get(name)
        return max(version_of(known) if known else 0, self._deleted.get(name, 0), self._absent(name))

    def _absent(self, name: str) -> int:
        """A listing without a name accounts for everything of it up to then."""
        return 0 if name in self.objects else self._listed


def name_of(one: Object) -> str:
    """The object's name."""
    return str(one["metadata"]["name"])


def version_of(one: Object) -> int:
    """The change that made an object what it is. Ordered integers, as etcd has always counted; promised since 1.35."""
    return int(one["metadata"]["resourceVersion"])
