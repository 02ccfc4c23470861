"""A parameter server that is emptied in place: nothing of its life before gets into the next one."""

import random
import threading

import numpy as np
import pytest
from stretto.engine import Own, export_image, move, one_table
from stretto.engine.images import image_bytes
from stretto.errors import CheckpointError, OwnershipUnknown, ServerEmptied, ServerLost, ServersReplaced
from stretto.server.image_file import ImageWriter
from trainer_harness import wait_for

LAYOUT = one_table(4, 50, state_size=3, seed=3)
COLUMNS = range(LAYOUT.columns)


def batch(seed):
    rng = np.random.default_rng(seed)
    keys = LAYOUT.index(rng.integers(0, 200, 40))
    rows = rng.normal(size=(len(keys.tables[0]), 4)).astype(np.float32)
    return keys, [rows], rng.normal(size=LAYOUT.dense_size).astype(np.float32)


def push(worker, shard, start=0, **of):
    return worker.push(*batch(shard), shard=shard, attempt=1, start=start, stop=start + 40, **of)


def go_back(servers, lineage):
    """Empty all servers, then let each own its columns again, as a return to a checkpoint from before training does."""
    for server in servers.processes.values():
        server.empty()
    for server in servers.processes.values():
        server.store.set_lineage(lineage)
    servers.place()


def until_answered(work):
    """Repeat until the connections to the emptied servers are made anew."""

    def answered():
        try:
            return [work()]
        except (ServerLost, OwnershipUnknown):
            return None

    return wait_for(answered)[0]


def test_the_next_life_begins_as_a_process_does_and_clients_take_it_for_another_one(cluster_here):
    servers = cluster_here(LAYOUT, 2)
    worker = servers.worker(patience_s=0.5)
    worker.seed(np.ones(50, np.float32))
    push(worker, 1)
    generation = worker.generation
    for server in servers.processes.values():
        server.empty()
        control = server.store
        held = (control.columns(), control.raw_sizes().sum(), len(control.records()[0]), len(control.finished()))
        assert held == ([], 0, 0, 0)
        assert (control.applied().samples.sum(), control.stats().updates) == (0, 0)
    with pytest.raises((ServerLost, OwnershipUnknown)):
        worker.pull(batch(1)[0])
    go_back(servers, 3)
    until_answered(lambda: worker.pull(batch(1)[0]))
    assert worker.generation > generation
    with pytest.raises(ServersReplaced):
        push(worker, 1, 40, generation=generation)
    assert worker.is_of(3)
    push(worker, 1, generation=worker.generation, lineage=3)
    assert [server.store.applied().samples.max() for server in servers.processes.values()] == [40, 40]


def test_books_and_parameters_of_two_returns_do_not_meet(cluster_here):
    """A worker that has seen the new servers holds a lease, or a list of shards to forget, of a ledger behind them."""
    servers = cluster_here(LAYOUT, 2)
    worker = servers.worker(patience_s=0.3)
    go_back(servers, 7)
    assert until_answered(lambda: worker.is_of(7))
    for lineage in (0, 6, 8):
        assert not worker.is_of(lineage)
        with pytest.raises(ServersReplaced, match="come from return 7"):
            push(worker, 1, lineage=lineage)
        worker.forget([5], lineage)
    assert all(not len(server.store.finished()) for server in servers.processes.values())
    worker.forget([5], 7)
    assert [server.store.finished().tolist() for server in servers.processes.values()] == [[5], [5]]
    servers.processes[1].store.set_lineage(8)
    with pytest.raises(OwnershipUnknown):  # columns of two returns are no parameters
        worker.routes.refresh()


@pytest.mark.parametrize("returns", [1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_no_push_of_before_is_ever_applied_after(cluster_here, seed, returns):
    """Method: workers push without a pause, also on connections that they opened before; the servers are emptied."""
    chance, ends, counts = random.Random(seed), threading.Event(), [0, 0]
    servers = cluster_here(LAYOUT, 2)

    def train(number):
        worker = servers.worker(number, patience_s=0.2)
        shard = 1000 * number
        while not ends.is_set():
            shard += 1
            try:
                push(worker, shard, lineage=0)
                counts[number] += 1
            except (ServerLost, OwnershipUnknown, ServersReplaced):
                pass

    threads = [threading.Thread(target=train, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    wait_for(lambda: min(counts) > 0)
    for lineage in range(1, returns + 1):
        ends.wait(chance.random() * 0.02)
        go_back(servers, lineage)
    ends.wait(0.05)
    ends.set()
    for thread in threads:
        thread.join(60)
    for server in servers.processes.values():
        assert not server.store.applied().samples.any()
        assert server.store.stats().updates == 0
        assert server.store.raw_sizes().sum() == 0


@pytest.mark.parametrize(
    "late",
    [
        lambda control: control.push(None),
        lambda control: control.pull([], []),
        lambda control: control.seed(None, None),
        lambda control: control.progress(1, 1),
        lambda control: control.finish([1]),
        lambda control: control.set_own(COLUMNS, Own.MINE),
        lambda control: control.import_bucket(0, []),
        lambda control: control.merge_columns(COLUMNS, None),
        lambda control: control.clear(),
        lambda control: control.set_lineage(1),
        lambda control: control.placement(),
        lambda control: control.next_life(),
    ],
)
def test_an_operation_of_the_life_before_is_refused(cluster_here, late):
    """The operation waited for the lock while the server was emptied: its connection had read it already."""
    server = cluster_here(LAYOUT, 1).processes[0]
    before = server.store
    server.empty()
    with pytest.raises(ServerEmptied):
        late(before)
    assert (server.store.columns(), server.store.lineage(), len(server.store.finished())) == ([], 0, 0)


@pytest.mark.parametrize("emptied", ["source", "destination"])
def test_a_move_of_before_takes_nothing_over(cluster_here, emptied):
    servers = cluster_here(LAYOUT, 1)
    push(servers.worker(), 1)
    servers.add()
    source, here = servers.processes[0], servers.processes[1]
    steps = move(here, dict.fromkeys(COLUMNS, 0), {0: servers.addresses[0]}, step_wait_s=0.01, freeze_bytes=0)
    next(steps)
    next(steps)
    (source if emptied == "source" else here).empty()
    with pytest.raises((ServerEmptied, ServerLost)):
        for _ in steps:
            pass
    assert (source if emptied == "source" else here).store.columns() == []


def test_a_server_that_joins_takes_the_lineage_of_what_it_takes_over(cluster_here):
    servers = cluster_here(LAYOUT, 1)
    worker = servers.worker()
    go_back(servers, 4)
    servers.add()
    for _ in move(servers.processes[1], dict.fromkeys(range(30), 0), {0: servers.addresses[0]}, step_wait_s=0.01):
        until_answered(lambda: push(worker, 1, lineage=4))
    assert servers.processes[1].store.lineage() == 4
    assert until_answered(lambda: worker.is_of(4))


def test_an_image_that_was_begun_before_is_not_finished_and_a_later_one_adds_to_nothing(cluster_here, tmp_path):
    servers = cluster_here(LAYOUT, 1)
    server = servers.processes[0]
    push(servers.worker(), 1)

    def exported(control, base=None):
        with open(tmp_path / "image", "wb") as file:
            writer = ImageWriter(file)
            image = export_image(control, writer, base)
            return image.as_base(writer.finish(image.manifest)[1]), image.manifest

    before, base = server.store, exported(server.store)[0]
    server.empty()
    with pytest.raises((ServerEmptied, CheckpointError)):
        exported(before)
    server.store.set_own(COLUMNS, Own.MINE)
    assert image_bytes(server.store) > 0
    _, manifest = exported(server.store, base)
    assert (manifest["base"], len(manifest["whole"])) == ("", LAYOUT.buckets)
