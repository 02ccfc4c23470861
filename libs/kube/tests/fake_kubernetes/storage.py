"""The objects, numbered changes, and their watchers."""

from __future__ import annotations

import asyncio
import copy
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from .merging import Object, Owners


class Expired(Exception):
    """A version that is too old: the changes since then are not kept."""


def now_text(seconds: float = 0.0) -> str:
    return datetime.fromtimestamp(datetime.now(UTC).timestamp() + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class Storage:
    """The objects of one namespace: ``(plural, name)`` -> object."""

    version: int = 100
    objects: dict[tuple[str, str], Object] = field(default_factory=dict)
    owners: dict[str, Owners] = field(default_factory=dict)
    """The owners of fields, by the object's uid."""
    history: list[tuple[int, str, str, Object]] = field(default_factory=list)
    compacted: int = 0
    listeners: set[asyncio.Event] = field(default_factory=set)

    def get(self, plural: str, name: str) -> Object | None:
        return self.objects.get((plural, name))

    def all(self, plural: str) -> list[Object]:
        return [each for (kind, _), each in sorted(self.objects.items(), key=lambda item: item[0]) if kind == plural]

    def put(self, plural: str, one: Object) -> Object:
        """Store an object; an equal one changes nothing."""
        name = one["metadata"]["name"]
        known = self.get(plural, name)
        if known is not None and _content(known) == _content(one):
            return known
        one = copy.deepcopy(one)
        if known is None:
            one["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": now_text()}
        self._number(one)
        self.objects[plural, name] = one
        self._tell(plural, "ADDED" if known is None else "MODIFIED", one)
        return one

    def remove(self, plural: str, name: str) -> Object | None:
        """Delete an object and the objects that it alone owns."""
        one = self.objects.pop((plural, name), None)
        if one is None:
            return None
        last = copy.deepcopy(one)
        self._number(last)
        self._tell(plural, "DELETED", last)
        uid = one["metadata"]["uid"]
        self.owners.pop(uid, None)
        for (kind, other), each in [*self.objects.items()]:
            references = each["metadata"].get("ownerReferences") or []
            if any(reference["uid"] == uid for reference in references):
                self.remove(kind, other)
        return last

    def since(self, plural: str, version: int) -> list[tuple[int, str, Object]]:
        """Return the changes since a version. Raises Expired."""
        if version < self.compacted:
            raise Expired(f"too old resource version: {version} ({self.compacted})")
        return [(at, kind, one) for at, of, kind, one in self.history if of == plural and at > version]

    def compact(self) -> None:
        """Forget the history of changes."""
        self.history.clear()
        self.version += 1
        self.compacted = self.version

    def owners_of(self, one: Object) -> Owners:
        return self.owners.setdefault(one["metadata"]["uid"], Owners())

    def _number(self, one: Object) -> None:
        self.version += 1
        one["metadata"]["resourceVersion"] = str(self.version)

    def _tell(self, plural: str, kind: str, one: Object) -> None:
        self.history.append((self.version, plural, kind, one))
        for listener in self.listeners:
            listener.set()


def _content(one: Object) -> Any:
    meta = {key: value for key, value in one["metadata"].items() if key != "resourceVersion"}
    return {**one, "metadata": meta}
