"""Keys of the resources of a program (variables, tables, iterators), by the identity of their handles."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Resources:
    """Keys that were given to resources. names: by the identity of the handle."""

    names: dict[int, str] = field(default_factory=dict[int, str])
    kept: list[Any] = field(default_factory=list[Any])
    """Handles that have a key; while they are alive, no other object has their identity."""

    def key(self, handle: Any, name: str) -> str:
        """Return the key of a resource: the name under which it was first seen, made unique."""
        if id(handle) not in self.names:
            self.kept.append(handle)
            taken = set(self.names.values())
            self.names[id(handle)] = name if name not in taken else f"{name} ({len(taken)})"
        return self.names[id(handle)]


def given_of(concrete: Any, resources: Resources) -> dict[str, str]:
    """Return the key of the resource behind each placeholder of a traced function."""
    return {
        inner.op.name: resources.key(outer, _table_name(inner.op.name))
        for outer, inner in concrete.graph.captures
        if inner.dtype.name == "resource"
    }


def _table_name(placeholder: str) -> str:
    """Return a name for people of a captured resource that has no name itself."""
    return placeholder.removesuffix("/table_handle").removesuffix("/LookupTableFindV2") or placeholder
