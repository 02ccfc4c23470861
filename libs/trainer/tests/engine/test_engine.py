import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import stretto.engine
from stretto.engine import FINISHED, Access, Key, Layout, Own, Parameters, Table, client, one_table, owners, pulling
from stretto.engine.protocol import Gradients, Kind
from stretto.engine.transfer import EXACT, Wire
from stretto.errors import (
    BatchMisaligned,
    LayoutError,
    OwnershipUnknown,
    ProgressGap,
    ServerLost,
    ServersReplaced,
    StaleAttempt,
)
from stretto_core.actuator import placement
from stretto_core.actuator.placement import owner_of
from stretto_core.dispatcher.audit import Counted, prove
from stretto_core.dispatcher.book import fingerprint_of
from stretto_parameters import reference
from stretto_parameters.layout import RowFormat
from stretto_parameters.optimizers import Adagrad, Adam
from trainer_harness import wait_for

pytestmark = pytest.mark.slow

LAYOUT = one_table(4, 50, state_size=3, seed=3)


def batch(layout, seed, n=40):
    rng = np.random.default_rng(seed)
    keys = layout.index(*(rng.integers(0, 200, n) for _ in layout.tables))
    rows = [
        rng.normal(size=(len(of), table.dimension)).astype(np.float32)
        for of, table in zip(keys.tables, layout.tables, strict=True)
    ]
    return keys, rows, rng.normal(size=layout.dense_size).astype(np.float32)


def push(parameters, start=0, stop=10, shard=1, attempt=1, **more):
    """Push a batch of the layout of this file."""
    return parameters.push(*batch(LAYOUT, 1), shard=shard, attempt=attempt, start=start, stop=stop, **more)


def initial_rows(layout, keys):
    return reference.initial_weights(RowFormat.of_table(layout.tables[0]), keys.tables[0].stored)


def after_steps(optimizer, weights, gradients):
    """The weights after one gradient after the other, in float64."""
    w = weights.astype(np.float64)
    a, m, v = np.full_like(w, 0.1), np.zeros_like(w), np.zeros_like(w)
    for t, g in enumerate(gradients, start=1):
        if isinstance(optimizer, Adagrad):
            a += g**2
            w -= optimizer.learning_rate * g / np.sqrt(a + optimizer.epsilon)
        else:
            m = optimizer.beta_1 * m + (1 - optimizer.beta_1) * g
            v = optimizer.beta_2 * v + (1 - optimizer.beta_2) * g**2
            rate = optimizer.learning_rate * np.sqrt(1 - optimizer.beta_2**t) / (1 - optimizer.beta_1**t)
            w -= rate * m / (np.sqrt(v) + optimizer.epsilon)
    return w


@pytest.mark.parametrize("optimizer", [Adagrad(0.1), Adam(0.1)])
def test_updates_are_those_of_the_optimiser(cluster, optimizer):
    layout = one_table(4, 50, state_size=3, optimizer=optimizer)
    servers = cluster(layout)
    parameters = servers.worker(0)
    initial = np.linspace(-1, 1, 50).astype(np.float32)
    parameters.seed(initial, np.ones(3, np.float32))
    keys, rows, dense = batch(layout, 1)
    before = parameters.pull(keys)
    assert (before.rows[0] == initial_rows(layout, keys)).all()
    assert (before.dense == initial).all()
    for i in range(3):
        parameters.push(
            keys, [rows[0] * (i + 1)], dense * (i + 1), shard=1, attempt=1, start=i, stop=i + 1,
            state_delta=np.arange(3, dtype=np.float32),
        )  # fmt: skip
    after = parameters.pull(keys)
    expected = after_steps(layout.optimizer, before.rows[0], [rows[0] * (i + 1) for i in range(3)])
    np.testing.assert_allclose(after.rows[0], expected, rtol=1e-5, atol=1e-5)
    expected = after_steps(layout.optimizer, initial, [dense * (i + 1) for i in range(3)])
    np.testing.assert_allclose(after.dense, expected, rtol=1e-5, atol=1e-5)
    assert after.state.tolist() == [1, 4, 7]
    assert sum(c.categories() for c in servers.controls()) == len(keys)
    assert after.seconds > after.rows_seconds > 0


def test_a_repeated_push_changes_nothing_and_a_torn_one_is_completed(cluster):
    servers = cluster(LAYOUT)
    whole, torn = (servers.worker(i) for i in range(2))
    keys, rows, dense = batch(LAYOUT, 2)
    first = whole.push(keys, rows, dense, shard=5, attempt=1, start=0, stop=40)
    assert first.applied == LAYOUT.columns
    before = servers.checksum()
    again = whole.push(keys, rows, dense, shard=5, attempt=1, start=0, stop=40)
    assert again.applied == 0
    assert servers.checksum() == before
    assert [c.stats().repeated_samples for c in servers.controls()] == [40, 40]
    # a worker that dies after it reached one of two servers
    part = torn.routes.current().parts[1]
    head = np.array([5, 1, 40, 80, 1])
    gradients = Gradients.of(EXACT, rows, LAYOUT.split_dense(dense), np.zeros(3, np.float32))
    part.link.ask(Kind.PUSH, client.push_part(LAYOUT, part.claim, head, keys, gradients))
    assert whole.progress(5) == 40
    healed = whole.push(keys, rows, dense, shard=5, attempt=2, start=40, stop=80)
    assert healed.applied == LAYOUT.columns - part.claim.sum()
    assert [c.stats().repeated_samples for c in servers.controls()] == [40, 80]  # only ps-1 had it
    assert (servers.samples() == 80).all()
    assert whole.progress(5) == 80


def test_wrong_pushes_are_refused_and_leave_no_trace(cluster):
    servers = cluster(LAYOUT)
    parameters = servers.worker(0)
    keys, rows, dense = batch(LAYOUT, 3)

    def push(start, stop, attempt, rows=rows):
        return parameters.push(keys, rows, dense, shard=9, attempt=attempt, start=start, stop=stop)

    push(0, 10, attempt=2)
    before = servers.checksum()
    with pytest.raises(StaleAttempt, match="attempt 1"):
        push(10, 20, attempt=1)
    with pytest.raises(ProgressGap, match="missing"):
        push(20, 30, attempt=2)
    with pytest.raises(BatchMisaligned, match="boundaries"):
        push(5, 15, attempt=2)
    with pytest.raises(LayoutError, match="start < stop"):
        push(10, 10, attempt=2)
    with pytest.raises(LayoutError, match="row gradients"):
        push(10, 20, 2, [rows[0][:-1]])
    assert parameters.progress(9, attempt=3) == 10
    with pytest.raises(StaleAttempt):
        push(10, 20, attempt=2)  # asking for progress raised the fence
    parameters.forget([9])
    assert parameters.progress(9) == FINISHED
    with pytest.raises(StaleAttempt, match="finished"):
        push(0, 10, attempt=9)
    assert servers.checksum() == before
    assert (servers.samples() == 10).all()
    assert all(len(c.records()[0]) == 0 for c in servers.controls())


def test_a_frozen_column_takes_nothing_until_it_thaws_and_the_others_do_not_wait_for_it(cluster):
    servers = cluster(LAYOUT)
    parameters = servers.worker(0)
    keys, rows, dense = batch(LAYOUT, 4)
    parameters.pull(keys)  # from now on it knows whose the columns are, and of no frozen one
    control = servers.control(0)
    column, *others = control.columns()
    assert control.set_own([column], Own.FROZEN, Own.MINE) == 1
    results = []
    pusher = threading.Thread(
        target=lambda: results.append(parameters.push(keys, rows, dense, shard=1, attempt=1, start=0, stop=40))
    )
    pusher.start()
    wait_for(lambda: (control.applied().samples[others] > 0).all())
    assert control.stats().rejected > 0  # the first push was refused as a whole, before it knew
    samples = control.applied().samples
    assert samples[column] == 0
    assert (samples[others] == 40).all()
    assert servers.control(1).applied().samples.max() == 40
    assert not results
    assert len(parameters.pull(keys).rows[0]) == len(keys)  # readable
    assert control.set_own([column], Own.MINE, Own.FROZEN) == 1
    pusher.join(60)
    assert results[0].retries > 0
    assert (servers.samples() == 40).all()


def test_the_first_worker_gives_the_initial_dense_values(cluster):
    servers = cluster(LAYOUT)
    first, second = (servers.worker(i) for i in range(2))
    first.seed(np.full(50, 1, np.float32), np.full(3, 1, np.float32))
    second.seed(np.full(50, 2, np.float32), np.full(3, 2, np.float32))
    pulled = second.pull(LAYOUT.index(np.array([1])))
    assert set(pulled.dense) == {1.0}
    assert set(pulled.state) == {1.0}


def test_servers_count_what_they_apply(cluster):
    servers = cluster(LAYOUT)
    parameters = servers.worker(6)
    for shard in range(3):
        keys, rows, dense = batch(LAYOUT, shard)
        result = parameters.push(keys, rows, dense, shard=shard, attempt=1, start=0, stop=10 + shard)
    assert (servers.samples() == 33).all()
    per_shard = {k: v for c in servers.controls() for k, v in c.applied().per_shard.items()}
    assert per_shard == {0: 10, 1: 11, 2: 12}
    prints = sum(fingerprint_of(shard, 10 + shard) for shard in range(3)) % 2**64
    assert {int(p) % 2**64 for c in servers.controls() for p in c.applied().fingerprints if p} == {prints}
    for control in servers.controls():
        stats, seen = control.stats(), control.workers()[6]
        assert (stats.updates, stats.rejected, seen.pushes) == (3, 0, 3)
        assert 0 < stats.update_seconds < 3
        assert 0 <= seen.idle_seconds < 30
        assert control.memory_bytes() > 100_000
    assert 0 < result.update_seconds <= result.seconds


def test_dense_parameters_come_with_every_third_pull_and_whenever_they_are_to_be_fresh(cluster):
    servers = cluster(LAYOUT)
    worker = servers.worker(0, wire=Wire(dense_every=3))
    keys = batch(LAYOUT, 1)[0]
    seen, current = [], []
    for number, is_fresh in enumerate([False] * 5 + [True]):
        push(worker, 10 * number, 10 * number + 10)
        pulled, exact = worker.begin_pull(keys, is_fresh).result(), worker.pull(keys)
        assert (pulled.rows[0] == exact.rows[0]).all()
        seen.append(pulled.dense.tolist())
        current.append(exact.dense.tolist())
    assert seen == [current[0]] * 3 + [current[3]] * 2 + [current[5]]
    sizes = int(Wire(dense_every=3).step_bytes(LAYOUT, keys)), int(Wire().step_bytes(LAYOUT, keys))
    assert worker.step_bytes() == sizes
    exact = servers.worker(1)
    exact.begin_pull(keys).result()
    assert exact.step_bytes() == (0, 0)


def test_a_pull_that_goes_with_a_push_brings_what_the_push_made(cluster):
    servers = cluster(LAYOUT)
    parameters = servers.worker(0)
    keys = batch(LAYOUT, 1)[0]
    parameters.pull(keys)  # from now on it knows the servers
    for step in range(3):
        along = parameters.pull_along(keys)
        assert push(parameters, step, step + 1, along=along).applied == LAYOUT.columns
        exact = parameters.pull(keys)
        assert [each.tobytes() for each in (*along.future.result(0).rows, along.future.result(0).dense)] == [
            each.tobytes() for each in (*exact.rows, exact.dense)
        ]
    slices = parameters.slices_along(np.array([0, 11]))
    assert push(parameters, 3, 4, along=slices).applied == LAYOUT.columns
    found, exact = (LAYOUT.split_dense(each.dense) for each in (slices.future.result(0), parameters.pull(keys)))
    assert found[[0, 11]].tobytes() == exact[[0, 11]].tobytes()
    assert slices.future.result(0).state.tolist() == [0, 0, 0]


def test_a_pull_is_a_message_of_its_own_where_no_push_brings_it(cluster, monkeypatch):
    """A push of several rounds, a push that fails, and a server of an earlier version bring no pull along."""
    servers = cluster(LAYOUT)
    parameters = servers.worker(0)
    keys = batch(LAYOUT, 1)[0]
    parameters.pull(keys)
    control, refresh = servers.control(0), parameters.routes.refresh
    column = control.columns()[0]
    control.set_own([column], Own.FROZEN, Own.MINE)

    def thawing():
        """Let the column thaw before a push that was refused looks for the owners."""
        control.set_own([column], Own.MINE, Own.FROZEN)
        return refresh()

    with monkeypatch.context() as refused, parameters.pull_along(keys) as frozen:
        refused.setattr(parameters.routes, "refresh", thawing)
        assert push(parameters, along=frozen).retries == 1
        assert not frozen.future.done()
    assert frozen.future.result(20).dense.tobytes() == parameters.pull(keys).dense.tobytes()
    with pytest.raises(ProgressGap), parameters.pull_along(keys) as failed:
        push(parameters, 90, 100, along=failed)
    assert len(failed.future.result(20).dense) == 50
    earlier = parameters.pull_along(keys)
    with pytest.raises(ProgressGap):
        push(parameters, 90, 100, along=earlier)
    for part in parameters.routes.current().parts.values():
        assert part.link.exchanges
        part.link.exchanges = False
    with earlier:
        push(parameters, 10, 20, along=earlier)  # the try before brought values that lack this push
        assert not earlier.future.done()
    assert earlier.future.result(20).dense.tobytes() == parameters.pull(keys).dense.tobytes()


def test_what_takes_longer_than_a_message_costs_goes_by_itself(cluster, monkeypatch):
    parameters = cluster(LAYOUT).worker(0)
    keys = batch(LAYOUT, 1)[0]
    parameters.pull(keys)
    monkeypatch.setattr(pulling, "ALONG_BYTES_MAX", sum(pulling.WantedPull(keys, EXACT).sizes_bytes(LAYOUT)) / 2)
    assert parameters.pull_along(keys) is not None
    monkeypatch.setattr(pulling, "ALONG_BYTES_MAX", pulling.ALONG_BYTES_MAX - 1)
    assert parameters.pull_along(keys) is None


def test_columns_without_owner_are_reported(bare_cluster):
    servers = bare_cluster(LAYOUT, 1)
    parameters = servers.worker(0, patience_s=0.2)
    with pytest.raises(OwnershipUnknown, match="76 in all"):
        parameters.pull(LAYOUT.index(np.array([1])))


def test_killed_workers_lose_and_repeat_nothing(cluster, start_worker, training):
    """Workers are killed at random offsets; another one resumes their shards at the offset of every column.

    Two of the killed workers round what they send, and so does the other one: what is counted are samples.
    """
    layout = one_table(4, 2000)
    servers = cluster(layout)
    rng = np.random.default_rng(int(os.environ.get("STRETTO_TEST_SEED", "1")))
    length, kills = 64 * 200, 3
    wire = {"pull": "bfloat16", "push": "int8", "dense_every": 3}
    spares = [start_worker(servers, 10 + k, wire if k else None) for k in range(kills)]
    survivor = servers.worker(0, wire=Wire.of("float32", wire))
    for shard, victim in enumerate(spares):
        # a first short shard says that it is up and warm
        victim.send({"shard": 100 + shard, "attempt": 1, "length": 64})
    for shard, victim in enumerate(spares):
        victim.receive()
        victim.send({"shard": shard, "attempt": 1, "length": length})
        wanted = rng.integers(1, length // 4)
        wait_for(lambda shard=shard, wanted=wanted: survivor.progress(shard) >= wanted)
        victim.kill()
        reached = survivor.progress(shard)
        assert reached < length, "the victim finished before it was killed: make the shard longer"
        training.train_shard(survivor, shard, attempt=2, length=length)
    expected = kills * (length + 64)
    assert (servers.samples() == expected).all()
    per_shard = {k: v for c in servers.controls() for k, v in c.applied().per_shard.items()}
    assert all(per_shard[shard] == length for shard in range(kills))
    # and of the right samples: the prints of all columns are those that the ledger computes for itself
    prints = sum(fingerprint_of(s, length) + fingerprint_of(100 + s, 64) for s in range(kills)) % 2**64
    counted = [
        Counted((int(column),), int(applied.samples[column]), int(applied.fingerprints[column]))
        for control in servers.controls()
        for applied in [control.applied()]
        for column in control.columns()
    ]
    assert prove(expected, prints, layout.columns, counted).faults == ()


def test_a_dead_server_is_noticed_and_its_replacement_used(cluster):
    servers = cluster(LAYOUT, 1)
    parameters = servers.worker(timeout_s=60)
    push(parameters)
    servers.lose(0)
    begun = time.monotonic()
    with pytest.raises(ServerLost, match="ps-0"):
        push(parameters, 10, 20)
    assert time.monotonic() - begun < 30, "a refused connection must be noticed before the timeout"
    servers.add()
    servers.place()
    push(parameters, shard=2)
    assert (servers.samples() == 10).all()


def test_a_push_of_before_the_servers_were_replaced_is_given_up(cluster):
    """Also a push that waits in the client: restored servers may know its samples under another shard."""
    servers = cluster(LAYOUT, 1)
    parameters = servers.worker(timeout_s=5, patience_s=2)
    generation = parameters.generation
    push(parameters, generation=generation)
    servers.control(0).set_own(range(LAYOUT.columns), Own.FROZEN, Own.MINE)
    lost, refused = [], []

    def blocked():
        while not refused:
            try:
                push(parameters, 10, 20, generation=generation)
            except (ServerLost, OwnershipUnknown) as error:
                lost.append(error)  # and on, as the trainer does
            except ServersReplaced as error:
                refused.append(error)

    pusher = threading.Thread(target=blocked)
    pusher.start()
    wait_for(lambda: servers.control(0).stats().rejected > 0)
    servers.lose(0)
    wait_for(lambda: lost)
    servers.add()
    servers.place()
    pusher.join(60)
    assert "ask the dispatcher" in str(refused[0])
    assert (servers.samples() == 0).all()
    assert parameters.generation > generation
    again = push(parameters, shard=2, generation=parameters.generation)
    assert again.applied == LAYOUT.columns


def test_a_server_that_joins_does_not_end_a_lease(cluster):
    servers = cluster(LAYOUT, 1)
    parameters = servers.worker(timeout_s=5)
    generation = parameters.generation
    newcomer = servers.add()
    assert servers.processes[newcomer].ask("move", sources={0: 0, 64: 0}, addresses=servers.addresses).get("steps")
    push(parameters, generation=generation)
    assert servers.control(newcomer).applied().samples[[0, 64]].tolist() == [10, 10]
    assert parameters.generation == generation


def test_a_server_is_opened_once_and_only_another_address_is_a_loss(cluster, monkeypatch):
    servers = cluster(LAYOUT, 1)
    parameters = servers.worker(timeout_s=5)
    routes, opened = parameters.routes, []
    open_link, generation = routes._open, parameters.generation

    def slow(server, address):
        opened.append(server)
        time.sleep(0.3)
        return open_link(server, address)

    monkeypatch.setattr(routes, "_open", slow)
    newcomer = servers.add()
    parameters.connect(dict(servers.addresses))  # the event, in the background
    routes.refresh()  # a push that was rejected meanwhile waits for the same connection
    parameters.connect(dict(servers.addresses), wait=True)
    assert opened == [newcomer]
    assert routes._opening == {}
    push(parameters, generation=generation)
    with pytest.raises(ServerLost):  # a newcomer that does not answer has nothing to lose
        parameters.connect(servers.addresses | {7: "127.0.0.1:1"}, wait=True)
    parameters.connect(dict(servers.addresses))
    push(parameters, 10, 20, generation=generation)


def test_a_server_that_left_the_list_counts_as_lost_though_it_answers(cluster):
    """The server's node may be cut off from the cluster, and its columns back on another server."""
    servers = cluster(LAYOUT, 2)
    parameters = servers.worker(timeout_s=5)
    generation = parameters.generation
    push(parameters, generation=generation)
    gone = servers.columns()[0]
    del servers.addresses[0]
    servers.control(1).set_own(gone, Own.MINE)  # they came back, from before the first push
    parameters.connect(dict(servers.addresses))
    assert parameters.progress(1, 2) == 0, "the records of the server that left are not believed"
    with pytest.raises(ServersReplaced):
        push(parameters, attempt=2, generation=generation)
    push(parameters, attempt=2, generation=parameters.generation)
    assert (servers.control(1).applied().samples == 10).all()
    assert set(parameters.routes._links) == {1}


def test_a_server_that_gave_all_away_and_left_is_no_loss(cluster):
    servers = cluster(LAYOUT, 2)
    parameters = servers.worker(timeout_s=5)
    generation = parameters.generation
    push(parameters, generation=generation)
    left = servers.columns()[0]
    addresses = dict(servers.addresses)
    assert servers.processes[1].ask("move", sources=dict.fromkeys(left, 0), addresses=addresses).get("steps")
    push(parameters, 10, 20, generation=generation)
    address = servers.addresses.pop(0)
    parameters.connect(dict(servers.addresses))
    assert set(parameters.routes._links) == {1}
    servers.addresses[0] = address
    servers.lose(0)
    push(parameters, 20, 30, generation=generation)


def test_whoever_has_not_the_key_of_the_job_reaches_nothing(cluster):
    servers = cluster(LAYOUT, 1)
    with pytest.raises(ServerLost, match="AccessRefused"):
        Parameters(LAYOUT, dict(servers.addresses), worker=0, access=Access(Key.random()))
    assert servers.worker().pull(batch(LAYOUT, 1)[0]).seconds > 0


def test_a_worker_of_another_layout_is_refused_by_name(cluster):
    servers = cluster(LAYOUT, 1)
    with pytest.raises(LayoutError, match="was the code changed"):
        Parameters(one_table(8, 50), dict(servers.addresses), worker=0, access=servers.access)


def test_tables_of_different_width_train_and_count_as_one_job(cluster):
    layout = Layout((Table(4, Adagrad(0.1), 1), Table(16, Adam(0.1), 2)), 50, LAYOUT.buckets, LAYOUT.slices)
    servers = cluster(layout)
    parameters = servers.worker()
    keys, rows, dense = batch(layout, 5)
    before = parameters.pull(keys)
    assert [table.shape[1] for table in before.rows] == [4, 16]
    parameters.push(keys, rows, dense, shard=1, attempt=1, start=0, stop=40)
    after = parameters.pull(keys)
    for table, first, last, gradient in zip(layout.tables, before.rows, after.rows, rows, strict=True):
        np.testing.assert_allclose(last, after_steps(table.optimizer, first, [gradient]), rtol=1e-5, atol=1e-5)
    assert (servers.samples() == 40).all()


def test_a_server_learns_the_layout_from_the_first_worker_and_keeps_what_it_owns(bare_cluster):
    servers = bare_cluster(LAYOUT, 0)
    process = servers.pool.get(0)
    address = process.ask("start", index=0, key=servers.access.key.pem.decode())["address"]
    process.ask("own", columns=list(range(LAYOUT.columns)))
    parameters = Parameters(LAYOUT, {0: address}, worker=0, access=servers.access)
    keys, rows, dense = batch(LAYOUT, 1)
    assert parameters.push(keys, rows, dense, shard=1, attempt=1, start=0, stop=10).applied == LAYOUT.columns
    parameters.close()


def test_the_example_of_the_readme_runs():
    text = (Path(stretto.engine.__file__).parent / "README.md").read_text().split("```python")[1].split("```")[0]
    text = text.replace("(ids)", "(np.arange(30))")
    text = text.replace("row_gradients, dense_gradient", "pulled.rows, pulled.dense")
    names: dict = {"np": np}
    exec(text, names)
    assert (names["server"].store.applied().samples == 512).all()
    names["parameters"].close()
    names["server"].close()


def test_of_two_claimants_the_new_owner_serves_as_the_actuator_plans():
    frozen, mine = np.array([2, 1, 0, 0]), np.array([1, 0, 2, 0])
    assert owners({5: frozen, 7: mine}, 4).tolist() == [7, 5, 7, -1]
    assert owner_of({5: frozen[:3].tolist(), 7: mine[:3].tolist()}) == [7, 5, 7]
    assert (Own.NOT_MINE, Own.MINE, Own.FROZEN) == (placement.NOT_MINE, placement.MINE, placement.FROZEN)
