"""A large state is saved entry by entry, and is of one moment whenever its owner died."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from stretto_bus import Client
from stretto_bus.bus import PIPELINED, Bus
from stretto_bus.ordered_consumer import Stored, read
from stretto_bus.writer import CLUSTER_BATCH_FROM
from stretto_core.machine import Action
from stretto_runtime.inputs import CLUSTER
from stretto_runtime.owner import snapshots
from stretto_runtime.owner.machines import Machines
from stretto_runtime.owner.ownership import Ownership
from stretto_runtime.owner.snapshots import Cursor, Document, Snapshots, document_of, documents_of, sorted_out
from stretto_runtime.process.faults import Refusal
from stretto_wire.registry import STATE, STATE_PREFIX

SUBJECT = f"{STATE_PREFIX}snap.shelf.0.{CLUSTER}"


@dataclass
class Item:
    count: int = 0
    text: str = ""


@dataclass
class ShelfState:
    items: dict[str, Item] = field(default_factory=dict[str, Item])
    handled: int = 0


class Shelf:
    """``(name, value)`` puts an item on the shelf, ``(name, None)`` takes it away."""

    version = 2
    parted = "items"

    def __init__(self, state: ShelfState | None) -> None:
        self.state = state or ShelfState()
        self.changed: set[str] = set()

    @staticmethod
    def migrate(state: dict[str, Any], from_version: int) -> dict[str, Any]:
        return {**state, "items": {name: {"count": item, "text": ""} for name, item in state["items"].items()}}

    def handle(self, event: tuple[str, int | None], now: float) -> list[Action]:
        name, value = event
        self.state.handled += 1
        self.changed.add(name)
        self.state.items.pop(name, None)
        if value is not None:
            self.state.items[name] = Item(value, "long " * 1000 if value > 50 else "")
        if value == 13:
            raise RuntimeError("unlucky")
        return []


class Factory:
    name = "shelf"
    version = 2
    state_types = {"cluster": ShelfState}  # noqa: RUF012

    def machine(self, key: str, state: Any) -> Shelf:
        return Shelf(state)


class Plain(Shelf):
    """The next version, which saves its state in one."""

    version = 3
    parted = ""

    @staticmethod
    def migrate(state: dict[str, Any], from_version: int) -> dict[str, Any]:
        return state


class PlainFactory(Factory):
    def machine(self, key: str, state: Any) -> Plain:
        return Plain(state)


def taken_over(bucket: dict[str, bytes], factory: type[Factory] = Factory) -> Machines:
    machines = Machines(factory())
    stored = [Stored(0, 0.0, subject, {}, data) for subject, data in bucket.items()]
    bucket |= {output.subject: output.data for output in sorted_out(stored)[1]}
    stored = [Stored(0, 0.0, subject, {}, data) for subject, data in bucket.items()]
    machines.load({key: document for (_, key), document in documents_of(stored).items()})
    return machines


puts = st.tuples(st.sampled_from("abcde"), st.one_of(st.none(), st.integers(0, 100)))
steps = st.lists(st.one_of(puts, puts, st.just("save"), st.integers(0, 6), st.just("take")), max_size=60)


@example([("a", 0), 1, ("b", None), "save", 0])
@example([("a", 1), ("b", 13), "save", 0])
@given(steps)
def test_whatever_was_written_last_all_parts_are_of_the_moment_of_their_document(steps: list[Any]) -> None:
    """A number: the owner dies after so many writes of a save, before that of the document."""
    bucket: dict[str, bytes] = {}
    machines, saved, now, seq = Machines(Factory()), ShelfState(), ShelfState(), 0
    for step in steps:
        if isinstance(step, tuple):
            seq += 1
            with contextlib.suppress(RuntimeError):  # the machine is another one then, as it was
                machines.handle(CLUSTER, step, 0.0, seq)
            now = machines.slots[CLUSTER].machine.state if machines.slots else ShelfState()
        elif machines.slots and step != "take":
            document = machines.documents([CLUSTER])[CLUSTER]
            outputs = document.part_outputs(SUBJECT)
            bucket |= {each.subject: each.data for each in outputs[: step if isinstance(step, int) else None]}
            if step == "save":
                bucket[SUBJECT] = document.encode()
                document.saved()
                saved = ShelfState(dict(now.items), now.handled)
        if step == "take" or isinstance(step, int):
            machines = taken_over(bucket)
            now = machines.slots[CLUSTER].machine.state if machines.slots else ShelfState()
            assert now == saved
    assert taken_over(bucket).slots.keys() == ({CLUSTER} if SUBJECT in bucket else set())


def test_only_what_changed_is_written_and_what_is_gone_is_removed() -> None:
    machines = Machines(Factory())
    for seq, name in enumerate("abc", start=1):
        machines.handle(CLUSTER, (name, 7), 0.0, seq)

    def written() -> dict[str, bool]:
        document = machines.documents([CLUSTER])[CLUSTER]
        outputs = document.part_outputs("s")
        document.saved()
        return {output.subject: bool(output.data) for output in outputs}

    assert written() == {"s.a": True, "s.b": True, "s.c": True}
    machines.handle(CLUSTER, ("b", None), 0.0, 4)
    assert written() == {"s.b": True}, "a death before the document must find what it was"
    machines.handle(CLUSTER, ("c", 8), 0.0, 5)
    assert written() == {"s.c": True, "s.b": False}
    machines.handle(CLUSTER, ("c", 9), 0.0, 6)
    assert written() == {"s.c": True}


def test_a_part_that_this_code_would_not_keep_is_refused_by_its_name() -> None:
    part = b'{"count":1,"text":"","colour":"red"}'
    with pytest.raises(Refusal, match=r"items\.a: this code does not keep state\.colour"):
        Machines(Factory()).load({CLUSTER: Document(1, 2, b'{"handled":1}', parted="items", parts={"a": part})})


@pytest.mark.parametrize("parted", ["", "items"])
def test_an_earlier_version_is_migrated_as_a_whole_whether_it_had_parts_or_not(parted: str) -> None:
    machines = Machines(Factory())
    state, parts = (b'{"handled":3}', {"a": b"5"}) if parted else (b'{"items":{"a":5},"handled":3}', {})
    machines.load({CLUSTER: Document(3, 1, state, parted=parted, parts=parts)})
    assert machines.slots[CLUSTER].machine.state == ShelfState({"a": Item(5)}, 3)
    document = machines.documents([CLUSTER])[CLUSTER]
    assert document.unsaved.keys() == {"a"}
    assert document.whole == {"items": {"a": {"count": 5, "text": ""}}, "handled": 3}


@pytest.mark.parametrize("written", [0, 1, 2, None])
def test_a_migration_that_died_between_its_parts_and_its_document_begins_anew(written: int | None) -> None:
    """No input has come in between: by their sequences alone its parts would be of the old document's time."""
    old = Document(3, 1, b'{"handled":3}', parted="items", parts={"a": b"5", "b": b"6"})
    old.unsaved.update(a=None, b=None)
    bucket = {SUBJECT: old.encode()} | {output.subject: output.data for output in old.part_outputs(SUBJECT)}
    document = taken_over(bucket).documents([CLUSTER])[CLUSTER]
    bucket |= {output.subject: output.data for output in document.part_outputs(SUBJECT)[:written]}
    assert taken_over(bucket).slots[CLUSTER].machine.state == ShelfState({"a": Item(5), "b": Item(6)}, 3)
    bucket[SUBJECT] = document.encode()
    bucket |= {output.subject: output.data for output in document.part_outputs(SUBJECT)}
    assert taken_over(bucket).slots[CLUSTER].machine.state == ShelfState({"a": Item(5), "b": Item(6)}, 3)


@pytest.mark.parametrize("written", [0, 1, 2])
def test_a_state_that_is_not_saved_in_parts_any_more_leaves_none_wherever_its_owner_dies(written: int) -> None:
    old = Document(3, 2, b'{"handled":3}', parted="items")
    old.parts.update(a=b'{"count":5,"text":""}', b=b'{"count":6,"text":""}')
    old.unsaved.update(a=None, b=None)
    bucket = {SUBJECT: old.encode()} | {output.subject: output.data for output in old.part_outputs(SUBJECT)}
    document = taken_over(bucket, PlainFactory).documents([CLUSTER])[CLUSTER]
    outputs = document.part_outputs(SUBJECT)
    bucket |= {output.subject: output.data for output in outputs[:written]}
    whole = ShelfState({"a": Item(5), "b": Item(6)}, 3)
    assert taken_over(bucket).slots[CLUSTER].machine.state == whole, "its owner of the version before is as it was"
    assert taken_over(bucket, PlainFactory).slots[CLUSTER].machine.state == whole
    bucket |= {output.subject: output.data for output in outputs} | {SUBJECT: document.encode()}
    machines = taken_over(bucket, PlainFactory)
    assert machines.slots[CLUSTER].machine.state == whole
    later = machines.documents([CLUSTER])[CLUSTER].part_outputs(SUBJECT)
    assert {output.subject: output.data for output in later} == {f"{SUBJECT}.{name}": b"" for name in "ab"}


def test_parts_that_stayed_beside_a_whole_document_are_not_taken_for_its_own() -> None:
    old = Document(3, 2, b"", parted="items", parts={"a": b"{}"}, unsaved={"a": None})
    bucket = {output.subject: output.data for output in old.part_outputs(SUBJECT)}
    bucket[SUBJECT] = Document(4, 3, b'{"items":{"b":{"count":6,"text":""}},"handled":4}').encode()
    machines = taken_over(bucket, PlainFactory)
    assert machines.slots[CLUSTER].machine.state == ShelfState({"b": Item(6)}, 4)
    assert [o.data for o in machines.documents([CLUSTER])[CLUSTER].part_outputs(SUBJECT)] == [b""]


@pytest.mark.parametrize("factory", [Factory, PlainFactory])
def test_parts_come_and_go_with_a_new_version_only(factory: type[Factory]) -> None:
    parted = "" if factory is Factory else "items"
    version = Shelf.version if factory is Factory else Plain.version
    with pytest.raises(Refusal, match="raise the version"):
        Machines(factory()).load({CLUSTER: Document(3, version, b'{"items":{},"handled":3}', parted=parted)})


@pytest.mark.parametrize("batch_from", [PIPELINED, CLUSTER_BATCH_FROM])
async def test_parts_are_saved_beside_their_document_and_found_again(client: Client, batch_from: int) -> None:
    client.bus.batch_from = batch_from
    ownership = Ownership(client.bus, "arbiter", 16, 3, lambda: None)
    written = Snapshots(client.bus, "arbiter", 5, ownership.owner_key(5), await ownership.take(5))
    machines = Machines(Factory())
    for seq, (name, value) in enumerate([("a", 1), ("b", 99), ("a", None)], start=1):
        machines.handle(CLUSTER, (name, value), 0.0, seq)
        await written.save(machines.documents([CLUSTER]), Cursor(seq, 0, 2))
    for _ in range(2):
        loaded = (await written.load(1)).documents
        machines = Machines(Factory())
        machines.load(loaded)
        assert machines.slots[CLUSTER].machine.state == ShelfState({"b": Item(99, "long " * 1000)}, 3)
        await written.save(machines.documents([CLUSTER]), Cursor(4, 0, 2))
    await client.bus.store(f"{STATE_PREFIX}snap.arbiter.5.x.left", b"[1, 2, 1, null]\n5", {})
    assert (await written.load(1)).documents.keys() == {CLUSTER}
    assert (await read(client.bus, STATE, [f"{STATE_PREFIX}snap.arbiter.5.x.left"]))[-1].data == b""
    found = await document_of(client.bus, "arbiter", 5, CLUSTER)
    assert found is not None
    assert found.whole["items"].keys() == {"b"}


async def test_who_reads_what_its_owner_replaces_meanwhile_reads_one_moment(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The document of now, the parts of two documents later, each with what it was one document before."""
    ownership = Ownership(client.bus, "arbiter", 16, 3, lambda: None)
    writes = Snapshots(client.bus, "arbiter", 5, ownership.owner_key(5), await ownership.take(5))
    machines = Machines(Factory())

    async def put(count: int) -> None:
        machines.handle(CLUSTER, ("a", count), 0.0, count)
        await writes.save(machines.documents([CLUSTER]), Cursor(count, 0, 2))

    async def slow(bus: Bus, stream: str, filters: list[str], **options: Any) -> list[Stored]:
        found = await read(bus, stream, filters[:1], **options)
        for count in (3, 4) if machines.slots[CLUSTER].seq == 2 else ():
            await put(count)
        return [*found, *await read(bus, stream, filters[1:], **options)] if filters[1:] else found

    await put(1)
    await put(2)
    monkeypatch.setattr(snapshots, "read", slow)
    found = await document_of(client.bus, "arbiter", 5, CLUSTER)
    assert found is not None
    assert found.whole == {"items": {"a": {"count": found.seq, "text": ""}}, "handled": found.seq}
