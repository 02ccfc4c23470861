"""``python -m tests.containers.trial``: figures of an installation under Compose, on a real engine.

``start``: until everything is healthy, and from a decided plan to the first container. ``rolling``: every service is
restarted, replica by replica, while a job trains. ``storm``: three replicas of each, and one killed every ten seconds.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import pairwise

from rich.console import Console

from tests.bench.__main__ import table
from tests.bench.rows import Row, row, row_at_most
from tests.containers.bases import docker, make
from tests.containers.compose import command
from tests.containers.engine import Engine
from tests.containers.images import described, unfit
from tests.containers.installation import EVERY_SERVICE, Installation, installed

HEALTHY_MAX_S = 30.0
POD_START_MAX_S = 1.5
PAUSE_MAX_S = 2.0
STORM_S = 180.0
KILL_EVERY_S = 10.0
SAMPLES = 200_000
SCALED = tuple(name for name in EVERY_SERVICE if name != "gateway")  # its port on the host can be had once
SEED = 1


def scaled(replicas: int) -> list[str]:
    return [argument for name in SCALED for argument in ("--scale", f"{name}={replicas}")]


def start(engine: Engine) -> list[Row]:
    with installed(engine) as installation:
        rows = [row_at_most("compose healthy", installation.healthy_s, "s", HEALTHY_MAX_S, "up --wait, images present")]
        took_s = [first_container_s(installation, f"start-{number}") for number in range(4)]
    note = (
        f"first container of a job after plan-decided, median of {len(took_s) - 1}; the first of all {took_s[0]:.2f} s"
    )
    return [*rows, row_at_most("container start", statistics.median(took_s[1:]), "s", POD_START_MAX_S, note)]


def first_container_s(installation: Installation, job: str) -> float:
    """From the decision to the engine's having started a container. The job is cancelled then."""
    installation.submit(job, SAMPLES)
    installation.until(lambda: installation.pods() != [], f"{job} has a container")
    decided = next(each.body["time_s"] for each in installation.gateway.events(job, names=("plan-decided",)))
    started = [described(installation.engine, "container", pod)["State"]["StartedAt"] for pod in installation.pods()]
    installation.gateway.cancel(job)
    installation.until(lambda: installation.pods() == [], f"the containers of {job} are gone")
    return min(datetime.fromisoformat(f"{each[:26]}+00:00").timestamp() for each in started) - decided


def rolling(engine: Engine) -> list[Row]:
    job = "rolled"
    with installed(engine, *scaled(2)) as installation:
        installation.submit(job, 10 * SAMPLES)
        installation.until(lambda: installation.trained_samples(job) > SAMPLES, "the job is under way")
        began_s, since_s = time.time(), completions(installation, job)[0]
        for service in EVERY_SERVICE:
            for container in installation.containers(service):
                docker(engine, "restart", container)
                installation.until(lambda service=service: installation.ready(service), f"{service} is ready again")
        ended_s = time.time()
        installation.until(lambda: installation.ended(job), "the job ends", 400)
        books, status = installation.gateway.audit(job), installation.status(job)
        moments = completions(installation, job)
    calm = longest_s([each for each in moments if since_s < each < began_s])
    pause = longest_s([each for each in moments if began_s <= each <= ended_s])
    note = f"longest time without a completed shard, while {ended_s - began_s:.0f} s of restarts; before: {calm:.2f} s"
    return [
        row_at_most("rolling restart: pause", pause, "s", PAUSE_MAX_S, note, calm),
        *accounting("rolling", [books], [status]),
    ]


def completions(installation: Installation, job: str) -> list[float]:
    """When each shard was completed."""
    told = installation.gateway.events(job, follow=False, names=("shard-completed",))
    return [event.body["time_s"] for event in told]


def longest_s(moments: Sequence[float]) -> float:
    return max((after - before for before, after in pairwise(moments)), default=0.0)


def storm(engine: Engine) -> list[Row]:
    chance = random.Random(SEED)
    jobs: list[str] = []
    killed: list[str] = []
    with installed(engine, *scaled(3)) as installation:
        over = time.monotonic() + STORM_S
        names = (f"storm-{number}" for number in itertools.count())
        turns = itertools.cycle(chance.sample(EVERY_SERVICE, len(EVERY_SERVICE)))
        while (begun := time.monotonic()) < over:
            if not jobs or installation.ended(jobs[-1]):
                jobs.append(next(names))
                installation.submit(jobs[-1], SAMPLES)
            service = next(turns)
            if running := installation.containers(service):
                installation.crash(chance.choice(running))
                killed.append(service)
            time.sleep(max(0.0, begun + KILL_EVERY_S - time.monotonic()))
            installation.until(lambda: installation.gateway.status()["ready"], "the gateway answers")
        for job in jobs:
            installation.until(lambda job=job: installation.ended(job), f"{job} ends", 300)
        books = [installation.gateway.audit(job) for job in jobs]
        ends = [installation.status(job) for job in jobs]
    count = row("storm: replicas killed", len(killed), "", "", None, f"in {STORM_S:.0f} s, {len(jobs)} jobs meanwhile")
    return [count, *accounting("storm", books, ends)]


def accounting(what: str, books: list[dict[str, object]], ends: list[str]) -> list[Row]:
    """That no job failed, and that each sample was trained once."""
    failed = sum(end != "finished" for end in ends)
    inexact = sum(not each["exact"] for each in books)
    trained = f"{sum(int(str(each['samples_done'])) for each in books):,} samples trained"
    return [
        row_at_most(f"{what}: jobs that failed", failed, "", 0, f"of {len(ends)}"),
        row_at_most(f"{what}: jobs without exact books", inexact, "", 0, trained),
    ]


PARTS: dict[str, Callable[[Engine], list[Row]]] = {"start": start, "rolling": rolling, "storm": storm}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.containers.trial", description=__doc__)
    parser.add_argument("--only", choices=PARTS, help="measure this part alone")
    only = parser.parse_args(arguments).only
    engine = Engine()
    engine.up(install=True)
    make(engine)
    command(engine, install=True)
    if reason := unfit(engine):
        raise SystemExit(reason)
    rows = [each for part in ((only,) if only else PARTS) for each in PARTS[part](engine)]
    Console(width=None if sys.stdout.isatty() else 160).print(table({"containers": {"rows": rows}}))
    return 0 if all(each["ok"] is not False for each in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
