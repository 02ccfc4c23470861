"""Workers that average their dense gradients: as one worker with all batches, and exactly once whatever ends when."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from stretto.engine import Access, Key, Layout, Own, Parameters, ParameterServer, one_table
from stretto.errors import StrettoError
from stretto.group.gathering import Contribution, ContributionRefused, Gathering, Mean, Outcome
from stretto.group.shared_dense import SharedDense
from stretto_core.dispatcher.book import fingerprint_of
from stretto_parameters import Claim
from stretto_parameters.optimizers import Adagrad
from trainer_harness import wait_for

LAYOUT = one_table(4, 500, state_size=2, seed=3, optimizer=Adagrad(0.1))
SAMPLES = 10
"""Samples of a batch."""


class Cluster:
    """Parameter servers of this process, and workers of one group."""

    def __init__(self, layout: Layout, servers: int, workers: int, patience_s: float = 1.0) -> None:
        self.layout, self.key, self.patience_s = layout, Key.random(), patience_s
        self.servers = [ParameterServer(index, layout, key=self.key) for index in range(servers)]
        cut = np.array_split(np.arange(layout.columns), servers)
        for server, columns in zip(self.servers, cut, strict=True):
            server.own(columns.tolist())
        self.workers = [self.worker(index) for index in range(workers)]
        self.workers[0][0].seed(np.linspace(-1, 1, layout.dense_size, dtype=np.float32))
        self.regroup(range(workers))

    def worker(self, index: int) -> tuple[Parameters, SharedDense]:
        access = Access(self.key)
        parameters = Parameters(
            self.layout, {server.index: server.address for server in self.servers}, worker=index, access=access
        )
        shared = SharedDense(index, self.layout, access, "127.0.0.1:0", time.monotonic, self.patience_s)
        parameters.average_dense(shared)
        return parameters, shared

    def regroup(self, members: range | list[int]) -> None:
        for index in members:
            self.workers[index][1].use({each: self.workers[each][1].address for each in members})

    def close(self) -> None:
        for parameters, _ in self.workers:
            parameters.close()
        for server in self.servers:
            server.close()

    def books(self) -> tuple[dict[int, int], dict[int, int]]:
        """Samples and fingerprints of every column, where it is owned."""
        samples, prints = {}, {}
        for server in self.servers:
            applied = server.store.applied()
            for column in server.store.columns():
                samples[column] = int(applied.samples[column])
                prints[column] = int(applied.fingerprints[column])
        return samples, prints


def gradient(layout: Layout, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=layout.dense_size).astype(np.float32)


def push(parameters: Parameters, shard: int, step: int, attempt: int = 1) -> None:
    """Push the rows and the dense gradient of a batch, both made of its shard and step."""
    layout = parameters.layout
    keys = layout.index(np.random.default_rng(shard).integers(0, 50, 8))
    rows = [
        np.full((len(of), table.dimension), 0.1, np.float32)
        for of, table in zip(keys.tables, layout.tables, strict=True)
    ]
    delta = np.full(layout.state_size, 1.0 + shard, np.float32)
    start = step * SAMPLES
    parameters.push(
        keys,
        rows,
        gradient(layout, 1000 * shard + step),
        shard=shard,
        attempt=attempt,
        start=start,
        stop=start + SAMPLES,
        state_delta=delta,
        generation=parameters.generation,
        lineage=0,
    )


def at_once(*work: Callable[[], None]) -> None:
    """Run functions in threads, to their ends; raise what one of them raises."""
    failed: list[BaseException] = []

    def run(one: Callable[[], None]) -> None:
        try:
            one()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(one,)) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if failed:
        raise failed[0]


def train(parameters: Parameters, shard: int, steps: range) -> None:
    for step in steps:
        push(parameters, shard, step)


@pytest.mark.parametrize(("servers", "workers"), [(1, 2), (2, 4), (3, 5)])
def test_a_group_trains_as_one_worker_with_the_batches_of_all(servers: int, workers: int) -> None:
    """Goal: the mean of all gradients is applied once a step, as if it were of one batch. Method: the dense parameters
    of a group, and those of one worker that pushes these means."""
    steps = range(6)
    group = Cluster(LAYOUT, servers, workers, patience_s=30.0)
    alone = Cluster(LAYOUT, 1, 1)
    try:
        at_once(
            *(lambda p=parameters, n=number: train(p, n, steps) for number, (parameters, _) in enumerate(group.workers))
        )
        for step in steps:
            mean = np.mean(
                [gradient(LAYOUT, 1000 * shard + step) for shard in range(workers)], axis=0, dtype=np.float64
            )
            one, keys = alone.workers[0][0], LAYOUT.index(np.zeros(0, np.int64))
            empty = [np.zeros((0, 4), np.float32)]
            of_batch = {"shard": 0, "attempt": 1, "start": step * SAMPLES, "stop": (step + 1) * SAMPLES}
            one.push(keys, empty, mean.astype(np.float32), **of_batch)
        nothing = LAYOUT.index(np.zeros(0, np.int64))
        found = [parameters.pull(nothing) for parameters, _ in (*group.workers, *alone.workers)]
        for each in found:
            np.testing.assert_allclose(each.dense, found[-1].dense, atol=1e-5)
        np.testing.assert_allclose(found[0].state, len(steps) * np.mean([1.0 + n for n in range(workers)]), rtol=1e-5)
        samples, _ = group.books()
        assert {*samples.values()} == {workers * len(steps) * SAMPLES}, "each batch counts on each column"
        # the next pull of training brings no dense parameters: the group has given them
        given = group.workers[0][0].begin_pull(nothing).result().dense
        np.testing.assert_array_equal(given, found[0].dense)
    finally:
        group.close()
        alone.close()


@pytest.mark.parametrize("seed", range(20))
def test_each_column_has_each_batch_once_whoever_is_lost_when(seed: int) -> None:
    """Goal: nothing is lost or repeated. Method: a member vanishes in the middle of a step of its own, another one
    comes, columns are frozen for a while; whoever takes a lost member's shard over trains what is left of it."""
    chance = random.Random(seed)
    workers, steps = chance.choice((2, 3, 4)), 8
    group = Cluster(LAYOUT, chance.choice((1, 2)), workers, patience_s=0.05)
    lost, lost_at = chance.randrange(workers), chance.randrange(steps)
    began = threading.Event()

    def member(number: int) -> None:
        parameters, shared = group.workers[number]
        for step in range(steps):
            if number == lost and step == lost_at:
                threading.Timer(chance.uniform(0.0, 0.01), shared.close).start()
                began.set()
                _give_alone(parameters, shared, number, step)  # its rows, and its own retries, are lost with it
                return
            push(parameters, number, step)

    def freeze() -> None:
        server = chance.choice(group.servers)
        dense = [column for column in server.store.columns() if column >= LAYOUT.buckets]
        if dense and began.wait(20):
            column = chance.choice(dense)
            server.store.set_own([column], Own.FROZEN, Own.MINE)
            time.sleep(0.02)
            server.store.set_own([column], Own.MINE, Own.FROZEN)

    try:
        at_once(*(lambda n=number: member(n) for number in range(workers)), freeze)
        heir = group.workers[(lost + 1) % workers][0]
        for step in range(heir.progress(lost, 2) // SAMPLES, steps):
            push(heir, lost, step, attempt=2)
        samples, prints = group.books()
        assert {*samples.values()} == {workers * steps * SAMPLES}
        expected = sum(fingerprint_of(shard, steps * SAMPLES) for shard in range(workers)) % 2**64
        assert {value % 2**64 for value in prints.values()} == {expected}
    finally:
        group.close()


def _give_alone(parameters: Parameters, shared: SharedDense, shard: int, step: int) -> None:
    claim = Claim(shard, 1, step * SAMPLES, (step + 1) * SAMPLES)
    slices = LAYOUT.split_dense(gradient(LAYOUT, 1000 * shard + step))
    with contextlib.suppress(StrettoError, RuntimeError):  # its threads end under it
        shared.give(claim, slices, np.zeros(LAYOUT.state_size, np.float32), parameters.generation)


def contribution(shard: int, value: float = 1.0, books: str = "a") -> Contribution:
    part = np.arange(2), np.full((2, 3), value, np.float32)
    return Contribution(Claim(shard, 1, 0, 1), books, *part, np.zeros(0, np.float32))


def test_a_member_alone_waits_only_for_those_that_are_expected() -> None:
    pushed: list[Mean] = []

    def apply(mean: Mean) -> Outcome:
        pushed.append(mean)
        return Outcome(mean.slices, np.ones(2, np.bool_))

    now = [100.0]
    gathering = Gathering(apply, lambda: now[0], patience_s=5.0)
    gathering.expect([0, 1])
    now[0] += 5.1  # the other has been silent for longer than the patience
    gathering.contribute(0, contribution(0))
    assert [len(mean.claims) for mean in pushed] == [1]
    at_once(
        lambda: gathering.contribute(1, contribution(1, 3.0)), lambda: gathering.contribute(0, contribution(0, 1.0))
    )
    assert sorted(len(mean.claims) for mean in pushed) in ([1, 2], [1, 1, 1])


def test_patience_with_a_member_follows_its_pace_and_ends_with_its_membership() -> None:
    now = [100.0]
    rounds: list[int] = []

    def apply(mean: Mean) -> Outcome:
        rounds.append(len(mean.claims))
        return Outcome(mean.slices, np.ones(2, np.bool_))

    gathering = Gathering(apply, lambda: now[0], patience_s=1.0)
    gathering.expect([0])
    for step in range(4):  # a step takes ten seconds
        now[0] += 10.0
        gathering.contribute(0, contribution(step))
    gathering.expect([0, 1])
    now[0] += 2.0
    ended = threading.Event()

    def other() -> None:
        gathering.contribute(1, contribution(9))
        ended.set()

    waiting = threading.Thread(target=other)
    waiting.start()
    assert not ended.wait(0.5), "the first one is expected for two of its steps"
    gathering.expect([1])
    assert ended.wait(60), "and not any more once it is no member"
    waiting.join()
    assert rounds == [1] * 5


def test_what_cannot_be_in_one_round_is_refused() -> None:
    gathering = Gathering(lambda _: None, time.monotonic, patience_s=60.0)
    gathering.expect([0, 1])
    refused: list[str] = []

    def first() -> None:
        with pytest.raises(ContributionRefused) as error:
            gathering.contribute(0, contribution(7))
        refused.append(str(error.value))

    waiting = threading.Thread(target=first)
    waiting.start()
    wait_for(lambda: 0 in gathering._round.contributions)
    for member, given, why in (
        (0, contribution(8), "worker-0 is in the round already"),
        (1, contribution(7), "shard 7 is in the round already"),
        (1, contribution(9, books="b"), "has a lease of other servers than the round"),
        (1, contribution(9)._replace(ids=np.arange(1, 3)), "knows another part than the round"),
    ):
        with pytest.raises(ContributionRefused, match=why):
            gathering.contribute(member, given)
    gathering.expect([0])
    waiting.join(30)
    assert refused == ["the servers did not take the group's gradient"]


def test_a_batch_is_given_once_and_leases_of_other_servers_never() -> None:
    group = Cluster(LAYOUT, 1, 2, patience_s=30.0)
    found: dict[int, list[np.ndarray]] = {0: [], 1: []}
    delta = np.zeros(LAYOUT.state_size, np.float32)

    def give(number: int) -> None:
        parameters, shared = group.workers[number]
        slices = LAYOUT.split_dense(gradient(LAYOUT, number))
        for claim in (Claim(number, 1, 0, 5), Claim(number, 1, 0, 5)):
            found[number].append(shared.give(claim, slices, delta, parameters.generation))
        found[number].append(shared.give(Claim(number, 1, 5, 9), slices, delta, parameters.generation + 1))

    def exchange(number: int) -> None:
        slices = LAYOUT.split_dense(gradient(LAYOUT, number))
        found[number].append(
            group.workers[number][1]._group.exchange(slices, delta, Claim(number, 1, 5, 9), "other").applied
        )

    try:
        at_once(lambda: give(0), lambda: give(1))
        at_once(lambda: exchange(0), lambda: exchange(1))
        assert [[bool(each.all()), bool(each.any())] for each in found[0]] == [[True, True], *[[False, False]] * 3]
        assert {*group.books()[0].values()} == {0, 10}, "rows have none of the batches"
    finally:
        group.close()
