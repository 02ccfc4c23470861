"""A large state is saved entry by entry, and is of one moment whenever its owner died."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from runtime_bucket import Factory, Shelf, entries_of, put
from runtime_counting import Counting, CountingSettings
from stretto_bus import Client
from stretto_bus.bus import PIPELINED
from stretto_bus.reading.ordered_consumer import Stored, read
from stretto_bus.writer import CLUSTER_BATCH_FROM
from stretto_core.machine import Action
from stretto_runtime.inputs import CLUSTER
from stretto_runtime.owner.machines import Machines
from stretto_runtime.owner.state.recovery import document_of, load, recovered
from stretto_runtime.owner.state.seals import seal
from stretto_runtime.owner.state.snapshots import Cursor, Document, Snapshots, digest
from stretto_runtime.owner.tenure.ownership import Ownership
from stretto_runtime.process.faults import VersionRefusal
from stretto_runtime.streams import BusStreams
from stretto_wire.contract.excerpts import Excerpt
from stretto_wire.contract.registry import STATE, STATE_PREFIX

SUBJECT = f"{STATE_PREFIX}snap.shelf.0.{CLUSTER}"


@dataclass
class Item:
    count: int = 0
    text: str = ""


@dataclass
class ShelfState:
    items: dict[str, Item] = field(default_factory=dict[str, Item])
    handled: int = 0


class Parted(Shelf):
    """Breaks on 13, when the item is on the shelf."""

    version = 2
    state_type = ShelfState

    @staticmethod
    def migrate(state: dict[str, Any], from_version: int) -> dict[str, Any]:
        return {**state, "items": {name: {"count": item, "text": ""} for name, item in state["items"].items()}}

    def handle(self, event: tuple[str, int | None], now: float) -> list[Action]:
        actions = super().handle(event, now)
        if event[1] == 13:
            raise RuntimeError("unlucky")
        return actions

    def item(self, value: int) -> Item:
        return Item(value, "long " * 1000 if value > 50 else "")


class Plain(Parted):
    """The next version, which saves its state in one."""

    version = 3
    parted = ""

    @staticmethod
    def migrate(state: dict[str, Any], from_version: int) -> dict[str, Any]:
        return state


def machines_of(kind: type[Shelf] = Parted) -> Machines:
    return Machines(Factory(kind, cluster=ShelfState))


def taken_over(bucket: dict[str, bytes], kind: type[Shelf] = Parted) -> Machines:
    machines = machines_of(kind)
    bucket |= dict.fromkeys(recovered(entries_of(bucket)).strays, b"")
    machines.load({key: document for (_, key), document in recovered(entries_of(bucket)).documents.items()})
    return machines


def state_in(machines: Machines) -> ShelfState:
    return machines.slots[CLUSTER].machine.state if machines.slots else ShelfState()


def document_in(machines: Machines) -> Document:
    return machines.documents([CLUSTER])[CLUSTER]


def write(bucket: dict[str, bytes], document: Document, written: int | None = None) -> None:
    """Save a document; its owner dies after ``written`` writes of parts, unless that is None."""
    parts, documents = document.outputs(SUBJECT)
    put(bucket, parts[:written])
    if written is None:
        put(bucket, documents)
        document.saved()


puts = st.tuples(st.sampled_from("abcde"), st.one_of(st.none(), st.integers(0, 100)))
steps = st.lists(st.one_of(puts, puts, st.just("save"), st.integers(0, 6), st.just("take")), max_size=60)


@example([("a", 0), 1, ("b", None), "save", 0], 0)
@example([("a", 1), ("b", 13), "save", 0], 1)
@given(steps, st.integers(0, 1000))
def test_whatever_was_written_last_all_parts_are_of_the_moment_of_their_document(steps: list[Any], flip: int) -> None:
    """A number: the owner dies after so many writes of a save. At the end one stored message is damaged."""
    bucket: dict[str, bytes] = {}
    machines, history, torn, seq = machines_of(), [ShelfState()], False, 0
    for step in steps:
        if isinstance(step, tuple):
            seq += 1
            with contextlib.suppress(RuntimeError):  # the machine is another one then, as it was
                machines.handle(CLUSTER, step, 0.0, seq)
        elif machines.slots and step != "take":
            write(bucket, document_in(machines), step if isinstance(step, int) else None)
            torn = step != "save"
            if step == "save":
                history.append(ShelfState(dict(state_in(machines).items), state_in(machines).handled))
        if step == "take" or isinstance(step, int):
            machines = taken_over(bucket)
            assert state_in(machines) == history[-1]
    assert taken_over(bucket).slots.keys() == ({CLUSTER} if f"{SUBJECT}.b" in bucket else set())
    present = sorted(subject for subject, data in bucket.items() if data)
    if present and not torn:
        damaged = present[flip % len(present)]
        place = flip % len(bucket[damaged])
        bucket[damaged] = bucket[damaged][:place] + bytes([bucket[damaged][place] ^ 4]) + bucket[damaged][place + 1 :]
        found = recovered(entries_of(bucket))
        assert not found.lost
        assert [damage.subject for damage in found.damages] == [damaged]
        healed = taken_over(bucket)
        assert state_in(healed) == history[-1] or (found.uncertain and state_in(healed) in history[-2:])
        write(bucket, document_in(healed))
        write(bucket, document_in(healed))
        again = recovered(entries_of(bucket))
        assert (again.damages, again.uncertain, again.lost) == ([], set(), set())
        assert state_in(taken_over(bucket)) == state_in(healed)


def test_only_what_changed_is_written_and_what_is_gone_is_removed() -> None:
    """Each change reaches each side once; a change in every snapshot costs one write a snapshot."""
    machines = machines_of()
    for seq, name in enumerate("abc", start=1):
        machines.handle(CLUSTER, (name, 7), 0.0, seq)

    def written() -> dict[str, bool]:
        document = document_in(machines)
        parts, documents = document.outputs("s")
        document.saved()
        return {output.subject: bool(output.data) for output in (*parts, *documents)}

    assert written() == dict.fromkeys(["s.a", "s.a.a", "s.a.b", "s.a.c", "s.b", "s.b.a", "s.b.b", "s.b.c"], True)
    machines.handle(CLUSTER, ("b", None), 0.0, 4)
    assert written() == {"s.a.b": False, "s.a": True}
    machines.handle(CLUSTER, ("c", 8), 0.0, 5)
    assert written() == {"s.b.b": False, "s.b.c": True, "s.b": True}
    machines.handle(CLUSTER, ("c", 9), 0.0, 6)
    assert written() == {"s.a.c": True, "s.a": True}
    assert written() == {"s.b.c": True, "s.b": True}
    assert written() == {"s.a": True}


def test_a_part_that_this_code_would_not_keep_is_refused_by_its_name() -> None:
    part = b'{"count":1,"text":"","colour":"red"}'
    with pytest.raises(VersionRefusal, match=r"items\.a: this code does not keep state\.colour"):
        machines_of().load({CLUSTER: Document(1, 2, b'{"handled":1}', parted="items", parts={"a": part})})


@pytest.mark.parametrize("parted", ["", "items"])
def test_an_earlier_version_is_migrated_as_a_whole_whether_it_had_parts_or_not(parted: str) -> None:
    machines = machines_of()
    state, parts = (b'{"handled":3}', {"a": b"5"}) if parted else (b'{"items":{"a":5},"handled":3}', {})
    machines.load({CLUSTER: Document(3, 1, state, parted=parted, parts=parts, digest=digest(parts))})
    assert machines.slots[CLUSTER].machine.state == ShelfState({"a": Item(5)}, 3)
    document = document_in(machines)
    assert document.behind == ({"a"}, {"a"})
    assert document.whole == {"items": {"a": {"count": 5, "text": ""}}, "handled": 3}


def saved(document: Document) -> dict[str, bytes]:
    """The bucket after the first save of ``document``."""
    document = replace(document, digest=digest(document.parts))
    document.behind[0].update(document.parts)
    document.behind[1].update(document.parts)
    bucket: dict[str, bytes] = {}
    write(bucket, document)
    return bucket


@pytest.mark.parametrize("written", [0, 1, 2, None])
def test_a_migration_that_died_between_its_parts_and_its_document_begins_anew(written: int | None) -> None:
    """No input has come in between: by their sequences alone its parts would be of the old document's time."""
    bucket = saved(Document(3, 1, b'{"handled":3}', parted="items", parts={"a": b"5", "b": b"6"}))
    write(bucket, document_in(taken_over(bucket)), written)
    assert state_in(taken_over(bucket)) == ShelfState({"a": Item(5), "b": Item(6)}, 3)
    write(bucket, document_in(taken_over(bucket)))
    assert state_in(taken_over(bucket)) == ShelfState({"a": Item(5), "b": Item(6)}, 3)


@pytest.mark.parametrize("written", [0, 1, 2])
def test_a_state_that_is_not_saved_in_parts_any_more_leaves_none_wherever_its_owner_dies(written: int) -> None:
    part = b'{"count":5,"text":""}'
    bucket = saved(Document(3, 2, b'{"handled":3}', parted="items", parts={"a": part, "b": part}))
    write(bucket, document_in(taken_over(bucket, Plain)), written)
    whole = ShelfState({"a": Item(5), "b": Item(5)}, 3)
    assert state_in(taken_over(bucket)) == whole, "its owner of the version before is as it was"
    machines = taken_over(bucket, Plain)
    assert state_in(machines) == whole
    for _ in range(2):
        write(bucket, document_in(machines))
        assert state_in(taken_over(bucket, Plain)) == whole
    assert sorted(subject for subject, data in bucket.items() if data) == [f"{SUBJECT}.a", f"{SUBJECT}.b"]


def test_parts_that_stayed_beside_a_whole_document_are_not_taken_for_its_own() -> None:
    bucket = saved(Document(3, 2, b"", parted="items", parts={"a": b"{}"}))
    bucket |= saved(Document(4, 3, b'{"items":{"b":{"count":6,"text":""}},"handled":4}'))
    machines = taken_over(bucket, Plain)
    assert state_in(machines) == ShelfState({"b": Item(6)}, 4)
    assert [output.data for output in document_in(machines).outputs(SUBJECT)[0]] == [b""]


@pytest.mark.parametrize("kind", [Parted, Plain])
def test_parts_come_and_go_with_a_new_version_only(kind: type[Shelf]) -> None:
    parted = "" if kind is Parted else "items"
    with pytest.raises(VersionRefusal, match="raise the version"):
        machines_of(kind).load({CLUSTER: Document(3, kind.version, b'{"items":{},"handled":3}', parted=parted)})


@pytest.mark.parametrize("batch_from", [PIPELINED, CLUSTER_BATCH_FROM])
async def test_parts_are_saved_beside_their_document_and_found_again(client: Client, batch_from: int) -> None:
    client.bus.batch_from = batch_from
    counting = Counting(CountingSettings())
    ownership = Ownership(client.bus, "arbiter", 16, 3, lambda: None)
    written = Snapshots(client.bus, "arbiter", 5, ownership.owner_key(5), await ownership.take(5))
    machines = machines_of()
    for seq, (name, value) in enumerate([("a", 1), ("b", 99), ("a", None)], start=1):
        machines.handle(CLUSTER, (name, value), time.time(), seq)
        await written.save(machines.documents([CLUSTER]), Cursor(seq, 0, 2))
    for _ in range(2):
        machines = machines_of()
        machines.load((await load(written, counting, 1)).documents)
        assert machines.slots[CLUSTER].machine.state == ShelfState({"b": Item(99, "long " * 1000)}, 3)
        await written.save(machines.documents([CLUSTER]), Cursor(4, 0, 2))
    left = f"{STATE_PREFIX}snap.arbiter.5.x.a.left"
    await client.bus.store(left, seal(left, b"5"), {})
    assert (await load(written, counting, 1)).documents.keys() == {CLUSTER}
    assert (await read(client.bus, STATE, [left]))[-1].data == b""
    found = await document_of(BusStreams(client.bus), "arbiter", 5, CLUSTER)
    assert found.whole["items"].keys() == {"b"}


async def test_who_reads_what_its_owner_replaces_meanwhile_reads_one_moment(client: Client) -> None:
    """One side's document is read before two further saves, everything else after them."""
    ownership = Ownership(client.bus, "arbiter", 16, 3, lambda: None)
    writes = Snapshots(client.bus, "arbiter", 5, ownership.owner_key(5), await ownership.take(5))
    machines = machines_of()

    async def put(count: int) -> None:
        machines.handle(CLUSTER, ("a", count), 0.0, count)
        await writes.save(machines.documents([CLUSTER]), Cursor(count, 0, 2))

    class Slow(BusStreams):
        async def scan(self, excerpt: Excerpt) -> AsyncGenerator[Stored]:
            (place,) = excerpt.subject
            first, *rest = (f"{place[:-1]}{name}" for name in ("a", "b", "a.*", "b.*"))
            async for stored in super().scan(excerpt.model_copy(update={"subject": (first,)})):
                yield stored
            for count in (3, 4) if machines.slots[CLUSTER].seq == 2 else ():
                await put(count)
            async for stored in super().scan(excerpt.model_copy(update={"subject": tuple(rest)})):
                yield stored

    await put(1)
    await put(2)
    found = await document_of(Slow(client.bus), "arbiter", 5, CLUSTER)
    assert found.whole == {"items": {"a": {"count": found.seq, "text": ""}}, "handled": found.seq}
