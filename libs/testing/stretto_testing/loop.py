"""An event loop without waiting: its clock jumps to the next timer when nobody can run, and a seed draws who runs next.

Callbacks of one process run in the order of asyncio; whose turn comes next is drawn. Threads are drawn, too: what is
handed to one runs at once, and its result arrives some time later. Nothing here reads a clock or a socket.
"""

from __future__ import annotations

import asyncio
import heapq
from asyncio import futures
from collections.abc import Callable
from contextvars import Context, copy_context
from itertools import count
from random import Random
from typing import Any, Protocol

from stretto_testing.nodes import NODE, SimulatedProcess, new_node

STEP_S = 2e-6
"""Time that one callback takes: no loop runs for ever at one instant."""
THREAD_S = 0.005
"""Mean time until the result of a thread arrives."""
COMPACTED_FROM = 1000
WAKES = futures._set_result_unless_cancelled  # type: ignore[attr-defined]
"""Callback of the timer of ``asyncio.sleep``"""
BEGIN_NS = 1_800_000_000 * 10**9
"""Wall time at which every simulation begins, nanoseconds since 1970-01-01 UTC."""


class Stuck(RuntimeError):
    """Nobody can run, and no timer is set: whoever is awaited will never come."""


class Dials(Protocol):
    """The network of a simulation."""

    async def dial(self, factory: Callable[[], asyncio.Protocol], host: str, port: int) -> Any:
        """Return the transport and the protocol of a new connection. Raises OSError."""
        ...


class Turn(asyncio.Handle):
    """A callback that waits for its process's turn: a handle of asyncio, made at a third of the price."""

    __slots__ = ("node",)

    def __init__(
        self, callback: Any, args: tuple[Any, ...], loop: SimulatedLoop, context: Context | None, root: SimulatedProcess
    ) -> None:
        self._context = copy_context() if context is None else context
        self._loop, self._callback, self._args = loop, callback, args
        self._cancelled, self._repr, self._source_traceback = False, None, None
        self.node = self._context.get(NODE) or root


class Timer(Turn):
    """A callback that waits for its time."""

    __slots__ = ("is_set", "when_s")
    when_s: float
    is_set: bool

    def when(self) -> float:
        return self.when_s

    def cancel(self) -> None:
        if not self._cancelled and self.is_set:
            self._loop.forget_timer()  # type: ignore[attr-defined]
        super().cancel()


class SimulatedLoop(asyncio.BaseEventLoop):
    """The loop of one simulation, with all of its processes."""

    def __init__(self, chance: Random) -> None:
        super().__init__()
        self.chance = chance
        self.network: Dials | None = None
        self.steps = 0
        self._now_s = 0.0
        self._serial = count()
        self._timers: list[tuple[float, int, Timer]] = []
        self._cancelled = 0
        self._runnable: list[SimulatedProcess] = []
        self.root = new_node("", Random(chance.getrandbits(64)), self.wall_ns, self.time)

    def node(self, name: str) -> SimulatedProcess:
        """Return a new process."""
        return new_node(name, Random(self.chance.getrandbits(64)), self.wall_ns, self.time)

    def time(self) -> float:
        return self._now_s

    def wall_ns(self) -> int:
        """Return the time by the clock that everybody's is set to, nanoseconds since 1970-01-01 UTC."""
        return BEGIN_NS + round(self._now_s * 1e9)

    # processes -------------------------------------------------------------------------------------------------

    def begin(self, node: SimulatedProcess, work: Any) -> asyncio.Task[Any]:
        """Run a coroutine as a task of ``node``."""
        task = self.create_task(work, context=node.context.copy())
        node.tasks.append(task)
        return task

    def kill(self, node: SimulatedProcess) -> None:
        """End a process as SIGKILL does: at once, and without a word."""
        node.is_dead = True
        node.ready.clear()
        if node in self._runnable:
            self._runnable.remove(node)

    def freeze(self, node: SimulatedProcess) -> None:
        """Stop a process as SIGSTOP does."""
        node.is_frozen = True
        if node in self._runnable:
            self._runnable.remove(node)

    def thaw(self, node: SimulatedProcess) -> None:
        """Let a frozen process run on: everything that became due meanwhile is due now."""
        node.is_frozen = False
        if node.ready and not node.is_dead:
            self._runnable.append(node)

    # asyncio ---------------------------------------------------------------------------------------------------

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        turn = Turn(callback, args, self, context, self.root)
        self._add(turn)
        return turn

    call_soon_threadsafe = call_soon  # there are no threads

    def call_later(self, delay: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        timer = Timer(callback, args, self, context, self.root)
        timer.when_s, timer.is_set = when, True
        heapq.heappush(self._timers, (when, next(self._serial), timer))
        return timer

    def forget_timer(self) -> None:
        """Note that a timer which is set is cancelled."""
        self._cancelled += 1
        if self._cancelled > COMPACTED_FROM and 2 * self._cancelled > len(self._timers):
            self._timers = [timer for timer in self._timers if not timer[2]._cancelled]
            heapq.heapify(self._timers)
            self._cancelled = 0

    def _add(self, turn: Turn) -> None:
        node = turn.node
        if node.is_dead:
            return
        node.ready.append(turn)
        if len(node.ready) == 1 and not node.is_frozen:
            self._runnable.append(node)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        future: asyncio.Future[Any] = self.create_future()
        try:
            outcome, settle = func(*args), future.set_result
        except Exception as error:
            outcome, settle = error, future.set_exception

        def arrive() -> None:
            if not future.done():
                settle(outcome)

        self.call_later(self.chance.expovariate(1 / THREAD_S), arrive)
        return future

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        if self.network is None:
            raise ConnectionRefusedError(f"nobody listens at {host}:{port}: this simulation has no network")
        return await self.network.dial(protocol_factory, host, port)

    def _run_once(self) -> None:
        """Let one process after the other have its turn, until the loop is to stop."""
        runnable, draw = self._runnable, self.chance.randrange
        while not self._stopping:  # type: ignore[attr-defined]
            if not runnable:
                self._jump()
                continue
            node = runnable[draw(len(runnable)) if len(runnable) > 1 else 0]
            self._take_turn(node)
            if not node.ready and node in runnable:
                runnable.remove(node)
            if self._timers and self._timers[0][0] <= self._now_s:
                self._expire()

    def _take_turn(self, node: SimulatedProcess) -> None:
        ready = node.ready
        for _ in range(len(ready)):
            turn = ready.popleft()
            self.steps += 1
            self._now_s += STEP_S
            if not turn._cancelled:
                turn._run()
            if node.fuse > 0:
                node.fuse -= 1
                if node.fuse == 0 and node.burnt is not None:
                    node.fuse, burnt = -1, node.burnt
                    burnt()
            if not ready or node.is_frozen:
                break

    def _jump(self) -> None:
        """Advance the clock to the next timer."""
        while self._timers and self._timers[0][2]._cancelled:
            heapq.heappop(self._timers)
            self._cancelled -= 1
        if not self._timers:
            raise Stuck("nobody can run, and no timer is set")
        self._now_s = max(self._now_s, self._timers[0][0])
        self._expire()

    def _expire(self) -> None:
        timers = self._timers
        while timers and timers[0][0] <= self._now_s:
            timer = heapq.heappop(timers)[2]
            timer.is_set, node = False, timer.node
            if timer._cancelled:
                self._cancelled -= 1
            elif timer._callback is WAKES and not (node.is_frozen or node.is_dead):
                timer._run()  # no more than to let its task have a turn
            else:
                self._add(timer)

    def _write_to_self(self) -> None:
        """Do nothing: no thread waits."""

    def _process_events(self, event_list: Any) -> None:
        """Do nothing: there are no files."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Do nothing: there are no threads."""
