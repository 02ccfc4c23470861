"""The arbiter's edge: what its machine asks to be studied is solved in a process beside, and told to the journal."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import sys
from asyncio.subprocess import PIPE, Process

import structlog
from stretto_bus.tasks import end
from stretto_core.arbiter import ArbiterMachine
from stretto_core.arbiter.selection import Selection
from stretto_core.arbiter.studies import Task
from stretto_runtime import PartitionLost, Service
from stretto_runtime.inputs import CLUSTER

from stretto_arbiter.solving import SIZE_BYTES

log = structlog.get_logger("stretto.arbiter")


class Unsolved(Exception):
    """There is no answer; says why."""


class Solver:
    """One process (``solving``), started when it is first needed: it loads for a second, and takes 75 MB."""

    def __init__(self) -> None:
        self._process: Process | None = None

    async def solve(self, task: Task) -> Selection:
        """Until there is an answer. Whoever is cancelled meanwhile ends the process. Raises Unsolved."""
        process = await self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(pickle.dumps((task.algorithm, task.problem)))
            await process.stdin.drain()
            size = int.from_bytes(await process.stdout.readexactly(SIZE_BYTES))
            answer = pickle.loads(await process.stdout.readexactly(size))
        except (OSError, asyncio.IncompleteReadError):
            raise Unsolved(f"the process that solves ended with status {await process.wait()}") from None
        except asyncio.CancelledError:
            await self.end()
            raise
        except Exception as error:  # whatever a plug-in's answer is made of; what else the process says is unknown
            await self.end()
            raise Unsolved(f"the answer cannot be read: {error!r}") from error
        if not isinstance(answer, Selection):
            raise Unsolved(answer)
        return answer

    async def _started(self) -> Process:
        if self._process is None or self._process.returncode is not None:
            command = (sys.executable, "-m", "stretto_arbiter.solving")
            self._process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
        return self._process

    async def end(self) -> None:
        """End the solver process; the next problem starts another."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                process.kill()
            await process.wait()


class Studies:
    """One at a time; the solver is kept for the next as long as there are jobs."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._solver = Solver()
        self._number = 0
        self._work: asyncio.Task[None] | None = None

    async def follow(self, machine: ArbiterMachine) -> None:
        """Work on what the machine waits for, and on nothing else."""
        study = machine.state.study
        number = study.number if study is not None else 0
        if number != self._number:
            await self._stop()
            self._number = number
            if (task := machine.task()) is not None:
                self._work = asyncio.create_task(self._study(task), name=f"study {number}")
        if not machine.ticking:
            await self._solver.end()

    async def end(self) -> None:
        """Leave it to the next owner."""
        await self._stop()
        await self._solver.end()

    async def _stop(self) -> None:
        work, self._work, self._number = self._work, None, 0
        if work is not None:
            await end(work)

    async def _study(self, task: Task) -> None:
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        try:
            done = task.answered(await self._solver.solve(task), loop.time() - begun_s)
        except Exception as error:  # of a plug-in, whatever it may be
            why = str(error) if isinstance(error, Unsolved) else f"the answer cannot be used: {error!r}"
            done = task.failed(why, loop.time() - begun_s)
        told = {"number": task.number, "algorithm": task.algorithm, "jobs": len(task.plans), "took_s": done.took_s}
        if done.fault:
            log.warning("a study failed", **told, fault=done.fault)
        else:
            log.info("a study is done", **told, gap=done.gap)
        try:
            await self._service.observe(CLUSTER, done)
        except PartitionLost:
            log.info("a study is left to the next owner", number=task.number)
