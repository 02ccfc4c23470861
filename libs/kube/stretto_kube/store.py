"""The objects of one kind, as far as known: a pure view, fed by listings, watch events and answers to own writes.

The API server numbers all changes (``resourceVersion``). The number shows whether a change is repeated, late or out of
order: the view depends on the set of changes that arrived, never on their order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from .api import Object
from .faults import EXPIRED, KubeFault


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """A new or changed object, or (``gone``) the last state of a deleted one."""

    object: Object
    gone: bool = False


@dataclass(slots=True)
class ObjectView:
    """The view: ``objects`` by name. All changes up to ``version`` are known, so a watch continues from there."""

    objects: dict[str, Object] = field(default_factory=dict[str, Object])
    version: int = 0
    _listed: int = 0
    _deleted: dict[str, int] = field(default_factory=dict[str, int])

    def listed(self, objects: Iterable[Object], version: int) -> list[ObjectChange]:
        """Take a listing: all objects at ``version``. Return the changes."""
        present = {name_of(one): one for one in objects}
        changes = [change for one in present.values() if (change := self.seen(one)) is not None]
        for name in [*self.objects]:
            if name not in present and version_of(self.objects[name]) <= version:
                changes.append(ObjectChange(self.objects.pop(name), gone=True))
        self._listed = max(self._listed, version)
        self._deleted = {name: at for name, at in self._deleted.items() if at > self._listed}
        self.version = max(self.version, version)
        return changes

    def seen(self, one: Object) -> ObjectChange | None:
        """Take an object, current or outdated, from a listing or the answer to a write. Return the change, if any."""
        name = name_of(one)
        version = version_of(one)
        if version <= self._known(name):
            return None
        self.objects[name] = one
        return ObjectChange(one)

    def take(self, event: Object) -> ObjectChange | None:
        """Take an event of a watch. Return the change, if any. Raises KubeFault if the watch cannot continue."""
        kind = event["type"]
        one = event["object"]
        if kind == "ERROR":
            status = int(one.get("code", EXPIRED))
            raise KubeFault("watch", status, str(one.get("reason", "")), str(one.get("message", "")))
        version = version_of(one)
        self.version = max(self.version, version)
        if kind == "DELETED":
            return self._remove(one, version)
        return self.seen(one) if kind in ("ADDED", "MODIFIED") else None

    def _remove(self, one: Object, version: int) -> ObjectChange | None:
        name = name_of(one)
        known = self.objects.get(name)
        if version <= self._listed or version < self._known(name):
            return None
        self._deleted[name] = version
        self.objects.pop(name, None)
        return ObjectChange(one, gone=True) if known is not None else None

    def _known(self, name: str) -> int:
        """Return the version of the newest change of this name that is included in the view."""
        known = self.objects.get(name)
        return max(version_of(known) if known else 0, self._deleted.get(name, 0), self._absent(name))

    def _absent(self, name: str) -> int:
        """Return the version up to which the last listing shows that the name does not exist."""
        return 0 if name in self.objects else self._listed


def name_of(one: Object) -> str:
    """Return the object's name."""
    return str(one["metadata"]["name"])


def version_of(one: Object) -> int:
    """Return an object's version. They are ordered integers, as etcd has always counted; promised since 1.35."""
    return int(one["metadata"]["resourceVersion"])
