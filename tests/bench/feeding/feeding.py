"""Data workers of one trainer: what they bring where reading is the limit, and what they cost where it is not.

Trainer and feed are in this process, parameter server and lanes in processes of their own, as in pods. A
step is that of Wide & Deep on 512 samples and one thread. The slow store gives a reader one batch in ``STORE_S`` and
costs no processor time, so that eight lanes and home scale on two cores; deep layers of ``HIDDEN`` units then keep the
trainer, and not its readers, at its bound. The bound is the rate with batches that are there, each another one. All
take turns.

Processor times are those of this process, receiving included: whatever a lane spends is gone from the trainer. Behind
each step it rests ``REST_S``, as if it waited for servers elsewhere, since two lanes on the same two cores could not
follow it otherwise.
"""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Collection, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from stretto.batches.feed import Feed
from stretto.batches.preparation import fingerprint_of
from stretto.build import make_program, options_of
from stretto.data_worker.lane_pool import LanePool
from stretto.engine import Parameters
from stretto.engine.link import Access
from stretto.model.entry_point import load
from stretto.readers.criteo import CATEGORIES
from stretto.worker.step import Trainer, Work
from stretto.worker.step_timer import StepTimer
from stretto_plane import Key
from stretto_wire.jobspec.spec import JobSpec

from tests.bench.claims import Claim, at_least
from tests.bench.feeding.feeding_server import server
from tests.bench.feeding.readers import write
from tests.bench.rows import Row, row

BATCH = 512
STORE_S = 0.08
HIDDEN = "256,128"
REST_S = 0.05
WARM, STEPS = 24, 120
POINTS = (1, 2, 3, 4, 8)
ROUNDS = 3
NEIGHBOURS = (4, 8)
"""Crosses of each text with the next ones: the more, the larger the part of a step that preparing takes."""
PARTS = 16
"""Files of 50,000 samples that are put together: enough for all rounds without reading any twice."""
START_S = 120.0
SCALING_BAR, GONE_BAR, LEFT_BAR, GAP_BAR = 0.95, 0.8, 0.3, 3.0
CLAIMS = (
    Claim(
        "GoldMiner §5.2, Fig. 9",
        "training speed grows with data workers up to its bound: worst point over the expected one",
        "0.83",
        "a store that costs no processor time, up to 8 lanes; the paper's worst gap is 17 %",
        at_least(0.83),
        "steps/s with 8 lanes / min(9 × alone, bound)",
    ),
)


def spec_of(entry: str = "stretto.examples.wide_deep:WideDeep", **arguments: Any) -> JobSpec:
    """Return a job of Wide & Deep; ``arguments`` are those of its reader."""
    return JobSpec.parse(
        {
            "name": "feeding",
            "model": {
                "entry": entry,
                "arguments": {"seed": 5, "categories": 50_000, "embedding_dim": 16, **arguments},
                "embedding_dim": 16,
            },
            "dataset": {"samples": 10**6, "batch_size": BATCH},
        }
    )


@dataclass
class Bench:
    """A trainer of a job, and the lanes that it may use."""

    spec: JobSpec
    folder: Path
    lanes_most: int
    access: Access = field(default_factory=lambda: Access(Key.random()))
    ended_s: list[float] = field(default_factory=list[float])
    next_shard: int = 0
    start: int = 0
    """the next sample"""
    rest_s: float = 0.0
    """time after each step in which the trainer does nothing"""

    def __post_init__(self) -> None:
        self.program = make_program(load(self.spec.model), options_of(self.spec))
        self.feed, self.meter = Feed(self.program), StepTimer()
        self.opened = ExitStack()
        key = Key.random()
        address = self.opened.enter_context(server(self.program.layout, key))
        self.parameters = Parameters(self.program.layout, {0: address}, worker=0, access=Access(key))
        self.trainer = Trainer(
            self.program,
            self.parameters,
            BATCH,
            self.meter,
            passed=lambda _: self._passed(),
            pipeline_from_step=0,
            feed=self.feed,
        )
        self.parameters.seed(self.program.initial_dense(), self.program.initial_state())
        self.program.warm()
        address_of = lambda number: f"unix:{self.folder}/lane-{number}.sock"  # noqa: E731
        self.lanes = LanePool(self.spec, self.lanes_most, address_of, self.access, self.program.reading)
        self.until_served()

    def _passed(self) -> None:
        self.ended_s.append(time.monotonic())
        time.sleep(self.rest_s)

    def until_served(self, killed: int | None = None) -> None:
        """Wait until all lanes serve, and the process ``killed`` is none of them."""
        deadline = time.monotonic() + START_S
        while len(self.lanes.addresses) < self.lanes_most or killed in self.lanes.pids.values():
            assert time.monotonic() < deadline, f"{len(self.lanes.addresses)} of {self.lanes_most} lanes serve"
            time.sleep(0.1)

    def use(self, addresses: Collection[str], warm: int = WARM) -> None:
        """Use these lanes and no others, from when they are trusted on."""
        self.feed.use(addresses, self.access, fingerprint_of(self.spec.model_dump(mode="json"), self.program.task))
        self.steps(warm + 4 * len(addresses))

    def steps(self, count: int, midway: Callable[[], None] | None = None) -> list[float]:
        """Train so many steps; return the times between their ends. ``midway`` is called in the middle.

        They are one shard, or two with ``midway``: between these the lanes have nothing to do, as no worker lets them
        be, who leases ahead.
        """
        self.ended_s.clear()
        for number, part in enumerate((count,) if midway is None else (count // 2, count - count // 2)):
            if number and midway is not None:
                midway()
            self.trainer.train(Work(self.next_shard, 1, self.start, part * BATCH))
            self.next_shard += 1
            self.start += part * BATCH
        return [after - before for before, after in zip(self.ended_s, self.ended_s[1:], strict=False)]

    def per_s(self, count: int = STEPS) -> float:
        """Return the steps per second."""
        gaps = self.steps(count)
        return len(gaps) / sum(gaps)

    def close(self) -> None:
        self.trainer.close()
        self.parameters.close()
        self.opened.close()
        self.lanes.close()


@contextmanager
def bench(lanes: int, **arguments: Any) -> Generator[Bench]:
    with tempfile.TemporaryDirectory() as folder:
        made = Bench(spec_of(**arguments), Path(folder), lanes)
        try:
            yield made
        finally:
            made.close()


def run() -> list[Row]:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with bench(max(POINTS), hidden=HIDDEN, samples_per_s=BATCH / STORE_S) as slow:
        rows = [*scaling(slow), *faults(slow)]
    return [*rows, *processor_time(), nothing_to_gain()]


def scaling(slow: Bench) -> list[Row]:
    """Return the steps per second with more and more lanes, beside those that they, home and the bound allow."""
    slow.steps(WARM)
    rounds = [_scaled(slow) for _ in range(ROUNDS)]
    alone_per_s, bound_per_s = (statistics.median(each[name] for each in rounds) for name in ("alone", "bound"))
    busy = statistics.median(each["busy"] for each in rounds)
    note = f"bound {bound_per_s:.0f}/s, without any lane: there the machine's cores are {busy:.0%} busy"
    rows = [row("steps/s alone, slow store", alone_per_s, "1/s", "", None, note)]
    for count in POINTS:
        expected = [min((count + 1) * each["alone"], each["bound"]) for each in rounds]
        per_s = [each[f"{count}"] for each in rounds]
        ratio = statistics.median(one / other for one, other in zip(per_s, expected, strict=True))
        name = f"steps/s with {count} lanes / min({count + 1} × alone, bound)"
        busy = statistics.median(each[f"busy {count}"] for each in rounds)
        rows.append(
            row(name, statistics.median(per_s), "1/s", f">= {SCALING_BAR:g} ×", ratio >= SCALING_BAR,
                f"the machine's cores are {busy:.0%} busy",
                statistics.median(expected), ratio)
        )  # fmt: skip
    return rows


def _scaled(slow: Bench) -> dict[str, float]:
    """Return the steps per second of one round: alone, by the number of lanes, and with batches that are there."""
    slow.use(())
    found = {"alone": slow.per_s()}
    for count in POINTS:
        slow.use(slow.lanes.addresses[:count])
        psutil.cpu_percent()
        found[f"{count}"] = slow.per_s()
        found[f"busy {count}"] = psutil.cpu_percent() / 100
    slow.use(())
    prepare = slow.program.prepare
    starts = range(slow.start, slow.start + (WARM + STEPS) * BATCH, BATCH)
    ready = {start: prepare(start, BATCH) for start in starts}
    slow.program.prepare = lambda start, length, partition="": ready[start]
    try:
        slow.steps(WARM)
        psutil.cpu_percent()
        return found | {"bound": slow.per_s(), "busy": psutil.cpu_percent() / 100}
    finally:
        slow.program.prepare = prepare


def faults(slow: Bench) -> list[Row]:
    """Return the longest gap between two steps after a fault of one of two lanes, beside the longest without."""
    rows: list[Row] = []
    for name, number in (("kill -9", signal.SIGKILL), ("SIGSTOP", signal.SIGSTOP)):
        slow.use(slow.lanes.addresses[:2])
        ordinary_s = max(slow.steps(STEPS))
        victim = slow.lanes.pids[0]
        assert victim is not None
        longest_s = max(slow.steps(STEPS, lambda victim=victim, number=number: os.kill(victim, number)))
        if number == signal.SIGSTOP:
            os.kill(victim, signal.SIGKILL)
        slow.until_served(killed=victim)
        allowed_s = GAP_BAR * max(ordinary_s, STORE_S) + STORE_S
        note = f"allowed are {GAP_BAR:g} × the longest ordinary gap, or preparation, and one preparation"
        rows.append(
            row(f"longest gap after {name} of one of two lanes", 1e3 * longest_s, "ms", f"<= {1e3 * allowed_s:.0f} ms",
                longest_s <= allowed_s, note, 1e3 * ordinary_s)
        )  # fmt: skip
    return rows


def processor_time() -> list[Row]:
    """Return what lanes take of the trainer's processor time, on Parquet with strings, and with strings that cost."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "strings", "strings")
        parts = sorted((Path(folder) / "strings").iterdir())[:PARTS]
        file = Path(folder) / "strings.parquet"
        pq.write_table(pa.concat_tables([pq.read_table(part) for part in parts]), file, row_group_size=25_000)
        cheap = _spent(data=str(file))
        dear = {
            len(CATEGORIES) * neighbours: _spent(
                entry="tests.bench.feeding.feeding_task:Crosses", neighbours=neighbours, data=str(file)
            )
            for neighbours in NEIGHBOURS
        }
    what = "processor time of a step with lanes / alone"
    rows = [
        row(f"{what}, texts hashed by the reader", 1e3 * cheap.with_lanes_s, "ms", "", None, cheap.note,
            1e3 * cheap.alone_s)
    ]  # fmt: skip
    for crosses, spent in dear.items():
        left, least = spent.with_lanes_s / spent.alone_s, max(0.0, 1 - spent.prepare_s / spent.alone_s)
        load = f"{crosses} crosses of texts in Python"
        rows += [
            row(f"part of preparing's processor time gone from the trainer, {load}", spent.gone, "",
                f">= {GONE_BAR:g}", spent.gone >= GONE_BAR, spent.note),
            row(f"{what}, {load}", 1e3 * spent.with_lanes_s, "ms", f"<= {LEFT_BAR:g} ×", left <= LEFT_BAR,
                f"{least:.2f} × if the time of preparing by itself were gone", 1e3 * spent.alone_s),
        ]  # fmt: skip
    return rows


@dataclass(frozen=True)
class Spent:
    """Processor times of the trainer: of a step alone and with lanes, and of preparing a batch. Medians of rounds."""

    alone_s: float
    with_lanes_s: float
    prepare_s: float
    from_lanes: float
    """part of the batches"""

    @property
    def gone(self) -> float:
        """Return the part of preparing's time that has left the trainer."""
        return (self.alone_s - self.with_lanes_s) / self.prepare_s

    @property
    def note(self) -> str:
        return f"preparing takes {1e3 * self.prepare_s:.1f} ms; {self.from_lanes:.0%} of the batches from lanes"


def _spent(**arguments: Any) -> Spent:
    with bench(2, **arguments) as fed:
        alone_s, with_s, prepare_s, from_lanes = [], [], [], []
        for _ in range(ROUNDS):
            fed.rest_s = 0.0
            fed.use(())
            fed.rest_s = REST_S
            alone_s.append(_cpu_per_step(fed))
            fed.use(fed.lanes.addresses)
            before = fed.feed.counts.from_lanes
            with_s.append(_cpu_per_step(fed))
            from_lanes.append((fed.feed.counts.from_lanes - before) / STEPS)
            prepare_s.append(_cpu_of_preparing(fed))
    return Spent(*map(statistics.median, (alone_s, with_s, prepare_s, from_lanes)))


def _cpu_per_step(fed: Bench) -> float:
    begun_s = time.process_time()
    fed.steps(STEPS)
    return (time.process_time() - begun_s) / STEPS


def _cpu_of_preparing(fed: Bench, count: int = 80) -> float:
    """Return the processor time of preparing one batch, of samples that are not in any buffer."""
    first = fed.start
    fed.start += count * BATCH
    begun_s = time.process_time()
    for number in range(count):
        fed.program.prepare(first + number * BATCH, BATCH)
    return (time.process_time() - begun_s) / count


def nothing_to_gain() -> Row:
    """Return the steps per second with lanes where reading is no limit, beside those alone."""
    with bench(2) as quick:
        quick.steps(WARM)
        alone, beside = [], []
        for _ in range(ROUNDS):
            quick.use(())
            alone.append(quick.per_s())
            quick.use(quick.lanes.addresses)
            beside.append(quick.per_s())
    note = "two lanes by force on the trainer's two cores; auto starts none here"
    return row(
        "steps/s with lanes / alone, nothing to gain", statistics.median(beside), "1/s", "", None, note,
        statistics.median(alone),
    )  # fmt: skip


if __name__ == "__main__":
    for each in run():
        print(each)
