"""A model four times its memory: steps per second of servers that spill, beside servers that have room for all rows.

Two workers and two parameter servers of each side train Wide & Deep on the same samples, in turns of one run. The rows
are made beforehand, saved once, and restored by both sides. The tight servers may keep a quarter of the bytes that the
roomy ones take, entries and indices included. Their records pass the page cache, or are dropped from it all the time,
so that a cold row costs a read of the disk. The disk's own rate is measured in the same run: random reads of a page, as
many at once as a batch has. The bound is what it allows: min(1, its reads a second / (reads a step x steps a second
with room for all)). The tight side trains with look-ahead, and without: its workers name the rows of the batches to
come, or not.

Before that the tight servers have more of the bytes. What the roomy ones tell then foretells reads and speed, which
are compared with those that there are.

python -m tests.bench.training.spilling [seconds]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from stretto.engine import Access, Key, Layout, Parameters
from stretto.engine.spilling import random_reads_per_s
from stretto.examples.wide_deep import WideDeep
from stretto.readers import Batch
from stretto_core.model.spilling import (
    AHEAD_BYTES,
    LIMIT_SHARE,
    Correction,
    Step,
    hot_rows,
    noise_of,
    reads_per_step,
    speed_interval,
)
from stretto_messages.values import BUCKETS
from stretto_parameters import kernels

from tests.bench.claims import Claim, above
from tests.bench.experiments import staleness
from tests.bench.processes import Process, Servers, ask_all, first_columns, moves_to
from tests.bench.rows import Row, row, row_at_most
from tests.bench.training.trainer import Job
from tests.bench.training.trainer_task import BATCH

ROUNDS, ROUND_S = 6, 8.0
FILLED, FILLED_BATCH, LIKE_TRAINING = 300, 16_384, 48
SHARE = 0.25
FITTING_BAR, FITTING_ROUNDS = 0.97, 12
BAR, LOOK_AHEAD_BAR = 0.8, 0.9
FORETOLD, FORETOLD_ROUNDS = (0.75, 0.5, 0.375), 2
"""Shares of the bytes for which reads and speed are foretold; rows that have to go, go at once."""
FORETOLD_BARS = {"reads": 20.0, "steps/s": 10.0}
PUSH_BAR, MOVES = 2.0, 3
FOR_EVER_S, ENDLESS_BYTES = 1e6, 2**40
WARM_SHARE = 0.75
"""Share of the bytes in memory where rows may be warm. Of a row of 153 bytes, index included, a warm one takes 93."""
WARM_BAR = 0.9
WARM_SAMPLES, WARM_SEEDS = 409_600, (7, 8, 9, 10)


CLAIMS = (
    Claim("HeterPS §3", "parameters that are used often are in memory, the others on SSDs or disks", "no figure",
          "steps a second with a quarter of the bytes in memory, beside all of them", above(0.0),
          "a model 4 x its memory, the demo's stream, without look-ahead"),
    Claim("HeterPS §3", "what workers will need is fetched before it is needed", "no figure",
          "theirs are input data; ours, too, and the cold rows of the batches that come", above(0.0),
          "a model 4 x its memory, the demo's stream"),
)  # fmt: skip


class Demo(WideDeep):
    """The demonstration's stream, with more categories."""

    def __init__(self) -> None:
        sizes = {"categories": 600_000, "new_categories": 1_000_000, "samples": 10_000_000}
        super().__init__(hidden="256,128,64", embedding_dim=16, **sizes)


class Zipf(Demo):
    """Keys by Zipf's law, exponent 1.05, of 60,000 a field."""

    def __init__(self) -> None:
        super().__init__()
        weights = 1 / np.arange(1, 60_001) ** 1.05
        self.shares = np.cumsum(weights / weights.sum())

    def read(self, start: int, length: int) -> Batch:
        batch = super().read(start, length)
        drawn = np.random.default_rng(start).random(batch["categorical"].shape)
        return {**batch, "categorical": np.searchsorted(self.shares, drawn).astype(np.int64)}


TASKS = {"the demo's stream": Demo, "Zipf's law": Zipf}


@dataclass(frozen=True, slots=True)
class Turn:
    """Steps a second of a round; of a step rows read and pulled, processor time, computing; the time of each push."""

    rate: float
    reads: float
    pulled: float
    cpu_s: float
    compute_s: float
    pushes_s: list[float]


class Side:
    """A job of two servers and two workers that train `task` from a common checkpoint."""

    def __init__(self, task: str, spill: dict[str, Any] | None) -> None:
        """Start the pods. spill: as servers take it; None: their rows stay in memory."""
        self.job = Job()
        self.job.workers = [
            Process("-m", "tests.bench.training.trainer_worker", f"tests.bench.training.spilling:{task}")
            for _ in range(2)
        ]
        [layout, _] = [worker.ask(do="layout")["layout"] for worker in self.job.workers]
        self.job.servers = Servers(self.job.engine, layout, spill=spill)
        self.job.servers.start(2)
        self.job.stream = True

    def tiers(self, **given: Any) -> list[dict[str, Any]]:
        return [process.ask(do="tiers", **given) for process in self.job.servers.processes]

    def load(self, paths: list[str]) -> None:
        """Restore the common checkpoint."""
        for index, columns in first_columns(self.job.servers.addresses).items():
            self.job.servers.processes[index].ask(do="load", paths=paths, columns=columns)
        self.job.connect()

    def turn(self, hints: bool = True) -> Turn:
        """Train; hints: workers name the rows of the batches to come."""
        self.job.connect(hints=hints)
        names = ("rows_read", "rows_pulled")
        before = [sum(each.get(name, 0) for each in self.tiers()) for name in names]
        steps = self.job.round(ROUND_S)
        after = [sum(each.get(name, 0) for each in self.tiers()) for name in names]
        each_step = [(now - then) / steps.steps for now, then in zip(after, before, strict=True)]
        compute_s = statistics.median(worker.ask(do="compute_s") for worker in self.job.workers)
        cpu_s = (steps.worker_ms + steps.server_ms) / 1e3
        return Turn(steps.rate, *each_step, cpu_s, compute_s, self.job.updates_s)

    @contextmanager
    def training(self) -> Iterator[None]:
        """Let the workers train meanwhile."""
        ask_all(self.job.workers, do="train", seconds=FOR_EVER_S)
        yield
        ask_all(self.job.workers, do="stop")
        ask_all(self.job.workers, do="collect")

    def save(self, folder: str) -> float:
        """Save images while workers train; return the longest pause."""
        paths = [f"{folder}/again-{index}" for index in range(2)]
        with self.training():
            return max(
                process.ask(do="save", path=path)["pause_seconds"]
                for path, process in zip(paths, self.job.servers.processes, strict=False)
            )

    def move(self) -> list[float]:
        """Move columns to a third server and back while workers train; return how long each group was frozen."""
        servers, moves = self.job.servers, moves_to(2, [0, 1])
        if len(servers.processes) == 2:
            servers.start(1)
        back = {to: {column: 2 for column, source in moves.items() if source == to} for to in (0, 1)}
        frozen_s: list[float] = []
        with self.training():
            ask_all(self.job.workers, do="meet", servers=servers.addresses)
            for to, sources in {2: moves, **back}.items():
                moved = servers.processes[to].ask(do="move", sources=sources, addresses=servers.addresses)
                frozen_s += [step[2] for step in moved["steps"]]
        return frozen_s


def fill(task: WideDeep, servers: Servers) -> None:
    """Make the rows of the first samples: pulls, and pushes without a gradient.

    The last ones come in batches as in training, so that the servers know how soon such a batch's rows are used again.
    """
    layout = Layout.from_dict(servers.layout)
    access = Access(Key.of(servers.access["key"].encode()))
    parameters = Parameters(layout, dict(servers.addresses), worker=9, access=access)
    parameters.seed(np.zeros(layout.dense_size, np.float32))
    dense = np.zeros(layout.dense_size, np.float32)
    few = range((FILLED - LIKE_TRAINING) * FILLED_BATCH, FILLED * FILLED_BATCH, BATCH)
    for begin in (*range(0, few.start, FILLED_BATCH), *few):
        size = BATCH if begin in few else FILLED_BATCH
        keys = layout.index(task.keys(task.read(begin, size)))
        rows = [np.zeros((len(each), 16), np.float32) for each in keys.tables]
        where = {"shard": 10**8 + begin, "attempt": 1, "start": 0, "stop": size}
        parameters.begin_pull(keys).result()
        parameters.push(keys, rows, dense, **where)
        parameters.forget([where["shard"]])
    parameters.close()


@contextmanager
def sides(name: str, folder: str, share: float, *, warms: bool = False) -> Iterator[tuple[Side, Side, int]]:
    """Yield the roomy side, the tight side, and the bytes that the rows of a server take in the first.

    share: of these bytes, for the tight side. warms: that one has no disk, and rounds rows.
    """
    task = TASKS[name]
    with ExitStack() as stack:
        roomy = Side(task.__name__, {"folder": folder, "budget_bytes": ENDLESS_BYTES})
        stack.callback(roomy.job.kill)
        roomy.job.servers.place()
        fill(task(), roomy.job.servers)
        paths = [f"{folder}/image-{index}" for index in range(2)]
        for path, process in zip(paths, roomy.job.servers.processes, strict=True):
            process.ask(do="save", path=path)
        full_bytes = max(each["memory_bytes"] for each in roomy.tiers())
        where = {"folder": None if warms else folder, "warms": warms}
        tight = Side(task.__name__, {**where, "budget_bytes": int(share * full_bytes)})
        stack.callback(tight.job.kill)
        tight.load(paths)
        roomy.job.connect()
        tight.tiers(uncached=not warms)
        yield roomy, tight, full_bytes


def foretold(name: str, roomy: Side, tight: Side, full_bytes: int, disk_reads_per_s: float) -> list[Row]:
    """Compare what the roomy side's telemetry foretells for less memory with what the tight side then does.

    All processes share the machine, so its cores are those of the servers: as many as they all got. With still less
    memory entries and index leave hardly a row, and no spilling would be offered.
    """
    off: dict[str, list[str]] = {"reads": [], "steps/s": []}
    worst, inside, widths = dict.fromkeys(off, 0.0), list[bool](), list[float]()
    step_times_s: list[float] = []
    for share in FORETOLD:
        tight.tiers(budget_bytes=int(share * full_bytes))
        tight.turn()
        errors: dict[str, list[float]] = {of: [] for of in off}
        for _ in range(FORETOLD_ROUNDS):
            known, found = roomy.turn(), tight.turn()
            step_times_s.append(2 / known.rate)
            reads = sum(_reads(each, share * full_bytes, known.pulled / 2) for each in roomy.tiers())
            step = Step(
                2 / known.rate,
                known.compute_s,
                2,
                disk_reads_per_s,
                known.pulled,
                known.cpu_s,
                known.cpu_s * known.rate,
            )
            interval = Correction().interval(reads, known.pulled)
            speeds = speed_interval(known.rate, step.slowdown_interval(interval), noise_of(step_times_s))
            errors["reads"].append(reads / found.reads - 1)
            errors["steps/s"].append(known.rate / (1 + step.slowdown(reads)) / found.rate - 1)
            inside.append(speeds.low <= found.rate <= speeds.high)
            widths.append((speeds.high - speeds.low) / known.rate)
        for of, each in errors.items():
            worst[of] = max(worst[of], 100 * abs(statistics.median(each)))
            off[of].append(f"{share:g}: {', '.join(f'{one:+.0%}' for one in each)}")
    rows = [
        row_at_most(
            f"{of} foretold, {name}: largest error", worst[of], "%", bar, f"by share of the bytes {'; '.join(off[of])}"
        )
        for of, bar in FORETOLD_BARS.items()
    ]
    told = f"{len(inside)} rounds; median width {statistics.median(widths):.0%} of the speed with room for all"
    held, of = 100 * sum(inside) / len(inside), f"steps/s inside the interval, {name}"
    return [*rows, row(of, held, "% of rounds", ">= 90", held >= 90, told)]


def _reads(server: dict[str, Any], budget_bytes: float, pulled: float) -> float:
    """Return the reads a step that a server's telemetry foretells under a budget: that is what a limit leaves."""
    rows, row_bytes = server["rows"], server["row_bytes"]
    rest = server["memory_bytes"] - rows * row_bytes + BUCKETS / 2 * AHEAD_BYTES
    hot = hot_rows(rows, row_bytes, rest, budget_bytes / LIMIT_SHARE)
    return reads_per_step(server["miss_ratios"], hot / rows, rows, pulled)


def measured(name: str) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        reads_per_s = statistics.median(random_reads_per_s(Path(folder), kernels.load()) for _ in range(5))
        with sides(name, folder, FORETOLD[0]) as (roomy, tight, full_bytes):
            roomy.turn()
            rows = foretold(name, roomy, tight, full_bytes, reads_per_s)
            tight.tiers(budget_bytes=int(SHARE * full_bytes))
            tight.turn()
            turns = [(roomy.turn(), tight.turn(), tight.turn(hints=False)) for _ in range(ROUNDS)]
            found = tight.tiers()
            pauses = [side.save(folder) for side in (roomy, tight)]
            moves = [(roomy.move(), tight.move()) for _ in range(MOVES)]
            counted = {count for side in (roomy, tight) for each in side.tiers() for count in each["samples"] if count}
    room = statistics.median(each.rate for each, _, _ in turns)
    need = statistics.median(each.reads for _, _, each in turns)
    bound = min(1.0, reads_per_s / max(1.0, need * room))
    cold = sum(each["cold_rows"] for each in found)
    most = max(each["memory_bytes"] for each in found)
    note = (
        f"{SHARE:g} of {full_bytes / 1e6:.0f} MB a server ({most / 1e6:.0f} at the end), {cold} rows cold; "
        f"{need:.0f} reads a step; the disk does {reads_per_s:.0f} a second: bound {bound:.2f}; books "
        f"{'exact' if len(counted) <= 2 else 'NOT EXACT'}"
    )
    for place, bar, told in ((1, LOOK_AHEAD_BAR, ""), (2, BAR, ", without look-ahead")):
        rate = statistics.median(turn[place].rate for turn in turns)
        ratio = statistics.median(turn[place].rate / turn[0].rate for turn in turns)
        what, ok = f"a model 4 x its memory, {name}{told}", ratio >= bar * bound
        rows.append(row(what, rate, "steps/s", f">= {bar:g} x bound", ok, note, room, ratio))
    rows.append(slow_pushes(name, [[each for turn in turns for each in turn[side].pushes_s] for side in (0, 1)]))
    frozen_s = [[each for move in moves for each in move[side]] for side in (0, 1)]
    told = f"medians of {len(frozen_s[1])} groups of columns, in {MOVES} moves there and back of a third of them; "
    told += f"the longest {1e3 * max(frozen_s[1]):.0f} and {1e3 * max(frozen_s[0]):.0f} ms"
    freezes = [statistics.median(each) for each in frozen_s]
    rows += [
        at_most_so_many_times("longest push waits for an image of a spilled server", name, 1.0, pauses, "2 images"),
        at_most_so_many_times("freeze of a spilled server", name, 1.2, freezes, told),
    ]
    return rows


def slow_pushes(name: str, pushes_s: Sequence[list[float]]) -> Row:
    """Compare the slowest pushes of both sides: how long they were in a server, which evicts and wakes meanwhile."""
    (median, tight_median), p99s = (
        [1e3 * statistics.median(each) for each in pushes_s],
        [float(np.percentile(each, 99)) for each in pushes_s],
    )
    told = f"inside the server, with its queue; {len(pushes_s[1])} and {len(pushes_s[0])} pushes, with look-ahead; "
    told += f"medians {tight_median:.1f} and {median:.1f} ms"
    return at_most_so_many_times("p99 of a push under eviction", name, PUSH_BAR, p99s, told)


def at_most_so_many_times(what: str, name: str, bar: float, seconds: Sequence[float], told: str) -> Row:
    """Return a row of the tight side's seconds beside those of the roomy side, which are the first."""
    roomy_s, tight_s = seconds
    is_met = tight_s <= bar * roomy_s
    return row(f"{what}, {name}", 1e3 * tight_s, "ms", f"<= {bar:g} x", is_met, told, 1e3 * roomy_s)


def measured_warm(name: str) -> Row:
    """Train with three quarters of the bytes in memory and no disk: rows that find no room are rounded."""
    with tempfile.TemporaryDirectory() as folder, sides(name, folder, WARM_SHARE, warms=True) as (roomy, tight, full):
        for side in (roomy, tight):
            side.turn()
        turns = [(roomy.turn(), tight.turn()) for _ in range(ROUNDS)]
        found = tight.tiers()
        counted = {count for side in (roomy, tight) for each in side.tiers() for count in each["samples"] if count}
    ratio = statistics.median(mine.rate / room.rate for room, mine in turns)
    most, warm = max(each["memory_bytes"] for each in found), sum(each["warm_rows"] for each in found)
    note = (
        f"{WARM_SHARE:g} of {full / 1e6:.0f} MB a server ({most / 1e6:.0f} at the end), {warm} rows warm, "
        f"{sum(each['rows_dozed'] for each in found)} departures; books {'exact' if len(counted) <= 2 else 'NOT EXACT'}"
    )
    rates = [statistics.median(turn[side].rate for turn in turns) for side in (1, 0)]
    what = f"a model {1 / WARM_SHARE:.2f} x its memory, warm rows, no disk, {name}"
    return row(what, rates[0], "steps/s", f">= {WARM_BAR:g} x", ratio >= WARM_BAR, note, rates[1], ratio)


def measured_fitting(name: str) -> list[Row]:
    """Train with memory for all rows, by servers that may spill and by servers that may not."""
    task = TASKS[name]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        both = [Side(task.__name__, spill) for spill in ({"folder": folder, "budget_bytes": ENDLESS_BYTES}, None)]
        for side in both:
            stack.callback(side.job.kill)
            side.job.servers.place()
            fill(task(), side.job.servers)
            side.turn()
        rates = [[side.turn().rate for side in both] for _ in range(FITTING_ROUNDS)]
        found = [side.tiers() for side in both]
    row_bytes = [sum(each["memory_bytes"] for each in one) / sum(each["rows"] for each in one) for one in found]
    (auto, never), ratio = map(statistics.median, zip(*rates, strict=True)), statistics.median(a / b for a, b in rates)
    what, told = f"all rows fit, {name}", "servers that may spill beside servers that may not"
    note = f"{told}; {FITTING_ROUNDS} rounds of {ROUND_S:g} s each, {np.round([a / b for a, b in rates], 2)}"
    return [
        row(what, auto, "steps/s", f">= {FITTING_BAR:g} x", ratio >= FITTING_BAR, note, never, ratio),
        row_at_most(f"bytes a row, {what}", row_bytes[0], "bytes", float(np.ceil(row_bytes[1])), told, row_bytes[1]),
    ]


def measured_loss() -> Row:
    """Train with several seeds, in turns with memory for all rows and with warm ones."""
    turns: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for seed in WARM_SEEDS:
        exact = staleness.measured("delayed", WARM_SAMPLES, 0, seed)
        memory_bytes = int(WARM_SHARE * exact["bytes"])
        turns.append((exact, staleness.measured("delayed", WARM_SAMPLES, 0, seed, 1, memory_bytes)))
    losses = [[each["loss"] for each in side] for side in zip(*turns, strict=True)]
    spread = statistics.stdev(losses[0])
    changes = [warm - exact for exact, warm in zip(*losses, strict=True)]
    change = statistics.mean(changes)
    [dozed, warm] = [statistics.mean(each[name] for _, each in turns) for name in ("dozed", "warm")]
    note = (
        f"float32 {statistics.mean(losses[0]):.5f}, its deviation over {len(turns)} seeds {spread:.5f}; by seed "
        f"{np.round(changes, 5)}; {dozed:.0f} departures, {warm:.0f} of {turns[0][1]['rows']} rows warm at the end"
    )
    told = f"<= {spread:.5f} either way"
    return row("held-out loss, warm rows: change", change, "", told, abs(change) <= spread, note)


def run() -> list[Row]:
    """Return the rows of both streams, of warm rows, and of servers that need not spill."""
    tight = [each for name in TASKS for each in measured(name)]
    return [*tight, *map(measured_warm, TASKS), measured_loss(), *measured_fitting(next(iter(TASKS)))]


if __name__ == "__main__":
    ROUND_S = float(sys.argv[1]) if len(sys.argv) > 1 else ROUND_S
    for each in run():
        print(each)
