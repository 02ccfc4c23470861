"""A live trainer whose data workers the planner's own tuning decides on, window by window: for measurements of it.

Bench and lanes are those of the module ``feeding``; a data worker is so many lanes. A window is a number of steps. Its
profile is made by the profiler's own equations, of the trainer's meter, the lanes' work and the process's CPU. The
number that ``Tuning`` asks for is used in the next window. Bus, services and pods are left out: three cores for them
would be missing here. So nothing waits for pods to start, and the arbiter always has room.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from stretto_core.model.types import DataWorkerLimits
from stretto_core.planner.tuning import Tuning, TuningState
from stretto_core.planner.tuning_rules import TuningRules
from stretto_core.profiler.state import PodWindow, WindowSums
from stretto_core.profiler.window import feed_profile
from stretto_messages.base import GIB, example_of
from stretto_messages.planner import DataWorkersProposed
from stretto_messages.profiler import ProfileMeasured
from stretto_messages.values import Plan, Resources, StepTimes

from tests.bench.feeding.feeding import BATCH, WARM, Bench

LEFT_S = 3600.0
"""Training that is left: enough for data workers to pay."""
STEPS_MIN = 8
"""Steps of a window at least, and of the first look at the rate."""


class Seen(NamedTuple):
    """One window: its rate, the data workers that it had, and the phase that the tuning was in after it."""

    per_s: float
    data_workers: int
    phase: str


@dataclass
class TunedJob:
    """One job. lanes: of one data worker; most, begin: data workers at most and at first; cores: of the worker."""

    fed: Bench
    lanes: int
    most: int
    cores: float = 1.0
    begin: int = 0
    warm: int = WARM
    """Steps after each change before the next window begins."""
    rules: TuningRules = field(default_factory=TuningRules)
    said: list[DataWorkersProposed] = field(default_factory=list[DataWorkersProposed])
    seen: list[Seen] = field(default_factory=list[Seen])

    def __post_init__(self) -> None:
        self.given = self.begin
        limits = DataWorkerLimits(Resources(float(self.lanes), GIB), most=self.most)
        self.tuning = Tuning("bench", TuningState(wanted=self.begin, given=self.begin), limits, self.rules)
        self.fed.use(self._addresses(self.begin), self.warm)

    def run(self, windows: int, window_s: float) -> None:
        """Train for so many windows of about ``window_s``; there is room for all data workers."""
        for _ in range(windows):
            if (proposed := self.step(window_s)) is not None:
                self.give(proposed.count)

    def until_told(self, window_s: float, windows_max: int) -> None:
        """Go on while it may still turn out that data workers bring nothing, for so many windows at most."""
        patience = math.ceil(self.rules.patience_s / window_s) + self.rules.windows
        for _ in range(windows_max):
            unchanged = [each.data_workers == self.given for each in self.seen[-patience:]]
            if not (self.given and self.tuning.is_trying) and (not self.given or all(unchanged)):
                return
            self.run(1, window_s)

    def step(self, window_s: float) -> DataWorkersProposed | None:
        """Train for a window; return what the tuning asks for after it."""
        per_s = self.seen[-1].per_s if self.seen else self.fed.per_s(STEPS_MIN)
        window = self.window(max(STEPS_MIN, round(window_s * per_s)))
        proposed = self.tuning.measured(window, LEFT_S, time.monotonic())
        self.seen.append(Seen(window.throughput / BATCH, self.given, self.tuning.state.phase))
        if proposed is not None:
            self.said.append(proposed)
        return proposed

    def give(self, count: int) -> None:
        """Have so many data workers from now on."""
        self.given = count
        self.tuning.decided(count)
        self.fed.use(self._addresses(count), self.warm)

    @property
    def intervals(self) -> int:
        """Windows up to the last change of the number; 0: it never changed."""
        changes = [n for n, (one, other) in enumerate(zip(self.seen, self.seen[1:], strict=False), 1)
                   if one.data_workers != other.data_workers]  # fmt: skip
        return changes[-1] if changes else 0

    @property
    def phases(self) -> tuple[str, ...]:
        """The phases in their order, each once for each time."""
        every = ["alone", *(each.phase for each in self.seen)]
        return tuple(phase for place, phase in enumerate(every) if not place or every[place - 1] != phase)

    def window(self, steps: int) -> ProfileMeasured:
        """Train so many steps; return their profile."""
        fed, lanes = self.fed, self.given * self.lanes
        work, cpu_s, begun_s = fed.lanes.work, time.process_time(), time.monotonic()
        fed.meter.window()
        fed.steps(steps)
        measured, span_s = fed.meter.window(), time.monotonic() - begun_s
        done = fed.lanes.work.since(work)
        prepare_s, prepare_cpu_s = fed.feed.prepare_s()
        sums = WindowSums(
            span_s=span_s,
            count=measured.steps,
            busy_s=measured.steps * measured.step_s,
            cpu_core_s=time.process_time() - cpu_s,
            read_s=measured.steps * measured.times.read_s,
        )
        worker = PodWindow("worker", prepare_s=prepare_s, prepare_cpu_s=prepare_cpu_s, sums=sums,
                           cpu_limit_cores=self.cores)  # fmt: skip
        data = PodWindow("data", lanes=lanes, sums=WindowSums(batches=done.batches, busy_s=done.busy_s))
        times = StepTimes(emb_s=0.0, grad_s=0.0, upd_s=0.0, sync_s=0.0, read_s=measured.times.read_s)
        told = {"plan": Plan(1, 1, self.cores, 1.0, GIB, GIB), "batch_size": BATCH, "window_s": span_s, "times": times}
        told |= {"step_time_s": measured.step_s, "throughput": BATCH / measured.step_s, "workers": (), "ps": ()}
        feed = feed_profile([worker], [data] if lanes else [])
        return replace(example_of(ProfileMeasured), job="bench", feed=feed, **told)

    def _addresses(self, count: int) -> Sequence[str]:
        return self.fed.lanes.addresses[: count * self.lanes]
