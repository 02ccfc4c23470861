"""An upgrade has a way back: the version before goes on with what the next one saved, or is told that it cannot."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import runtime_live
from hypothesis import example, given
from hypothesis import strategies as st
from installation_backups import empty_server, put_back, taken
from runtime_books import Books, dead_owner, feed, joined, settle
from runtime_bucket import Factory, Shelf, entries_of, put
from runtime_counting import Counting, CountState, add, submission
from runtime_ending import Ending, EndingCounter
from runtime_live import SHORT_LEASE_S, Replicas, Running, epochs, eventually, gone, published
from runtime_upgraded import LARGE, Migrating, Returning, Upgraded, UpgradedState
from stretto_bus import Client
from stretto_installation.server import EmbeddedServer
from stretto_runtime.inputs import CLUSTER
from stretto_runtime.owner.machines import Machines
from stretto_runtime.owner.state.recovery import recovered
from stretto_runtime.owner.state.snapshots import Document
from stretto_runtime.process.faults import RuntimeFault, VersionRefusal
from stretto_runtime.replay import replay
from stretto_runtime.streams import BusStreams
from stretto_wire.contract.registry import STATE_PREFIX

OLD = Document(10, 1, b'{"count":3,"total":9,"ticks":0,"seen":{}}')
SUBJECT = f"{STATE_PREFIX}snap.shelf.0.{CLUSTER}"
UP = "runtime_upgraded.py"


def old_code() -> Counting:
    return Counting(Counting.settings_type())


def new_code(way_back: bool = True) -> Upgraded:
    return Upgraded(Upgraded.settings_type(way_back=way_back))


class TestDocuments:
    """Snapshots that the next version writes while the version before may come back."""

    def test_are_in_the_shape_of_the_version_before_and_both_continue_them(self) -> None:
        machines = Machines(new_code())
        machines.load({"a": OLD})
        document = machines.documents(["a"])["a"]
        assert (document.version, document.written_by, document.state) == (1, 2, OLD.state)
        place = f"{STATE_PREFIX}snap.dispatcher.0.a.{document.side}"
        document = Document.decode(place, document.encode(place))
        for code, state in ((old_code(), CountState(3, 9)), (new_code(), UpgradedState(3, 9))):
            reader = Machines(code)
            reader.load({"a": document})
            assert reader.slots["a"].machine.state == state

    def test_that_would_lose_something_are_in_their_own_shape_and_say_so(self) -> None:
        machines = Machines(new_code())
        machines.load({"a": OLD, "b": OLD})
        machines.slots["a"].machine._state.seen["large"] = LARGE
        documents = machines.documents(["a", "b"])
        assert [documents[key].version for key in "ab"] == [2, 1]
        assert machines.no_way_back == {"a": "migrate does not bring back state.seen.large"}
        with pytest.raises(
            VersionRefusal, match=r"'a' is of version 2, this is 1.*no way back: run version 2, or restore"
        ):
            Machines(old_code()).load({"a": documents["a"]})
        again = Machines(new_code())
        again.load({"a": documents["a"]})
        assert again.slots["a"].machine.state.seen == {"large": LARGE}
        assert again.no_way_back == {"a": "its last snapshot is of version 2"}
        again.slots["a"].machine._state.seen.clear()
        assert again.documents(["a"])["a"].version == 1
        assert again.no_way_back == {}

    def test_whose_way_back_breaks_are_in_their_own_shape(self) -> None:
        class Broken(Returning):
            @staticmethod
            def migrate_back(state: dict[str, Any], to_version: int) -> dict[str, Any]:
                raise KeyError("gone")

        class Breaking(Upgraded):
            def machine(self, key: str, state: Any) -> Broken:
                return Broken(state)

        machines = Machines(Breaking(Breaking.settings_type()))
        machines.load({"a": OLD})
        assert machines.documents(["a"])["a"].version == 2
        assert machines.no_way_back == {"a": "KeyError: 'gone'"}

    def test_close_the_way_back_once_the_storage_version_is_gone(self) -> None:
        machines = Machines(new_code())
        machines.load({"a": OLD})
        stored = machines.documents(["a"])["a"]
        later = Machines(new_code(way_back=False))
        later.load({"a": stored})
        document = later.documents(["a"])["a"]
        assert (document.version, document.written_by, later.no_way_back) == (2, 2, {})
        with pytest.raises(VersionRefusal, match="run version 2"):
            Machines(old_code()).load({"a": document})

    @pytest.mark.parametrize(("storage_version", "remedy"), [(1, "give migrate_back, or no"), (3, "give an earlier")])
    def test_are_not_written_where_a_machine_names_a_way_back_and_has_none(
        self, storage_version: int, remedy: str
    ) -> None:
        class Half(Migrating):
            pass

        class Halved(Upgraded):
            def machine(self, key: str, state: Any) -> Half:
                return Half(state)

        Half.storage_version = storage_version  # type: ignore[attr-defined]
        with pytest.raises(RuntimeFault, match=f"storage_version = {storage_version} of Half, .*version 2: {remedy}"):
            Machines(Halved(Halved.settings_type())).check({})

    def test_of_a_finished_job_rest_if_the_reader_means_the_same_end(self) -> None:
        """Version 1 ends with 0 only; a version that ends more jobs must not keep one of them from going on."""
        ended = replace(OLD, packed=b'{"count":3,"total":9,"ticks":1,"seen":{}}', ended=True, is_saved=True)
        going_on = replace(OLD, ended=True, is_saved=True)
        for writer, resting in ((1, {"a", "b"}), (2, {"a"})):
            machines = Machines(Ending(Ending.settings_type()))
            machines.load({"a": replace(ended, written_by=writer), "b": replace(going_on, written_by=writer)})
            assert machines.resting.keys() == resting
            assert not EndingCounter(CountState(3, 9)).ended


@dataclass
class ShelfState:
    items: dict[str, int] = field(default_factory=dict[str, int])
    handled: int = 0


@dataclass
class Thing:
    count: int = 0
    remark: str = ""


@dataclass
class StoreState:
    things: dict[str, Thing] = field(default_factory=dict[str, Thing])
    handled: int = 0


class Before(Shelf):
    """Version 1."""

    version = 1
    state_type = ShelfState


class Store(Shelf):
    """The same of the next version: parts of another name and shape, and a remark about values above 80."""

    version = 2
    storage_version = 1
    parted = kept = "things"
    storage_parted = "items"
    state_type = StoreState

    @staticmethod
    def migrate(state: dict[str, Any], from_version: int) -> dict[str, Any]:
        things = {name: {"count": count, "remark": ""} for name, count in state["items"].items()}
        return {"things": things, "handled": state["handled"]}

    @staticmethod
    def migrate_back(state: dict[str, Any], to_version: int) -> dict[str, Any]:
        return {"items": {name: thing["count"] for name, thing in state["things"].items()}, "handled": state["handled"]}

    def item(self, value: int) -> Thing:
        return Thing(value, "large" if value > 80 else "")


FACTORIES = {1: Factory(Before, cluster=ShelfState), 2: Factory(Store, cluster=StoreState)}


def saved_in(bucket: dict[str, bytes], machines: Machines) -> None:
    document = machines.documents([CLUSTER])[CLUSTER]
    for outputs in document.outputs(SUBJECT):
        put(bucket, outputs)
    document.saved()


def shelf_of(machines: Machines) -> tuple[dict[str, tuple[int, str]], int]:
    """The state, in words that both versions have; without remarks in version 1."""
    if not machines.slots:
        return {}, 0
    state = machines.slots[CLUSTER].machine.state
    if isinstance(state, ShelfState):
        return {name: (count, "") for name, count in state.items.items()}, state.handled
    return {name: (thing.count, thing.remark) for name, thing in state.things.items()}, state.handled


def lost_by_version_1(bucket: dict[str, bytes]) -> Iterator[str]:
    for document in recovered(entries_of(bucket)).documents.values():
        if document.version == 2:
            yield from (name for name, thing in document.whole["things"].items() if thing["remark"])


puts = st.tuples(st.sampled_from("abcde"), st.one_of(st.none(), st.integers(0, 90)))
steps = st.lists(st.one_of(puts, puts, puts, st.just("save"), st.sampled_from([1, 2])), max_size=50)


@example([2, ("a", 7), "save", ("b", 81), "save", 1, ("b", 5), "save", 1, "save", ("a", None), "save", 2, ("a", 3)])
@given(steps)
def test_any_upgrades_and_returns_keep_every_state_or_are_refused(steps: list[Any]) -> None:
    """Goal: whichever versions save one after another, nothing of a state is lost unnoticed.

    Method: a number is a takeover by that version, which handles again what was not saved. Version 1 is refused
    exactly if a remark, which it has no field for, is in the snapshot. The state is compared with a plain dict.
    """
    bucket: dict[str, bytes] = {}
    version, machines = 1, Machines(FACTORIES[1])
    history: list[tuple[int, tuple[str, int | None], int]] = []  # (seq, event, version that decided it last)
    saved_seq = 0
    for step in steps:
        if isinstance(step, tuple):
            history.append((len(history) + 1, step, version))
            machines.handle(CLUSTER, step, 0.0, len(history))
        elif step == "save":
            if machines.slots:
                saved_in(bucket, machines)
                saved_seq = len(history)
                assert bool(machines.no_way_back) == any(remark for _, remark in shelf_of(machines)[0].values())
        else:
            found = recovered(entries_of(bucket))
            assert (found.damages, found.uncertain, found.lost) == ([], set(), set())
            documents = {key: document for (_, key), document in found.documents.items()}
            heir = Machines(FACTORIES[step])
            if step == 1 and any(lost_by_version_1(bucket)):
                with pytest.raises(VersionRefusal, match="no way back"):
                    heir.load(documents)
                continue
            heir.load(documents)
            version, machines = step, heir
            for seq, event, _ in history[saved_seq:]:
                machines.handle(CLUSTER, event, 0.0, seq)
                history[seq - 1] = (seq, event, version)
    expected: dict[str, tuple[int, str]] = {}
    for _, (name, value), decided in history:
        expected.pop(name, None)
        if value is not None:
            expected[name] = (value, "large" if decided == 2 and value > 80 else "")
    assert shelf_of(machines) == (expected, len(history))


async def left(process: Any) -> None:
    process.send_signal(signal.SIGTERM)
    await gone(process)


@pytest.mark.night
async def test_there_and_back_under_load_with_kills_loses_doubles_and_redecides_nothing(
    client: Client, replicas: Replicas
) -> None:
    """Goal: n -> n+1 -> n of a service under load is exact, though owners of n+1 are killed on the way.

    Method: both versions side by side both times; n+1 says in its outputs that it decided, so what n would decide
    again is refused. One replica of n+1 is killed while it serves alone with another one, one beside replicas of n.
    """
    old = [replicas.start(lease_s="1"), replicas.start(lease_s="1")]
    await joined(client, 2)
    enough = asyncio.Event()
    feeding = asyncio.create_task(feed(client, 16, seed=1, value_below=LARGE, enough=enough))
    await asyncio.sleep(1)
    new = [replicas.start(script=UP, lease_s="1", way_back="true") for _ in range(3)]
    await joined(client, 5)
    for process in old:
        await left(process)
    await asyncio.sleep(0.5)
    new[0].kill()
    await asyncio.sleep(1.5)
    again = [replicas.start(lease_s="1"), replicas.start(lease_s="1")]
    await joined(client, 4)
    new[1].kill()
    await asyncio.sleep(2)
    await left(new[2])
    enough.set()
    fed = await feeding
    fed |= await feed(client, 1, seed=2, value_below=LARGE)
    found = await settle(client, 40, replicas=replicas)
    found.check(fed)
    assert all(process.poll() is None for process in again)
    decided = await epochs(client)
    assert all(deciders[-1] == 0 for deciders in decided.values())
    both = [job for job, deciders in decided.items() if 1 in deciders and deciders[0] == 0]
    assert len(both) > len(decided) / 2


async def dead_owner_of_the_next_version(
    server: EmbeddedServer, client: Client, replicas: Replicas, folder: Path, epoch: str
) -> tuple[set[str], Books]:
    """Version 1 has saved and left; version 2 has decided and published, saved nothing of it, and is dead."""
    async with runtime_live.running(Counting, server, folder):
        fed = await feed(client, 1, seed=1, value_below=LARGE)
        await settle(client)
    more, found = await dead_owner(client, replicas, 1, 2, LARGE, script=UP, way_back="true", epoch=epoch)
    return fed | more, found


async def test_what_a_dead_next_version_published_is_finished_by_one_that_decides_the_same(
    server: EmbeddedServer, client: Client, replicas: Replicas, tmp_path: Path, running: Running
) -> None:
    fed, _ = await dead_owner_of_the_next_version(server, client, replicas, tmp_path, epoch="0")
    async with running(Counting, lease_s=SHORT_LEASE_S):
        fed |= await feed(client, 1, seed=3)
        (await settle(client)).check(fed)


@pytest.mark.night
async def test_what_a_dead_next_version_published_is_never_decided_otherwise(
    server: EmbeddedServer, client: Client, replicas: Replicas, tmp_path: Path, starting: Running
) -> None:
    """The remedy that the refusal names: the next version once more, which leaves by SIGTERM."""
    fed, before = await dead_owner_of_the_next_version(server, client, replicas, tmp_path, epoch="1")
    async with starting(Counting, "back", lease_s=1) as back:
        await eventually(lambda: "decides it otherwise" in back.report()["refusal"])
        assert (await settle(client)).counted == before.counted
        once_more = replicas.start(script=UP, lease_s="1", way_back="true")
        fed |= await feed(client, 1, seed=3, value_below=LARGE)
        (await settle(client)).check(fed)
        await left(once_more)
        fed |= await feed(client, 1, seed=4)
        (await settle(client)).check(fed)
    assert {deciders[-1] for deciders in (await epochs(client)).values()} == {0}


async def test_a_job_without_a_way_back_is_named_and_refused_to_the_version_before(
    client: Client, running: Running, starting: Running
) -> None:
    async with running(Upgraded, "new", way_back=True) as new:
        await client.publish(add("job-a", 1))
        await client.publish(add("job-b", LARGE))
        await published(client, "dispatcher", 2)
        await eventually(lambda: "job-b" in new.report()["warning"])
        assert "job-b can go on under this version only (job-b: " in new.report()["warning"]
        assert new.report()["ready"]
        assert b'stretto_no_way_back_keys{service="dispatcher"} 1.0' in new.metrics.text()
    async with starting(Counting, "old", lease_s=1) as old:
        await eventually(lambda: old.report()["refusal"])
        refusal = old.report()["refusal"]
        assert "for 'job-b' is of version 2, this is 1" in refusal
        assert "the snapshot has no way back: run version 2, or restore the backup of before it" in refusal
        await client.publish(add("job-b", 1))
        async with running(Upgraded, "newer", way_back=True):
            last = (await published(client, "dispatcher", 3))[-1].message
            assert (last.samples_done, last.samples_total) == (2, LARGE + 1)


async def test_a_replay_shows_what_the_next_version_decided_otherwise(
    client: Client, tmp_path: Path, running: Running
) -> None:
    await client.publish(submission("job-a"))
    stages: list[tuple[type[Counting], dict[str, Any]]] = [
        (Counting, {}),
        (Upgraded, {"way_back": True}),
        (Counting, {}),
    ]
    for number, (kind, settings) in enumerate(stages, start=1):
        async with running(kind, **settings):
            await client.publish(add("job-a", number))
            await published(client, "dispatcher", number)
    done = await replay(BusStreams(client.bus), Counting(Counting.settings_type(state_folder=tmp_path)), "job-a")
    assert [(decision.verdict, decision.version) for decision in done.decisions] == [
        ("same", 1),
        ("differs", 2),
        ("same", 1),
    ]
    assert done.decisions[1].differences() == [("epoch", 1, 0)]


async def test_a_backup_of_the_next_version_can_be_restored_under_the_version_before(
    client: Client, tmp_path: Path, running: Running
) -> None:
    async with running(Upgraded, way_back=True):
        fed = await feed(client, 1, seed=1, value_below=LARGE)
        await settle(client)
    manifest = await taken(client, tmp_path / "backup")
    assert manifest.versions == {"dispatcher": (2,)}
    async with empty_server(tmp_path / "other") as (other, restored):
        await put_back(restored, tmp_path / "backup")
        async with runtime_live.running(Counting, other, tmp_path / "heir"):
            fed |= await feed(restored, 0.5, seed=2)
            (await settle(restored)).check(fed)
