"""The state of a machine as bytes, and back, under every version of its shape (README, "Upgrading a machine").

A snapshot is stored in the shape of the machine's ``storage_version``. That is its own version, or an earlier one that
may still come back: its code then reads the snapshot as one of its own. The state passes through ``migrate_back`` and
is rebuilt from what came out, as a successor rebuilds it. Only if every byte of it is the same, the earlier shape is
stored. Otherwise something would be lost: the state is stored in its own shape, and its key has no way back.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, ClassVar, NamedTuple, Protocol, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from stretto_runtime.inputs import CLUSTER
from stretto_runtime.owner.state.snapshots import Document, digest, pack, unpack
from stretto_runtime.process.faults import RuntimeFault, VersionRefusal

JOB_SCOPE, CLUSTER_SCOPE = "job", "cluster"


class MachineFactory(Protocol):
    """The part of a service that makes its machines."""

    name: ClassVar[str]
    version: ClassVar[int]
    state_types: ClassVar[dict[str, type]]
    forgotten_after_s: ClassVar[float]

    def machine(self, key: str, state: Any) -> Any: ...


class Content(NamedTuple):
    """A state as a document stores it. ``changed`` names the parts that differ from those of the last document."""

    version: int
    packed: bytes
    parted: str
    parts: dict[str, bytes]
    digest: int
    changed: list[str]
    size_bytes: int
    no_way_back: str = ""
    """Reason why the state is not in the earlier shape that it should have; empty: it is, or needs none."""


class StateCodec:
    """Reads and writes the states of one service's machines."""

    def __init__(self, factory: MachineFactory) -> None:
        self._factory = factory
        self._adapters: dict[str, TypeAdapter[Any]] = {
            scope: _adapter_of(state_type) for scope, state_type in factory.state_types.items()
        }

    def version_of(self, machine: Any) -> int:
        """Return the version of a machine: its own if it has one, else the service's."""
        return getattr(machine, "version", self._factory.version)

    def storage_version_of(self, machine: Any) -> int:
        """Return the version in whose shape the state is stored."""
        return getattr(machine, "storage_version", self.version_of(machine))

    def check_machines(self) -> None:
        """Check what the machines say of their way back. Raises RuntimeFault."""
        for scope in self._factory.state_types:
            machine = self._factory.machine(CLUSTER if scope == CLUSTER_SCOPE else "any", None)
            version, stored = self.version_of(machine), self.storage_version_of(machine)
            if stored == version:
                continue
            missing = [name for name in ("migrate", "migrate_back") if not hasattr(machine, name)]
            remedy = "an earlier version" if stored > version else " and ".join(missing)
            if remedy:
                raise RuntimeFault(
                    f"storage_version = {stored} of {type(machine).__name__}, which is of version {version}: give "
                    f"{remedy}, or no storage_version"
                )

    def dump(self, key: str, machine: Any) -> bytes:
        """Return the JSON of a machine's state."""
        return self._adapter(key).dump_json(machine.state)

    def build(self, key: str, document: Document | None) -> Any:
        """Return the machine that continues ``document``; a fresh one for None.

        Raises:
            Refusal: this code cannot continue it, or would lose a part of it.
        """
        fresh = self._factory.machine(key, None)
        if document is None:
            return fresh
        version, parted = self.version_of(fresh), getattr(fresh, "parted", "")
        whose = f"the snapshot of {self._factory.name} for {key!r} is of version {document.version}, this is {version}"
        if document.version != version:
            migrate = getattr(fresh, "migrate", None)
            if document.version > version:
                raise VersionRefusal(
                    f"{whose}, which cannot continue it, because the snapshot has no way back: run version "
                    f"{document.version}, or restore the backup of before it"
                )
            if migrate is None:
                raise VersionRefusal(
                    f"{whose}, which cannot continue it; run version {document.version}, or give the machine "
                    "migrate(state, from_version)"
                )
            migrated = to_json(migrate(document.whole, document.version))
            machine = self._factory.machine(key, _read(self._adapter(key), migrated, whose))
            if parted:
                machine.changed.update({*document.parts, *getattr(machine.state, parted)})
            return machine
        if document.parted != parted:
            raise VersionRefusal(
                f"{whose}, but what is saved in parts is {document.parted!r} there, {parted!r} here; raise "
                "the version, and give the machine migrate(state, from_version)"
            )
        state = _read(self._adapter(key), document.state, whose, {parted} if parted else None)
        for name, part in document.parts.items():
            entry = _read(self._part_adapter(key, parted), unpack(part), f"{whose}, in {parted}.{name}")
            getattr(state, parted)[name] = entry
        return self._factory.machine(key, state)

    def content(self, key: str, machine: Any, base: Document | None) -> Content:
        """Return the state as it is stored after ``base``. Its changes count as saved."""
        why = ""
        content: Content | None = None
        version = self.version_of(machine)
        if getattr(machine, "storage_version", version) != version:
            content, why = self._earlier(key, machine, base)
        content = content or self._own(key, machine, base, version, why)
        if getattr(machine, "parted", ""):
            machine.changed.clear()
        return content

    def _own(self, key: str, machine: Any, base: Document | None, version: int, no_way_back: str) -> Content:
        parted = getattr(machine, "parted", "")
        state = self._adapter(key).dump_json(machine.state, exclude={parted} if parted else None)
        size_bytes = len(state)
        if not parted and (base is None or not base.parts):  # so it is for nearly every key, at each snapshot
            return Content(version, pack(state), parted, {}, 0, [], size_bytes, no_way_back)
        parts, total = (dict(base.parts), base.digest) if base else ({}, 0)
        entries: dict[str, Any] = getattr(machine.state, parted) if parted else {}
        if parted and (base is None or base.version == version):
            changed = sorted(machine.changed)
        else:  # parts of another shape, or none any more: all of them go
            changed = sorted({*parts, *entries})
        for name in changed:
            entry = entries.get(name)
            total = digest({name: parts.pop(name, None)}, total, -1)
            if entry is not None:
                dumped = self._part_adapter(key, parted).dump_json(entry)
                size_bytes += len(dumped)
                parts[name] = pack(dumped)
                total = digest({name: parts[name]}, total)
        return Content(version, pack(state), parted, parts, total, changed, size_bytes, no_way_back)

    def _earlier(self, key: str, machine: Any, base: Document | None) -> tuple[Content | None, str]:
        """Return the state in the shape of its storage version, or None and why that would lose something."""
        version, dumped = self.storage_version_of(machine), self.dump(key, machine)
        parted: str = getattr(machine, "storage_parted", getattr(machine, "parted", ""))
        try:
            state: dict[str, Any] = machine.migrate_back(from_json(dumped), version)
            parts = {name: pack(to_json(entry)) for name, entry in state.pop(parted).items()} if parted else {}
            packed = pack(to_json(state))
            rebuilt = self.dump(key, self.build(key, Document(0, version, packed, parted=parted, parts=parts)))
        except Exception as error:  # whatever the author's functions raise: this key has no way back, and goes on
            return None, f"{type(error).__name__}: {error}"
        if rebuilt != dumped:
            changed_path = next(_lost(from_json(dumped), from_json(rebuilt)), "the order of entries, or more of them")
            return None, f"migrate does not bring back {changed_path}"
        former = base.parts if base else {}
        changed = sorted(name for name in {*former, *parts} if former.get(name) != parts.get(name))
        return Content(version, packed, parted, parts, digest(parts), changed, len(dumped)), ""

    def _adapter(self, key: str) -> TypeAdapter[Any]:
        return self._adapters[_scope_of(key)]

    def _part_adapter(self, key: str, parted: str) -> TypeAdapter[Any]:
        return _part_adapter_of(self._factory.state_types[_scope_of(key)], parted)


@cache
def _adapter_of(state_type: type) -> TypeAdapter[Any]:
    """Building one takes some ten milliseconds, and every partition needs the same."""
    return TypeAdapter(state_type)


@cache
def _part_adapter_of(state_type: type, field: str) -> TypeAdapter[Any]:
    return TypeAdapter(get_args(get_type_hints(state_type)[field])[1])


def _scope_of(key: str) -> str:
    return CLUSTER_SCOPE if key == CLUSTER else JOB_SCOPE


def _read(adapter: TypeAdapter[Any], stored: bytes, whose: str, exclude: set[str] | None = None) -> Any:
    """Read a saved state. Raises Refusal if this code would lose a part of it."""
    try:
        state = adapter.validate_json(stored)
    except ValidationError as error:
        first = error.errors()[0]
        raise VersionRefusal(
            f"{whose}: {first['loc']} {first['msg']}; give new fields of the state a default, or raise "
            "the version and migrate"
        ) from error
    dumped = adapter.dump_json(state, exclude=exclude)
    if dumped != stored and (lost := next(_lost(from_json(stored), from_json(dumped)), None)) is not None:
        raise VersionRefusal(
            f"{whose}: this code does not keep {lost}; raise the version, and let migrate say what becomes of it"
        )
    return state


def _lost(stored: object, kept: object, path: str = "state") -> Iterator[str]:
    """The parts of a stored state that are missing after it was read."""
    if isinstance(stored, dict) and isinstance(kept, dict):
        for name, value in stored.items():
            if name in kept:
                yield from _lost(value, kept[name], f"{path}.{name}")
            else:
                yield f"{path}.{name}"
    elif isinstance(stored, list) and isinstance(kept, list) and len(stored) == len(kept):
        for index, (one, other) in enumerate(zip(stored, kept, strict=True)):
            yield from _lost(one, other, f"{path}[{index}]")
    elif stored != kept:
        yield f"{path} = {stored!r}"
