"""Three live jobs share room for data workers, under each policy in turn (GoldMiner §3.4.2).

Each job is a trainer with lanes of its own (module ``tuned``), in a thread; the arbiter's own machine has room for
``ROOM`` data workers. A tuning's number is proposed to it, and what it decides is used by each job from its next window
on. The store costs no processor time and the trainers rest behind each step, so that two cores carry all of them.

What is expected is played beforehand: the same jobs, with the rates that each was measured at alone, get their data
workers by the policy's definition at each completion. Decisions are compared with that, not the seconds: a job must
first be tuned, for some windows, and the machine is shared.
"""

from __future__ import annotations

import importlib
import math
import os
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from stretto_core.algorithms import SHARE
from stretto_core.arbiter.machine import ArbiterMachine
from stretto_core.arbiter.state import ArbiterSettings
from stretto_core.machine import Action
from stretto_core.model.sharing import Ranking, Sharer
from stretto_core.model.types import DataWorkerLimits, JobOpened
from stretto_messages.arbiter import DataWorkersDecided
from stretto_messages.base import GIB
from stretto_messages.planner import DataWorkersProposed
from stretto_messages.values import Resources

from tests.bench.feeding.feeding import BATCH, Bench, bench
from tests.bench.feeding.tuned import TunedJob
from tests.bench.rows import Row, row

STORE_S, ROOM, MOST, WINDOW_S = 0.4, 6, 6, 2.0
EACH = Resources(1.0, GIB)
POLICIES = ("srtf", "maxtp", "fair")
FEW = 4
"""Steps before each measurement: they are slow."""
PLAN_CORES = 2.0
"""of one job's worker and parameter server"""
SPEED_STEPS = {0: 16, 1: 16, MOST: 50}
"""Steps by the number of data workers with which a job is measured alone."""


class Need(NamedTuple):
    """A job. rest_s: after each step, which is its bound."""

    steps: int
    rest_s: float


NEEDS = {"modest": Need(200, 0.18), "long": Need(500, 0.085), "hungry": Need(260, 0.03)}
"""They need 2, 4 and 6 data workers; the first has the least work, the second the most."""
CORES = PLAN_CORES * len(NEEDS) + ROOM


class Rates(NamedTuple):
    """Steps per second alone, of one data worker, and with more than enough."""

    alone_per_s: float
    one_per_s: float
    ideal_per_s: float

    def with_(self, count: int) -> float:
        return min(count * self.one_per_s, self.ideal_per_s) if count else self.alone_per_s


class Expected(NamedTuple):
    """The jobs in the order of their completion, and their data workers while all are there."""

    order: tuple[str, ...]
    given: dict[str, int]


def expected(rates: Mapping[str, Rates], ranking: Ranking) -> Expected:
    """Play the jobs to their ends; whenever one ends, all data workers are distributed anew, with its plan's cores."""
    left = {name: float(need.steps) for name, need in NEEDS.items()}
    order: list[str] = []
    first: dict[str, int] = {}
    while left:
        given = distributed(left, rates, ranking, round(CORES - PLAN_CORES * len(left)))
        first = first or given
        per_s = {name: rates[name].with_(given[name]) for name in left}
        ending = min(left, key=lambda name: left[name] / per_s[name])
        time_s = left.pop(ending) / per_s[ending]
        order.append(ending)
        left = {name: steps - time_s * per_s[name] for name, steps in left.items()}
    return Expected(tuple(order), first)


def distributed(left: Mapping[str, float], rates: Mapping[str, Rates], ranking: Ranking, room: int) -> dict[str, int]:
    """Give one data worker after the other to the smallest rank, up to what each job needs."""
    sharers = {name: Sharer(1, left[name], rates[name].ideal_per_s, rates[name].one_per_s) for name in left}
    most = {name: math.ceil(rates[name].ideal_per_s / rates[name].one_per_s - 0.1) for name in left}
    given = dict.fromkeys(left, 0)
    for _ in range(room):
        wanting = [name for name in left if given[name] < most[name]]
        if wanting:
            given[min(wanting, key=lambda name: ranking(sharers[name], given[name], given[name] + 1.0))] += 1
    return given


@dataclass
class House:
    """The arbiter's machine, and what it has decided. Thread-safe."""

    policy: str
    lock: threading.Lock = field(default_factory=threading.Lock)
    given: dict[str, int] = field(default_factory=lambda: dict.fromkeys(NEEDS, 0))
    most_cores: float = 0.0
    """of plans and data workers in any decision"""
    with_all: list[dict[str, int]] = field(default_factory=list[dict[str, int]])
    """decisions while no job has ended and all have asked"""
    ended: list[str] = field(default_factory=list[str])
    asked: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        self.builders, loop = (importlib.import_module(name) for name in ("job_builders", "closed_loop"))
        plan, limits = loop.plan(), DataWorkerLimits(EACH, most=MOST)
        profiles = {name: loop.profile(need.steps * BATCH, data=limits) for name, need in NEEDS.items()}
        assert plan.resources(profiles["long"].extended).cpu_cores == PLAN_CORES
        room = Resources(CORES, 1000 * GIB)
        self.machine = ArbiterMachine(
            None, ArbiterSettings(room), ranking=SHARE.named(self.policy), ranking_name=self.policy
        )
        for name, profile in profiles.items():
            self.tell(JobOpened(name, profile))
            self.tell(self.builders.plan_proposed(name, "warm-start", plan))
            self.tell(self.builders.plan_applied(name, 1, plan))

    def tell(self, event: Any) -> None:
        with self.lock:
            actions: list[Action] = self.machine.handle(event, time.monotonic())
            for fact in (getattr(action, "fact", None) for action in actions):
                if isinstance(fact, DataWorkersDecided):
                    self.given[fact.job] = fact.count
            plans = PLAN_CORES * (len(NEEDS) - len(self.ended))
            self.most_cores = max(self.most_cores, plans + EACH.cpu_cores * sum(self.given.values()))
            if not self.ended and len(self.asked) == len(NEEDS):
                self.with_all.append(dict(self.given))

    def train(self, name: str, fed: Bench) -> None:
        """Train a job to its end, in the thread of the caller."""
        job, first = TunedJob(fed, lanes=1, most=MOST, warm=FEW), fed.start
        samples = NEEDS[name].steps * BATCH
        while (done := fed.start - first) < samples:
            proposed = job.step(WINDOW_S)
            self.tell(self.builders.job_progressed(name, min(done, samples - 1), samples, job.seen[-1].per_s * BATCH))
            if proposed is not None:
                self.propose(proposed, name)
            if job.given != self.given[name]:
                job.give(self.given[name])
        with self.lock:
            self.ended.append(name)
            self.given[name] = 0
        self.tell(self.builders.job_ended(name, "completed"))

    def propose(self, proposed: DataWorkersProposed, name: str) -> None:
        with self.lock:
            self.asked.add(name)
        self.tell(replace(proposed, job=name))


def run() -> list[Row]:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ExitStack() as stack:
        jobs = {name: stack.enter_context(bench(MOST, samples_per_s=BATCH / STORE_S)) for name in NEEDS}
        for name, fed in jobs.items():
            fed.rest_s = NEEDS[name].rest_s
        rates = {name: measured(fed) for name, fed in jobs.items()}
        return [each for policy in POLICIES for each in _rows(policy, jobs, rates)]


def measured(fed: Bench) -> Rates:
    """Return the rates of a job by itself."""
    fed.steps(FEW)
    found: list[float] = []
    for count, steps in SPEED_STEPS.items():
        fed.use(fed.lanes.addresses[:count], FEW)
        found.append(fed.per_s(steps))
    fed.use((), FEW)
    return Rates(*found)


def _rows(policy: str, jobs: Mapping[str, Bench], rates: Mapping[str, Rates]) -> list[Row]:
    wanted = expected(rates, SHARE.named(policy))
    house = House(policy)
    begun_s = time.monotonic()
    with ThreadPoolExecutor(len(jobs)) as threads:
        for training in [threads.submit(house.train, name, fed) for name, fed in jobs.items()]:
            training.result()
    took_s = time.monotonic() - begun_s
    seen = house.with_all[-1] if house.with_all else house.given
    far = sum(abs(seen[name] - wanted.given[name]) for name in NEEDS) // 2
    is_same = tuple(house.ended) == wanted.order
    load = f"load {os.getloadavg()[0]:.1f}"
    told = ", ".join(f"{name} {' '.join(f'{each:.1f}' for each in rates[name])}" for name in NEEDS)
    return [
        row(f"jobs complete in the order of {policy}", float(is_same), "", "1", is_same,
            f"{' '.join(house.ended)}; expected {' '.join(wanted.order)}; {took_s:.0f} s; {load}"),
        row(f"data workers elsewhere than {policy} gives them, three jobs", far, "", "<= 1", far <= 1,
            f"{_in_words(seen)}; expected {_in_words(wanted.given)}; steps/s alone, of one and at most: {told}"),
        row(f"cores of plans and data workers at most, {policy}", house.most_cores, "", f"<= {CORES:g}",
            house.most_cores <= CORES, "in any decision"),
    ]  # fmt: skip


def _in_words(given: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in given.items())


if __name__ == "__main__":
    for each in run():
        print(each)
