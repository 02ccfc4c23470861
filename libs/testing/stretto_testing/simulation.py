"""One simulation: a loop, a server, and processes that a seed starts, kills, freezes and cuts off."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import Coroutine, Generator
from random import Random
from typing import Any, TypeVar
from unittest import mock

from stretto_bus import connection

from stretto_testing.jetstream.server import SimulatedServer
from stretto_testing.loop import SimulatedLoop
from stretto_testing.nodes import SimulatedProcess

URL = "nats://simulated:4222"
T = TypeVar("T")


class Simulation:
    """The world of one seed. Use it within ``with``: there the client's library has the simulation's clock."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.loop = SimulatedLoop(Random(self.chance.getrandbits(64)))
        self.server = SimulatedServer(self.loop, Random(self.chance.getrandbits(64)))
        self.network = self.server.network
        self.nodes: list[SimulatedProcess] = []
        self.faults: list[str] = []
        """Errors that nobody expects: exceptions that nobody caught, and the ends of tasks that read from a line"""
        self.loop.set_exception_handler(self._uncaught)

    def __enter__(self) -> Simulation:
        self._told = _Told(self.faults)
        logging.getLogger(connection.Client.__module__).addHandler(self._told)
        self._clock = mock.patch(f"{connection.Client.__module__}.time", _Clock(self.loop))
        self._clock.start()
        gc.disable()  # what it collects would depend on what ran before
        asyncio.set_event_loop(self.loop)
        return self

    def __exit__(self, *_: object) -> None:
        self._bury()
        self._clock.stop()
        logging.getLogger(connection.Client.__module__).removeHandler(self._told)
        asyncio.set_event_loop(None)
        self.loop.close()
        gc.enable()

    def _uncaught(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if "destroyed" in str(context.get("message")):
            return  # of a process that was killed
        error = context.get("exception")
        self.faults.append(f"{context.get('message')}: {type(error).__name__}: {error}")

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run until ``work`` ends. Raises Stuck if it cannot."""
        return self.loop.run_until_complete(self.loop.create_task(work, context=self.loop.root.context.copy()))

    def process(self, name: str, work: Coroutine[Any, Any, Any]) -> SimulatedProcess:
        """Start a process."""
        node = self.loop.node(name)
        self.nodes.append(node)
        self.loop.begin(node, work)
        return node

    def kill(self, node: SimulatedProcess) -> None:
        """End a process as SIGKILL does: its connections are closed by its kernel."""
        self.loop.kill(node)
        self.network.died(node)

    def _bury(self) -> None:
        """End what is left of every process, without letting it say a word."""
        self.loop.set_exception_handler(lambda loop, context: None)
        for node in (*self.nodes, self.loop.root):
            node.is_dead = True
        with _silence():
            for task in asyncio.all_tasks(self.loop):
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with contextlib.suppress(BaseException):
                    task.get_coro().close()  # type: ignore[union-attr]
            gc.collect()


class _Told(logging.Handler):
    """Keeps what nats-py logs: nothing but errors that end its reading."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._faults = faults

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self._faults.append(f"{record.getMessage()}: {type(error).__name__}: {error}")


class _Clock:
    """The module ``time`` as nats-py uses it: to wait between two tries to connect."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.monotonic = loop.time


@contextlib.contextmanager
def _silence() -> Generator[None]:
    before, logging.root.manager.disable = logging.root.manager.disable, logging.CRITICAL
    with mock.patch("sys.unraisablehook"):
        yield
    logging.root.manager.disable = before
