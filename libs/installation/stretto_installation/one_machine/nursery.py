"""The nursery: a process that imports once what the services import, and from which each service is forked.

    supervisor -- module, environment, descriptors --> nursery -- fork --> service      told: its process, its status

Importing takes most of a service's start, and most of its memory: nine that import for themselves take the processor
nine times as long, and hold nine copies. A fork holds only what it changes. A service is a process of its own as
before: it is ended, killed and started again alone. Whoever ends the nursery ends no service; another is started for
the next fork. The nursery creates no thread, no event loop and no connection, so that each fork can make its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .processes import Command, ForkedProcess, forked

UNKNOWN_STATUS = 255
"""Exit status of a service whose nursery ended before it could tell the true one (as multiprocessing has it)."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Numeric libraries start a thread per core when they are imported: the nursery may have no thread."""
FORK_S, TELL_S = 60.0, 1.0
"""Bounds of a fork, before which the nursery may have to import, and of the status of a process that has ended."""
DESCRIPTORS_MOST = 8
PR_SET_NAME, NAME_BYTES_MOST = 15, 15
"""The call of prctl(2) that names a process in ``ps`` and ``top``, and how long the name may be."""


class Forked:
    """A service's process, as asyncio.subprocess.Process has it."""

    def __init__(self, pid: int, told: asyncio.StreamReader) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._process = -1
        with contextlib.suppress(ProcessLookupError):
            self._process = os.pidfd_open(pid)  # no later process can get it
        self._ending = asyncio.create_task(self._end(told), name=f"wait for process {pid}")

    def send_signal(self, number: int) -> None:
        """Send a signal. Raises ProcessLookupError."""
        if self._process < 0:
            raise ProcessLookupError
        signal.pidfd_send_signal(self._process, number)

    def terminate(self) -> None:
        """Send SIGTERM. Raises ProcessLookupError."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL. Raises ProcessLookupError."""
        self.send_signal(signal.SIGKILL)

    async def wait(self) -> int:
        """Return the exit status once the process has ended."""
        return await asyncio.shield(self._ending)

    async def _end(self, told: asyncio.StreamReader) -> int:
        if self._process >= 0:
            loop = asyncio.get_running_loop()
            ended = asyncio.Event()
            loop.add_reader(self._process, ended.set)
            await ended.wait()
            loop.remove_reader(self._process)
            os.close(self._process)
            self._process = -1
        line = b""
        with contextlib.suppress(TimeoutError):  # the nursery has ended, or stands still
            async with asyncio.timeout(TELL_S):
                line = await told.readline()
        self.returncode = int(line) if line else UNKNOWN_STATUS
        return self.returncode


class Nursery:
    """The supervisor's side of the nursery.

    ``services``: names whose modules are imported. ``folder``: the installation's, by which the process is found.
    """

    def __init__(self, services: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path) -> None:
        self._services, self._folder, self._log = services, folder, log
        self._environment = {**environment, **ONE_THREAD}
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None

    def begin(self) -> None:
        """Start to import in a fork of this process, which has imported much of it. Raises OSError.

        This process has one thread, and no event loop as yet.
        """
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours = self._socket

        def serve() -> None:
            ours.detach()  # it is closed
            with one_thread():
                import_and_fork(theirs, self._services)

        with theirs:
            self._process = forked(serve, kept=[theirs.fileno()])

    def start(self) -> None:
        """Start to import in a process that has imported nothing, unless one does so. Raises OSError."""
        if self._process is not None:
            return
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", __name__, str(theirs.fileno()), str(self._folder), *self._services]
        with theirs, self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                env=self._environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def fork(self, command: Command) -> Forked:
        """Start the command of a module, ``python -m MODULE``. Raises OSError."""
        if self._process is not None and self._process.poll() is not None:
            self.close()
        self.start()
        assert self._socket is not None
        *_, module = command.argv
        ours, theirs = os.pipe()
        with contextlib.ExitStack() as files:
            files.callback(os.close, theirs)
            request = files.enter_context(os.fdopen(os.memfd_create("request"), "wb"))  # a message has a bound
            request.write(json.dumps([module, dict(command.environment), list(command.listeners)]).encode())
            request.flush()
            log = files.enter_context(command.log.open("ab"))
            sockets = [listener.fileno() for listener in command.listeners.values()]
            socket.send_fds(self._socket, [b"fork"], [request.fileno(), theirs, log.fileno(), *sockets])
        told = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(told)
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(ours, "rb", 0))
        line = b""
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FORK_S):
                    line = await told.readline()
        finally:
            if not line:
                pipe.close()  # a process that the nursery forks for it after this finds nobody to tell, and is ended
        if not line:
            self.close()
            raise OSError(
                f"the process that services are forked from has ended, or stands still; see {self._log.parent}"
            )
        return Forked(int(line), told)

    def close(self) -> None:
        """End the nursery. Living services go on."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


# --- the nursery's own process ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fork:
    """A forked process, which becomes a module. ``variables`` tell the module the descriptors of ``sockets``."""

    module: str
    environment: dict[str, str]
    variables: list[str]
    log: int
    sockets: list[int]

    def become(self) -> None:
        """Run the module in this process."""
        os.setsid()
        for stream in (1, 2):
            os.dup2(self.log, stream)
        os.close(self.log)
        os.environ.clear()
        os.environ.update(self.environment)
        os.environ.update(zip(self.variables, map(str, self.sockets), strict=True))
        name = self.module.replace("_", "-").encode()[:NAME_BYTES_MOST]
        ctypes.CDLL(None).prctl(PR_SET_NAME, name, 0, 0, 0)
        sys.argv[:] = [self.module]
        runpy.run_module(self.module, run_name="__main__", alter_sys=True)


def keep(connection: socket.socket) -> Fork | None:
    """Fork the services that the supervisor asks for, and tell how each ends, until its socket ends: then return None.

    In each fork, return what it is to become.
    """
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    living: dict[int, tuple[int, int]] = {}
    """Process number of each service, and the descriptor on which the supervisor is told, by its process descriptor."""
    while True:
        for descriptor, _ in poll.poll():
            if descriptor in living:
                poll.unregister(descriptor)
                pid, told = living.pop(descriptor)
                _tell(told, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                os.close(told)
                os.close(descriptor)
                continue
            message, given, *_ = socket.recv_fds(connection, 16, DESCRIPTORS_MOST)
            if not message:
                return None
            request, told, log, *sockets = given
            if pid := os.fork():
                for each in (request, log, *sockets):
                    os.close(each)
                living[process := os.pidfd_open(pid)] = pid, told
                poll.register(process, select.POLLIN)
                if not _tell(told, pid):
                    signal.pidfd_send_signal(process, signal.SIGKILL)  # nobody would ever find it
                continue
            connection.close()
            for each in (told, *(each for process, (_, own) in living.items() for each in (process, own))):
                os.close(each)
            with os.fdopen(request, "rb") as file:
                file.seek(0)
                module, environment, variables = json.load(file)
            return Fork(module, environment, variables, log, sockets)


def _tell(told: int, number: int) -> bool:
    """Tell the supervisor; return whether it is there to hear."""
    try:
        return os.write(told, b"%d\n" % number) > 0
    except OSError:
        return False


@contextlib.contextmanager
def one_thread() -> Generator[None]:
    """Let numeric libraries that the block imports compute in the calling thread alone."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def import_and_fork(connection: socket.socket, services: Sequence[str]) -> None:
    """Import the services, and fork them from this process. A service that cannot be imported says so as a fork."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, b"stretto-nursery", 0, 0, 0)
    for name in services:
        with contextlib.suppress(Exception):
            module = importlib.import_module(f"stretto_{name}.__main__")
            del sys.modules[module.__name__]  # a fork runs it, and imports nothing of it
    gc.collect()
    gc.freeze()  # a collection in a fork writes to no page that it shares
    if fork := keep(connection):
        fork.become()


if __name__ == "__main__":
    import_and_fork(socket.socket(fileno=int(sys.argv[1])), sys.argv[3:])
