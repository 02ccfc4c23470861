"""A slow worker from its detection to the pace at which it submits (DLRover-RM section 5.1)."""

from __future__ import annotations

import heapq

import numpy as np
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from ledger_builders import heartbeat, straggler
from ledger_harness import LedgerHarness
from stretto_core.dispatcher.book import Shard
from stretto_core.dispatcher.source import DataSpec
from stretto_core.profiler.peers import ClosedWindow, judge_workers
from stretto_core.profiler.state import PodWindow, ProfilingRules
from stretto_messages.profiler import StragglerCleared, StragglerDetected
from stretto_messages.values import WorkerProfile

RULES = ProfilingRules()
BATCH = 10


def told(step_s: np.ndarray) -> list[tuple[int, StragglerDetected | StragglerCleared]]:
    """Return the events, with their window, for workers with steps of ``step_s`` [windows, workers]."""
    names = [f"worker-{index}" for index in range(step_s.shape[1])]
    pods = {name: PodWindow("worker") for name in names}
    found = list[tuple[int, StragglerDetected | StragglerCleared]]()
    for window, steps in enumerate(step_s):
        profiles = [
            WorkerProfile(
                pod=name, step_time_s=float(s), samples_per_s=BATCH / s, cpu_used_cores=1.0, memory_used_bytes=0
            )
            for name, s in zip(names, steps, strict=True)
        ]
        closed = ClosedWindow("j", profiles, [], BATCH, 5.0)
        found += [(window, fact) for fact in judge_workers(closed, pods, RULES)]
    return found


def noisy(windows: int, workers: int, sd: float, seed: int) -> np.ndarray:
    return np.exp(np.random.default_rng(seed).normal(0, sd, (windows, workers)))


@given(workers=st.integers(2, 32), seed=st.integers(0, 2**32))
@settings(max_examples=30)
def test_nobody_is_called_slow_for_noise_of_ten_percent(workers: int, seed: int) -> None:
    assert told(noisy(100, workers, 0.1, seed)) == []


@given(workers=st.integers(2, 32), seed=st.integers(0, 2**32), slowdown=st.floats(3.5, 20), begin=st.integers(0, 20))
@settings(max_examples=50)
def test_who_becomes_slow_is_told_in_the_second_window_and_by_how_much(
    workers: int, seed: int, slowdown: float, begin: int
) -> None:
    step_s = noisy(begin + 2, workers, 0.1, seed)
    step_s[begin:, 0] *= slowdown
    ((window, found),) = told(step_s)
    assert isinstance(found, StragglerDetected)
    assert (window, found.pod) == (begin + RULES.patience - 1, "worker-0")
    assert abs(np.log(found.slowdown / slowdown)) < 0.6


@given(batches=st.integers(4, 64), slowdown=st.floats(1.5, 12), shards=st.integers(2, 20))
@settings(max_examples=40)
def test_a_slow_worker_submits_at_the_pace_of_a_shard_of_its_peers(batches: int, slowdown: float, shards: int) -> None:
    assume(slowdown <= batches)
    harness = LedgerHarness(DataSpec(samples=100 * BATCH * batches, batch_size=BATCH, batches_per_shard=batches))
    harness.lease("worker-0")
    fast = harness.lease("worker-1")
    harness.tell(straggler("worker-0", slowdown))
    slow = harness.lease("worker-0")  # of its first, its peers take the rest
    for _ in range(shards):
        own_s, ends_block = slow.length / BATCH * slowdown, (slow.start + slow.length) % (batches * BATCH) == 0
        assert own_s <= batches * (1 + 1e-9), "nobody waits for it"
        assert own_s > batches - slowdown or ends_block, "nor it for them: within one of its batches"
        slow, fast = harness.lease("worker-0", slow), harness.lease("worker-1", fast)


def train(data: DataSpec, slowdowns: list[float], told_after_s: float) -> tuple[list[Shard], float]:
    """A job's shards as they were completed, and the seconds until the last was. Slow workers are named after
    ``told_after_s``; each tells the ledger after every step how far it is, and asks again after one if it has to wait.
    """
    harness, done = LedgerHarness(data), list[Shard]()
    step_s = {f"worker-{index}": slowdown for index, slowdown in enumerate(slowdowns)}
    begun, named = harness.now, False
    held: dict[str, Shard | None] = dict.fromkeys(step_s)
    trained = dict.fromkeys(step_s, 0)
    turns = [(begun, worker) for worker in step_s]
    while turns:
        harness.now, worker = heapq.heappop(turns)
        if not named and harness.now - begun > told_after_s:  # nobody is slow before its first shard
            named = True
            for slow, slowdown in step_s.items():
                harness.tell(straggler(slow, slowdown))
        shard = held[worker]
        if shard is not None:
            trained[worker] += BATCH
            at = shard.offset + trained[worker]
            if harness.tell(heartbeat(worker, shard.id, shard.attempt, min(at, shard.length))).answer == "stale":
                shard = held[worker] = None  # its peers take the rest
            elif at < shard.length:
                heapq.heappush(turns, (harness.now + step_s[worker], worker))
                continue
        if shard is not None:
            done.append(shard)
        reply = harness.next(worker, shard)
        held[worker], trained[worker] = reply.shard, 0
        if reply.answer in ("shard", "wait"):
            heapq.heappush(turns, (harness.now + (step_s[worker] if reply.shard else 1.0), worker))
        end = harness.now
    return done, end - begun


@given(
    peers=st.integers(1, 6),
    slowdown=st.floats(2, 10),
    batches=st.integers(4, 16),
    shards=st.integers(10, 40),
    told_after_s=st.floats(0, 20),
)
@example(peers=1, slowdown=6.0, batches=6, shards=10, told_after_s=0.0)
@settings(max_examples=30)
def test_a_job_with_a_slow_worker_ends_within_a_shard_of_what_its_workers_can_do_together(
    peers: int, slowdown: float, batches: int, shards: int, told_after_s: float
) -> None:
    data = DataSpec(samples=shards * batches * BATCH, batch_size=BATCH, batches_per_shard=batches)
    _, took_s = train(data, [slowdown, *[1.0] * peers], told_after_s)
    together_s = shards * batches / (peers + 1 / slowdown)
    # a shard at the end, the batch in hand when its shard was taken, and a second of waiting
    assert together_s - 1e-9 <= took_s <= together_s + batches + 2 * slowdown + 2
