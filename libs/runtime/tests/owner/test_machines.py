"""A machine is as if each event had happened to it exactly once, whatever it raised."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from runtime_bucket import Factory
from runtime_counting import Add, Counter, CountState
from stretto_core.machine import CoreError
from stretto_runtime import RuntimeFault, Settings
from stretto_runtime.owner.machines import LANES, Machines, lane_of
from stretto_runtime.owner.state.saving import LastSaves, NextSave, Unsaved, next_save, wait_s
from stretto_runtime.owner.state.snapshots import Document


def machines_of(kind: type[Counter] = Counter) -> Machines:
    return Machines(Factory(kind, job=CountState))


@given(st.lists(st.tuples(st.integers(-5, 700), st.booleans()), max_size=40))
def test_events_that_raise_leave_no_trace_even_across_snapshots(steps: list[tuple[int, bool]]) -> None:
    machines = machines_of()
    good: list[int] = []
    for seq, (value, save) in enumerate(steps, start=1):
        try:
            machines.handle("a", Add("a", value), 0.0, seq)
            good.append(value)
        except (CoreError, RuntimeError):
            pass
        if save and "a" in machines.slots:
            reloaded = machines_of()
            reloaded.load({k: Document.decode("s", d.encode("s")) for k, d in machines.documents(["a"]).items()})
            machines = reloaded
    if good:
        state = machines.slots["a"].machine.state
        assert (state.count, state.total) == (len(good), sum(good))
    else:
        assert "a" not in machines.slots


def test_a_document_that_follows_an_unsaved_one_takes_its_place() -> None:
    """A successor that finishes several terms hands documents on; only the last is saved, to the side that is due."""
    machines = machines_of()
    machines.handle("a", Add("a", 1), 0.0, 1)
    handed = machines.documents(["a"])
    for seq in (2, 3):
        machines = machines_of()
        machines.load(handed)
        machines.handle("a", Add("a", 1), 0.0, seq)
        handed = machines.documents(["a"])
    document = handed["a"]
    assert (document.ordinal, document.first) == (1, True)
    document.saved()
    machines.handle("a", Add("a", 1), 0.0, 4)
    document = machines.documents(["a"])["a"]
    assert (document.ordinal, document.first) == (2, False)


async def test_the_loop_goes_on_while_machines_are_loaded() -> None:
    """A leader of two thousand jobs was deaf to its server for most of a second."""
    heard = [threading.Event(), threading.Event()]

    class Patient(Counter):
        def __init__(self, state: CountState | None = None) -> None:
            assert all(event.wait(60) for event in heard), "nothing else was done meanwhile"
            super().__init__(state)

    for event in heard:
        asyncio.get_running_loop().call_soon(event.set)
    two = [machines_of(Patient), machines_of(Patient)]
    await asyncio.gather(*(machines.load_in_thread({"a": Document(1, 1, b"{}")}) for machines in two))
    assert [machines.slots["a"].machine.state for machines in two] == [CountState(), CountState()]
    assert gc.isenabled()


def test_a_machine_of_a_large_state_is_rebuilt_from_what_was_saved() -> None:
    seen = {f"key-{number}": number for number in range(2000)}
    large = Document(7, 1, TypeAdapter(CountState).dump_json(CountState(1, 5, 0, seen)))
    machines = machines_of()
    machines.load({"a": large})
    for seq in (8, 9):
        with pytest.raises(RuntimeError):
            machines.handle("a", Add("a", 666), 0.0, seq)
        machines.documents(["a"])
    assert machines.slots["a"].machine.state == CountState(1, 5, 0, seen)
    base = machines.slots["a"].base
    assert (base.state, len(base.packed) < len(base.state) / 2) == (large.state, True)


def unsaved(inputs: int, documents: int, news: int) -> Unsaved:
    keys = [f"job-{number}" for number in range(documents)]
    return Unsaved(inputs, {*keys}, {*keys[:news]})


@pytest.mark.parametrize(
    ("inputs", "saved_bytes", "after_s"),
    [
        (unsaved(1, 1, 1), 500, 1.0),
        (unsaved(1, 1, 0), 500, 30.0),
        (unsaved(200, 50, 1), 500, 0.2),
        (unsaved(200, 51, 1), 500, 1.0),  # saving so many takes as long as handling a quarter of the inputs
        (unsaved(4999, 10_000, 1), 500, 1.0),
        (unsaved(5000, 10_000, 1), 500, 0.2),  # a takeover would replay more
        (unsaved(200, 1, 1), 4_000_000, 30.0),  # replaying these costs less than saving that
        (unsaved(2000, 1, 1), 4_000_000, 0.2),
    ],
)
def test_documents_wait_for_inputs_that_are_worth_it(inputs: Unsaved, saved_bytes: int, after_s: float) -> None:
    assert wait_s(inputs, saved_bytes, Settings()) == after_s


@pytest.mark.parametrize(
    ("inputs", "saved_bytes", "at_s", "is_whole"),
    [
        (unsaved(9, 3, 1), 500, 106.0, False),
        (unsaved(9, 4, 2), 500, 106.0, False),
        (unsaved(9, 3, 2), 500, 101.0, True),  # not many more cost anything
        (unsaved(9, 3, 0), 500, 130.0, True),
        (unsaved(200, 3, 1), 500, 100.2, True),
        (unsaved(9, 20, 1), 20 * 18_000, 106.0, False),  # one document of twenty has as many bytes as inputs are worth
        (unsaved(9, 20, 1), 20 * 19_000, 130.0, True),
        (Unsaved(9, {"a", "b", "c", "d"}, {"a", "x"}), 500, 101.0, True),  # what was set aside of x is in no document
    ],
)
def test_what_publishes_is_saved_alone_beside_many_that_do_not(
    inputs: Unsaved, saved_bytes: int, at_s: float, is_whole: bool
) -> None:
    due = next_save(LastSaves(100.0, 105.0, saved_bytes), inputs, Settings())
    assert due == NextSave(at_s, is_whole, is_quiet=at_s == 130.0)


class Unchanged(CoreError):
    unchanged = True


def test_an_error_that_promises_an_unchanged_state_costs_no_rebuild() -> None:
    class Refusing(Counter):
        def handle(self, event: Any, now: float) -> list[Any]:
            if event.value == -1:
                raise Unchanged("not this one")
            return super().handle(event, now)

    machines = machines_of(Refusing)
    machines.handle("a", Add("a", 1), 0.0, 1)
    before = machines.slots["a"].machine
    with pytest.raises(Unchanged):
        machines.handle("a", Add("a", -1), 0.0, 2)
    assert machines.slots["a"].machine is before
    with pytest.raises(CoreError):
        machines.handle("a", Add("a", -2), 0.0, 3)
    assert machines.slots["a"].machine is not before
    assert before.state.count == 2
    assert machines.slots["a"].machine.state == CountState(count=1, total=1)


def test_a_failing_translation_of_the_output_undoes_the_event_too() -> None:
    machines = machines_of()
    machines.handle("a", Add("a", 1), 0.0, 1)

    def commit(actions: list[Any]) -> None:
        raise ValueError("no message for this")

    with pytest.raises(ValueError, match="no message"):
        machines.handle("a", Add("a", 2), 0.0, 2, commit)
    assert machines.slots["a"].machine.state == CountState(count=1, total=1)


def test_a_document_newer_than_the_cursor_is_not_replayed_into() -> None:
    machines = machines_of()
    machines.load({"a": Document(10, 1, b'{"count": 3}')})
    assert machines.contains("a", 10)
    assert not machines.contains("a", 11)
    assert not machines.contains("b", 10)


def test_a_snapshot_that_does_not_fit_the_code_says_what_to_do() -> None:
    with pytest.raises(RuntimeFault, match=r"'a' is of version 1.*'count'.*give new fields"):
        machines_of().load({"a": Document(1, 1, b'{"count": "many"}')})


def test_each_lane_remembers_its_last_reply_and_lanes_are_bounded() -> None:
    machines = machines_of()
    machines.handle("a", Add("a", 1), 0.0, 1)
    slot = machines.slots["a"]
    slot.remember("worker-1.1", "", "one")
    slot.remember("worker-1.2", "", "two")
    assert slot.remembered("worker-1.1") is None
    assert slot.remembered("worker-1.2") == ["worker-1.2", "", "two"]
    for number in range(LANES):
        slot.remember(f"lane-{number}.1", "", "x")
    assert slot.remembered("worker-1.2") is None
    assert lane_of("no-dot") == "no-dot"
