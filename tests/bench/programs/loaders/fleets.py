"""Workers under the schedule: a group that begins again together, as under torchrun, or workers replaced alone."""

from __future__ import annotations

import signal
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stretto_installation.server import free_port

from tests.bench.processes import Process
from tests.bench.programs.loaders import counting
from tests.bench.programs.loaders.nursery import Nursery, Worker
from tests.bench.programs.loaders.schedule import BATCH, CHECKPOINT_STEPS, SAMPLES, WORKERS, Event

POLL_S = 0.005
LIMIT_S = 240.0


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a loader.

    folder: of the run's journals. data: of the data set. total: the batch of all workers together stays as it is at a
    resize, and not the batch of each.
    """

    nursery: Nursery
    folder: Path
    data: Path
    seed: int
    total: bool = False


class Fleet(ABC):
    """The workers of a job. refused: what a resize was refused with."""

    refused: str = ""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def turn(self) -> bool:
        """Go on for a moment; tell whether there is more to train."""

    @abstractmethod
    def kill(self, chance: float, delay_s: float) -> None:
        """Kill a worker, and do what the loader's launcher does then."""

    @abstractmethod
    def resize(self, workers: int) -> None:
        """Go on with so many workers."""

    @abstractmethod
    def close(self) -> None:
        """End all processes."""

    def journals(self) -> list[tuple[int, bytes]]:
        """Return the journals so far, each with the number of its group."""
        return [(int(each.name.partition("-")[0]), each.read_bytes()) for each in sorted(self.folder.glob("*-*.txt"))]

    def play(self, events: list[Event]) -> dict[int, counting.Group]:
        """Train to the end under the events; return what was trained. Raises EOFError, TimeoutError."""
        until = time.monotonic() + LIMIT_S
        for event in events:
            while sum(counting.samples_in(each) for _, each in self.journals()) < event.at_samples:
                if not self.turn():
                    return counting.read(self.journals())
                check(until)
            if event.does == "kill":
                self.kill(event.chance, event.delay_s)
            else:
                self.resize(event.workers)
        while self.turn():
            check(until)
        return counting.read(self.journals())


def check(until: float) -> None:
    """Raises TimeoutError after that time."""
    if time.monotonic() > until:
        raise TimeoutError(f"it was not over after {LIMIT_S:g} s")


class Together(Fleet):
    """A group of synchronous workers. Whatever happens to one, all begin again from the last checkpoint of all.

    The launcher itself takes no time here: there is no rendezvous, and a death is known at once.
    """

    def __init__(self, job: Job, service: str = "") -> None:
        super().__init__(job.folder)
        self.job, self.number, self.workers, self.service = job, 0, WORKERS, service
        self.processes: list[Worker] = []
        self.checkpoint: tuple[int, int] | None = None
        self.checkpoint_workers = 0
        self.begin()

    def begin(self) -> None:
        """Begin with all workers from the last checkpoint. Raises EOFError."""
        self.close()
        self.number += 1
        self.steps, self.port = 0, free_port()
        saved = (
            [str(self._state(*self.checkpoint, rank)) for rank in range(self.checkpoint_workers)]
            if self.checkpoint
            else []
        )
        size = BATCH * 3 // self.workers if self.job.total else BATCH
        self.processes = [self._started(rank) for rank in range(self.workers)]
        for rank, process in enumerate(self.processes):
            process.send(
                do="begin",
                journal=str(self.folder / f"{self.number}-{rank}.txt"),
                origin=self.checkpoint,
                checkpoint=saved,
                **place(self.job, rank, self.workers, size, self.service),
            )
        for process in self.processes:
            process.receive()
        self.ended = [False] * self.workers

    def _started(self, rank: int) -> Worker:
        ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        worlds = {"WORLD_SIZE": str(self.workers), "LOCAL_WORLD_SIZE": str(self.workers)}
        return self.job.nursery.worker(**ranks, **worlds, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(self.port))

    def _state(self, number: int, steps: int, rank: int) -> Path:
        return self.folder / f"checkpoint-{number}-{steps}-{rank}"

    def turn(self) -> bool:
        going = [each for each, ended in zip(self.processes, self.ended, strict=True) if not ended]
        for process in going:
            process.send(do="step")
        more = iter([process.receive() for process in going])
        self.ended = [ended or not next(more)["more"] for ended in self.ended]
        self.steps += 1
        if self.steps % CHECKPOINT_STEPS == 0 and not any(self.ended):
            for rank, process in enumerate(self.processes):
                process.ask(do="save", path=str(self._state(self.number, self.steps, rank)))
            self.checkpoint, self.checkpoint_workers = (self.number, self.steps), self.workers
        return not all(self.ended)

    def kill(self, chance: float, delay_s: float) -> None:
        for process in self.processes:
            process.send(do="step")
        time.sleep(delay_s)
        self.processes[int(chance * self.workers)].end()
        self.begin()

    def resize(self, workers: int) -> None:
        before, self.workers = self.workers, workers
        try:
            self.begin()
        except EOFError as error:
            self.refused, self.workers = str(error), before
            self.begin()

    def close(self) -> None:
        for process in self.processes:
            process.end()


class Alone(Fleet):
    """Workers that take from a service what is next. One that dies is replaced at once, and the others go on."""

    def __init__(self, job: Job, service: Process) -> None:
        super().__init__(job.folder)
        self.job, self.service, self.count = job, service, 0
        self.address = service.ask(do="begin", port=free_port())
        self.running: dict[int, Worker] = {}
        for _ in range(WORKERS):
            self._begin()

    def _begin(self) -> None:
        rank, self.count = self.count, self.count + 1
        self.running[rank] = worker = self.job.nursery.worker()
        journal = str(self.folder / f"{rank + 1}-0.txt")
        given = place(self.job, rank, WORKERS, BATCH, self.address)
        worker.ask(do="begin", journal=journal, origin=None, checkpoint=[], **given)
        worker.send(do="run")

    def turn(self) -> bool:
        time.sleep(POLL_S)
        for rank, worker in list(self.running.items()):
            if worker.has_answered():
                worker.receive()
                worker.end()
                del self.running[rank]
        return bool(self.running)

    def _end(self, rank: int, number: int) -> None:
        self.running.pop(rank).end(number)
        self.service.ask(do="lost", rank=rank)

    def kill(self, chance: float, delay_s: float) -> None:
        time.sleep(delay_s)
        self._end([*self.running][int(chance * len(self.running))], signal.SIGKILL)
        self._begin()

    def resize(self, workers: int) -> None:
        while len(self.running) < workers:
            self._begin()
        while len(self.running) > workers:
            self._end(max(self.running), signal.SIGTERM)

    def close(self) -> None:
        for worker in self.running.values():
            worker.end()


def place(job: Job, rank: int, workers: int, batch_size: int, service: str) -> dict[str, Any]:
    """Return the fields of a worker's place."""
    given = {"rank": rank, "workers": workers, "batch_size": batch_size, "service": service}
    return {**given, "samples": SAMPLES, "seed": job.seed, "data": str(job.data)}
