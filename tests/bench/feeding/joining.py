"""Data workers that join and leave: time to their first batch, batches prepared twice, and the speed meanwhile.

The data workers are pods as in the product, ``python -m stretto.data`` with one lane, on a bus. Trainer and slow store
are those of the module ``feeding``. The actuator's looks at its pods are left out: the first answer to a ping that says
that a pod is ready is used at once.

- First batch: the time from the fork of its lane, which follows its imports, to the first answer that the trainer has.
  On a busy machine imports alone differ by more than the bar from one time to the next.
- Joins and leaves: every six seconds the oldest of four data workers leaves and another takes its place, so they are as
  many as in the rounds between. Those that join have imported before: their nodes would have cores of their own. A
  batch that a leaving data worker had in hand is prepared twice if another process has read it, too.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
from stretto.batches.feed import DataWorkerList
from stretto.batches.preparation import fingerprint_of
from stretto.engine.link import Access
from stretto_pipeline.feeding import CREDITS
from stretto_plane import Key

from tests.bench.feeding.feeding import BATCH, HIDDEN, STORE_S, WARM, Bench, bench
from tests.bench.rows import Row, row, row_at_most

ENTRY = "tests.bench.feeding.feeding_task:Noted"
STARTS, FIRST_BATCH_BAR_S = 4, 1.5
HELD, SWAPS, SWAP_S, ROUNDS = 4, 5, 6.0, 2
"""Data workers at a time; exchanges of a round, and seconds from one to the next; rounds."""
CHUNK, HELD_CHUNKS = 240, 3
RATIO_BAR = 0.95
SETTLE_S, READY_S = 1.0, 180.0
READ = 3
"""Numbers of a note: first sample, process, time."""


class Left(NamedTuple):
    """A data worker that was told to leave: its processes, and when, on the monotonic clock."""

    pids: frozenset[int]
    at_ns: int


class Pods:
    """Data workers of one job, and which of them the trainer uses."""

    def __init__(self, cluster: Any, workers: DataWorkerList) -> None:
        self._cluster, self._workers = cluster, workers
        self._used: dict[str, str] = {}
        """addresses by pod, the oldest first"""
        self._started = 0
        self.left: list[Left] = []

    def start(self) -> str:
        pod = f"data-{self._started}"
        self._started += 1
        self._cluster.launch(pod, **self._cluster.own_folder(pod))
        return pod

    def ready(self, pod: str) -> None:
        self._cluster.ready(pod, READY_S)

    def join(self, pod: str) -> None:
        """Use a pod once it is ready."""
        self._used[pod] = self._cluster.ready(pod, READY_S).address
        self._tell()

    def leave(self) -> None:
        """Let the oldest go, as the actuator does: told to the trainer, then asked to end."""
        pod = next(iter(self._used))
        del self._used[pod]
        self.left.append(Left(frozenset(each.pid for each in self.processes(pod)), time.monotonic_ns()))
        self._tell()
        self._cluster.processes[pod].terminate()
        code = self._cluster.processes[pod].wait(20)
        assert code == 0, self._cluster.log(pod)

    def processes(self, pod: str) -> list[psutil.Process]:
        """Return the processes of a pod, the newest last."""
        main = psutil.Process(self._cluster.processes[pod].pid)
        return sorted((main, *main.children(recursive=True)), key=lambda process: process.create_time())

    def _tell(self) -> None:
        self._workers.use([*self._used.values()])


@contextmanager
def opened() -> Generator[tuple[Bench, Pods, Path]]:
    """Yield a trainer of a slow store, the data workers of its job, and the file of reads."""
    from trainer_harness import Cluster

    with tempfile.TemporaryDirectory() as folder:
        note = Path(folder, "reads")
        with bench(0, entry=ENTRY, hidden=HIDDEN, samples_per_s=BATCH / STORE_S, note=str(note)) as fed:
            cluster = Cluster(Path(folder), fed.spec)
            cluster.start()
            try:
                access = Access(Key.load(cluster.key_path))
                workers = DataWorkerList(
                    fed.feed, access, fingerprint_of(fed.spec.model_dump(mode="json"), fed.program.task)
                )
                fed.steps(WARM)
                yield fed, Pods(cluster, workers), note
                workers.use(())
            finally:
                cluster.stop()


def run() -> list[Row]:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with opened() as (fed, pods, note):
        return [first_batch(fed, pods), *joins_and_leaves(fed, pods, note)]


def first_batch(fed: Bench, pods: Pods) -> Row:
    """Return the time from the fork of a pod's lane to its first batch."""
    took_s: list[float] = []
    for _ in range(STARTS):
        answers, pod = fed.feed.counts.answers, pods.start()
        while_training(fed, lambda pod=pod: pods.join(pod), lambda answers=answers: fed.feed.counts.answers > answers)
        took_s.append(time.time() - pods.processes(pod)[-1].create_time())
        pods.leave()
    told = ", ".join(f"{each:.1f}" for each in took_s)
    return row_at_most(
        "first batch of a new data worker, after its imports", statistics.median(took_s), "s", FIRST_BATCH_BAR_S,
        f"{told} s; load {os.getloadavg()[0]:.1f}",
    )  # fmt: skip


def while_training(fed: Bench, work: Callable[[], None], is_done: Callable[[], bool]) -> None:
    """Train until ``work``, in a thread of its own, has ended and ``is_done``."""
    thread = threading.Thread(target=work)
    thread.start()
    while thread.is_alive() or not is_done():
        fed.steps(2)


def joins_and_leaves(fed: Bench, pods: Pods, note: Path) -> list[Row]:
    for pod in [pods.start() for _ in range(HELD)]:
        while_training(fed, lambda pod=pod: pods.join(pod), lambda: True)
    held, changing = [], []
    begun, first_left = note.stat().st_size, len(pods.left)
    for _ in range(ROUNDS):
        new = [pods.start() for _ in range(SWAPS)]
        for pod in new:
            while_training(fed, lambda pod=pod: pods.ready(pod), lambda: True)
        held.append(per_s(fed, lambda: None))
        changing.append(per_s(fed, lambda new=new: exchange(pods, new)))
        held.append(per_s(fed, lambda: None))
    time.sleep(SETTLE_S)
    twice = prepared_twice(np.fromfile(note, np.int64, offset=begun).reshape(-1, READ), pods.left[first_left:])
    ratio = statistics.fmean(changing) / statistics.fmean(held)
    count, load = ROUNDS * SWAPS, f"load {os.getloadavg()[0]:.1f}"
    return [
        row_at_most(f"batches prepared twice in {count} joins and {count} leaves", twice, "", 0,
                    f"of those that {count} leaving data workers had in hand, {CREDITS} each; {load}"),
        row("steps/s while data workers join and leave / held", statistics.fmean(changing), "1/s",
            f">= {RATIO_BAR:g} ×", ratio >= RATIO_BAR,
            f"one exchange in {SWAP_S:.0f} s, {HELD} at a time; rounds held {_told(held)}, between them "
            f"{_told(changing)}; {load}", statistics.fmean(held), ratio),
    ]  # fmt: skip


def _told(rates: list[float]) -> str:
    return ", ".join(f"{each:.1f}" for each in rates)


def per_s(fed: Bench, work: Callable[[], None]) -> float:
    """Return the steps per second while ``work`` is done in a thread, and for some rounds at least."""
    gaps: list[float] = []
    thread = threading.Thread(target=work)
    thread.start()
    chunks = 0
    while thread.is_alive() or chunks < HELD_CHUNKS:
        gaps += fed.steps(CHUNK)
        chunks += 1
    return len(gaps) / sum(gaps)


def exchange(pods: Pods, new: list[str]) -> None:
    begun_s = time.monotonic()
    for number, pod in enumerate(new, 1):
        pods.join(pod)
        pods.leave()
        time.sleep(max(0.0, begun_s + number * SWAP_S - time.monotonic()))


def prepared_twice(reads: np.ndarray[Any, Any], left: list[Left]) -> int:
    """Return how many batches that leaving data workers had in hand were read by another process, too."""
    twice = 0
    for pids, at_ns in left:
        own = np.isin(reads[:, 1], [*pids])
        in_hand = reads[own & (reads[:, 2] > at_ns - STORE_S * 1e9), 0]
        twice += len(np.intersect1d(in_hand, reads[~own, 0]))
    return twice


if __name__ == "__main__":
    for each in run():
        print(each)
