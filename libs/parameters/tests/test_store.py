"""The store against a model of dicts, the protocol between two stores, and input that is refused."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from stretto_parameters import (
    Claim,
    Code,
    InputRefused,
    Layout,
    Own,
    Progress,
    Push,
    RawBucket,
    RawSlices,
    RowPolicy,
    Store,
    StoreFull,
    Table,
    kernels,
)
from stretto_parameters.kernels import Kernels
from stretto_parameters.layout import RowFormat
from stretto_parameters.optimizers import SGD, Adagrad, Adam
from stretto_parameters.optimizers.schedules import Exponential
from stretto_parameters.records import fingerprint
from stretto_parameters.reference import Reference, initial_weights, read_weights, write_weights
from stretto_parameters.store import LOOKED_BYTES

TABLES = (
    Table(3, Adagrad(Exponential(0.1, 0.5, 40)), seed=1),
    Table(2, Adam(0.05), seed=2, weights="bfloat16", distribution="normal"),
)
LAYOUT = Layout(TABLES, 5, buckets=4, slices=2, state_size=2, optimizer=Adam(0.01))
POLICY = replace(LAYOUT, rows=RowPolicy(admit=2, expire_samples=8))
MEMORY_BYTES = 2**30
KEYS = np.array(
    [bucket << 62 | low for bucket in range(4) for low in (0, 1, 2, 1023, 1024, 2**62 - 1)], np.uint64
)  # the ends of every bucket
ALL = np.ones(LAYOUT.columns, np.bool_)
FORMS = [RowFormat.of_table(table) for table in TABLES]


def a_store(
    *, mine: bool = True, library: Kernels | None = None, layout: Layout = LAYOUT, multiplier: int = 1
) -> Store:
    """With the multiplier 1 a key is looked for from its top bits on, which those of a bucket share."""
    store = Store(layout, MEMORY_BYTES, library=library, multiplier=multiplier)
    if mine:
        store.set_own(range(layout.columns), Own.MINE)
    return store


def a_push(
    shard: int = 1,
    start: int = 0,
    stop: int = 8,
    *,
    attempt: int = 0,
    claim: np.ndarray = ALL,
    keys: np.ndarray = KEYS,
    seed: int = 0,
    layout: Layout = LAYOUT,
) -> Push:
    """A push of the claimed ones of `keys` to every table, with random gradients of `seed`; with an odd one the first
    table and the slices have squares of their own."""
    random = np.random.default_rng(seed)
    kept = keys[claim[: layout.buckets][(keys >> np.uint64(layout.shift)).astype(int)]]
    gradients = [random.normal(0, 1, (len(keys), table.dimension)).astype(np.float32) for table in layout.tables]
    chosen = np.isin(keys, kept)
    squares = [3 * each * each if seed % 2 and not i else None for i, each in enumerate(gradients)]
    slices = random.normal(0, 1, (layout.slices, layout.slice_length)).astype(np.float32)
    delta = random.normal(0, 1, layout.state_size).astype(np.float32)
    return Push(
        *(shard, attempt, start, stop, 3, claim, [kept] * len(layout.tables), [each[chosen] for each in gradients]),
        *(slices[claim[layout.buckets :]], delta, [None if each is None else each[chosen] for each in squares]),
        2 * np.square(slices)[claim[layout.buckets :]] if seed % 2 else None,
    )


class Model:
    """The parameters as they must be: rows by (table, key), slices, state, and offsets by shard."""

    def __init__(self, policy: RowPolicy = LAYOUT.rows) -> None:
        self.policy = policy
        self.sights: dict[tuple[int, int], int] = {}
        self.changed: dict[tuple[int, int], int] = {}
        self.kept_out = self.expired = 0
        self.rows: dict[tuple[int, int], np.ndarray] = {}
        dense = LAYOUT.optimizer.first_slots(LAYOUT.slice_length)
        self.slices = [np.concatenate([np.zeros(LAYOUT.slice_length, np.float32), dense]) for _ in range(2)]
        self.state = np.zeros(2, np.float32)
        self.offsets: dict[int, list[int]] = {}
        self.samples = [0] * LAYOUT.columns
        self.prints = [0] * LAYOUT.columns

    def of(self, shard: int) -> list[int]:
        return self.offsets.setdefault(shard, [0] * LAYOUT.columns)

    def apply(self, push: Push) -> int:
        """Apply the columns at `start`; return how many."""
        offsets = self.of(push.shard)
        due = [c for c in range(LAYOUT.columns) if push.claim[c] and offsets[c] == push.start]
        for number, (table, keys) in enumerate(zip(TABLES, push.keys, strict=True)):
            gradients, squares = push.row_gradients[number], push.row_squares[number]
            squares = gradients * gradients if squares is None else squares
            for key, gradient, square in zip(keys.tolist(), gradients, squares, strict=True):
                bucket = key >> 62
                if bucket in due and self.admits((number, key)):
                    self.changed[number, key] = self.samples[bucket] + push.stop - push.start
                    row = self.rows.setdefault((number, key), first_row(number, key))
                    rate = np.float32(table.optimizer.schedule.rate(self.samples[bucket]))
                    step(table, FORMS[number], row, gradient, square, rate)
        claimed = [c - 4 for c in (4, 5) if push.claim[c]]
        of_slices = np.square(push.slice_gradients) if push.slice_squares is None else push.slice_squares
        for number, gradient, square in zip(claimed, push.slice_gradients, of_slices, strict=True):
            if number + 4 in due:
                rate = np.float32(LAYOUT.optimizer.schedule.rate(self.samples[4 + number]))
                step(LAYOUT, RowFormat.of_slices(LAYOUT), self.slices[number], gradient, square, rate)
        if 4 in due:
            self.state = self.state + push.state_delta
        for column in due:
            offsets[column] = push.stop
            self.samples[column] += push.stop - push.start
            self.prints[column] += fingerprint(push.shard, push.start, push.stop)
            self.expire(column)
        return len(due)

    def admits(self, key: tuple[int, int]) -> bool:
        """Count a sight of a key without a row; True if it has a row, or gets it now."""
        if key not in self.rows:
            self.sights[key] = self.sights.get(key, 0) + 1
            if self.sights[key] < self.policy.admit:
                self.kept_out += 1
                return False
        return True

    def expire(self, bucket: int) -> None:
        """Drop the rows that had not changed for `expire_samples` at the last check point: one in an eighth of these,
        a bucket later than the one before it."""
        life = self.policy.expire_samples
        if not life:
            return
        period = life // 8
        offset = bucket * period // 4
        check = (self.samples[bucket] - offset) // period * period + offset
        for key in [key for key in self.rows if key[1] >> 62 == bucket]:
            if self.changed[key] // period < (check - life) // period:
                del self.rows[key]
                self.expired += 1


def first_row(table: int, key: int) -> np.ndarray:
    form = FORMS[table]
    row = np.zeros((1, form.words), np.float32)
    write_weights(form, row, initial_weights(form, np.array([key], np.uint64)))
    row[0, form.weight_words :] = form.slots
    return row[0]


def step(
    of: Table | Layout, form: RowFormat, row: np.ndarray, gradient: np.ndarray, square: np.ndarray, rate: np.float32
) -> None:
    """One update of a single row by the formula of the optimizer."""
    weights, slots = read_weights(form, row[None]), row[None, form.weight_words :].copy()
    rates = np.array([[rate]])
    of.optimizer.step(weights, slots, gradient[None], square[None], rates, of.optimizer.hyperparameters())
    write_weights(form, row[None], weights)
    row[form.weight_words :] = slots[0]


class TwoServers(RuleBasedStateMachine):
    """Pushes, repeated and in any order, to two stores between which columns move, are lost and come back."""

    library: Kernels | None = None
    layout = LAYOUT

    def fresh(self) -> Store:
        """Return a store that owns nothing."""
        return a_store(mine=False, library=self.library, layout=self.layout)

    @initialize()
    def start(self) -> None:
        self.stores = [self.fresh() for _ in range(2)]
        self.owner = [0] * LAYOUT.columns
        self.stores[0].set_own(range(LAYOUT.columns), Own.MINE)
        self.model = Model(self.layout.rows)
        self.attempts: list[dict[int, int]] = [{}, {}]
        self.finished: set[int] = set()
        self.count = 0
        for store in self.stores:
            store.seed(np.zeros((2, LAYOUT.slice_length), np.float32), np.zeros(2, np.float32))

    @rule(
        shard=st.integers(0, 2),
        attempt=st.integers(0, 2),
        at=st.integers(0, 3),
        length=st.sampled_from([4, 4, 4, 8]),
        to=st.integers(0, 1),
        chosen=st.integers(0, 2**24 - 1),
        left_out=st.none() | st.integers(0, 5),
        foreign=st.sampled_from([False, False, False, True]),
    )
    def push(
        self, shard: int, attempt: int, at: int, length: int, to: int, chosen: int, left_out: int | None, foreign: bool
    ) -> None:
        """A batch from some offset: it may be due, known, from the future, misaligned, late, or sent to the wrong
        server."""
        claim = np.array([owner == to or foreign for owner in self.owner])
        if left_out is not None:
            claim[left_out] = False
        keys = KEYS[[bool(chosen >> i & 1) for i in range(len(KEYS))]]
        start = 4 * at
        push = a_push(shard, start, start + length, attempt=attempt, claim=claim, keys=keys, seed=7 * shard + at)
        expected = self.expected(push, to)
        answer = self.stores[to].push(push)
        assert answer.code is expected
        self.count += 1
        if expected is Code.APPLIED and claim.any():
            assert answer.applied == self.model.apply(push)
            self.attempts[to][shard] = max(attempt, self.attempts[to].get(shard, 0))
        else:
            assert answer.applied == 0

    def expected(self, push: Push, to: int) -> Code:
        claimed = [c for c in range(LAYOUT.columns) if push.claim[c]]
        offsets = [self.model.of(push.shard)[c] for c in claimed]
        if any(self.owner[c] != to for c in claimed):
            return Code.NOT_OWNED
        if push.shard in self.finished or push.attempt < self.attempts[to].get(push.shard, 0):
            return Code.STALE
        if any(offset < push.start for offset in offsets):
            return Code.GAP
        if any(push.start < offset < push.stop for offset in offsets):
            return Code.MISALIGNED
        return Code.APPLIED

    @rule(shard=st.integers(0, 2), attempt=st.integers(0, 3))
    def progress(self, shard: int, attempt: int) -> None:
        for to, store in enumerate(self.stores):
            finished, own, record = store.progress(shard, attempt)
            assert finished == (shard in self.finished)
            if not finished:
                for column in np.flatnonzero(own != Own.NOT_MINE).tolist():
                    assert record[column] == self.model.of(shard)[column]
                self.attempts[to][shard] = max(attempt, self.attempts[to].get(shard, 0))

    @rule(columns=st.sets(st.integers(0, 5), min_size=1))
    def move(self, columns: set[int]) -> None:
        """The order of a move: FROZEN there, copy, MINE here, NOT_MINE there, emptied there."""
        for source in (0, 1):
            moved = [c for c in sorted(columns) if self.owner[c] == source]
            there, here = self.stores[source], self.stores[1 - source]
            assert there.set_own(moved, Own.FROZEN, Own.MINE, whole=True) == len(moved)
            if moved:
                refused = there.push(a_push(9, claim=np.isin(range(LAYOUT.columns), moved)))
                assert refused.code is Code.NOT_OWNED
            restore(here, snapshot(there, moved))
            assert here.set_own(moved, Own.MINE, Own.NOT_MINE) == len(moved)
            there.set_own(moved, Own.NOT_MINE, Own.FROZEN)
            there.clear(moved)
            for shard in range(3):
                if shard not in self.finished:  # the fence comes along
                    both = max(each.get(shard, 0) for each in self.attempts)
                    theirs = int(there.progress(shard, 0)[2][LAYOUT.columns])
                    ours = int(here.progress(shard, 0)[2][LAYOUT.columns])
                    assert max(theirs, ours) == both
                    self.attempts[1 - source][shard] = ours
            for column in moved:
                self.owner[column] = 1 - source
            columns = columns - set(moved)

    @rule(to=st.integers(0, 1))
    def replace(self, to: int) -> None:
        """A server is taken down to an image, with all that it has, and a fresh one gets it."""
        old = self.stores[to]
        columns = old.columns()
        new = self.fresh()
        restore(new, snapshot(old, columns))
        new.set_own(columns, Own.MINE)
        assert new.checksum() == old.checksum()
        self.stores[to] = new

    @rule(to=st.integers(0, 1))
    def empty_in_place(self, to: int) -> None:
        """A surviving server is emptied without a restart, and filled from its image."""
        store = self.stores[to]
        columns = store.columns()
        image, before = snapshot(store, columns), store.checksum()
        store.clear(columns)
        assert store.categories() == 0
        restore(store, image)
        assert store.checksum() == before

    @rule(shard=st.integers(0, 2))
    def finish(self, shard: int) -> None:
        for store in self.stores:
            store.finish([shard])
        self.finished.add(shard)

    @invariant()
    def every_row_and_slice_is_that_of_the_model(self) -> None:
        if not hasattr(self, "stores"):
            return
        found: dict[tuple[int, int], bytes] = {}
        for store in self.stores:
            own = store.own()
            for bucket in np.flatnonzero(own[:4] == Own.MINE).tolist():
                for number, raw in enumerate(store.export_bucket(bucket)):
                    for key, row in zip(raw.keys.tolist(), raw.rows, strict=True):
                        assert key >> 62 == bucket
                        assert (number, key) not in found
                        found[number, key] = row.tobytes()
            for number in np.flatnonzero(own[4:] == Own.MINE):
                raw_slices = store.export_slices(np.array([number]))
                assert raw_slices.rows[0].tobytes() == self.model.slices[number].tobytes()
                if number == 0:
                    assert raw_slices.state.tobytes() == self.model.state.tobytes()
        assert found == {key: row.tobytes() for key, row in self.model.rows.items()}

    @invariant()
    def what_the_policy_kept_out_and_dropped_is_counted(self) -> None:
        if not hasattr(self, "stores"):
            return
        found = [store.row_account() for store in self.stores]
        assert sum(each.kept_out for each in found) == self.model.kept_out
        assert sum(each.expired for each in found) == self.model.expired
        without = sum(each.without_row for each in found)
        assert without == sum(key not in self.model.rows for key in self.model.sights)

    @invariant()
    def every_sample_is_counted_once(self) -> None:
        if not hasattr(self, "stores"):
            return
        applied = [store.applied() for store in self.stores]
        assert sum(each.samples for each in applied).tolist() == self.model.samples
        prints = sum(each.fingerprints for each in applied)
        assert [int(each) % 2**64 for each in prints] == [each % 2**64 for each in self.model.prints]


class TwoServersInNumPy(TwoServers):
    library = Reference()


class TwoServersWithPolicy(TwoServers):
    layout = POLICY


class TwoServersWithPolicyInNumPy(TwoServersInNumPy):
    layout = POLICY


TestTwoServers = TwoServers.TestCase
TestTwoServers.settings = settings(max_examples=100, stateful_step_count=30)
TestTwoServersInNumPy = TwoServersInNumPy.TestCase
TestTwoServersInNumPy.settings = settings(max_examples=20, stateful_step_count=20)
TestTwoServersWithPolicy = TwoServersWithPolicy.TestCase
TestTwoServersWithPolicy.settings = settings(max_examples=100, stateful_step_count=30)
TestTwoServersWithPolicyInNumPy = TwoServersWithPolicyInNumPy.TestCase
TestTwoServersWithPolicyInNumPy.settings = settings(max_examples=20, stateful_step_count=20)


@dataclass(frozen=True)
class Snapshot:
    """Columns of a store with their progress at one instant. buckets: bucket -> its rows, by table."""

    columns: list[int]
    buckets: dict[int, tuple[RawBucket, ...]]
    policies: dict[int, np.ndarray]
    slices: RawSlices
    progress: Progress


def snapshot(store: Store, columns: Iterable[int]) -> Snapshot:
    chosen, buckets = sorted(columns), store.layout.buckets
    return Snapshot(
        chosen,
        {bucket: store.export_bucket(bucket) for bucket in chosen if bucket < buckets},
        {bucket: store.export_policy(bucket) for bucket in chosen if bucket < buckets},
        store.export_slices(np.array([c - buckets for c in chosen if c >= buckets], np.int64)),
        store.records.progress(),
    )


def restore(store: Store, given: Snapshot) -> None:
    """Write columns as a move does; the caller then makes them MINE."""
    for bucket, raw in given.buckets.items():
        store.import_bucket(bucket, raw)
        store.import_policy(bucket, given.policies[bucket])
    store.import_slices(given.slices)
    store.merge_columns(given.columns, given.progress)


def state_bytes(store: Store) -> list[bytes]:
    """Everything that a store holds, in the order in which it holds it."""
    found = snapshot(store, range(store.layout.columns))
    arrays: list[np.ndarray] = [
        each for raws in found.buckets.values() for raw in raws for each in (raw.keys, raw.rows, raw.stamps)
        if each is not None
    ]  # fmt: skip
    at = found.progress
    arrays += found.policies.values()
    arrays += [found.slices.rows, found.slices.state, at.shards, at.records, at.finished, at.samples, at.fingerprints]
    return [each.tobytes() for each in arrays]


@pytest.mark.proof
@pytest.mark.parametrize("layout", [LAYOUT, POLICY], ids=["plain", "policy"])
def test_the_same_pushes_give_the_same_bytes(layout: Layout) -> None:
    """Twice in C and once in NumPy: neither time nor addresses nor the implementation shows in the state."""
    random = np.random.default_rng(3)
    batches = [np.unique(random.integers(0, 2**64, 300, dtype=np.uint64)) for _ in range(4)]
    pushes = [a_push(shard, keys=keys, seed=shard) for shard, keys in enumerate([*batches, *batches])]
    states = []
    for library in (None, None, Reference()):
        store = a_store(library=library, layout=layout)
        for push in pushes:
            store.push(push)
        states.append(state_bytes(store))
    assert states[0] == states[1] == states[2]


@pytest.mark.parametrize("cut", [1, 3, 6])
def test_pushes_after_an_image_give_the_bytes_that_they_gave_before(cut: int) -> None:
    """A killed server is replayed from an image, its last push once more; keys wait, and rows expire, on both sides."""
    pushes = [a_push(shard, keys=KEYS[shard % 5 :: 2], seed=shard) for shard in range(9)]
    ours, killed, again = (a_store(layout=POLICY, mine=each) for each in (True, True, False))
    for push in pushes:
        ours.push(push)
    for push in pushes[:cut]:
        killed.push(push)
    restore(again, snapshot(killed, range(LAYOUT.columns)))
    again.set_own(range(LAYOUT.columns), Own.MINE)
    for push in pushes[cut - 1 :]:
        again.push(push)
    assert state_bytes(again) == state_bytes(ours)
    assert min(ours.row_account().kept_out, ours.row_account().expired, ours.categories()) > 0


def test_the_multiplier_of_the_indices_changes_no_answer() -> None:
    stores = [a_store(multiplier=each) for each in (1, 3, 2**64 - 1, 0)]
    for store in stores:
        store.push(a_push())
        store.push(a_push(2, keys=KEYS[::2], seed=1))
    assert all(state_bytes(store) == state_bytes(stores[0]) for store in stores)
    pulled = [store.pull([KEYS, KEYS], np.arange(2)) for store in stores]
    assert len({each.rows[0].tobytes() + each.rows[1].tobytes() for each in pulled}) == 1
    with pytest.raises(InputRefused, match="multiplier = 4 must be odd"):
        Store(LAYOUT, MEMORY_BYTES, multiplier=4)


@pytest.mark.parametrize(("kind", "step"), [("c", 2**16), ("c", 2**32), ("c", 2**40), ("numpy", 2**40)])
def test_nobody_can_choose_keys_for_one_run_of_the_index(kind: str, step: int) -> None:
    """Goal: whoever writes the data cannot make each pull walk over all rows, under the lock. With a known
    multiplier (here 1) these keys are one run; with one that nobody knows they are, but for rare draws, not."""
    library = Reference() if kind == "numpy" else kernels.load()
    if library.name != kind:
        pytest.skip("the kernels are not built here")
    keys = np.arange(2000, dtype=np.uint64) * np.uint64(step) + np.uint64(5)
    random_numbers = random.Random(20261126)
    runs: list[int] = []
    for multiplier in (1, *(random_numbers.getrandbits(64) | 1 for _ in range(20))):
        store = a_store(library=library, multiplier=multiplier)
        store.import_bucket(0, [raw_of(keys, form) for form in FORMS])
        runs.append(longest_run(store._tables[0].index(0)))
    assert runs[0] == len(keys)
    assert sum(run > len(keys) / 4 for run in runs[1:]) <= 1
    drawn = {a_store(multiplier=0)._tables[0].heads.tobytes() for _ in range(2)}
    assert len(drawn) == 2, "a store draws its own"


def raw_of(keys: np.ndarray, form: RowFormat) -> RawBucket:
    return RawBucket(keys, np.zeros((len(keys), form.words), F32))


def longest_run(index: np.ndarray) -> int:
    """Return the most neighbouring slots that are taken."""
    return int(np.diff(np.flatnonzero(np.append(np.append(0, index), 0) == 0)).max() - 1)


def test_a_pull_of_an_absent_key_shows_its_initial_weights_and_makes_no_row() -> None:
    store = a_store()
    before = store.pull([KEYS, KEYS], np.arange(2)).rows
    assert store.categories() == 0
    assert before[0].tobytes() == initial_weights(FORMS[0], KEYS).tobytes()
    zero = a_push()
    zero = Push(
        *(1, 0, 0, 8, 0, ALL, zero.keys, [np.zeros_like(each) for each in zero.row_gradients]),
        *(zero.slice_gradients, zero.state_delta),
    )
    store.push(zero)
    assert store.categories() == 2 * len(KEYS)
    assert [each.tobytes() for each in store.pull([KEYS, KEYS], np.arange(2)).rows] == [
        each.tobytes() for each in before
    ]


def test_keys_are_pulled_in_the_order_that_they_are_asked_for() -> None:
    store = a_store()
    store.push(a_push())
    ascending = store.pull([KEYS, KEYS], np.array([1])).rows[0]
    assert np.array_equal(store.pull([KEYS[::-1], KEYS], np.array([1])).rows[0], ascending[::-1])
    assert store.pull([KEYS, KEYS], np.array([1, 0])).slices.shape == (2, LAYOUT.slice_length)


def test_memory_is_told_and_given_back() -> None:
    layout = Layout((Table(16, SGD(0.1)),), 4, buckets=4, slices=1)
    store = a_store(layout=layout)
    empty = store.memory_bytes()
    keys = np.unique(np.random.default_rng(1).integers(0, 2**64, 100_000, dtype=np.uint64))
    store.push(a_push(keys=keys, claim=np.ones(5, np.bool_), layout=layout))
    held = store.memory_bytes() - empty
    # a row of 64 bytes, an entry of 16, an index of 5.3 to 10.7; the pages that are touched ahead
    assert (64 + 16 + 5.3) * len(keys) < held < (64 + 16 + 10.7) * len(keys) + 8 * 2**17
    store.clear(range(4))
    assert store.memory_bytes() == empty
    assert store.categories() == 0


def test_a_full_store_refuses_the_whole_push() -> None:
    """The second table overflows: the first one must not have been updated."""
    layout = Layout((Table(2), Table(4000)), 4, buckets=4, slices=1)
    store = Store(layout, 2**20)
    store.set_own(range(5), Own.MINE)
    claim = np.ones(5, np.bool_)
    few = np.arange(10, dtype=np.uint64)
    store.push(a_push(keys=few, claim=claim, layout=layout))
    before = state_bytes(store)
    with pytest.raises(StoreFull, match="memory_bytes_max"):
        store.push(a_push(2, keys=np.arange(100, dtype=np.uint64), claim=claim, layout=layout))
    assert state_bytes(store) == before
    assert store.push(a_push(2, keys=few, claim=claim, layout=layout)).applied == 5


def test_differences_since_an_epoch_bring_an_image_up_to_date() -> None:
    store = a_store()
    store.push(a_push(1, keys=KEYS[:12]))
    base = snapshot(store, range(LAYOUT.columns))
    epoch = store.next_epoch()
    store.push(a_push(2, keys=KEYS[10:14], seed=1))
    differences = {bucket: store.export_bucket(bucket, epoch) for bucket in range(4)}
    assert sorted(int(key) for raws in differences.values() for key in raws[0].keys) == KEYS[10:14].tolist()
    copy = a_store()
    restore(copy, base)
    for bucket, raws in differences.items():
        copy.import_bucket(bucket, raws, replace=False)
    copy.import_slices(store.export_slices(np.arange(2)))
    assert copy.checksum() == store.checksum()


def test_what_changed_in_several_buckets_is_copied_at_once_if_it_has_room() -> None:
    layout = replace(LAYOUT, rows=RowPolicy(expire_samples=64))
    store, copy = a_store(layout=layout), a_store(layout=layout, mine=False)
    store.push(a_push(1))
    restore(copy, snapshot(store, range(LAYOUT.columns)))
    epoch, buckets = store.next_epoch(), [0, 1, 3]
    store.push(a_push(2, keys=KEYS[10:15], seed=1))
    found, lacking = store.begin_changes(buckets, epoch, 2**20) or ((), [])
    wanted = [store.export_bucket(bucket, epoch) for bucket in buckets]
    assert not lacking
    for table, raw in enumerate(found):
        for name in ("keys", "rows", "stamps"):
            of_buckets = np.concatenate([getattr(each[table], name) for each in wanted])
            assert getattr(raw, name).tobytes() == of_buckets.tobytes()
    copy.import_changes(buckets, found)
    for bucket in buckets:
        for raw, each in zip(copy.export_bucket(bucket), store.export_bucket(bucket), strict=True):
            assert raw.rows[np.argsort(raw.keys)].tobytes() == each.rows[np.argsort(each.keys)].tobytes()
    looked = LOOKED_BYTES * int(store.raw_sizes()[buckets].sum())
    rows = sum(len(raw.keys) * 8 + raw.rows.nbytes for raw in found)
    assert store.begin_changes(buckets, epoch, looked + rows) is not None
    assert store.begin_changes(buckets, epoch, looked + rows - 1) is None
    assert store.begin_changes(buckets, store.next_epoch(), looked - 1) is None
    with pytest.raises(InputRefused, match=r"keys of buckets \[0, 1\]: some are of another bucket"):
        copy.import_changes([0, 1], store.export_bucket(3))


@given(st.integers(1, 400), st.lists(st.integers(0, 5), max_size=6))
def test_ranges_of_a_bucket_and_their_difference_are_the_bucket(bytes_max: int, pushes: list[int]) -> None:
    """Method: rows change and are made between any two ranges of the first copy; the difference has these."""
    store, copy = a_store(), a_store(mine=False)
    store.push(a_push(1, keys=KEYS[::2]))
    epoch, steps = store.next_epoch(), iter(enumerate(pushes))
    for since in (0, epoch):
        table = first = count = 0
        while table < len(TABLES):
            raw, table, first = store.export_range(1, since, table, first, bytes_max)
            copy.import_bucket(1, raw, replace=not since and not count)
            count += 1
            assert sum(each.nbytes for each in raw) <= bytes_max + 8 + max(form.row_bytes for form in FORMS)
            if not since and (step := next(steps, None)) is not None:
                store.push(a_push(2 + step[0], keys=KEYS[step[1] :: 3], seed=step[0]))
        assert count <= 12, "a range has a row at least"
    for found, wanted in zip(copy.export_bucket(1), store.export_bucket(1), strict=True):
        ours, theirs = np.argsort(found.keys), np.argsort(wanted.keys)
        assert found.keys[ours].tobytes() == wanted.keys[theirs].tobytes()
        assert found.rows[ours].tobytes() == wanted.rows[theirs].tobytes()


def test_a_row_that_takes_the_place_of_an_expired_one_is_in_the_difference() -> None:
    """The first row expires after its range was copied; the last one, of a range to come, takes its place."""
    store, copy = (
        a_store(layout=replace(LAYOUT, rows=RowPolicy(expire_samples=8)), mine=each) for each in (True, False)
    )
    store.push(a_push(1, keys=KEYS[6:12]))
    store.push(a_push(2, keys=KEYS[7:12]))
    epoch, table, first = store.next_epoch(), 0, 0
    while table < len(TABLES):
        raw, table, first = store.export_range(1, 0, table, first, 80)
        copy.import_bucket(1, raw, replace=copy.raw_sizes()[1] == 0)
        if first == 2 and not table:
            store.push(a_push(3, stop=4, keys=KEYS[:1]))
    assert copy.raw_sizes()[1] < 12 > store.raw_sizes()[1] == 10
    copy.import_bucket(1, store.export_bucket(1, epoch), replace=False)
    copy.merge_columns([1], store.records.progress())
    for found, wanted in zip(copy.export_bucket(1), store.export_bucket(1), strict=True):
        assert sorted(found.keys.tolist()) == sorted(wanted.keys.tolist())


def test_a_range_of_few_changes_looks_at_a_bounded_number_of_rows() -> None:
    """The lock is held while entries are looked at."""
    store = a_store()
    store.push(a_push(1))
    epoch = store.next_epoch()
    store.push(a_push(2, keys=KEYS[11:12]))
    assert [store.export_range(1, epoch, 0, first, 3 * LOOKED_BYTES)[1:] for first in (0, 3)] == [(0, 3), (1, 0)]
    (raw, _), *place = store.export_range(1, epoch, 0, 3, 3 * LOOKED_BYTES)
    assert (raw.keys.tolist(), place) == (KEYS[11:12].tolist(), [1, 0])


def test_a_bucket_is_copied_into_the_memory_of_the_caller() -> None:
    store = a_store()
    store.push(a_push())
    [raw, _] = store.export_bucket(1)
    keys, rows = np.zeros(raw.keys.nbytes, np.uint8), np.zeros(raw.rows.nbytes, np.uint8)
    sums = store.copy_keys(1, 0, keys), store.copy_rows(1, 0, rows)
    assert sums == (
        Reference().copy(keys.copy(), raw.keys.view(np.uint8)),
        Reference().copy(rows.copy(), raw.rows.reshape(-1).view(np.uint8)),
    )
    assert (keys.tobytes(), rows.tobytes()) == (raw.keys.tobytes(), raw.rows.tobytes())
    with pytest.raises(InputRefused, match=r"to: uint8 \(143,\) were given, wanted uint8 \(144,\)"):
        store.copy_rows(1, 0, rows[:-1])
    other = a_store()
    assert other.load_bucket(1, 0, keys.view(np.uint64), rows) == sums[1]
    [loaded, _] = other.export_bucket(1)
    assert (loaded.keys.tobytes(), loaded.rows.tobytes()) == (raw.keys.tobytes(), raw.rows.tobytes())
    wanted = [raw.keys, np.zeros(0, np.uint64)]
    found, expected = (each.pull(wanted, np.arange(0)).rows[0] for each in (other, store))
    assert (found == expected).all()
    other.drop_bucket(1)
    assert other.raw_sizes()[1] == 0


def test_a_survivor_goes_back_to_an_image_in_place() -> None:
    """Column by column: samples that came after the image are due again, in the cleared columns only."""
    store = a_store()
    store.push(a_push(1))
    image, before = snapshot(store, range(LAYOUT.columns)), store.checksum()
    store.push(a_push(2, seed=1))
    columns = [0, 3, 4]
    store.clear(columns)
    assert store.progress(2, 0)[2][: LAYOUT.columns].tolist() == [0, 8, 8, 0, 0, 8]
    assert store.applied().samples.tolist() == [0, 16, 16, 0, 0, 16]
    assert store.applied().per_shard == {1: 0, 2: 0}
    store.clear(range(LAYOUT.columns))
    restore(store, image)
    assert store.checksum() == before
    assert store.push(a_push(2, seed=1)).applied == LAYOUT.columns


def test_a_store_that_is_reset_is_as_new() -> None:
    store = a_store()
    store.push(a_push(1, attempt=5))
    store.finish([2])
    store.reset()
    assert store.columns() == []
    assert store.progress(2, 0)[0] is False
    assert state_bytes(store) == state_bytes(a_store(mine=False))
    store.set_own(range(LAYOUT.columns), Own.MINE)
    assert store.push(a_push(1)).applied == LAYOUT.columns


def test_own_is_compared_and_set() -> None:
    store = a_store(mine=False)
    assert store.set_own([0, 5], Own.MINE) == 2
    assert store.set_own([0, 1], Own.FROZEN, Own.MINE, whole=True) == 0
    assert store.set_own([0, 1], Own.FROZEN, Own.MINE) == 1
    assert store.own().tolist() == [Own.FROZEN, 0, 0, 0, 0, Own.MINE]
    assert store.columns() == [0, 5]


def test_the_first_seed_wins_slice_by_slice() -> None:
    store = a_store(mine=False)
    store.set_own([4], Own.MINE)
    ones = np.ones((2, LAYOUT.slice_length), np.float32)
    assert store.seed(ones, np.ones(2, np.float32))[0].tolist() == [1, 0]
    store.set_own([5], Own.MINE)
    assert store.seed(3 * ones, np.zeros(2, np.float32))[0].tolist() == [1, 1]
    found = store.pull([KEYS, KEYS], np.arange(2))
    assert found.slices[:, 0].tolist() == [1.0, 3.0]
    assert found.state.tolist() == [1.0, 1.0]


SLICES_ALONE = np.array([False] * LAYOUT.buckets + [True] * LAYOUT.slices)


def test_a_mean_of_several_batches_counts_each_of_them_on_every_column_or_none() -> None:
    store, once = a_store(), a_store()
    mean = replace(a_push(1, claim=SLICES_ALONE), others=(Claim(2, 0, 0, 5), Claim(3, 1, 0, 4)))
    assert store.push(mean).applied == LAYOUT.slices
    once.push(a_push(1, claim=SLICES_ALONE))
    ids = np.arange(LAYOUT.slices)
    none = [np.zeros(0, np.uint64)] * len(TABLES)
    np.testing.assert_array_equal(store.pull(none, ids).slices, once.pull(none, ids).slices, "applied once")
    assert store.applied().samples.tolist() == [0] * LAYOUT.buckets + [8 + 5 + 4] * LAYOUT.slices
    assert [store.progress(shard, 0)[2][LAYOUT.buckets] for shard in (1, 2, 3)] == [8, 5, 4]
    assert store.push(mean).applied == 0, "repeated, it changes nothing"


@pytest.mark.parametrize(
    ("before", "others", "code"),
    [
        (a_push(2, 0, 5, claim=SLICES_ALONE), (Claim(2, 0, 0, 5),), Code.GAP),
        (a_push(1, 0, 8, claim=SLICES_ALONE), (Claim(2, 0, 0, 5),), Code.GAP),
        (a_push(2, 0, 3, claim=SLICES_ALONE), (Claim(2, 0, 0, 5),), Code.MISALIGNED),
        (a_push(2, 0, 5, attempt=4, claim=SLICES_ALONE), (Claim(2, 3, 5, 9),), Code.STALE),
    ],
    ids=["another one is there already", "the first is there already", "in the middle of one", "of an old attempt"],
)
def test_a_mean_of_which_a_column_has_a_part_is_refused_whole(
    before: Push, others: tuple[Claim, ...], code: Code
) -> None:
    store = a_store()
    store.push(before)
    told = store.applied()
    assert store.push(replace(a_push(1, claim=SLICES_ALONE), others=others)).code is code
    np.testing.assert_array_equal(store.applied().samples, told.samples)


def test_statistics_count_pushes_workers_and_repeats() -> None:
    store = a_store()
    store.push(a_push(), now_us=5)
    store.push(a_push(), now_us=9)
    store.push(a_push(start=16, stop=20))
    assert (store.stats.updates, store.stats.rejected, store.stats.repeated_samples) == (2, 1, 8)
    assert store.stats.rows_made == store.categories() == 2 * len(KEYS)
    assert [(seen.pushes, seen.last_us) for seen in store.workers().values()] == [(2, 9)]
    assert store.applied().per_shard == {1: 8}


def changed(**fields: Any) -> Push:
    push = a_push()
    return Push(**{**{name: getattr(push, name) for name in Push.__slots__}, **fields})


F32, U64 = np.float32, np.uint64
BAD_PUSHES: list[tuple[dict[str, Any], str]] = [
    ({"start": 8}, "samples 8..8: wanted 0 <= start < stop"),
    ({"start": -1}, "samples -1..8"),
    ({"stop": 2**50}, "samples 0..1125899906842624"),
    ({"shard": 2**63}, "shard = 9223372036854775808 must be a 64-bit integer"),
    ({"worker": -(2**64)}, "worker = -18446744073709551616 must be"),
    ({"claim": np.ones(5, np.bool_)}, r"claim: bool \(5,\) were given, wanted bool \(6,\)"),
    ({"claim": np.ones(6, np.int64)}, r"claim: int64 \(6,\) were given, wanted bool \(6,\)"),
    ({"claim": np.array([False] + [True] * 5)}, "keys of table 0: some are in buckets that are not claimed"),
    ({"keys": [KEYS]}, "keys of 1 tables were given, the layout has 2"),
    ({"keys": [KEYS[::-1], KEYS]}, "keys of table 0 must be strictly ascending as unsigned"),
    ({"keys": [KEYS, np.sort(KEYS.view(np.int64)).view(U64)]}, "keys of table 1 must be strictly ascending"),
    ({"keys": [np.array([5, 5], U64), KEYS]}, "keys of table 0 must be strictly ascending"),
    ({"keys": [KEYS.view(np.int64), KEYS]}, r"keys of table 0: int64 \(24,\) were given, wanted uint64"),
    ({"keys": [KEYS[:-1], KEYS]}, r"row_gradients of table 0: float32 \(24, 3\) were given, wanted float32 \(23, 3\)"),
    ({"keys": [b"", KEYS]}, "keys of table 0: bytes were given"),
    ({"row_gradients": [np.zeros((24, 3), F32)]}, "row_gradients of 1 tables, keys of 2"),
    ({"slice_squares": np.zeros((1, 3), F32)}, r"slice_squares: float32 \(1, 3\) were given"),
    ({"row_squares": [None]}, "row_squares of 1 tables, keys of 2"),
    ({"row_squares": [np.zeros((23, 3), F32), None]}, r"row_squares of table 0: float32 \(23, 3\) were given"),
    ({"row_gradients": [np.zeros((24, 3)), np.zeros((24, 2), F32)]}, r"row_gradients of table 0: float64 \(24, 3\)"),
    ({"row_gradients": [np.zeros((24, 3), ">f4"), np.zeros((24, 2), F32)]}, r"row_gradients of table 0: >f4 \(24, 3\)"),
    (
        {"slice_gradients": np.zeros((1, 3), F32)},
        r"slice_gradients: float32 \(1, 3\) were given, wanted float32 \(2, 3\)",
    ),
    ({"state_delta": np.zeros(3, F32)}, r"state_delta: float32 \(3,\) were given, wanted float32 \(2,\)"),
]


@pytest.mark.parametrize(("fields", "message"), BAD_PUSHES, ids=[message[:40] for _, message in BAD_PUSHES])
def test_a_malformed_push_is_refused_and_changes_nothing(fields: dict[str, Any], message: str) -> None:
    store = a_store()
    store.push(a_push(7))
    before = state_bytes(store)
    with pytest.raises(InputRefused, match=message):
        store.push(changed(**fields))
    assert state_bytes(store) == before


def test_arrays_that_a_frame_holds_at_odd_addresses_are_taken() -> None:
    """A frame's parts begin anywhere, and a slice of a matrix is not contiguous."""
    push = a_push()
    odd = np.frombuffer(b"x" + push.keys[0].tobytes(), np.uint8)[1:].view(U64)
    assert not odd.flags.aligned
    wide = np.zeros((24, 6), F32)
    wide[:, ::2] = push.row_gradients[0]
    ours, plain = a_store(), a_store()
    ours.push(changed(keys=[odd, push.keys[1]], row_gradients=[wide[:, ::2], push.row_gradients[1]]))
    plain.push(push)
    assert state_bytes(ours) == state_bytes(plain)


RAW = RawBucket(KEYS[:2], np.zeros((2, 6), F32))
RAW_2 = RawBucket(KEYS[:0], np.zeros((0, 6), F32))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.set_own([6], Own.MINE), "columns .6. must be between 0 and 5"),
        (lambda s: s.clear([-1]), "columns .-1. must be between 0 and 5"),
        (lambda s: s.export_bucket(4), "bucket = 4 must be between 0 and 3"),
        (lambda s: s.export_range(0, 0, -1), "table = -1, first = 0 of a range: neither is negative"),
        (lambda s: s.copy_rows(0, 2, RAW.keys), "table = 2 must be between 0 and 1"),
        (lambda s: s.import_bucket(0, [RAW]), "bucket 0: 1 tables of rows, the layout has 2"),
        (lambda s: s.import_bucket(1, [RAW, RAW_2]), "keys of bucket 1: some are of another bucket"),
        (lambda s: s.import_bucket(0, [RawBucket(KEYS[[0, 0]], RAW.rows), RAW_2]), "bucket 0: some are there twice"),
        (lambda s: s.import_bucket(0, [RawBucket(KEYS[:2], RAW.rows[:1]), RAW_2]), r"wanted float32 \(2, 6\)"),
        (lambda s: s.export_slices(np.array([2])), "slices .2. must be between 0 and 1"),
        (lambda s: s.export_slices(np.array([1, 1])), "slices .1, 1.: give each once"),
        (lambda s: s.pull([KEYS, KEYS], np.array([-1])), "slices .-1. must be between"),
        (lambda s: s.pull([KEYS, KEYS.astype(F32)], np.array([0])), r"keys of table 1: float32"),
        (lambda s: s.seed(np.zeros((2, 2), F32), np.zeros(2, F32)), r"slices: float32 \(2, 2\) were given"),
        (lambda s: s.finish([2**70]), "shard = 1180591620717411303424 must be"),
        (lambda s: s.progress(1, 2**70), "attempt = 1180591620717411303424 must be"),
        (lambda _: Store(LAYOUT, 100), "memory_bytes_max = 100 is less than 1 MiB"),
    ],
)
def test_malformed_calls_are_refused_by_name(call: Any, message: str) -> None:
    store = a_store()
    store.push(a_push(7))
    before = state_bytes(store)
    with pytest.raises(InputRefused, match=message):
        call(store)
    assert state_bytes(store) == before


def test_the_built_kernels_are_used_where_there_are_any() -> None:
    built = kernels.compiling.LIBRARY.is_file()
    assert a_store().kernels.name == ("c" if built else "numpy")
