"""Side effects of the arbiter: background tasks are solved in a process of their own, their answers are journalled."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import sys
from asyncio.subprocess import PIPE, Process

import structlog
from stretto_bus.tasks import end
from stretto_core.arbiter.background import BackgroundTask
from stretto_core.arbiter.machine import ArbiterMachine
from stretto_core.arbiter.observations import BackgroundSolved
from stretto_core.arbiter.selection import Selection
from stretto_core.arbiter.state import ArbiterState
from stretto_runtime import PartitionLost, Service
from stretto_runtime.inputs import CLUSTER
from stretto_wire.errors import WireError

from stretto_arbiter.settings import ArbiterSettings
from stretto_arbiter.solver import SIZE_BYTES

log = structlog.get_logger("stretto.arbiter")


class Unsolved(Exception):
    """A problem got no answer, for the reason in the text."""


class SolverProcess:
    """One process (``stretto_arbiter.solver``), started by the first problem: it loads for a second and takes 75 MB."""

    def __init__(self) -> None:
        self._process: Process | None = None

    async def solve(self, task: BackgroundTask) -> Selection:
        """Return the answer, however long it takes. Cancellation ends the process. Raises Unsolved."""
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
        except Exception as error:  # a plug-in's answer may fail in any way; the rest of the output is then unusable
            await self.end()
            raise Unsolved(f"the answer cannot be read: {error!r}") from error
        if not isinstance(answer, Selection):
            raise Unsolved(answer)
        return answer

    async def _started(self) -> Process:
        if self._process is None or self._process.returncode is not None:
            command = (sys.executable, "-m", "stretto_arbiter.solver")
            self._process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
        return self._process

    async def end(self) -> None:
        """End the process; the next problem starts another."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                process.kill()
            await process.wait()


class BackgroundSolver:
    """Works on the machine's pending background task, one at a time. Its process is kept as long as there are jobs."""

    def __init__(self, service: Service[ArbiterSettings, ArbiterState, ArbiterMachine]) -> None:
        self._service = service
        self._process = SolverProcess()
        self._number = 0
        self._work: asyncio.Task[None] | None = None

    async def follow(self, machine: ArbiterMachine) -> None:
        """Begin the task that the machine waits for, and cancel any other."""
        pending = machine.state.background_solve
        number = pending.number if pending is not None else 0
        if number != self._number:
            await self._cancel()
            self._number = number
            if (task := machine.task()) is not None:
                self._work = asyncio.create_task(self.solve(task), name=f"background solve {number}")
        if not machine.ticking:
            await self._process.end()

    async def end(self) -> None:
        """Stop, and leave a pending task to the next owner."""
        await self._cancel()
        await self._process.end()

    async def solve(self, task: BackgroundTask) -> None:
        """Solve a task and journal its answer, or the reason why there is none."""
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        try:
            answer = task.answered(await self._process.solve(task), loop.time() - begun_s)
        except Exception as error:  # a plug-in's answer may fail in any way
            why = str(error) if isinstance(error, Unsolved) else f"the answer cannot be used: {error!r}"
            answer = task.failed(why, loop.time() - begun_s)
        figures = {"number": task.number, "algorithm": task.algorithm, "jobs": len(task.plans), "took_s": answer.took_s}
        if answer.fault:
            log.warning("a background solve failed", **figures, fault=answer.fault)
        else:
            log.info("a background solve is done", **figures, gap=answer.gap)
        try:
            await self._journal(task, answer)
        except PartitionLost:
            log.info("a background solve is left to the next owner", number=task.number)

    async def _journal(self, task: BackgroundTask, answer: BackgroundSolved) -> None:
        try:
            await self._service.observe(CLUSTER, answer)
        except WireError as error:  # a plug-in's figures may be beyond every bound
            log.warning("a background solve failed", number=task.number, fault=str(error))
            failed = task.failed(f"the answer cannot be used: {error}", answer.took_s)
            await self._service.observe(CLUSTER, failed)

    async def _cancel(self) -> None:
        work, self._work, self._number = self._work, None, 0
        if work is not None:
            await end(work)
