import signal
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from shipped_planner import planned_from
from stretto.engine import Control, Own, migration, one_table, protocol
from stretto.engine.migration import _copy
from stretto.errors import MigrationError, ServerLost
from stretto_core.dispatcher.book import fingerprint_of
from stretto_parameters import InputRefused, RawBucket, RowPolicy, Store
from stretto_parameters.layout import RowFormat
from stretto_parameters.optimizers import Adam
from trainer_harness import wait_for

pytestmark = pytest.mark.slow

LAYOUT = one_table(4, 200, state_size=2, optimizer=Adam(0.05))


class Training:
    """Threads that train shards one after the other until `finish`."""

    def __init__(self, servers, training, workers=2, length=640):
        self.servers, self.training, self.length = servers, training, length
        self.stop, self.trained, self.errors, self.longest_s = threading.Event(), [], [], 0.0
        self.threads = [threading.Thread(target=self.run, args=(w,)) for w in range(workers)]
        self.parameters = [servers.worker(w) for w in range(workers)]
        for thread in self.threads:
            thread.start()

    def run(self, worker):
        shard = worker
        try:
            while not self.stop.is_set():
                begun = time.perf_counter()
                self.training.train_shard(self.parameters[worker], shard, attempt=1, length=self.length)
                self.longest_s = max(self.longest_s, time.perf_counter() - begun)
                self.trained.append(shard)
                shard += len(self.threads)
        except Exception as error:
            self.errors.append(error)

    def go_on(self):
        """Wait until another shard is trained or a worker has failed."""
        enough = len(self.trained) + 1
        wait_for(lambda: self.errors or len(self.trained) >= enough)

    def finish(self):
        self.stop.set()
        for thread in self.threads:
            thread.join(60)
        assert not self.errors
        return len(self.trained) * self.length


def rescale(servers, target):
    """Carry out what the actuator would order: every destination takes its columns."""
    return carry_out(servers, planned_from(servers.layout, servers.controls(), target))


def rescale_here(servers, target):
    """The same where the servers are of this process."""
    for destination, sources in planned_from(servers.layout, servers.controls(), target).items():
        list(migration.move(servers.processes[destination], sources, servers.addresses))


def carry_out(servers, planned):
    steps = []
    for destination, sources in planned.items():
        answer = servers.processes[destination].ask("move", sources=sources, addresses=servers.addresses)
        assert "error" not in answer, answer
        steps += answer["steps"]
    return steps


def settle(servers, training, shards=4):
    """Train a few shards, then rest."""
    worker = servers.worker(9)
    for shard in range(shards):
        training.train_shard(worker, 1000 + shard, attempt=1, length=256)
    return worker


def rows_of(bucket, count):
    """Rows of a bucket, to be imported."""
    keys = (np.uint64(bucket) << np.uint64(LAYOUT.shift)) + np.arange(count, dtype=np.uint64)
    words = RowFormat.of_table(LAYOUT.tables[0]).words
    return (RawBucket(keys, np.arange(count * words, dtype=np.float32).reshape(count, words)),)


def test_out_and_in_while_training_loses_and_repeats_nothing(cluster, training):
    servers = cluster(LAYOUT)
    running = Training(servers, training)
    running.go_on()
    newcomer = servers.add()
    for parameters in running.parameters:
        parameters.connect(dict(servers.addresses))
    assert rescale(servers, [0, 1, newcomer])
    held = {s: len(columns) for s, columns in servers.columns().items()}
    assert sorted(held.values()) == [25, 25, 26]
    running.go_on()
    rescale(servers, [1, newcomer])  # ps-0 leaves
    assert servers.columns()[0] == []
    assert servers.control(0).raw_sizes().sum() == 0, "the source frees its rows"
    running.go_on()
    samples = running.finish()
    assert (servers.samples() == samples).all()
    assert sum(c.stats().rejected for c in servers.controls()) > 0, "pushes met frozen columns"


def test_a_move_at_rest_changes_no_bit(cluster, training):
    servers = cluster(LAYOUT)
    worker = settle(servers, training)
    keys = LAYOUT.index(np.arange(5000))
    before, checksum = worker.pull(keys), servers.checksum()
    rows = sum(c.categories() for c in servers.controls())
    samples, prints = servers.samples(), servers.prints()
    assert {int(value) % 2**64 for value in prints} == {sum(fingerprint_of(1000 + s, 256) for s in range(4)) % 2**64}
    servers.add()
    rescale(servers, [0, 1, 2])
    after = worker.pull(keys)
    assert (before.rows[0] == after.rows[0]).all()
    assert (before.dense == after.dense).all()
    assert (before.state == after.state).all()
    assert servers.checksum() == checksum
    assert sum(c.categories() for c in servers.controls()) == rows
    assert (servers.samples() == samples).all()
    assert (servers.prints() == prints).all()
    assert worker.progress(1000) == 256  # records went with their columns
    # a batch that was applied before the move is still known
    k, r, d = training.batch_of(LAYOUT, 1000, 192)
    assert worker.push(k, r, d, shard=1000, attempt=1, start=192, stop=256).applied == 0


@pytest.mark.parametrize("broke", ["after freeze", "after copy", "after taking over", "after release"])
def test_a_move_that_broke_off_at_any_step_is_completed_by_the_next(cluster_here, training, broke):
    servers = cluster_here(LAYOUT)
    settle(servers, training, shards=2)
    checksum, samples = servers.checksum(), servers.samples()
    rows = sum(c.categories() for c in servers.controls())
    servers.add()
    source, here = servers.control(0), servers.control(2)
    planned = planned_from(LAYOUT, servers.controls(), [0, 1, 2])[2]
    column = next(c for c, giver in planned.items() if giver == 0 and c < LAYOUT.buckets)
    frozen = source.freeze_and_export([column], 0, 2**20, 0)
    if broke != "after freeze":
        _copy(here, source, (column,), frozen)
    if broke in ("after taking over", "after release"):
        here.set_own([column], Own.MINE, Own.NOT_MINE)
    if broke == "after release":
        source.set_own([column], Own.NOT_MINE, Own.FROZEN)
    rescale_here(servers, [0, 1, 2])
    rescale_here(servers, [0, 1, 2])  # a frozen column is thawed first, and moved by the next plan
    owned = np.array([c.own() for c in servers.controls()])
    assert (owned.sum(axis=0) == 1).all()
    assert servers.checksum() == checksum
    assert (servers.samples() == samples).all()
    assert sum(c.categories() for c in servers.controls()) == rows
    assert sum(int(c.raw_sizes().sum()) for c in servers.controls()) == rows, "leftovers are emptied"
    settle(servers, training, shards=2)  # all of it is applied already
    assert (servers.samples() == samples).all()


@pytest.mark.parametrize("known", [protocol.KNOWN, ("hints", "exchanges")], ids=["now", "a server of before"])
def test_workers_wait_for_two_requests_of_a_move_and_no_more(cluster_here, training, monkeypatch, known):
    """One freezes and copies, one asks whether it still is frozen; a server of before is asked for each part."""
    monkeypatch.setattr(protocol, "KNOWN", known)
    servers = cluster_here(LAYOUT)
    settle(servers, training)
    checksum, samples, asked = servers.checksum(), servers.samples(), []
    servers.add()
    ask = Control._ask

    def ask_and_note(control, name, *arguments, **named):
        asked.append(f"{name} {Own(arguments[1]).name}" if name == "set_own" else name)
        return ask(control, name, *arguments, **named)

    monkeypatch.setattr(Control, "_ask", ask_and_note)
    sources = dict.fromkeys([c for c in servers.control(0).columns() if c != 3], 0)
    (_,) = migration.move(servers.processes[2], sources, servers.addresses)
    parts = ["set_own FROZEN", "all_progress", "export_slices", "export_ranges", "own"]
    frozen = ["freeze_and_export", "own"] if "freezes_rows" in known else parts
    assert asked[asked.index(frozen[0]) : asked.index("set_own NOT_MINE")] == frozen
    assert servers.columns()[2] == sorted(sources)
    assert servers.checksum() == checksum
    assert (servers.samples() == samples).all()


def test_columns_are_frozen_all_or_none_and_only_if_they_can_be_copied(cluster_here, training, monkeypatch):
    servers = cluster_here(LAYOUT)
    settle(servers, training)
    source, wanted = servers.control(0), servers.control(0).columns()
    assert source.freeze_and_export(wanted[:1], 0, 2**20, 0)
    assert source.freeze_and_export(wanted[:2], 0, 2**20, 0) is None, "another mover has the first"
    assert source.own()[wanted[:2]].tolist() == [Own.FROZEN, Own.MINE]

    def refused(*arguments):
        raise InputRefused("no copy")

    monkeypatch.setattr(Store, "begin_changes", refused)
    with pytest.raises(InputRefused, match="no copy"):
        source.freeze_and_export(wanted[1:3], 0, 2**20, 0)
    assert source.own()[wanted[:3]].tolist() == [Own.FROZEN, Own.MINE, Own.MINE]


def test_a_broken_off_move_resumes(cluster, training):
    servers = cluster(LAYOUT)
    settle(servers, training, shards=2)
    checksum = servers.checksum()
    servers.add()
    sources = planned_from(LAYOUT, servers.controls(), [0, 1, 2])[2]
    first = servers.processes[2].ask("move", sources=sources, addresses=servers.addresses, limit=3, freeze_bytes=0)
    assert len(first["steps"]) == 3
    second = servers.processes[2].ask("move", sources=sources, addresses=servers.addresses)
    assert "error" not in second
    assert set(servers.columns()[2]) == set(sources)
    assert servers.checksum() == checksum


def test_no_mark_travels_while_a_column_is_frozen_but_those_of_shards_that_finished_meanwhile(bare_here, monkeypatch):
    """All marks of an old job would make every freeze long: they are taken over before the move and after it."""
    servers = bare_here(LAYOUT, 2)
    (giver, taker), travelled = servers.processes.values(), []
    giver.own(range(4))
    for bucket in range(4):  # empty ones would go at once
        giver.store.import_bucket(bucket, rows_of(bucket, 3))
    giver.store.finish(range(5000))
    merge = Store.merge_columns

    def merge_and_note(store, columns, progress):
        travelled.append(progress.finished.tolist())
        merge(store, columns, progress)

    monkeypatch.setattr(Store, "merge_columns", merge_and_note)
    monkeypatch.setattr(migration, "_is_slow", lambda source: False)  # else several columns go at once
    moving = migration.move(taker, dict.fromkeys(range(4), 0), servers.addresses, step_wait_s=0, freeze_bytes=0)
    next(moving)
    giver.store.finish([7000])
    next(moving)
    assert 7000 in taker.store.finished(), "its record went at the source: a late push must not find offset 0"
    giver.store.finish([7001])
    list(moving)
    assert travelled == [[], [7000], [7000, 7001], [7000, 7001]]
    assert taker.store.finished().tolist() == [*range(5000), 7000, 7001]


def test_columns_that_the_source_does_not_own_are_refused_and_nothing_stays_frozen(cluster):
    servers = cluster(LAYOUT)
    servers.add()
    not_there = servers.columns()[1][0]
    answer = servers.processes[2].ask("move", sources={not_there: 0}, addresses=servers.addresses)
    assert answer["error"] == "MigrationError"
    answer = servers.processes[2].ask("move", sources={3: 7}, addresses=servers.addresses)
    assert "7" in answer["text"]
    assert all((c.own() != Own.FROZEN).all() for c in servers.controls())


def test_a_move_waits_for_columns_that_another_mover_has_frozen(cluster, training):
    """If it copied them, the thaw would admit pushes to columns that are copied already."""
    servers = cluster(LAYOUT)
    servers.add()
    running = Training(servers, training)
    source, held = servers.control(0), [3, 4, LAYOUT.buckets + 11]
    running.go_on()
    planned = planned_from(LAYOUT, servers.controls(), [2, 1])  # everything of ps-0, planned before the freeze
    assert source.set_own(held, Own.FROZEN, Own.MINE) == 3
    thaw = threading.Timer(1.0, lambda: source.set_own(held, Own.MINE, Own.FROZEN))
    begun = time.monotonic()
    thaw.start()
    steps = carry_out(servers, planned)
    assert time.monotonic() - begun > 1.0
    assert steps
    assert servers.columns()[0] == []
    samples = running.finish()
    assert (servers.samples() == samples).all()


def test_a_copy_that_somebody_thawed_meanwhile_is_dropped(cluster_here, training, monkeypatch):
    servers = cluster_here(LAYOUT)
    worker = settle(servers, training)
    servers.add()
    source, here = servers.control(0), servers.control(2)

    def disturbed(*arguments):
        moved = _copy(*arguments)
        source.set_own((5,), Own.MINE, Own.FROZEN)
        return moved

    monkeypatch.setattr(migration, "_copy", disturbed)
    with pytest.raises(MigrationError, match="thawed by another mover"):
        migration._move_group(here, source, (5,))
    assert 5 in source.columns()
    assert servers.columns()[2] == []
    assert worker.progress(1000) == 256


def test_rows_that_change_while_a_large_bucket_is_copied_arrive_as_they_are_in_the_end(
    cluster_here, training, monkeypatch
):
    """Pushes between the copy and the freeze change rows and make new ones. At rest, sums tell every bit."""
    servers = cluster_here(LAYOUT)
    worker = settle(servers, training)
    servers.add()
    worker.connect(dict(servers.addresses), wait=True)
    source, here = servers.control(0), servers.control(2)
    bucket = next(c for c in source.columns() if c < LAYOUT.buckets)
    freeze, sums, rows = migration._freeze, [], source.raw_sizes()[bucket]

    def freeze_after_training(*arguments):
        training.train_shard(worker, 2000, attempt=1, length=640)
        sums.append(servers.checksum())
        return freeze(*arguments)

    monkeypatch.setattr(migration, "_freeze", freeze_after_training)
    migration._move_group(here, source, (bucket,), ahead=True)
    assert here.columns() == [bucket]
    assert here.raw_sizes()[bucket] == source.raw_sizes()[bucket] > rows, "rows were made meanwhile"
    assert [servers.checksum()] == sums
    assert len({*servers.samples().tolist()}) == 1


def test_a_bucket_larger_than_a_message_may_be_moves_by_ranges(cluster_here, training, monkeypatch):
    """Pushes between the ranges of the first copy change rows and make new ones; no message is large."""
    servers = cluster_here(LAYOUT)
    worker = settle(servers, training)
    servers.add()
    worker.connect(dict(servers.addresses), wait=True)
    (source, _, here), bucket = servers.controls(), 3
    rows, asked, sums = source.raw_sizes()[bucket], [], []
    monkeypatch.setattr(migration, "_RANGE_BYTES", 2**9)
    monkeypatch.setattr(migration, "_AHEAD_BYTES", 0)
    monkeypatch.setattr(migration, "_is_slow", lambda source: False)
    export, freeze = Control.export_ranges, migration._freeze

    def export_and_train(control, *arguments):
        found = export(control, *arguments)
        asked.append(sum(raw.nbytes for raws in found[0] for raw in raws))
        if not sums and len(asked) <= 3:
            training.train_shard(worker, 2000 + len(asked), attempt=1, length=640)
        return found

    def freeze_and_sum(*arguments):
        frozen = freeze(*arguments)
        asked.append(frozen.nbytes)
        sums.append(servers.checksum())
        return frozen

    monkeypatch.setattr(Control, "export_ranges", export_and_train)
    monkeypatch.setattr(migration, "_freeze", freeze_and_sum)
    (step,) = migration.move(servers.processes[2], {bucket: 0}, servers.addresses, step_wait_s=0)
    assert len(asked) > 6
    assert max(asked) <= 2**9
    assert step.moved_bytes == sum(asked)
    assert here.raw_sizes()[bucket] > rows, "rows were made meanwhile"
    assert [servers.checksum()] == sums
    assert len({*servers.samples().tolist()}) == 1


def test_a_move_that_broke_off_between_two_ranges_is_completed_by_the_next(cluster_here, training, monkeypatch):
    servers = cluster_here(LAYOUT)
    settle(servers, training)
    checksum, (source, _) = servers.checksum(), servers.controls()
    here = servers.control(servers.add())
    sources, taker = dict.fromkeys((3, 4), 0), servers.processes[2]
    export = Control.export_ranges
    monkeypatch.setattr(migration, "_RANGE_BYTES", 2**9)

    def broken(control, buckets, since, table, first, bytes_max):
        if first:
            raise ServerLost(0, control.address, "it does not answer")
        return export(control, buckets, since, table, first, bytes_max)

    monkeypatch.setattr(Control, "export_ranges", broken)
    with pytest.raises(ServerLost):
        list(migration.move(taker, sources, servers.addresses))
    assert here.columns() == []
    assert here.raw_sizes()[3] > 0, "a part of it"
    monkeypatch.setattr(Control, "export_ranges", export)
    list(migration.move(taker, sources, servers.addresses))
    assert here.columns() == [3, 4]
    assert source.raw_sizes()[[3, 4]].tolist() == [0, 0]
    assert servers.checksum() == checksum


def test_dense_slices_larger_than_a_message_may_be_move_one_by_one(cluster_here, training, monkeypatch):
    servers = cluster_here(LAYOUT)
    settle(servers, training)
    checksum, asked = servers.checksum(), []
    here = servers.control(servers.add())
    export = Control.export_slices
    monkeypatch.setattr(migration, "_RANGE_BYTES", 2**6)
    monkeypatch.setattr(Control, "export_slices", lambda c, ids: asked.append(len(ids)) or export(c, ids))
    slices = [column for column in servers.control(0).columns() if column >= LAYOUT.buckets]
    list(migration.move(servers.processes[2], dict.fromkeys(slices, 0), servers.addresses))
    assert asked == [1] * (len(slices) - 1), "the first one came as they were frozen"
    assert here.columns() == slices
    assert servers.checksum() == checksum


def test_a_source_with_a_tenth_of_its_cpu_is_emptied_while_training_goes_on(cluster, training):
    servers = cluster(LAYOUT)
    running = Training(servers, training)
    newcomer = servers.add()
    for parameters in running.parameters:
        parameters.connect(dict(servers.addresses))
    running.go_on()
    hot, over = servers.processes[0].child, threading.Event()

    def throttle():
        while not over.wait(0.01):
            hot.send_signal(signal.SIGSTOP)
            time.sleep(0.09)
            hot.send_signal(signal.SIGCONT)

    thread = threading.Thread(target=throttle)
    thread.start()
    try:
        steps = rescale(servers, [1, newcomer])
    finally:
        over.set()
        thread.join()
    assert servers.columns()[0] == []
    assert len(steps) < 20, "of some 38 columns"
    samples = running.finish()
    assert samples
    assert (servers.samples() == samples).all()


def test_a_source_short_of_cpu_gives_several_columns_for_one_freeze():
    slices = (LAYOUT.buckets, LAYOUT.buckets + 1)
    wanted = {0: 0, 1: 0, 2: 1, 3: 0, **dict.fromkeys(slices, 0)}
    bytes_of = np.full(LAYOUT.buckets, 100)
    groups = migration._groups(wanted)
    assert [migration._take(groups, bytes_of, 0) for _ in range(5)] == [slices, (0,), (2,), (1,), (3,)]
    groups = migration._groups(wanted)
    assert [migration._take(groups, bytes_of, 250) for _ in range(3)] == [(*slices, 0, 1), (2,), (3,)]
    assert groups == []


@pytest.mark.parametrize("kept_lives", [16, 0], ids=["few-lives", "many-lives"])
def test_rows_that_expire_while_their_bucket_is_copied_stay_away(cluster_here, training, monkeypatch, kept_lives):
    """Between two ranges rows expire, others take their places, and keys are seen. many-lives: a copy so long that
    stamps say nothing any more; then the bucket is copied whole under the freeze."""
    layout = replace(LAYOUT, rows=RowPolicy(admit=2, expire_samples=320))
    servers = cluster_here(layout)
    worker = settle(servers, training, shards=6)
    servers.add()
    worker.connect(dict(servers.addresses), wait=True)
    (source, _, here), bucket = servers.controls(), 3
    rows, expired, asked, states = source.raw_sizes()[bucket], source.row_account().expired, [], []
    monkeypatch.setattr(migration, "_RANGE_BYTES", 2**9)
    monkeypatch.setattr(migration, "_AHEAD_BYTES", 0)
    monkeypatch.setattr(migration, "WRAPPED", kept_lives)
    monkeypatch.setattr(migration, "_is_slow", lambda source: False)
    export, freeze = Control.export_ranges, migration._freeze

    def export_and_train(control, *arguments):
        found = export(control, *arguments)
        asked.append(arguments[1])
        if len(asked) <= 3:
            training.train_shard(worker, 2000 + len(asked), attempt=1, length=640)
        return found

    def freeze_and_note(*arguments):
        frozen = freeze(*arguments)
        asked.clear()
        states.append((servers.checksum(), source.export_policy(bucket).tobytes(), stamps_of(source, bucket)))
        return frozen

    monkeypatch.setattr(Control, "export_ranges", export_and_train)
    monkeypatch.setattr(migration, "_freeze", freeze_and_note)
    (_,) = migration.move(servers.processes[2], {bucket: 0}, servers.addresses, step_wait_s=0)
    assert rows > 0 < here.raw_sizes()[bucket]
    assert source.row_account().expired + here.row_account().expired > expired, "some expired meanwhile"
    assert [(servers.checksum(), here.export_policy(bucket).tobytes(), stamps_of(here, bucket))] == states
    assert (0 in asked) == (not kept_lives), "all rows were copied under the freeze"


def stamps_of(store, bucket):
    """Return the stamps of a bucket's rows, by key."""
    (raw,) = store.export_bucket(bucket)
    return dict(zip(raw.keys.tolist(), raw.stamps.tolist(), strict=True))
