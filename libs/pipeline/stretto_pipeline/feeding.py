"""The feed of one trainer: which process prepares which batch of samples, decided purely.

A trainer consumes batches in an order that it states. *Home* is the trainer's own process, which can prepare any of
them at any time. *Lanes* are processes elsewhere that prepare batches, too (GoldMiner's data workers). A batch is named
by its content, so nothing depends on who prepared it, how often, or when; late and doubled answers are dropped.

While the trainer waits for batches, home is one reader more: it prepares the batch that lanes would have last.

Three rules keep the numbers of a run without lanes:

1. Batches are delivered in the stated order.
2. Home prepares the batch that is waited for, when no lane will have it sooner. So lanes may make a job faster, and
   never stop it.
3. Home repeats a lane's first batch before any of that lane's is used, and then one in ``CHECK_EVERY``. A difference
   ends the use of lanes for good.

``FeedMachine.handle(event, now_s) -> list[Action]`` has no clock, socket or thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from math import inf
from statistics import median

CREDITS = 2
"""Batches that a lane may have in hand: the batch that it prepares, and the next."""
SPARE = 2
"""Batches that are wanted beyond the batches that lanes have in hand."""
LATE_S, LATE_FACTOR = 0.05, 4.0
"""An answer is late after LATE_S, or after LATE_FACTOR times the median of the lane's answers if that is longer.

Others then prepare the batch, and the lane is asked for nothing more until it answers.
"""
OVERDUE_FACTOR = 2.0
"""The batch that the trainer waits for is prepared at home, too, after this many times the lane's median.

A whole step costs more than preparing a batch twice.
"""
FIRST_LATE_S = 2.0
"""A lane's first answer, before which it opens its files, is late after this time."""
FAILURES_MAX = 3
"""A lane with this many failures in a row is not asked again."""
CHECK_EVERY = 256
REMEMBERED = 32
"""Number of a lane's last answers whose median is taken."""
WAITED_S_MAX = 1.0
"""Most waiting of the trainer that home may still make use of."""


@dataclass(frozen=True, slots=True)
class SampleRange:
    """A batch, by its content: samples [start, start + length) of a partition of the data."""

    partition: str
    start: int
    length: int


# --- events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wanted:
    """The batches to come, in order. A batch that was wanted before, and is not among them, is dropped.

    ``ahead``: how many of them home has ready where there are no lanes, within the window.
    """

    ranges: tuple[SampleRange, ...]
    ahead: int = 1


@dataclass(frozen=True, slots=True)
class Needed:
    """The trainer asks for the first batch. ``waited_s``: how long it did nothing but wait for the one before."""

    waited_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Joined:
    """A lane can be asked."""

    lane: str


@dataclass(frozen=True, slots=True)
class Left:
    """A lane is gone; what it was asked for will not come from it."""

    lane: str


@dataclass(frozen=True, slots=True)
class Leaving:
    """A lane is asked for nothing more. What it has in hand is still taken; then the lane is :class:`Released`."""

    lane: str


@dataclass(frozen=True, slots=True)
class Answered:
    """A lane has prepared a batch of ``size_bytes``, or has failed at it (``is_failure``)."""

    lane: str
    range: SampleRange
    size_bytes: int = 0
    is_failure: bool = False


@dataclass(frozen=True, slots=True)
class HomePrepared:
    """Home has prepared a batch of ``size_bytes``, or has failed (``is_failure``): its error is then delivered.

    ``busy_s``: time of a processor that this took.
    """

    range: SampleRange
    size_bytes: int = 0
    is_failure: bool = False
    busy_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Compared:
    """Home has compared a lane's answer with its own: they are the same, or not."""

    lane: str
    range: SampleRange
    is_same: bool


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = Wanted | Needed | Joined | Left | Leaving | Answered | HomePrepared | Compared | Tick


# --- actions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask a lane for a batch."""

    lane: str
    range: SampleRange


@dataclass(frozen=True, slots=True)
class Prepare:
    """Prepare a batch at home, and report :class:`HomePrepared`. Home is asked for a single batch at a time."""

    range: SampleRange


@dataclass(frozen=True, slots=True)
class Compare:
    """Compare a lane's answer with home's, now; report :class:`Compared`, and forget the lane's answer."""

    lane: str
    range: SampleRange


@dataclass(frozen=True, slots=True)
class Deliver:
    """Give the first batch to the trainer. ``lane``: whose answer; "" for home's."""

    range: SampleRange
    lane: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget an answer: the batch is no longer wanted, or has come from elsewhere."""

    range: SampleRange
    lane: str


@dataclass(frozen=True, slots=True)
class Differs:
    """A lane prepared other values than home. No lane is asked from now on."""

    lane: str
    range: SampleRange


@dataclass(frozen=True, slots=True)
class Excluded:
    """A lane is not asked again: it failed ``FAILURES_MAX`` times in a row."""

    lane: str


@dataclass(frozen=True, slots=True)
class Released:
    """A leaving lane has nothing in hand, or is gone."""

    lane: str


Action = Ask | Prepare | Compare | Deliver | Drop | Differs | Excluded | Released


# --- state ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Lane:
    """A lane. ``asked``: time of the request for each batch that it has in hand; ``late``: which of them are late."""

    asked: dict[SampleRange, float] = field(default_factory=dict[SampleRange, float])
    late: set[SampleRange] = field(default_factory=set[SampleRange])
    took_s: deque[float] = field(default_factory=lambda: deque[float](maxlen=REMEMBERED))
    failures: int = 0
    trusted: set[Hashable] = field(default_factory=set[Hashable])
    """Kinds of batches for which an answer of the lane was equal to home's."""
    is_checked: bool = False
    """The lane's first answer waits for home's."""
    is_leaving: bool = False

    @property
    def is_trusted(self) -> bool:
        return bool(self.trusted)

    @property
    def late_after_s(self) -> float:
        return max(LATE_S, LATE_FACTOR * median(self.took_s)) if self.took_s else FIRST_LATE_S

    @property
    def overdue_after_s(self) -> float:
        return max(LATE_S, OVERDUE_FACTOR * median(self.took_s)) if self.took_s else FIRST_LATE_S

    @property
    def is_available(self) -> bool:
        return not self.late and self.failures < FAILURES_MAX and not self.is_leaving

    @property
    def credits(self) -> int:
        """How many more batches the lane may be asked for: a single batch until its first answer was compared."""
        if not self.is_available or self.is_checked:
            return 0
        return (CREDITS if self.is_trusted else 1) - len(self.asked)

    def is_leaving_with(self, wanted: SampleRange) -> bool:
        """Return whether the lane is leaving, and has a batch in hand."""
        return self.is_leaving and wanted in self.asked

    @property
    def has_answered(self) -> bool:
        """Return whether nothing more will come from the lane in time."""
        return bool(self.late) or not self.asked

    @property
    def usual_s(self) -> float:
        """The median time of the lane's answers; 0: not known."""
        return median(self.took_s) if self.took_s else 0.0

    def due_s(self, head: SampleRange | None) -> Iterator[float]:
        """Yield the times at which batches in hand are late, and ``head``, if the trainer waits for it, overdue."""
        for wanted, since_s in self.asked.items():
            if wanted not in self.late:
                yield since_s + self.late_after_s
                if wanted == head and not self.is_leaving:
                    yield since_s + self.overdue_after_s

    def note_late(self, now_s: float) -> int:
        """Note which batches in hand are late now; return how many were not before."""
        after_s = self.late_after_s
        late = {each for each, since_s in self.asked.items() if since_s + after_s <= now_s} - self.late
        self.late |= late
        return len(late)

    def left_s(self, wanted: SampleRange, now_s: float) -> float:
        """Return how long the lane will still take for a batch; infinity if nothing tells."""
        if wanted not in self.asked or not self.took_s or self.asked[wanted] + self.overdue_after_s <= now_s:
            return inf
        return max(0.0, median(self.took_s) - (now_s - self.asked[wanted]))


def _remembered() -> deque[float]:
    return deque[float](maxlen=REMEMBERED)


@dataclass(slots=True)
class _Home:
    """Home as a reader.

    ``prepares``: the batch that it prepares now, since ``since_s``. ``took_s``, ``busy_s``: time and processor time of
    its last batches. ``delivered_s``: times of the last deliveries to the trainer.
    """

    prepares: SampleRange | None = None
    since_s: float = 0.0
    took_s: deque[float] = field(default_factory=_remembered)
    busy_s: deque[float] = field(default_factory=_remembered)
    waited_s: float = 0.0
    """Time in which the trainer did nothing but wait, less the processor time that home has made of it since."""
    delivered_s: deque[float] = field(default_factory=_remembered)

    def end(self, now_s: float, busy_s: float) -> None:
        """Note that home has prepared its batch, or has failed."""
        self.prepares = None
        self.took_s.append(now_s - self.since_s)
        self.busy_s.append(busy_s)
        self.waited_s = max(0.0, self.waited_s - busy_s)

    @property
    def usual_s(self) -> float:
        """The median time of home's batches; 0: not known."""
        return median(self.took_s) if self.took_s else 0.0

    @property
    def may_help(self) -> bool:
        """Return whether home has the processor time for a batch ahead.

        While the trainer waits its processor idles, too. Home takes no more than that, so it slows no step down.
        """
        return self.waited_s > 0.0 and bool(self.busy_s) and median(self.busy_s) <= self.waited_s

    def is_in_time(self, place: int) -> bool:
        """Return whether home has a batch before the trainer has taken so many others."""
        many = len(self.delivered_s) - 1
        return many > 0 and place * (self.delivered_s[-1] - self.delivered_s[0]) / many >= self.usual_s


def _is_sooner(lanes: Sequence[_Lane], head: SampleRange, home_s: float, now_s: float) -> bool:
    """Return whether a lane will have a batch sooner than home, which takes ``home_s``.

    A leaving lane is waited for until it is late: what it has in hand is not prepared twice.
    """
    each_s = [lane.left_s(head, now_s) for lane in lanes]
    if any(lane.is_leaving_with(head) and head not in lane.late for lane in lanes):
        return True
    return min(each_s, default=inf) < inf and min(each_s) <= home_s


@dataclass(slots=True)
class Counts:
    """Batches since the start. ``lane_bytes``: size of all answers of lanes."""

    delivered: int = 0
    from_lanes: int = 0
    answers: int = 0
    late: int = 0
    dropped: int = 0
    failed: int = 0
    checked: int = 0
    lane_bytes: int = 0


class FeedMachine:
    """The feed of one trainer (see the module).

    ``window_bytes``: the most of batches that wait, or are being prepared, by the size of the largest one so far; but
    two always may. ``kind_of``: the way in which a batch is prepared; a lane's first answer of each kind is compared.
    """

    def __init__(self, window_bytes: int, *, kind_of: Callable[[SampleRange], Hashable] = lambda wanted: None) -> None:
        self.counts = Counts()
        self.is_alone = False
        """A lane's answer differed: home prepares everything."""
        self._window_bytes = window_bytes
        self._kind_of = kind_of
        self._order: deque[SampleRange] = deque()
        self._ahead, self._is_needed = 1, False
        self._here: dict[SampleRange, str] = {}
        """Wanted batches that can be delivered, each with its lane, "" for home."""
        self._unchecked: dict[SampleRange, str] = {}
        """Answers of lanes that home repeats before they are used."""
        self._failed: set[SampleRange] = set()
        """Batches at which a lane failed: home prepares them, and its error counts."""
        self._lanes: dict[str, _Lane] = {}
        self._home = _Home()
        self._since_check = 0
        """Number of lanes' answers since home last repeated an answer."""
        self._largest_bytes = 0
        self._actions: list[Action] = []

    @property
    def lanes(self) -> tuple[str, ...]:
        """The names of the lanes in use."""
        return tuple(name for name, lane in self._lanes.items() if lane.is_trusted and lane.is_available)

    @property
    def is_served(self) -> bool:
        """True while there is a lane."""
        return bool(self._lanes)

    @property
    def ready(self) -> list[tuple[SampleRange, str]]:
        """The batches that can be delivered one after the other, each with its lane, "" for home."""
        return [(each, self._here[each]) for each in takewhile(self._here.__contains__, self._order)]

    def next_s(self) -> float:
        """Return the time at which Tick has to be reported, infinity if it has not."""
        head = self._order[0] if self._is_needed and self._home.prepares is None else None
        return min((each for lane in self._lanes.values() for each in lane.due_s(head)), default=inf)

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """Handle an event; ``now_s`` is the time on any clock that does not go back."""
        self._actions = []
        match event:
            case Wanted(ranges, ahead):
                self._want(ranges, ahead)
            case Needed(waited_s):
                assert self._order, "nothing is wanted"
                self._is_needed = True
                self._home.waited_s = min(self._home.waited_s + waited_s, WAITED_S_MAX)
            case Joined(lane):
                if not self.is_alone:
                    self._lanes.setdefault(lane, _Lane())
            case Left(lane):
                self._leave(lane)
            case Leaving(lane):
                self._lanes.setdefault(lane, _Lane()).is_leaving = True
            case Answered():
                self._answered(event, now_s)
            case HomePrepared():
                self._prepared(event, now_s)
            case Compared(lane, wanted, is_same):
                self._compared(lane, wanted, is_same)
        self.counts.late += sum(lane.note_late(now_s) for lane in self._lanes.values())
        self._release()
        self._deliver(now_s)
        self._ask(now_s)
        self._use_home(now_s)
        return self._actions

    def _want(self, ranges: tuple[SampleRange, ...], ahead: int) -> None:
        self._order, self._ahead = deque(ranges), ahead
        self._is_needed = self._is_needed and bool(ranges)
        wanted = frozenset(ranges)
        for gone in [each for each in self._here if each not in wanted]:
            self._drop(gone, self._here.pop(gone))
        for gone in [each for each in self._unchecked if each not in wanted]:
            self._drop_unchecked(gone)
        self._failed &= wanted

    def _leave(self, name: str) -> None:
        if self._lanes.pop(name, _Lane()).is_leaving:
            self._actions.append(Released(name))
        for gone in [each for each, lane in self._unchecked.items() if lane == name]:
            self._drop_unchecked(gone)

    def _drop_unchecked(self, wanted: SampleRange) -> None:
        name = self._unchecked.pop(wanted)
        self._drop(wanted, name)
        if name in self._lanes:
            self._lanes[name].is_checked = False

    def _answered(self, event: Answered, now_s: float) -> None:
        lane, wanted = self._lanes.get(event.lane), event.range
        if lane is None or wanted not in lane.asked:
            self._drop(wanted, event.lane)
            return
        lane.took_s.append(now_s - lane.asked.pop(wanted))
        lane.late.discard(wanted)
        if event.is_failure:
            self.counts.failed += 1
            self._failed.add(wanted)
            lane.failures += 1
            if lane.failures == FAILURES_MAX:
                self._actions.append(Excluded(event.lane))
            return
        lane.failures = 0
        self.counts.answers += 1
        self.counts.lane_bytes += event.size_bytes
        self._largest_bytes = max(self._largest_bytes, event.size_bytes)
        if wanted in self._here or wanted in self._unchecked or wanted not in self._order:
            self._drop(wanted, event.lane)
            return
        is_trusted = self._kind_of(wanted) in lane.trusted
        self._since_check += 1
        if is_trusted and (self._since_check < CHECK_EVERY or lane.is_leaving):
            self._here[wanted] = event.lane
        else:
            self._since_check = 0
            self._unchecked[wanted] = event.lane
            lane.is_checked = lane.is_checked or not is_trusted

    def _prepared(self, event: HomePrepared, now_s: float) -> None:
        wanted = event.range
        self._home.end(now_s, event.busy_s)
        self._largest_bytes = max(self._largest_bytes, event.size_bytes)
        if wanted in self._unchecked:
            if event.is_failure:  # nothing to compare with
                self._drop_unchecked(wanted)
            else:
                self._actions.append(Compare(self._unchecked.pop(wanted), wanted))
        if wanted in self._order and wanted not in self._here:
            self._here[wanted] = ""
        else:
            self._drop(wanted, "")

    def _compared(self, name: str, wanted: SampleRange, is_same: bool) -> None:
        self.counts.checked += 1
        if not is_same:
            self._use_no_lanes(name, wanted)
        elif name in self._lanes:
            self._lanes[name].trusted.add(self._kind_of(wanted))
            self._lanes[name].is_checked = False

    def _use_no_lanes(self, name: str, wanted: SampleRange) -> None:
        self.is_alone = True
        self._actions.append(Differs(name, wanted))
        self._actions += [Released(each) for each, lane in self._lanes.items() if lane.is_leaving]
        self._lanes.clear()
        for each, lane in [*self._here.items()]:
            if lane:
                self._drop(each, self._here.pop(each))
        for each in [*self._unchecked]:
            self._drop_unchecked(each)

    def _release(self) -> None:
        """Release leaving lanes that have nothing in hand, or would be late with it."""
        for name in [name for name, lane in self._lanes.items() if lane.is_leaving]:
            if self._lanes[name].has_answered and name not in self._unchecked.values():
                self._leave(name)

    def _deliver(self, now_s: float) -> None:
        if self._is_needed and self._order[0] in self._here:
            wanted = self._order.popleft()
            lane = self._here.pop(wanted)
            self._is_needed = False
            self._home.delivered_s.append(now_s)
            self.counts.delivered += 1
            self.counts.from_lanes += lane != ""
            self._actions.append(Deliver(wanted, lane))

    def _ask(self, now_s: float) -> None:
        """Ask lanes for the next batches; a lane that is not trusted yet gets the last of them."""
        free = [name for name, lane in self._lanes.items() if lane.credits > 0]
        if not free:
            return
        free.sort(key=lambda name: -self._lanes[name].credits)
        in_hand = {each for lane in self._lanes.values() for each in lane.asked if each not in lane.late}
        idle = [each for each in self._window() if each not in in_hand and not self._is_taken(each)]
        waiting = deque(idle)
        while free and waiting:
            name = free.pop(0)
            lane = self._lanes[name]
            wanted = waiting.popleft() if lane.is_trusted else waiting.pop()
            if wanted == self._order[0] and self._is_sooner_here(lane):
                self._prepare(wanted, now_s)
                free.insert(0, name)
                continue
            lane.asked[wanted] = now_s
            self._actions.append(Ask(name, wanted))
            if lane.credits > 0:
                free.append(name)

    def _is_sooner_here(self, lane: _Lane) -> bool:
        """Return whether home has the first batch sooner than a lane that is asked now: else both would prepare it."""
        return self._home.prepares is None and 0.0 < self._home.usual_s < lane.usual_s

    def _use_home(self, now_s: float) -> None:
        if self._home.prepares is not None or not self._order:
            return
        head = self._order[0]
        if self._is_needed and self._is_missing(head, now_s):
            self._prepare(head, now_s)
        elif self._unchecked:
            self._prepare(next(each for each in self._order if each in self._unchecked), now_s)
        elif not self.lanes and (missing := self._first_missing()) is not None:
            self._prepare(missing, now_s)
        elif self.lanes and self._home.may_help and (last := self._last_in_time()) is not None:
            self._prepare(last, now_s)

    def _first_missing(self) -> SampleRange | None:
        """Return the first batch of those ahead that is neither here nor with a lane that leaves."""
        coming = {each for lane in self._lanes.values() if lane.is_leaving for each in lane.asked} | self._here.keys()
        return next((each for each in islice(self._window(), self._ahead) if each not in coming), None)

    def _last_in_time(self) -> SampleRange | None:
        """Return the batch that lanes would have last, if home has it by then; never the first, asked for soon."""
        if sum(lane != "" for lane in self._here.values()) >= SPARE:
            return None
        in_hand = {each for lane in self._lanes.values() for each in lane.asked}
        free = [place for place, each in enumerate(self._window()) if not (each in in_hand or self._is_taken(each))]
        return self._order[free[-1]] if free and free[0] > 0 and self._home.is_in_time(free[-1]) else None

    def _is_missing(self, head: SampleRange, now_s: float) -> bool:
        """Return whether no lane will have a batch sooner than home."""
        return head in self._unchecked or not _is_sooner([*self._lanes.values()], head, self._home.usual_s, now_s)

    def _prepare(self, wanted: SampleRange, now_s: float) -> None:
        self._home.prepares, self._home.since_s = wanted, now_s
        self._actions.append(Prepare(wanted))

    def _window(self) -> Iterable[SampleRange]:
        bounded = max(SPARE, self._window_bytes // self._largest_bytes) if self._largest_bytes else SPARE
        readers = len(self._lanes) + 1
        return islice(self._order, min(bounded, SPARE + CREDITS * readers))

    def _is_taken(self, wanted: SampleRange) -> bool:
        return any(wanted in each for each in (self._here, self._unchecked, self._failed, (self._home.prepares,)))

    def _drop(self, wanted: SampleRange, lane: str) -> None:
        self.counts.dropped += 1
        self._actions.append(Drop(wanted, lane))
