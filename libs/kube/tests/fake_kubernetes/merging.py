"""How objects are merged: server-side apply with owners of fields, and strategic merge patches.

Lists of things that have a name are merged by it, sets by their members; every other list is one value.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]
Step = tuple[str, ...]
Path = tuple[Step, ...]

KEYS = {
    "containers": "name", "containerStatuses": "name", "env": "name", "volumes": "name", "volumeMounts": "mountPath",
    "conditions": "type", "ownerReferences": "uid", "imagePullSecrets": "name",
    "replicatedJobs": "name",
}  # fmt: skip
SETS = {"finalizers"}
IDENTITY = {(("apiVersion",),), (("kind",),)} | {
    (("metadata",), (name,)) for name in ("name", "namespace", "uid", "resourceVersion", "generation")
}


class Conflict(Exception):
    """Fields of other managers would change."""


@dataclass
class Owners:
    """The owners of one object's fields: manager -> fields."""

    fields: dict[str, set[Path]] = field(default_factory=dict)

    def take(self, manager: str, paths: set[Path]) -> None:
        for theirs in self.fields.values():
            theirs -= paths
        self.fields.setdefault(manager, set()).update(paths)


def leaves(value: Any, path: Path = ()) -> dict[Path, Any]:
    """List every field with its value; an empty object is a value."""
    name = path[-1][0] if path else ""
    found: dict[Path, Any] = {}
    if isinstance(value, dict) and (value or not path):
        for key, each in value.items():
            found |= leaves(each, (*path, (key,)))
    elif isinstance(value, list) and name in KEYS:
        for each in value:
            found |= leaves(each, (*path, ("[]", name, str(each[KEYS[name]]))))
    elif isinstance(value, list) and name in SETS:
        for each in value:
            found[(*path, ("{}", each))] = each
    else:
        found[path] = value
    return {each: found[each] for each in found if each not in IDENTITY}


def apply(known: Object, wanted: Object, owners: Owners, manager: str, force: bool) -> Object:
    """Apply fields for a manager. Raises Conflict."""
    asked, there = leaves(wanted), leaves(known)
    for other, theirs in owners.fields.items():
        contested = [path for path in theirs & asked.keys() if there.get(path) != asked[path]]
        if other != manager and contested and not force:
            named = ", ".join(sorted("." + ".".join(step[-1] for step in path) for path in contested))
            raise Conflict(f'Apply failed with {len(contested)} conflict: conflict with "{other}": {named}')
    result = copy.deepcopy(known)
    mine = owners.fields.get(manager, set())
    others = {path for other, theirs in owners.fields.items() if other != manager for path in theirs}
    for path in sorted(
        mine - asked.keys() - others, key=_names_an_item
    ):  # an item goes when nothing but its name is left
        remove(result, path)
    for path, value in asked.items():
        put(result, path, value)
    for theirs in owners.fields.values():
        theirs -= {path for path in asked if there.get(path) != asked[path]}
    owners.fields[manager] = set(asked)
    return result


def merge(known: Any, patch: Any, name: str = "", strategic: bool = False) -> Any:
    """Apply a merge patch (RFC 7396); ``strategic``: lists of named items are merged."""
    if strategic and isinstance(patch, list) and name in KEYS:
        key, result = KEYS[name], {each[KEYS[name]]: each for each in known or []}
        for each in patch:
            result[each[key]] = merge(result.get(each[key], {}), each, strategic=True)
        return list(result.values())
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(known) if isinstance(known, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value, key, strategic)
    return result


def put(value: Any, path: Path, leaf: Any) -> None:
    """Set a field, creating the objects on its path."""
    for index, step in enumerate(path):
        last = index == len(path) - 1
        if step[0] == "{}":
            if step[1] not in value:
                value.append(step[1])
        elif step[0] == "[]":
            key = KEYS[step[1]]
            found = next((each for each in value if str(each[key]) == step[2]), None)
            if found is None:
                value.append(found := {key: step[2]})
            value = found
        elif last:
            value[step[0]] = copy.deepcopy(leaf)
        else:
            inside_list = path[index + 1][0] in ("[]", "{}")
            value = value.setdefault(step[0], [] if inside_list else {})


def remove(value: Any, path: Path) -> None:
    """Remove a field, if it exists."""
    holder = value
    for step in path[:-1]:
        holder, value = value, _into(value, step)
        if value is None:
            return
    last = path[-1]
    if last[0] == "{}":
        if last[1] in value:
            value.remove(last[1])
    elif not _names_an_item(path):
        value.pop(last[0], None)
    elif len(value) == 1:
        holder.remove(value)


def _into(value: Any, step: Step) -> Any:
    if step[0] == "[]":
        return next((each for each in value if str(each[KEYS[step[1]]]) == step[2]), None)
    return value.get(step[0])


def _names_an_item(path: Path) -> bool:
    return len(path) > 1 and path[-2][0] == "[]" and path[-1][0] == KEYS[path[-2][1]]
