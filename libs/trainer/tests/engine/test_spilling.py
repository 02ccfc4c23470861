"""Servers whose rows find no room in memory: the same bits as of servers that have room, through all that they do."""

import os
import threading

import numpy as np
import pytest
from shipped_planner import first_columns
from stretto.engine import Spill, load_image, migration, move, one_table
from stretto.engine import spilling as of_server
from stretto.engine.spilling import at_hand_bytes
from stretto.errors import StrettoError
from stretto_parameters import LogDamaged
from stretto_parameters.optimizers import Adam
from trainer_harness import wait_for

from .test_images import export, opened

pytestmark = pytest.mark.slow

LAYOUT = one_table(16, 200, state_size=2, optimizer=Adam(0.05), seed=8)
BUDGET_BYTES = 2**20
"""A part of what the rows take: indices alone are a quarter of it."""


@pytest.fixture
def spilling(bare_here, tmp_path):
    """Function (count) -> servers that may keep a few rows in memory, and own nothing."""

    def make(count, disk_bytes=2**30, **options):
        return bare_here(LAYOUT, count, spill=Spill(tmp_path, disk_bytes, lambda used_bytes: BUDGET_BYTES), **options)

    return make


def cold_rows(servers):
    return sum(control.unlocked.tiers.counts().cold_rows for control in servers.controls())


def rows_read(servers):
    return sum(control.unlocked.tiers.counts().rows_read for control in servers.controls())


def train(servers, training, shards, threads=1):
    """Train shards, each by one worker, `threads` of them at once."""
    workers = [servers.worker(number) for number in range(threads)]

    def run(number):
        for shard in shards[number::threads]:
            training.train_shard(workers[number], shard, attempt=1, length=512)

    running = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for each in running:
        each.start()
    for each in running:
        each.join()


def test_a_spilled_server_trains_saves_moves_and_comes_back_with_the_bits_of_one_that_has_room(
    cluster_here, spilling, training
):
    roomy, tight = cluster_here(LAYOUT), spilling(2).place()
    for servers in (roomy, tight):
        train(servers, training, range(12))
    wait_for(lambda: cold_rows(tight) > 0)
    assert tight.checksum() == roomy.checksum()
    images = [opened(*export(control)) for control in tight.controls()]
    train(tight, training, [12])
    train(roomy, training, [12])
    new = tight.add()
    took = {c: s for s, columns in first_columns(LAYOUT, range(2)).items() for c in list(columns)[::3]}
    for _ in move(tight.processes[new], took, tight.addresses):
        pass
    assert tight.checksum() == roomy.checksum()
    assert (tight.samples() == roomy.samples()).all()
    restored = spilling(1)
    load_image(restored.control(0), images, range(LAYOUT.columns))
    assert cold_rows(restored) > 0, "all of it has no room in one server"
    train(restored, training, [12])
    assert restored.checksum() == roomy.checksum()


def test_a_server_with_rows_on_the_disk_is_copied_before_it_is_frozen_however_late_it_answers(
    spilling, training, monkeypatch
):
    servers, paced, copy_buckets = spilling(1).place(), [], migration._copy_buckets

    def copy(*arguments, **named):
        paced.append(bool(named))
        return copy_buckets(*arguments, **named)

    monkeypatch.setattr(migration, "_is_slow", lambda source: True)
    monkeypatch.setattr(migration, "_AHEAD_BYTES", 0)
    monkeypatch.setattr(migration, "_copy_buckets", copy)
    train(servers, training, range(8))
    wait_for(lambda: cold_rows(servers) > 0)
    checksum, new = servers.checksum(), servers.add()
    for _ in move(servers.processes[new], dict.fromkeys(range(0, LAYOUT.buckets, 4), 0), servers.addresses):
        pass
    assert paced[0], "while it trains"
    assert servers.checksum() == checksum


def counts(servers):
    return [control.unlocked.tiers.counts() for control in servers.controls()]


def test_servers_that_round_rows_train_move_and_save_without_a_disk(bare_here, training):
    """Rows are rounded while workers train; once no thread rounds any, a copy has the values that the rows have."""
    tight = bare_here(LAYOUT, 2, spill=Spill(None, 0, lambda used_bytes: BUDGET_BYTES, warms=True)).place()
    train(tight, training, range(12), threads=3)
    wait_for(lambda: all(each.warm_rows for each in counts(tight)))
    new = tight.add()
    took = {c: s for s, columns in first_columns(LAYOUT, range(2)).items() for c in list(columns)[::3]}
    for _ in move(tight.processes[new], took, tight.addresses):
        pass
    train(tight, training, [12])
    assert set(tight.samples().tolist()) == {13 * 512}
    for server in tight.processes.values():
        server.eviction.close()
    images = [opened(*export(control)) for control in tight.controls()]
    restored = bare_here(LAYOUT, 1)
    load_image(restored.control(0), images, range(LAYOUT.columns))
    assert restored.checksum() == tight.checksum()
    assert not any(each.cold_rows or each.rows_read for each in counts(tight))


def test_workers_that_push_at_once_lose_nothing_while_rows_come_and_go(spilling, training):
    servers = spilling(2).place()
    train(servers, training, range(16), threads=4)
    wait_for(lambda: all(each.cold_rows for each in counts(servers)))  # however late the threads that evict came
    train(servers, training, range(16, 20), threads=4)
    assert set(servers.samples().tolist()) == {20 * 512}
    assert all(control.unlocked.tiers.counts().rows_read for control in servers.controls())
    faults = {server.eviction.fault for server in servers.processes.values()} - {""}
    assert all("give the server more memory" in fault for fault in faults), "so many batches want more than there is"


def test_a_hint_wakes_the_rows_of_a_batch_where_a_pull_of_training_has_told_of_cold_ones(spilling, training):
    servers = spilling(2).place()
    train(servers, training, range(16))
    wait_for(lambda: cold_rows(servers) > 0)
    worker, none = servers.worker(9), LAYOUT.index(np.zeros(0, np.int64))
    worker.pull(none)
    assert not worker.has_cold_rows, "an evaluation looks at what there is, and hints at nothing"
    worker.begin_pull(none).result()
    assert worker.has_cold_rows
    before = rows_read(servers)
    worker.hint(training.batch_of(LAYOUT, 0, 0)[0])
    wait_for(lambda: rows_read(servers) > before)


def test_reads_of_training_are_told_apart_from_those_of_copies_and_evaluations(spilling, training):
    servers = spilling(1).place()
    train(servers, training, range(8))
    servers.processes[0].eviction.close()
    control, worker, keys = servers.control(0), servers.worker(9), LAYOUT.index(np.arange(400))
    pulled, read = control.pulls.rows, control.pulls.rows_read
    before = rows_read(servers)
    servers.checksum()
    worker.pull(LAYOUT.index(np.arange(200)))
    assert rows_read(servers) > before
    assert (control.pulls.rows, control.pulls.rows_read) == (pulled, read)
    before = rows_read(servers)
    worker.begin_pull(keys).result()
    assert control.pulls.rows == pulled + 400
    assert control.pulls.rows_read - read == rows_read(servers) - before > 0


def test_rows_that_a_batch_has_read_are_not_evicted_before_it_has_them(spilling, training, monkeypatch):
    """Here all rows are evicted whenever somebody else could evict some: each row is read once even so."""
    servers = spilling(1).place()
    train(servers, training, range(4))
    servers.processes[0].eviction.close()
    control, keys = servers.control(0), LAYOUT.index(np.arange(200))
    hand, shared = control.unlocked.tiers.hand, control.turn.shared
    worker = servers.worker(9)
    worker.pull(keys)

    def after_others(first=None):
        while first is None and hand.can_evict():
            if victims := hand.choose():
                hand.write(victims)
                hand.release(victims)
        return shared(first)

    monkeypatch.setattr(control.turn, "shared", after_others)
    before = rows_read(servers)
    worker.pull(keys)
    assert 0 < rows_read(servers) - before <= 200


def test_a_round_of_eviction_ends_with_no_record_of_a_row_that_is_hot(bare_here, training, tmp_path, monkeypatch):
    budget_bytes = [2**30]
    servers = bare_here(LAYOUT, 1, spill=Spill(tmp_path, 2**30, lambda used_bytes: budget_bytes[0])).place()
    train(servers, training, range(2))
    eviction, store = servers.processes[0].eviction, servers.control(0).unlocked
    eviction.close()
    eviction._ended.clear()
    monkeypatch.setattr(of_server, "_SLICES", 2)
    budget_bytes[0] = 1
    for _ in range(3):
        eviction.round()
    (table,) = store.tiers.tables
    assert 0 < store.cold_rows() == int((table.sizes - table.hots).sum()) < store.categories()


def test_a_full_disk_costs_memory_and_no_row(cluster_here, spilling, training):
    """The fault has a name, and goes once there is room again."""
    roomy, full = cluster_here(LAYOUT), spilling(2, disk_bytes=0).place()
    for servers in (roomy, full):
        train(servers, training, range(8))
    wait_for(lambda: all("spill_limit" in server.eviction.fault for server in full.processes.values()))
    assert cold_rows(full) == 0
    assert full.checksum() == roomy.checksum()
    for control in full.controls():
        control.unlocked.tiers.bytes_max = 2**24
    wait_for(lambda: cold_rows(full) > 0 and not any(server.eviction.fault for server in full.processes.values()))


def test_rows_that_are_needed_soon_get_the_memory_that_is_kept_free_and_too_little_of_it_is_told(
    bare_here, training, tmp_path
):
    given_bytes = [2**24]
    servers = bare_here(LAYOUT, 1, spill=Spill(tmp_path, 2**30, lambda used_bytes: given_bytes[0])).place()
    server, control = servers.processes[0], servers.control(0)
    server.eviction.close()  # this test says when it looks
    hand = control.unlocked.tiers.hand
    workers = [servers.worker(number) for number in range(2)]
    for worker in workers:
        worker.begin_pull(LAYOUT.index(np.arange(300))).result()
    assert control.pulls.batch == (300,)
    hand.budget_bytes = 0
    for number, worker in enumerate(workers):
        training.train_shard(worker, number, attempt=1, length=512)
    assert control.cold_rows() > 0
    soon_bytes = 2 * 5 * control.pulls.batch[0] * LAYOUT.row_bytes(0)
    seen_s = [seen.last_us / 1e6 for seen in control.unlocked.workers().values()]
    for now_s, wanted in ((min(seen_s) + 9, soon_bytes), (max(seen_s) + 11, 0)):  # five batches of each that trains
        assert at_hand_bytes(control.pulls, control.unlocked, now_s) == wanted
    server.eviction._at_hand_bytes = lambda: soon_bytes
    needed_bytes = hand.least_bytes(soon_bytes) / 0.85
    for given, wanted, is_told in ((2, 2, False), (0.95, 1, False), (0.8, 0.8 / 0.9, True)):
        given_bytes[0] = int(given * needed_bytes)
        server.eviction.round()
        assert hand.budget_bytes == pytest.approx(wanted * needed_bytes, abs=2)
        assert ("give the server more memory" in server.eviction.fault) == is_told


def test_a_server_whose_rounded_rows_find_no_room_says_so(bare_here, training):
    given_bytes = [2**24]
    servers = bare_here(LAYOUT, 1, spill=Spill(None, 0, lambda used_bytes: given_bytes[0], warms=True)).place()
    eviction, store = servers.processes[0].eviction, servers.control(0).unlocked
    eviction.close()
    train(servers, training, range(4))
    eviction._ended.clear()
    hand, (table,) = store.tiers.hand, store.tiers.tables
    rows = store.categories()
    beside_bytes = table.used_bytes - table.rows_bytes
    assert hand.least_bytes(0) == beside_bytes + rows * table.form.warm_bytes
    assert hand.least_bytes(rows * table.form.row_bytes) == beside_bytes + rows * table.form.row_bytes

    def told(share):
        given_bytes[0] = int(share * hand.least_bytes(0))
        for _ in range(20):  # rows that were changed lately cool first
            try:
                eviction.round()
            except OSError as error:
                return str(error)
        return eviction.fault

    assert told(1.6) == ""
    assert "give the server more" in told(0.8)
    assert table.warms.any()


def test_a_row_that_the_disk_has_changed_is_never_served(spilling, training):
    """The server tells that it is lost; until it has ended, whoever needs the row is refused."""
    told = []
    servers = spilling(1, on_damage=told.append).place()
    train(servers, training, range(8))
    wait_for(lambda: cold_rows(servers) > 200)
    log = servers.control(0).unlocked.tiers.logs[0]
    os.pwrite(log.file.number, bytes([0x55]) * log.file_bytes, 0)
    with pytest.raises(LogDamaged, match="is damaged: a failing disk"):
        servers.checksum()
    worker = servers.worker()
    with pytest.raises(StrettoError, match="is damaged"):
        worker.pull(LAYOUT.index(np.arange(5000)))
    assert "is damaged" in told[0]
