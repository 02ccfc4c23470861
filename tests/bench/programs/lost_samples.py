"""Samples lost or trained twice under kills and resizes, with the loaders of the field and with Stretto.

One schedule for all (loaders/schedule.py), by seed: two workers train 19,968 samples in batches of 64, one epoch,
shuffled where the loader can. A worker is killed by SIGKILL, a third one joins, another is killed, one leaves, another
is killed. A worker sleeps a millisecond for each sample, then writes the batch's numbers to its journal: from there on
they are trained. Two counts (loaders/counting.py):

- *trained*: all that any worker wrote, which tells what is done again, and what nobody ever trained.
- *surviving*: what the parameters hold at the end, where a program goes back to a checkpoint. Where no checkpoint keeps
  the place in the data, there is no such count.

Each loader is used as its documentation says for training that is interrupted:

- *group*: each change of the workers, by death or resize, ends all, and they begin again from the last checkpoint,
  every 16 steps, as under torchrun. A checkpoint has the states of the loader in all ranks. 64 is the batch of a
  worker; where "192 in all" is said, the batch of all is kept at a resize: 96 with two workers, 64 with three.
- *service*: workers take what is next from a service, which nobody kills. A dead one is replaced, the others go on.

Three things favour the peers: their launcher takes no time, a death is known at once, and workers are forks that have
imported all. Stretto's are pods of an installation as `stretto up` makes one: missed, started and imported.

A figure is the median of ten seeds; the row of a peer that cannot be had says why. The variable LOADERS names the
folder where pip makes an environment for each peer.

LOADERS=.stretto/loaders python -m tests.bench --only lost_samples

All rows take hours. With LOADER='Stretto, level 1' (a part of the names below) and SEEDS=1 before it, it is
the rows of that name and one seed.
"""

from __future__ import annotations

import json
import os
import secrets
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stretto_installation.server import free_port

from tests.bench.places import ROOT
from tests.bench.processes import Process
from tests.bench.programs.loaders import counting, environments, loaders
from tests.bench.programs.loaders.fleets import Alone, Fleet, Job, Together
from tests.bench.programs.loaders.nursery import Nursery
from tests.bench.programs.loaders.ours import Stretto, installation
from tests.bench.programs.loaders.schedule import BATCH, SAMPLES, SHARD_BATCHES, events
from tests.bench.rows import Row, row

SEEDS = range(1, 1 + int(os.environ.get("SEEDS", "10")))
LOADER = os.environ.get("LOADER", "")
"""A part of the names of the rows to measure; empty: all of them."""
TORCH = "torch==2.13.0"
KILLS = 3
OF_RAY = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
"""Variables of Ray's processes, with a key of this run: Ray would keep one in the home folder."""
FIGURES = ROOT / "bench-results" / "lost_samples.jsonl"
"""Each run's figures, one line each."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A loader. function: in loaders.py. requirements: of its environment; none: this one has it. is_service: workers
    take what is next from a service, and are replaced alone. has_service: all begin again, and the service stays.
    total: the batch of all workers is kept at a resize. files: it reads files of its own."""

    name: str
    function: str
    environment: str = ""
    requirements: tuple[str, ...] = ()
    is_service: bool = False
    has_service: bool = False
    total: bool = False
    files: bool = False


TORCHDATA = ("torchdata", (TORCH, "torchdata==0.11.0"))
DLROVER = ("dlrover", ("dlrover==0.6.1", TORCH))
VISION = ("torch==2.14.1", "torchvision==0.29.1", "mosaicml-streaming==0.13.0")
KINDS = (
    Kind("torchrun, DistributedSampler, steps skipped", "distributed_sampler", *TORCHDATA),
    Kind("DistributedSampler, 192 in all", "distributed_sampler", *TORCHDATA, total=True),
    Kind("torchdata StatefulDataLoader", "stateful_data_loader", *TORCHDATA),
    Kind("StatefulDataLoader, 192 in all", "stateful_data_loader", *TORCHDATA, total=True),
    Kind("Grain ElasticIterator", "grain", "grain", ("grain==0.2.18",)),
    Kind("MosaicML Streaming", "streaming", "streaming", VISION, files=True),
    Kind("litData", "litdata", "litdata", (TORCH, "litdata==0.2.76"), files=True),
    Kind("DLRover ElasticDistributedSampler", "elastic_distributed_sampler", *DLROVER),
    Kind("Ray Data streaming_split", "ray_data", "ray", ("ray[data]==2.60.0",), has_service=True),
    Kind("DLRover shards", "dlrover_shards", *DLROVER, is_service=True),
    Kind("tf.data service", "tf_data_service", is_service=True),
)


@dataclass(frozen=True, slots=True)
class Result:
    """One run. surviving: None where no checkpoint keeps the place in the data. refused: what refused a resize."""

    trained: counting.Count
    surviving: counting.Count | None
    samples_per_s: float
    longest_gap_s: float
    refused: str
    load: float


def played(name: str, seed: int, fleet: Fleet, *, goes_back: bool) -> Result:
    """Train under the events of a seed, and keep the figures. Raises EOFError, TimeoutError."""
    try:
        groups = fleet.play(events(seed))
    finally:
        fleet.close()
    batches = [each for group in groups.values() for each in group.batches]
    surviving = counting.counted(counting.surviving(groups), SAMPLES) if goes_back else None
    speed, gap_s = counting.samples_per_s(batches, SAMPLES), counting.longest_gap_s(batches)
    found = Result(counting.counted(batches, SAMPLES), surviving, speed, gap_s, fleet.refused, os.getloadavg()[0])
    FIGURES.parent.mkdir(exist_ok=True)
    with FIGURES.open("a") as file:
        told = {"trained": [found.trained.lost, found.trained.repeated]}
        told |= {"surviving": [surviving.lost, surviving.repeated]} if surviving else {}
        rest = {"samples_per_s": round(speed), "gap_s": round(gap_s, 2), "load": found.load, "refused": found.refused}
        file.write(json.dumps({"name": name, "seed": seed, **told, **rest}) + "\n")
    return found


def results_of(kind: Kind, top: Path) -> list[Result]:
    """Return the runs of a loader. Raises Missing, EOFError, TimeoutError."""
    python = environments.python_of(kind.environment, kind.requirements, loaders.IMPORTS[kind.function])
    (folder := top / f"{kind.function}-{kind.total}").mkdir()
    os.environ |= OF_RAY
    nursery = Nursery(kind.function, python, folder)
    try:
        if kind.files:
            writer = nursery.worker()
            writer.ask(do="prepare", data=str(folder / "data"))
            writer.end()
        results = []
        for seed in SEEDS:
            (run := folder / str(seed)).mkdir()
            with _fleet(kind, Job(nursery, run, folder / "data", seed, kind.total), python) as fleet:
                results.append(played(kind.name, seed, fleet, goes_back=not kind.is_service))
        return results
    finally:
        nursery.close()


@contextmanager
def _fleet(kind: Kind, job: Job, python: str) -> Iterator[Fleet]:
    if not (kind.is_service or kind.has_service):
        yield Together(job)
        return
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        command, environment = ("-m", "tests.bench.programs.loaders.services", kind.function), {"RAY_TMPDIR": folder}
        service = Process(*command, python=python, environment=environment)
        try:
            yield Alone(job, service) if kind.is_service else Together(job, service.ask(do="begin", port=free_port()))
        finally:
            service.kill()


def ours(top: Path, level: int, *, are_ranks: bool = False) -> list[Result]:
    name = f"{level}{', ranks' if are_ranks else ''}"
    (journals := top / f"journals-{level}-{are_ranks}").mkdir()
    results = []
    with installation(installed := top / f"installed-{level}-{are_ranks}", journals):
        for seed in SEEDS:
            (run := journals / f"seed-{seed}").mkdir()
            fleet = Stretto(installed, run, level, are_ranks=are_ranks)
            results.append(played(f"Stretto, level {name}", seed, fleet, goes_back=level == 2))
    return results


def row_of(name: str, told: str, results: list[Result], most: int | None = None) -> Row:
    """Return the row of a loader; ``most``: samples that may be lost or repeated, and none of them lost."""
    counts = [each.surviving or each.trained for each in results]
    wrong = [each.lost + each.repeated for each in counts]
    note = (
        f"{told}; lost {_spread([each.lost for each in counts])}, "
        f"repeated {_spread([each.repeated for each in counts])}; "
        f"trained again {_spread([each.trained.repeated for each in results])}; "
        f"{statistics.median(each.samples_per_s for each in results):,.0f} samples/s; "
        f"longest time without a batch {statistics.median(each.longest_gap_s for each in results):.2f} s; "
        f"load {min(each.load for each in results):.0f} to {max(each.load for each in results):.0f}"
    )
    if refused := next((each.refused for each in results if each.refused), ""):
        note += f"; the resize was refused: {refused.splitlines()[0][:160]}"
    ok = None if most is None else max(wrong) <= most and not any(each.lost for each in counts)
    return row(f"lost and repeated samples: {name}", statistics.median(wrong), "samples", _bar(most), ok, note)


def _bar(most: int | None) -> str:
    return "" if most is None else f"0 lost, <= {most} repeated"


def _spread(figures: list[int]) -> str:
    least, middle, most = min(figures), statistics.median(figures), max(figures)
    return f"{middle:.0f}" if least == most else f"{middle:.0f} ({least} to {most})"


def measured(name: str, told: str, results: Callable[[], list[Result]], most: int | None = None) -> Row:
    """Return the row of a loader. One that cannot be had is skipped for a peer, and a miss where there is a bar."""
    try:
        return row_of(name, told, results(), most)
    except (environments.Missing, EOFError, TimeoutError) as error:
        ok, why = (None, "skipped") if most is None else (False, "failed")
        return row(f"lost and repeated samples: {name}", float("nan"), "samples", _bar(most), ok, f"{why}: {error}")


def run() -> list[Row]:
    """Return the rows of the loaders that :data:`LOADER` names, and Stretto's."""
    with tempfile.TemporaryDirectory(prefix="stretto-loaders-") as name:
        top = Path(name)
        shards = KILLS * SHARD_BATCHES * BATCH
        rows: list[tuple[str, str, Callable[[], list[Result]], int | None]] = [
            ("Stretto, level 1", "workers that are replaced alone", lambda: ours(top, 1), shards),
            ("Stretto, level 2", "one worker, surviving", lambda: ours(top, 2), 0),
            ("Stretto, level 2, ranks", "group, surviving", lambda: ours(top, 2, are_ranks=True), 0),
        ]
        for kind in KINDS:
            told = "service, trained" if kind.is_service else "group, surviving"
            rows.append((kind.name, told, lambda kind=kind: results_of(kind, top), None))
        if not (wanted := [each for each in rows if LOADER in each[0]]):
            raise ValueError(f"LOADER is {LOADER!r}: state a part of one of {', '.join(each[0] for each in rows)}")
        return [measured(*each) for each in wanted]
