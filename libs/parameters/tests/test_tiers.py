"""Hot and cold rows: the store of test_store.py again, while rows go to the log and come back at any time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule
from stretto_parameters import Code, Layout, Own, Pulled, Push, PushAnswer, RawBucket, RowPolicy, Store, Table
from stretto_parameters.errors import LogFull
from stretto_parameters.kernels import Kernels
from stretto_parameters.layout import RowFormat
from stretto_parameters.optimizers import SGD
from stretto_parameters.parts import COLD, WARM, TableParts
from stretto_parameters.reference import Reference, initial_weights, narrowed, widened
from stretto_parameters.tiers import Asleep, Filling, RowsAsleep, Tiers, fill, log
from stretto_parameters.tiers.eviction import Victims

from .test_store import KEYS, LAYOUT, MEMORY_BYTES, POLICY, TwoServers, a_push

IN_MEMORY = Path("/dev/shm" if Path("/dev/shm").is_dir() else gettempdir())
"""Thousands of operations wait for no disk there; reads and writes pass the cache as on one."""
BRIEF = replace(LAYOUT, rows=RowPolicy(expire_samples=64))


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with TemporaryDirectory(dir=IN_MEMORY) as folder:
        yield Path(folder)


class Spilling(Store):
    """A store that wakes what a batch needs, as a server does."""

    def pull(self, keys: Sequence[np.ndarray], slices: np.ndarray) -> Pulled:
        while True:
            try:
                return super().pull(keys, slices)
            except RowsAsleep as asleep:
                self.read_and_wake(asleep)

    def push(self, push: Push, now_us: int = 0) -> PushAnswer:
        while True:
            try:
                return super().push(push, now_us)
            except RowsAsleep as asleep:
                self.read_and_wake(asleep)

    def read_and_wake(self, asleep: RowsAsleep) -> None:
        for each in asleep.rows:
            self.of_tiers.wake(each, self.of_tiers.read(each), over_budget=True)
        self.of_tiers.let_go(asleep.rows)

    @property
    def of_tiers(self) -> Tiers:
        assert self.tiers is not None
        return self.tiers


class TwoSpillingServers(TwoServers):
    """Evictions in three parts, with anything between these; segments that are written anew."""

    budget_bytes = 0

    def fresh(self) -> Spilling:
        store = Spilling(self.layout, MEMORY_BYTES, library=self.library, multiplier=1)
        store.spill_to(IN_MEMORY, 2**30, self.budget_bytes)
        self.chosen: list[tuple[Store, Tiers, Victims, bool]] = []
        return store

    @rule(to=st.integers(0, 1), written=st.booleans())
    def choose(self, to: int, written: bool) -> None:
        tiers = self.stores[to].tiers
        assert tiers is not None
        if not any(each[1] is tiers for each in self.chosen) and (victims := tiers.hand.choose()):
            if written:
                tiers.hand.write(victims)
            self.chosen.append((self.stores[to], tiers, victims, written))

    @rule()
    def release(self) -> None:
        for store, tiers, victims, written in self.chosen:
            if store in self.stores:
                tiers.hand.release(victims) if written else tiers.hand.spare(victims)
        self.chosen.clear()

    @rule(to=st.integers(0, 1), rounds=st.integers(1, 40))
    def evict(self, to: int, rounds: int) -> None:
        self.release()
        tiers = self.stores[to].tiers
        assert tiers is not None
        for _ in range(rounds):
            if victims := tiers.hand.choose():
                tiers.hand.write(victims)
                tiers.hand.release(victims)


class TwoSpillingServersInNumPy(TwoSpillingServers):
    library = Reference()


class TwoSpillingServersWithPolicy(TwoSpillingServers):
    """Rows that are admitted late, and expire, hot or cold."""

    layout = POLICY


TestTwoSpillingServersWithPolicy = TwoSpillingServersWithPolicy.TestCase
TestTwoSpillingServersWithPolicy.settings = settings(max_examples=30, stateful_step_count=40)
TestTwoSpillingServers = TwoSpillingServers.TestCase
TestTwoSpillingServers.settings = settings(max_examples=50, stateful_step_count=40)
TestTwoSpillingServersInNumPy = TwoSpillingServersInNumPy.TestCase
TestTwoSpillingServersInNumPy.settings = settings(max_examples=10, stateful_step_count=20)


RATE = 0.5
SMALL = Layout((Table(3, SGD(RATE), seed=1), Table(900, SGD(RATE), seed=2)), 0, buckets=4, slices=1)
"""Records of which many lie in a page, and records of a page each."""
MANY = [np.sort(np.random.default_rng(5).integers(0, 2**64, count, dtype=np.uint64)) for count in (1200, 60)]


class Trial:
    """A store beside a dictionary with the values that the store must hold. Operations may stay half done meanwhile.

    The dictionary rounds a row whenever the store makes it warm.
    """

    def __init__(self, seed: int, folder: Path | None, library: Kernels | None = None, *, warms: bool = False) -> None:
        self.random = np.random.default_rng(seed)
        self.store = Spilling(SMALL, MEMORY_BYTES, library=library)
        with patch.multiple(log, _SEGMENT_BYTES=4096, _SEGMENT_PAGES_MIN=1):
            self.store.spill_to(folder, 2**30, 0, warms=warms)
        self.doze, self.store.kernels.doze = self.store.kernels.doze, self.dozed  # type: ignore[method-assign]
        self.tiers = self.store.of_tiers
        self.store.set_own(range(SMALL.columns), Own.MINE)
        self.rows: list[dict[int, np.ndarray]] = [{}, {}]
        self.at = 0
        self.chosen: tuple[Victims, bool] | None = None
        self.asleep: list[tuple[Asleep, np.ndarray | None]] = []
        self.copies: list[tuple[np.ndarray, np.ndarray, list[Filling], list[bytes]]] = []
        self.sparse: tuple[object, tuple[int, np.ndarray, np.ndarray, np.ndarray]] | None = None
        self.segments = 0

    def dozed(self, parts: TableParts, places: np.ndarray, epoch: int) -> int:
        rows = self.rows[self.store._tables.index(parts)]
        for place in places.tolist():
            key = int(parts.keys(place >> 32)[place & 0xFFFFFFFF])
            rows[key] = widened(narrowed(rows[key]))
        return self.doze(parts, places, epoch)

    def keys(self, number: int) -> np.ndarray:
        """Return some keys, those at the front far more often; now and then many at once."""
        count = int(self.random.integers(1, (400 if self.random.random() < 0.1 else 40) if number == 0 else 6))
        chosen = (len(MANY[number]) * self.random.random(count) ** 4).astype(int)
        return np.unique(MANY[number][chosen])

    def run(self, steps: int) -> None:
        names = ("push", "push", "pull", "choose", "choose", "release", "want", "want", "read", "wake", "copy", "fill")
        rare = ("tidy", "move", "drop", "overwrite", "load", "budget", "check")
        for _ in range(steps):
            name = self.random.choice(names if self.random.random() < 0.85 else rare)
            getattr(self, name)()
        for finish in (self.fill, self.move, self.release, self.check):
            finish()

    def push(self) -> None:
        self.put(*(self.keys(number) for number in range(2)))

    def put(self, *given: np.ndarray) -> None:
        """Push keys, of the first table or of both."""
        keys = [*given, np.zeros(0, np.uint64)][:2]
        gradients = [
            self.random.normal(0, 1, (len(each), d)).astype(np.float32) for each, d in zip(keys, (3, 900), strict=True)
        ]
        for number, (of_table, by) in enumerate(zip(keys, gradients, strict=True)):
            for key, gradient in zip(of_table.tolist(), by, strict=True):
                row = self.rows[number].setdefault(key, first(number, key))
                row -= np.float32(RATE) * gradient
        claim = np.ones(SMALL.columns, np.bool_)
        dense, none = np.zeros((1, 1), np.float32), np.zeros(0, np.float32)
        self.store.push(Push(1, 0, self.at, self.at + 1, 0, claim, keys, gradients, dense, none))
        self.at += 1

    def pull(self) -> None:
        """Pull keys, one of them twice."""
        keys = [np.append(some, some[:1]) for some in (self.keys(number) for number in range(2))]
        found = self.store.pull(keys, np.zeros(0, np.int64)).rows
        for number, (of_table, rows) in enumerate(zip(keys, found, strict=True)):
            for key, row in zip(of_table.tolist(), rows, strict=True):
                assert row.tobytes() == self.rows[number].get(key, first(number, key)).tobytes()

    def choose(self) -> None:
        for _ in range(int(self.random.integers(1, 30))):
            if self.chosen is None and (victims := self.tiers.hand.choose()):
                written = self.random.random() < 0.9
                if written:
                    self.tiers.hand.write(victims)
                self.chosen = victims, written
            if self.random.random() < 0.9:
                self.release()

    def release(self) -> None:
        if self.chosen is not None:
            victims, written = self.chosen
            self.tiers.hand.release(victims) if written else self.tiers.hand.spare(victims)
            self.chosen = None

    def want(self) -> None:
        number = int(self.random.integers(2))
        keys = MANY[number][self.random.random(len(MANY[number])) < 0.05]
        places = np.empty(len(keys), np.uint64)
        self.store.kernels.locate(self.store._tables[number], keys, places)
        if found := self.tiers.asleep(number, keys, places):
            self.asleep.append((found, None))

    def read(self) -> None:
        self.asleep = [
            (each, self.tiers.read(each) if rows is None and self.some() else rows) for each, rows in self.asleep
        ]

    def wake(self) -> None:
        left: list[tuple[Asleep, np.ndarray | None]] = []
        for each, rows in self.asleep:
            if rows is None:
                left.append((each, rows))
            else:
                self.tiers.wake(each, rows, over_budget=self.some())
                self.tiers.let_go([each])
        self.asleep = left

    def some(self) -> bool:
        return bool(self.random.integers(2))

    def copy(self) -> None:
        number, bucket = int(self.random.integers(2)), int(self.random.integers(4))
        if self.some():
            found, _, _, lacking = self.store.begin_range(bucket, 0, number)
        else:
            found, lacking = self.store.begin_changes([bucket, (bucket + 1) % 4], 0, 2**30) or ((), [])
        raw = found[number]
        wanted = [self.rows[number][key].tobytes() for key in raw.keys.tolist()]
        self.copies.append((raw.keys, raw.rows, lacking, wanted))

    def fill(self) -> None:
        fill([each for _, _, lacking, _ in self.copies for each in lacking])
        for keys, rows, _, wanted in self.copies:
            assert [row.tobytes() for row in rows] == wanted, f"a copy of {len(keys)} rows"
        self.copies.clear()

    def tidy(self) -> None:
        number = int(self.random.integers(2))
        log = self.tiers.logs[number]
        if self.sparse is None and (segment := log.sparse()) is not None:
            ticket = log.hold()
            records, keys, raw = log.read_segment(segment)
            live = self.tiers.live(number, keys, records)
            to = log.allot(int(live.sum()))
            log.write(to, keys[live], log.rows_of(keys[live], raw[live]))
            self.sparse = ticket, (number, keys[live], records[live], to)
            self.segments += 1

    def move(self) -> None:
        if self.sparse is not None:
            ticket, moved = self.sparse
            self.tiers.move(*moved)
            self.tiers.logs[moved[0]].let_go(ticket)
            self.sparse = None

    def drop(self, bucket: int | None = None) -> None:
        bucket = int(self.random.integers(4)) if bucket is None else bucket
        self.store.drop_bucket(bucket)
        for rows in self.rows:
            for key in [key for key in rows if key >> 62 == bucket]:
                del rows[key]

    def overwrite(self) -> None:
        buckets = np.flatnonzero(self.random.random(4) < 0.4).tolist()
        raw = []
        for number, width in enumerate((3, 900)):
            keys = self.keys(number)
            keys = keys[np.isin(keys >> np.uint64(62), buckets)]
            raw.append(RawBucket(keys, self.random.normal(0, 1, (len(keys), width)).astype(np.float32)))
            self.rows[number].update(zip(keys.tolist(), raw[-1].rows.copy(), strict=True))
        self.store.import_changes(buckets, raw)

    def load(self) -> None:
        """Go back to a copy of a bucket, as a restore does."""
        bucket = int(self.random.integers(4))
        self.tiers.loading.hot_share = float(self.random.random())
        self.store.import_bucket(bucket, self.store.export_bucket(bucket))

    def budget(self) -> None:
        self.tiers.hand.budget_bytes = int(self.random.choice([0, self.tiers.hand.used_bytes, 2**30]))

    def check(self) -> None:
        for number in range(2):
            found: dict[int, bytes] = {}
            for bucket in range(4):
                raw = self.store.export_bucket(bucket)[number]
                found.update(zip(raw.keys.tolist(), (row.tobytes() for row in raw.rows), strict=True))
            assert found == {key: row.tobytes() for key, row in self.rows[number].items()}
            table = self.store._tables[number]
            marks = np.concatenate([table.entries(part)["mark"] for part in range(4)])
            cold, warm = int(((marks >= COLD) & (marks < WARM)).sum()), int((marks >= WARM).sum())
            pending = self.chosen is not None and self.chosen[0].table == number
            assert pending or self.sparse or self.tiers.logs[number].live == cold, "each live record is a cold row"
            assert (warm, len(marks) - cold - warm) == (int(table.warms.sum()), int(table.hots.sum()))


def first(number: int, key: int) -> np.ndarray:
    form = RowFormat.of_table(SMALL.tables[number])
    return initial_weights(form, np.array([key], np.uint64))[0]


@pytest.mark.parametrize(
    ("seed", "tiers"),
    [(0, "cold"), (1, "cold"), (2, "cold"), (0, "warm"), (1, "warm and cold"), (2, "warm and cold")],
)
def test_whatever_comes_between_the_parts_of_an_operation_the_rows_are_those_of_a_dictionary(
    seed: int, tiers: str, tmp_path: Path
) -> None:
    folder, warms = tmp_path if "cold" in tiers else None, "warm" in tiers
    trial = Trial(seed, folder, Reference() if seed == 2 else None, warms=warms)
    trial.run(300 if seed == 2 else 4000)
    counts = trial.tiers.counts()
    tried = [counts.rows_evicted, counts.rows_read, trial.segments] if folder else []
    assert seed == 2 or min([*tried, *[counts.rows_dozed] * warms]) > 8, "nothing was tried"


@pytest.mark.night
def test_a_million_operations_leave_the_rows_of_a_dictionary(tmp_path: Path) -> None:
    """Ten stores get a hundred thousand each: of cold rows, of warm ones, of both."""
    for seed in range(10):
        Trial(100 + seed, None if seed % 3 == 1 else tmp_path, warms=seed % 3 > 0).run(100_000)


def a_trial(folder: Path) -> Trial:
    """With a budget that nothing fits in, and rows of the first bucket that may become cold."""
    trial = Trial(0, folder)
    trial.put(MANY[0][:800])
    while trial.chosen is None:
        victims = trial.tiers.hand.choose()
        if victims is None:
            continue
        trial.tiers.hand.write(victims)
        trial.chosen = victims, True
        if (victims.keys >> np.uint64(62)).any():
            trial.release()
    return trial


def test_a_row_that_changed_since_it_was_chosen_stays_hot_though_a_second_hand_has_cooled_it(tmp_path: Path) -> None:
    trial = a_trial(tmp_path)
    trial.put(np.sort(trial.chosen[0].keys))
    fresh = np.arange(1, 20, dtype=np.uint64)
    trial.tiers.hand._hands[0][0] = 0  # it passes them first
    trial.put(fresh)  # no room: rows of the same part are evicted for it
    assert trial.tiers.hand.rows_evicted > 0
    trial.release()
    trial.check()


def test_rows_of_a_bucket_that_went_while_they_were_chosen_are_left_alone(tmp_path: Path) -> None:
    trial = Trial(0, tmp_path)
    trial.put(MANY[0][:1100])
    while trial.chosen is None:
        if (victims := trial.tiers.hand.choose()) is not None:
            trial.tiers.hand.write(victims)
            trial.chosen = victims, True
    gone = trial.chosen[0].keys >> np.uint64(62) == 2
    assert 0 < gone.sum() < len(gone), "a slice has rows of several buckets"
    trial.drop(2)
    trial.release()
    assert trial.tiers.hand.rows_evicted == (~gone).sum()
    trial.put(MANY[0][:3])
    trial.check()


@pytest.mark.parametrize("warms", [False, True])
@pytest.mark.parametrize("library", [None, Reference()])
def test_rows_expire_in_any_tier_as_they_do_where_all_are_hot(
    library: Kernels | None, warms: bool, tmp_path: Path
) -> None:
    random = np.random.default_rng(3)
    tiered, plain = (kind(BRIEF, MEMORY_BYTES, library=library, multiplier=1) for kind in (Spilling, Store))
    tiered.spill_to(tmp_path, 2**30, 2**30, warms=warms)
    lost = 0
    for store in (tiered, plain):
        store.set_own(range(BRIEF.columns), Own.MINE)
    for number in range(400 if library is None else 60):
        keys = np.unique(np.concatenate([random.choice(KEYS, 4), MANY[0][random.integers(0, 1200, 10)]]))
        push = a_push(1, 8 * number, 8 * number + 8, keys=keys, seed=2 * number, layout=BRIEF)
        before = plain.categories()
        assert tiered.push(push).code is plain.push(push).code is Code.APPLIED
        lost += before > plain.categories()
        for _ in range(int(random.integers(4))):
            if victims := tiered.of_tiers.hand.choose():
                tiered.of_tiers.hand.write(victims)
                tiered.of_tiers.hand.release(victims)
        assert warms or tiered.checksum() == plain.checksum()
        tiered.next_epoch()
    for bucket in range(BRIEF.buckets):
        for mine, its in zip(*(store.export_bucket(bucket) for store in (tiered, plain)), strict=True):
            assert mine.keys.tolist() == its.keys.tolist()
            assert mine.stamps is not None
            assert its.stamps is not None
            assert mine.stamps.tolist() == its.stamps.tolist()
    marks = [part.entries(bucket)["mark"] for part in tiered._tables for bucket in range(BRIEF.buckets)]
    counts = tiered.of_tiers.counts()
    assert sum(int((each >= COLD).sum()) for each in marks) == counts.cold_rows + counts.warm_rows
    assert lost > 5
    assert counts.rows_evicted + counts.rows_dozed > 50
    assert (counts.warm_rows > 0) == warms


def test_rows_that_change_often_outlast_those_that_came_once(tmp_path: Path) -> None:
    """A row that comes from the disk stays for one pass of the hand, which so can tell what is needed again."""
    trial = Trial(0, tmp_path)
    trial.put(MANY[0][:800])
    evict(trial.tiers, 800)
    often, once = MANY[0][:600:3].copy(), MANY[0][1:600:3].copy()
    for _ in range(3):
        trial.put(often)
    trial.put(once)
    evict(trial.tiers, len(once) // 2)
    assert not asleep_of(trial, often)


@pytest.mark.parametrize("library", [None, Reference()])
def test_rows_that_a_hint_has_woken_and_rows_that_a_pull_has_read_stay_for_the_push(
    library: Kernels | None, tmp_path: Path
) -> None:
    """All are of one bucket. Rows go instead that were hot, and cool, and that nobody named."""
    trial = Trial(0, tmp_path, library)
    trial.tiers.hand.budget_bytes = 2**30
    keys = MANY[0][MANY[0] >> np.uint64(62) == 0]
    others, woken = keys[:-60].copy(), keys[-60:].copy()
    hot, named = others[::4].copy(), others[1::4].copy()
    trial.put(others)
    trial.put(woken)
    assert trial.tiers.hand.choose() is None, "the first pass cools them"
    evict(trial.tiers, len(woken))
    trial.put(others)
    for _ in range(2):
        assert trial.tiers.hand.choose() is None, "they were asked for while some were cold, and changed"
    assert asleep_of(trial, woken) == len(woken), "the newest go first"
    none = MANY[1][:0]
    with pytest.raises(RowsAsleep) as asleep:
        trial.store.look_for([np.sort(np.append(woken, named)), none])
    trial.store.read_and_wake(asleep.value)
    trial.store.pull([hot, none], np.zeros(0, np.int64))
    trial.tiers.hand._hands[0][0] = 0  # it passes the newest first
    evict(trial.tiers, len(others) - len(hot) - len(named) - 40)
    assert not asleep_of(trial, woken)
    assert not asleep_of(trial, hot)
    assert not asleep_of(trial, named), "they are hot while the cold ones of their batch are read"


def asleep_of(trial: Trial, keys: np.ndarray) -> int:
    """Return how many rows of keys of the first table are cold."""
    places = np.empty(len(keys), np.uint64)
    trial.store.kernels.locate(trial.store._tables[0], keys, places)
    asleep = trial.tiers.asleep(0, keys, places)
    return 0 if asleep is None else len(asleep.keys)


def evict(tiers: Tiers, count: int) -> None:
    """Make `count` rows cold, or a few more."""
    enough = tiers.hand.rows_evicted + count
    while tiers.hand.rows_evicted < enough:
        evict_once(tiers)


def evict_once(tiers: Tiers) -> None:
    if victims := tiers.hand.choose():
        tiers.hand.write(victims)
        tiers.hand.release(victims)


def a_warm_trial(rows: int = 800) -> Trial:
    """With some rows of each bucket warm, and no disk."""
    trial = Trial(0, None, warms=True)
    trial.put(MANY[0][:rows])
    while trial.tiers.counts().warm_rows < rows // 4:
        trial.tiers.hand.choose()
    assert trial.tiers.counts().warm_rows < rows - 100
    return trial


def copied(store: Store, since_epoch: int = 0) -> list[tuple[RawBucket, ...]]:
    return [store.export_bucket(bucket, since_epoch) for bucket in range(SMALL.buckets)]


def test_a_copy_has_the_values_of_warm_rows_and_gives_them_again_where_as_many_are_warm() -> None:
    trial = a_warm_trial()
    before, warm = trial.store.checksum(), trial.tiers.counts().warm_rows
    trial.tiers.hand.budget_bytes, trial.tiers.loading.hot_share = 2**30, 0.95
    for bucket, raw in enumerate(copied(trial.store)):
        trial.store.import_bucket(bucket, raw)
    assert trial.store.checksum() == before
    assert trial.tiers.counts().warm_rows == warm
    trial.check()


def test_a_copy_that_has_no_room_even_so_is_rounded_rather_than_refused() -> None:
    trial = a_warm_trial()
    trial.tiers.hand.budget_bytes = 0
    for bucket, raw in enumerate(copied(trial.store)):
        trial.store.import_bucket(bucket, raw)
    assert trial.tiers.counts().warm_rows == trial.store.categories()
    trial.check()


def test_a_copy_is_not_rounded_where_there_is_a_disk(tmp_path: Path) -> None:
    trial = Trial(0, tmp_path, warms=True)
    trial.put(MANY[0][:800])
    for _ in range(24):
        evict_once(trial.tiers)
    assert trial.tiers.counts().warm_rows > 100
    before = trial.store.checksum()
    trial.tiers.hand.budget_bytes, trial.tiers.loading.hot_share = 2**30, 0.45
    for bucket, raw in enumerate(copied(trial.store)):
        trial.store.import_bucket(bucket, raw)
    assert trial.store.checksum() == before
    counts = trial.tiers.counts()
    assert min(counts.warm_rows, counts.cold_rows) > 10
    trial.check()


def test_rows_have_room_until_all_of_them_are_warm(tmp_path: Path) -> None:
    trial = a_warm_trial()
    table, hand = trial.store._tables[0], trial.tiers.hand
    hand.budget_bytes = hand.used_bytes + 1000
    saved = int(table.hots.sum()) * (table.form.row_bytes - table.form.warm_bytes)
    assert trial.tiers.spare_bytes() == 1000 + saved > 1000
    assert a_trial(tmp_path).tiers.spare_bytes() == np.inf


def test_a_row_that_rounding_changes_is_in_the_next_difference_and_one_that_it_does_not_is_not() -> None:
    trial = a_warm_trial()
    since = trial.store.next_epoch()
    other = Store(SMALL, MEMORY_BYTES)
    other.set_own(range(SMALL.columns), Own.MINE)
    for column in range(SMALL.buckets, SMALL.columns):
        other.import_slices(trial.store.export_slices(np.array([column - SMALL.buckets])))
    for bucket, raw in enumerate(copied(trial.store)):
        other.import_bucket(bucket, raw)
    before = trial.tiers.counts().rows_dozed
    for _ in range(400):
        trial.tiers.hand.choose()
    changed = copied(trial.store, since)
    assert sum(len(raw[0].keys) for raw in changed) == trial.tiers.counts().rows_dozed - before > 100
    for bucket, raw in enumerate(changed):
        other.import_bucket(bucket, raw, replace=False)
    assert other.checksum() == trial.store.checksum()
    since, checksum = trial.store.next_epoch(), trial.store.checksum()
    places = trial.store._places([MANY[0][:800], MANY[1][:0]])
    trial.tiers.rouse(0, places[0], over_budget=True)
    assert not trial.tiers.counts().warm_rows
    for _ in range(400):
        trial.tiers.hand.choose()
    assert trial.tiers.counts().warm_rows == 800
    assert trial.store.checksum() == checksum, "what was rounded once stays as it is"
    assert not any(len(raw[0].keys) for raw in copied(trial.store, since))


def test_warm_rows_go_to_the_disk_only_once_they_take_half_of_the_memory(tmp_path: Path) -> None:
    trial = Trial(0, tmp_path, warms=True)
    trial.put(MANY[0][:800])
    for _ in range(20):
        trial.put(MANY[0][:800:2])
        evict_once(trial.tiers)
    counts = trial.tiers.counts()
    assert counts.warm_rows > 200, "rows that nobody changes"
    assert counts.cold_rows == 0, "two warm rows take no more than a hot one"
    evict(trial.tiers, 100)
    trial.check()


def test_a_full_disk_leaves_rows_that_may_be_warm_to_become_so(tmp_path: Path) -> None:
    trial = Trial(0, tmp_path, warms=True)
    trial.tiers.bytes_max = 0
    trial.put(MANY[0][:800])
    for _ in range(400):
        with suppress(LogFull):
            evict_once(trial.tiers)
    assert trial.tiers.counts().warm_rows == 800
    with pytest.raises(LogFull, match="no room for"):
        evict_once(trial.tiers)
    trial.check()


def test_a_table_that_rounding_makes_no_smaller_has_no_warm_rows() -> None:
    layout = Layout((Table(4, SGD(RATE), weights="bfloat16"),), 0, buckets=4, slices=1)
    store = Spilling(layout, MEMORY_BYTES)
    store.spill_to(None, 0, 0, warms=True)
    store.set_own(range(layout.columns), Own.MINE)
    rows = RawBucket(MANY[0][MANY[0] >> np.uint64(62) == 0], np.zeros((0, 2), np.float32))
    store.import_bucket(0, [replace(rows, rows=np.ones((len(rows.keys), 2), np.float32))])
    assert not store.of_tiers.hand.can_evict()
    assert store.of_tiers.hand.choose() is None
    assert store.of_tiers.counts().warm_rows == 0


def test_a_segment_whose_rows_nobody_finds_is_left_alone_until_it_begins_anew(tmp_path: Path) -> None:
    """Damaged keys are why. A segment that was emptied meanwhile is not left alone."""
    with patch.multiple(log, _SEGMENT_BYTES=4096, _SEGMENT_PAGES_MIN=1):
        rows = log.RowLog(tmp_path, RowFormat.of_table(SMALL.tables[1]), lambda: 2**20, Reference())
    numbers = rows.allot(4)  # a record a segment
    rows.drop(numbers[:1])
    rows.leave_alone(0)
    assert not rows._left_alone
    rows.leave_alone(1)
    assert rows._left_alone == {1}
    rows.drop(numbers[1:2])
    assert rows.sparse() is None
    rows.allot(4)
    assert not rows._left_alone
    rows.close()


def test_a_full_log_is_tidied_while_less_of_it_is_wasted(tmp_path: Path) -> None:
    form, room = RowFormat.of_table(SMALL.tables[0]), [2**20]
    with patch.multiple(log, _SEGMENT_BYTES=4096, _SEGMENT_PAGES_MIN=1):
        rows = log.RowLog(tmp_path, form, lambda: room[0], Reference())
    each = form.records_per_page
    numbers = rows.allot(10 * each).reshape(10, each)
    rows.drop(numbers[0, : 6 * each // 10])
    rows.drop(numbers[1:, : each // 4].reshape(-1))
    assert rows.sparse() is None, "0.7 of it is live"
    room[0] = 0
    with pytest.raises(LogFull):
        rows.allot(2 * each)
    assert rows.sparse() == 0
    room[0] = 2**20
    rows.allot(1)
    assert rows.sparse() is None
    rows.close()
