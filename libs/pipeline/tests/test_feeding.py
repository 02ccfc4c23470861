"""The feed against lanes that are slow, stop, die, fail or are wrong, in simulated time."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stretto_pipeline import feeding
from stretto_pipeline.feeding import (
    CREDITS,
    FIRST_LATE_S,
    LATE_FACTOR,
    LATE_S,
    OVERDUE_FACTOR,
    Action,
    Answered,
    Ask,
    Compare,
    Compared,
    Deliver,
    Differs,
    Drop,
    Event,
    Excluded,
    FeedMachine,
    HomePrepared,
    Joined,
    Leaving,
    Left,
    Needed,
    Prepare,
    Released,
    SampleRange,
    Tick,
    Wanted,
)


@dataclass(frozen=True)
class Lane:
    """A lane that joins, may stop, die or leave, fails at some batches, and may be wrong from its first answer on."""

    takes_s: float
    joins_s: float = 0.0
    stops_s: float = inf
    dies_s: float = inf
    leaves_s: float = inf
    fails: frozenset[int] = frozenset()
    is_wrong: bool = False


@dataclass
class Run:
    """A trainer with lanes in simulated time. ``shards``: their batches; ``is_told_ahead``: each is wanted with the one
    behind it; ``is_home_computing``: home's preparing takes a processor, and does not wait for a store."""

    lanes: dict[str, Lane]
    shards: list[list[SampleRange]]
    home_s: float
    step_s: float
    window_bytes: int = 2**30
    home_fails: frozenset[int] = frozenset()
    is_home_computing: bool = True
    is_told_ahead: bool = True
    is_waiting: bool = False
    now_s: float = 0.0
    delivered: list[tuple[SampleRange, str]] = field(default_factory=list[tuple[SampleRange, str]])
    waits_s: list[float] = field(default_factory=list[float])
    asked: list[tuple[str, SampleRange]] = field(default_factory=list[tuple[str, SampleRange]])
    differing: list[str] = field(default_factory=list[str])
    excluded: list[str] = field(default_factory=list[str])
    prepared: list[SampleRange] = field(default_factory=list[SampleRange])
    """Batches that home has prepared."""
    released: list[str] = field(default_factory=list[str])
    leaving: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        self.feed = FeedMachine(self.window_bytes)
        self._queue: list[tuple[float, int, Any]] = []
        self._numbers = count()
        self._hand: dict[str, list[SampleRange]] = {name: [] for name in self.lanes}
        self._busy_until_s = dict.fromkeys(self.lanes, 0.0)
        self._held: set[tuple[SampleRange, str]] = set()
        self._home: SampleRange | None = None
        self._steps = self._consume()

    def at(self, time_s: float, event: Event | None) -> None:
        heapq.heappush(self._queue, (time_s, next(self._numbers), event))

    def run(self) -> None:
        for name, lane in self.lanes.items():
            self.at(lane.joins_s, Joined(name))
            if lane.dies_s < inf:
                self.at(lane.dies_s, Left(name))
            if lane.leaves_s < inf:
                self.at(lane.leaves_s, Leaving(name))
        next(self._steps)
        while self._queue:
            self.now_s, _, event = heapq.heappop(self._queue)
            if event is None:
                if next(self._steps, None) is None:
                    return
            elif not isinstance(event, Tick) or self.feed.next_s() <= self.now_s:
                self.tell(event)
        pytest.fail(f"the trainer waits for ever, after {len(self.delivered)} batches")

    def tell(self, event: Event) -> None:
        if isinstance(event, Answered):
            if self.lanes[event.lane].dies_s <= self.now_s or event.lane in self.released:
                return
            self._hand[event.lane].remove(event.range)
            if not event.is_failure:
                self._held.add((event.range, event.lane))
        if isinstance(event, Joined) and event.lane in self.released:
            return
        if isinstance(event, Leaving):
            self.leaving.add(event.lane)
        if isinstance(event, HomePrepared):
            assert self._home == event.range
            self._home = None
            self._held.add((event.range, ""))
        for action in self.feed.handle(event, self.now_s):
            self._do(action)
        if (next_s := self.feed.next_s()) < inf:
            self.at(max(next_s, self.now_s), Tick())

    def _do(self, action: Action) -> None:
        match action:
            case Ask(name, wanted):
                lane = self.lanes[name]
                assert name not in self.leaving, "asked although it leaves"
                self._hand[name].append(wanted)
                self.asked.append((name, wanted))
                assert len(self._hand[name]) <= CREDITS
                done_s = max(self.now_s, self._busy_until_s[name]) + lane.takes_s
                self._busy_until_s[name] = done_s
                if done_s < lane.stops_s:
                    self.at(done_s, Answered(name, wanted, 1000, is_failure=wanted.start in lane.fails))
            case Prepare(wanted):
                assert self._home is None, "one at a time"
                self._home = wanted
                self.prepared.append(wanted)
                busy_s = self.home_s if self.is_home_computing else 0.0
                done = HomePrepared(wanted, 1000, is_failure=wanted.start in self.home_fails, busy_s=busy_s)
                self.at(self.now_s + self.home_s, done)
            case Compare(name, wanted):
                assert {(wanted, name), (wanted, "")} <= self._held
                self._held.discard((wanted, name))
                self.tell(Compared(name, wanted, not self.lanes[name].is_wrong))
            case Deliver(wanted, name):
                self._held.remove((wanted, name))
                self.delivered.append((wanted, name))
                self.is_waiting = False
                self.at(self.now_s + self.step_s, None)
            case Drop(wanted, name):
                self._held.discard((wanted, name))
            case Differs(name, _):
                self.differing.append(name)
            case Excluded(name):
                self.excluded.append(name)
            case Released(name):
                assert self.lanes[name].leaves_s <= self.now_s
                assert name not in self.released
                self.released.append(name)

    def _consume(self) -> Iterator[bool]:
        for number, shard in enumerate(self.shards):
            ahead = self.shards[number + 1] if self.is_told_ahead and number + 1 < len(self.shards) else []
            self.tell(Wanted((*shard, *ahead)))
            for _ in shard:
                begun_s = self.now_s
                self.is_waiting = True
                self.tell(Needed(self.waits_s[-1] if self.waits_s else 0.0))
                yield True
                self.waits_s.append(max(0.0, self.now_s - begun_s - self.step_s))


def shards_of(batches: int, size: int = 16) -> list[list[SampleRange]]:
    ranges = [SampleRange("", start, 1) for start in range(batches)]
    return [ranges[begin : begin + size] for begin in range(0, batches, size)]


times = st.floats(0.001, 1.0)
lanes = st.builds(
    Lane,
    takes_s=times,
    joins_s=st.floats(0, 2),
    stops_s=st.just(inf) | st.floats(0, 5),
    dies_s=st.just(inf) | st.floats(2, 5),
    leaves_s=st.just(inf) | st.floats(0, 5),
    fails=st.frozensets(st.integers(0, 60), max_size=20),
    is_wrong=st.sampled_from([False, False, False, True]),
)


@given(
    st.lists(lanes, max_size=4),
    st.integers(1, 70),
    st.integers(1, 20),
    times,
    times,
    st.integers(1, 10**6),
    st.frozensets(st.integers(0, 60), max_size=10),
    st.booleans(),
)
def test_every_batch_is_delivered_once_in_order_whatever_lanes_do(
    drawn: list[Lane],
    batches: int,
    size: int,
    home_s: float,
    step_s: float,
    window_bytes: int,
    home_fails: frozenset[int],
    is_home_computing: bool,
) -> None:
    named = {f"lane-{number}": lane for number, lane in enumerate(drawn)}
    run = Run(named, shards_of(batches, size), home_s, step_s, window_bytes, home_fails, is_home_computing)
    run.run()
    assert [wanted.start for wanted, _ in run.delivered] == list(range(batches))
    assert not {name for _, name in run.delivered if name and named[name].is_wrong}, "used before it was compared"
    assert {*run.differing} <= {name for name, lane in named.items() if lane.is_wrong}
    assert all(named[name].fails for name in run.excluded)
    slowest_s = max([FIRST_LATE_S, *(CREDITS * lane.takes_s for lane in drawn)])
    assert max(run.waits_s) <= max(LATE_S, LATE_FACTOR * slowest_s) + 2 * home_s + 1e-9


@given(st.integers(1, 40), times, times)
def test_without_lanes_home_prepares_one_batch_ahead(batches: int, home_s: float, step_s: float) -> None:
    run = Run({}, shards_of(batches), home_s, step_s)
    run.run()
    alone_s = home_s + (batches - 1) * max(home_s, step_s) + step_s
    assert run.now_s == pytest.approx(alone_s)


def test_lanes_keep_a_trainer_busy_that_home_would_starve() -> None:
    """Home takes ten steps' time for a batch; so ten lanes of its speed are enough."""
    run = Run({f"lane-{n}": Lane(takes_s=0.1) for n in range(11)}, shards_of(2000), 0.1, 0.01)
    run.run()
    assert run.now_s < 1.1 * 2000 * 0.01
    assert run.feed.counts.from_lanes > 0.95 * 2000
    assert run.feed.counts.checked >= 11 + 2000 // feeding.CHECK_EVERY - 1
    assert run.feed.counts.late == 0


@pytest.mark.parametrize("lane_count", range(1, 9))
def test_home_is_one_reader_more_while_the_trainer_waits(lane_count: int) -> None:
    lanes = {f"lane-{n}": Lane(takes_s=0.1) for n in range(lane_count)}
    run = Run(lanes, shards_of(2000, 32), 0.1, 0.001, is_home_computing=False)
    run.run()
    assert 2000 / run.now_s > 0.97 * (lane_count + 1) / 0.1
    assert [wanted.start for wanted, _ in run.delivered] == [*range(2000)]


@given(st.floats(0.02, 0.3), st.floats(0.02, 0.3), st.floats(0.001, 0.3), st.integers(1, 6))
def test_home_makes_no_trainer_slower_and_computes_only_in_the_time_in_which_it_waits(
    takes_s: float, home_s: float, step_s: float, lane_count: int
) -> None:
    lanes = {f"lane-{n}": Lane(takes_s) for n in range(lane_count)}
    runs = [Run(lanes, shards_of(600, 32), home_s, step_s, is_home_computing=each) for each in (True, False)]
    for run in runs:
        run.run()
    lanes_alone = Run(lanes, shards_of(600, 32), home_s, step_s)
    lanes_alone.feed._last_in_time = lambda: None  # type: ignore[method-assign]
    lanes_alone.run()
    for run in runs:
        assert run.now_s < 1.02 * lanes_alone.now_s + 4 * home_s
    spent_s = (len(runs[0].prepared) - len(lanes_alone.prepared)) * home_s
    assert spent_s <= sum(runs[0].waits_s) + 4 * home_s


def test_of_a_lane_that_stops_the_trainer_hardly_notices() -> None:
    lanes = {"stops": Lane(0.1, stops_s=5.0), **{f"lane-{n}": Lane(0.1) for n in range(11)}}
    run = Run(lanes, shards_of(1000), 0.1, 0.01)
    run.run()
    assert run.now_s < 1.1 * 1000 * 0.01 + LATE_FACTOR * 0.2 + 0.2
    assert max(run.waits_s) < OVERDUE_FACTOR * 0.2 + 0.1 + 0.01, "home prepares what is overdue"
    assert [name for name, _ in run.asked[-100:]].count("stops") == 0
    assert run.feed.counts.late == CREDITS


@given(st.floats(0.5, 8.0), st.integers(1, 4), st.integers(1, 3))
def test_of_lanes_that_leave_nothing_is_prepared_twice(leaves_s: float, leaving: int, staying: int) -> None:
    """Method: one lane is enough, so nobody waits, and only what is compared is prepared again."""
    lanes = {f"leaves-{n}": Lane(0.1, leaves_s=leaves_s + n) for n in range(leaving)}
    run = Run({**lanes, **{f"stays-{n}": Lane(0.1) for n in range(staying)}}, shards_of(90, 90), 0.3, 0.15)
    run.run()
    end_s = run.now_s
    assert {*run.released} == {name for name, lane in lanes.items() if lane.leaves_s < end_s}
    times = len(run.asked) + len(run.prepared)
    assert times == len(run.delivered) + run.feed.counts.checked


@given(st.floats(0.5, 4.0), st.floats(0.02, 0.3), st.floats(0.005, 0.5), st.floats(0.001, 0.3), st.integers(0, 3))
def test_what_a_leaving_lane_has_in_hand_nobody_else_prepares_however_fast_home_is(
    leaves_s: float, takes_s: float, home_s: float, step_s: float, staying: int
) -> None:
    """Method: lanes whose answers are never late; the leaving one was compared before. The trainer may wait for it."""
    lanes = {"leaves": Lane(takes_s, leaves_s=leaves_s), **{f"stays-{n}": Lane(takes_s) for n in range(staying)}}
    run = Run(lanes, shards_of(240, 80), home_s, step_s)
    before: dict[SampleRange, int] = {}
    tell = run.tell

    def times(wanted: SampleRange) -> int:
        return [each for _, each in run.asked].count(wanted) + run.prepared.count(wanted)

    def watched(event: Event) -> None:
        if isinstance(event, Leaving) and "leaves" in run.feed.lanes:
            before.update({each: times(each) for each in run._hand["leaves"]})
        tell(event)

    run.tell = watched  # type: ignore[method-assign]
    run.run()
    assert {each: times(each) for each in before} == before


@given(times, st.floats(0.005, 0.5), st.floats(0.001, 0.3), st.integers(1, 4))
def test_the_first_batch_of_a_shard_is_prepared_once_by_whoever_has_it_sooner(
    takes_s: float, home_s: float, step_s: float, lane_count: int
) -> None:
    """Method: nothing is told ahead, so the trainer waits for the first batch of each shard."""
    run = Run({f"lane-{n}": Lane(takes_s) for n in range(lane_count)}, shards_of(200, 20), home_s, step_s)
    run.is_told_ahead = False
    firsts: list[SampleRange] = []
    tell = run.tell

    def watched(event: Event) -> None:
        if isinstance(event, Wanted) and run._home is None and len(run.feed.lanes) == lane_count:
            firsts.append(event.ranges[0])
        tell(event)

    run.tell = watched  # type: ignore[method-assign]
    run.run()
    for each in firsts:
        assert [wanted for _, wanted in run.asked].count(each) + run.prepared.count(each) == 1


def test_a_lane_that_stops_while_it_leaves_is_released() -> None:
    run = Run({"stops": Lane(0.1, stops_s=1.0, leaves_s=1.05), "good": Lane(0.1)}, shards_of(100), 0.1, 0.02)
    run.run()
    assert run.released == ["stops"]


def test_a_batch_at_which_lanes_fail_is_prepared_at_home_and_excludes_nobody() -> None:
    run = Run({f"lane-{n}": Lane(0.01, fails=frozenset({30, 31, 32})) for n in range(3)}, shards_of(64), 0.1, 0.01)
    run.run()
    assert [name for wanted, name in run.delivered if wanted.start in (30, 31, 32)] == ["", "", ""]
    assert run.feed.counts.failed == 3
    assert not run.excluded


def test_a_lane_that_always_fails_is_excluded() -> None:
    run = Run({"bad": Lane(0.01, fails=frozenset(range(99))), "good": Lane(0.01)}, shards_of(64), 0.1, 0.01)
    run.run()
    assert run.excluded == ["bad"]
    assert run.feed.lanes == ("good",)


def test_the_first_wrong_answer_ends_the_use_of_lanes() -> None:
    run = Run({"wrong": Lane(0.01, joins_s=0.3, is_wrong=True), "good": Lane(0.01)}, shards_of(64), 0.05, 0.01)
    run.run()
    assert run.differing == ["wrong"]
    assert run.feed.is_alone
    assert run.delivered[-1][1] == ""


def test_answers_that_wait_are_bounded_in_bytes() -> None:
    run = Run({f"lane-{n}": Lane(0.001) for n in range(8)}, shards_of(500, 50), 0.01, 0.01, window_bytes=4000)
    most = 0
    inner = run.tell

    def tell(event: Event) -> None:
        nonlocal most
        inner(event)
        most = max(most, len(run._held))

    run.tell = tell  # type: ignore[method-assign]
    run.run()
    assert most <= 4 + 1  # and home's while it is compared


@pytest.mark.parametrize(("ahead", "size_bytes", "count"), [(1, 10, 1), (3, 10, 3), (3, 30, feeding.SPARE)])
def test_home_has_as_many_batches_ready_as_are_wanted_ahead_within_the_window(
    ahead: int, size_bytes: int, count: int
) -> None:
    machine = FeedMachine(window_bytes=30)
    wanted = tuple(SampleRange("", start, 1) for start in range(6))
    actions, prepared = machine.handle(Wanted(wanted, ahead), 0.0), []
    while actions:
        [action] = actions
        assert isinstance(action, Prepare)
        prepared.append(action.range)
        actions = machine.handle(HomePrepared(action.range, size_bytes), 0.0)
    assert prepared == [*wanted[:count]]
    assert machine.ready == [(each, "") for each in prepared]
