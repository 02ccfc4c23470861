"""An event loop without waiting: its clock jumps to the next timer when nobody can run, and a seed draws who runs next.

Callbacks of one process run in the order of asyncio; whose turn comes next is drawn. Threads are drawn, too: what is
handed to one runs at once, and its result arrives some time later. Nothing here reads a clock or a socket.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from contextvars import Context
from itertools import count
from random import Random
from typing import Any, Protocol

from stretto_testing.nodes import NODE, SimulatedProcess, new_node

STEP_S = 2e-6
"""Time that one callback takes: no loop runs for ever at one instant."""
THREAD_S = 0.005
"""Mean time until the result of a thread arrives."""
COMPACTED_FROM = 1000
BEGIN_NS = 1_800_000_000 * 10**9
"""Wall time at which every simulation begins, nanoseconds since 1970-01-01 UTC."""


class Stuck(RuntimeError):
    """Nobody can run, and no timer is set: whoever is awaited will never come."""


class Dials(Protocol):
    """The network of a simulation."""

    async def dial(self, factory: Callable[[], asyncio.Protocol], host: str, port: int) -> Any:
        """Return the transport and the protocol of a new connection. Raises OSError."""
        ...


class SimulatedLoop(asyncio.BaseEventLoop):
    """The loop of one simulation, with all of its processes."""

    def __init__(self, chance: Random) -> None:
        super().__init__()
        self.chance = chance
        self.network: Dials | None = None
        self.steps = 0
        self._now_s = 0.0
        self._serial = count()
        self._timers: list[tuple[float, int, asyncio.TimerHandle, SimulatedProcess]] = []
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
        handle = asyncio.Handle(callback, args, self, context)
        self._add(handle, _node_of(handle) or self.root)
        return handle

    call_soon_threadsafe = call_soon  # there are no threads

    def call_later(self, delay: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        handle._scheduled = True  # type: ignore[attr-defined] - else a cancelled one is not told to us
        heapq.heappush(self._timers, (when, next(self._serial), handle, _node_of(handle) or self.root))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        if not handle._scheduled:  # type: ignore[attr-defined]
            return
        self._cancelled += 1
        if self._cancelled > COMPACTED_FROM and 2 * self._cancelled > len(self._timers):
            self._timers = [timer for timer in self._timers if not timer[2].cancelled()]
            heapq.heapify(self._timers)
            self._cancelled = 0

    def _add(self, handle: asyncio.Handle, node: SimulatedProcess) -> None:
        if node.is_dead:
            return
        node.ready.append(handle)
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
        runnable = self._runnable
        if not runnable:
            self._jump()
            return
        at = self.chance.randrange(len(runnable)) if len(runnable) > 1 else 0
        node = runnable[at]
        ready = node.ready
        for _ in range(len(ready)):
            handle = ready.popleft()
            self.steps += 1
            self._now_s += STEP_S
            if not handle.cancelled():
                handle._run()
            if node.fuse > 0:
                node.fuse -= 1
                if node.fuse == 0 and node.burnt is not None:
                    node.fuse, burnt = -1, node.burnt
                    burnt()
            if not ready or node.is_frozen:
                break
        if not ready and node in runnable:
            runnable.remove(node)
        if self._timers and self._timers[0][0] <= self._now_s:
            self._expire()

    def _jump(self) -> None:
        """Advance the clock to the next timer."""
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
            self._cancelled -= 1
        if not self._timers:
            raise Stuck("nobody can run, and no timer is set")
        self._now_s = max(self._now_s, self._timers[0][0])
        self._expire()

    def _expire(self) -> None:
        timers = self._timers
        while timers and timers[0][0] <= self._now_s:
            _, _, handle, node = heapq.heappop(timers)
            handle._scheduled = False  # type: ignore[attr-defined]
            if handle.cancelled():
                self._cancelled -= 1
            else:
                self._add(handle, node)

    def _write_to_self(self) -> None:
        """Do nothing: no thread waits."""

    def _process_events(self, event_list: Any) -> None:
        """Do nothing: there are no files."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Do nothing: there are no threads."""


def _node_of(handle: asyncio.Handle) -> SimulatedProcess | None:
    return handle._context.get(NODE)  # type: ignore[attr-defined]
