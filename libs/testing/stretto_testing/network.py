"""The network of a simulation: byte streams between processes and one server, with delays, cuts and black holes.

A line keeps the order of its bytes, as TCP does; whatever else may happen to them is drawn. What is on its way when a
line is cut may have arrived or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from stretto_testing.loop import SimulatedLoop
from stretto_testing.nodes import NODE, SimulatedProcess

SLOW_SHARE, SLOW_S = 0.002, 0.3
"""Share of deliveries that take far longer, and their mean delay."""


class Serves(Protocol):
    """The server at the other end of all lines."""

    def opened(self, line: Line) -> None:
        """Greet a new client."""
        ...

    def received(self, line: Line, data: bytes) -> None:
        """Take bytes of a client."""
        ...

    def closed(self, line: Line) -> None:
        """Forget a client."""
        ...


class Line(asyncio.Transport):
    """One connection: the transport of its client, and what its server writes to."""

    def __init__(self, network: Network, node: SimulatedProcess, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.node = node
        self.is_open = True
        """The client's end is open."""
        self.is_served = True
        """The server's end is open."""
        self.is_mute = self.is_deaf = False
        """Nothing passes from the client, or to the client, and nobody is told."""
        self.is_stopped = False
        """The server at its other end is stopped, as by SIGSTOP: nothing passes, and nobody is told."""
        self.server_number = 0
        """The server of a cluster at the other end"""
        self._network = network
        self._protocol = protocol
        self._up: list[bytes] = []
        self._down: list[bytes] = []
        self._up_due_s = self._down_due_s = 0.0

    # the client's end ------------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.is_open or not self.is_served or not data:
            return
        self._up.append(bytes(data))
        if len(self._up) == 1 and self.passes_up:
            self._up_due_s = self._network.schedule(self._up_due_s, self._arrive_up, None)

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        self._leave(flush=True)

    def abort(self) -> None:
        self._leave(flush=False)

    def _leave(self, flush: bool) -> None:
        if not self.is_open:
            return
        self.is_open = False
        if not flush:
            self._up = self._network.part_of(self._up)
        self._down.clear()
        asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)
        if self.passes_up:
            self._network.schedule(self._up_due_s, self._end_up, None)

    def is_closing(self) -> bool:
        return not self.is_open

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def pause_reading(self) -> None:
        """Do nothing: a reader of this network has room for everything."""

    def resume_reading(self) -> None:
        """Do nothing: see ``pause_reading``."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: writers are never told to wait."""

    # the server's end ------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Send bytes to the client."""
        if not self.is_served:
            return
        self._down.append(data)
        if len(self._down) == 1 and self.passes_down:
            self._down_due_s = self._network.schedule(self._down_due_s, self._arrive_down, self.node)

    def hang_up(self) -> None:
        """Close from the server's end: part of what is on its way arrives before."""
        if self.is_served:
            self.is_served = False
            self._up.clear()
            self._network.server.closed(self)
            self._network.lines.discard(self)
            self._down = self._network.part_of(self._down)
            if self.passes_down:
                self._network.schedule(self._down_due_s, self._end_down, self.node)

    # the wire --------------------------------------------------------------------------------------------------

    @property
    def passes_up(self) -> bool:
        """Return whether bytes of the client arrive."""
        return not (self.is_mute or self.is_stopped)

    @property
    def passes_down(self) -> bool:
        """Return whether bytes of the server arrive."""
        return not (self.is_deaf or self.is_stopped)

    def _arrive_up(self) -> None:
        if not self.passes_up or not self.is_served:
            return
        data, self._up = b"".join(self._up), []
        if data:
            self._network.server.received(self, data)

    def _end_up(self) -> None:
        self._arrive_up()
        if self.passes_up and self.is_served:
            self.is_served = False
            self._network.server.closed(self)
            self._network.lines.discard(self)

    def _arrive_down(self) -> None:
        if not self.passes_down or not self.is_open:
            return
        data, self._down = b"".join(self._down), []
        if data:
            self._protocol.data_received(data)

    def _end_down(self) -> None:
        self._arrive_down()
        if self.is_open and self.passes_down:
            self.is_open = False
            self._protocol.connection_lost(ConnectionResetError("the server hung up"))

    def cut(self, up: bool, down: bool) -> None:
        """Let nothing pass from the client, or to the client; neither end learns of it."""
        self.is_mute, self.is_deaf = self.is_mute or up, self.is_deaf or down

    def mend(self) -> None:
        """Let everything pass again, also the news that an end was closed."""
        self.is_mute = self.is_deaf = False
        self._go_on()

    def wake(self) -> None:
        """Let everything pass again after a stop of the server."""
        self.is_stopped = False
        self._go_on()

    def _go_on(self) -> None:
        network = self._network
        if not self.is_open:
            network.schedule(0.0, self._end_up, None)
        elif not self.is_served:
            network.schedule(0.0, self._end_down, self.node)
        else:
            self._up_due_s = network.schedule(0.0, self._arrive_up, None)
            self._down_due_s = network.schedule(0.0, self._arrive_down, self.node)


class Network:
    """All lines of a simulation."""

    def __init__(self, loop: SimulatedLoop, server: Serves, chance: Random) -> None:
        self.server = server
        self.lines = _Lines()
        self.delay_s = 0.0004
        """Mean delay of a byte, one way"""
        self.is_refused = False
        """The server is down: nobody can connect."""
        self._cut: set[str] = set()
        self._loop = loop
        self._chance = chance
        loop.network = self

    async def dial(self, factory: Callable[[], asyncio.Protocol], host: str, port: int) -> Any:
        """Connect the running process to the server. Raises ConnectionRefusedError."""
        node = NODE.get() or self._loop.root
        await asyncio.sleep(self._delay_s())
        if self.is_refused:
            raise ConnectionRefusedError(f"nobody listens at {host}:{port}")
        while node.name in self._cut:
            await asyncio.sleep(0.5)
        protocol = factory()
        line = Line(self, node, protocol)
        self.lines.add(line)
        protocol.connection_made(line)
        self.server.opened(line)
        return line, protocol

    def schedule(self, not_before_s: float, action: Callable[[], None], node: SimulatedProcess | None) -> float:
        """Let something happen after a drawn delay at ``node`` (None: at the server); return when."""
        due_s = max(not_before_s, self._loop.time() + self._delay_s())
        self._loop.call_at(due_s, action, context=(node or self._loop.root).context)
        return due_s

    def _delay_s(self) -> float:
        chance = self._chance
        mean_s = SLOW_S if chance.random() < SLOW_SHARE else self.delay_s
        return chance.expovariate(1 / mean_s)

    def part_of(self, sent: list[bytes]) -> list[bytes]:
        """Return what still arrives of bytes that were on their way when their line broke."""
        data = b"".join(sent)
        return [data[: self._chance.randrange(len(data) + 1)]] if data else []

    def of(self, node: SimulatedProcess) -> list[Line]:
        """Return the lines of a process."""
        return [line for line in self.lines if line.node is node]

    def break_lines(self, node: SimulatedProcess) -> None:
        """Break every line of a process, as by a reset: both ends learn of it."""
        for line in self.of(node):
            line.hang_up()

    def cut(self, node: SimulatedProcess, up: bool = True, down: bool = True) -> None:
        """Cut a process off, in both directions or in one: nothing passes, and nobody is told."""
        self._cut.add(node.name)
        for line in self.of(node):
            line.cut(up, down)

    def mend(self, node: SimulatedProcess) -> None:
        """End a cut."""
        self._cut.discard(node.name)
        for line in self.of(node):
            line.mend()

    def died(self, node: SimulatedProcess) -> None:
        """Tell the server that a process is gone: its kernel closes its lines."""
        for line in self.of(node):
            line.is_open = False
            line._up = self.part_of(line._up)
            if line.passes_up:
                self.schedule(line._up_due_s, line._end_up, None)


class _Lines(dict[Line, None]):
    """A set in the order of adding: that of a set of objects is another one in each process."""

    def add(self, line: Line) -> None:
        self[line] = None

    def discard(self, line: Line) -> None:
        self.pop(line, None)
