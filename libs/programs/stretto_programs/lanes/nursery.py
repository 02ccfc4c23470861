"""The nursery: a process that imports the framework once, and from which the lanes of a program are forked.

    home -- Start, descriptors --> nursery -- fork --> lane          told: the lane's process number, then its status

The import of a framework costs seconds of CPU. The nursery only imports it, and creates no thread, session or device,
so that each fork can create its own. It ends when home's socket ends, so it never outlives the program.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Protocol, cast

from .lane import Start, serve
from .protocol import Framework


class Forked:
    """A lane's process, as home sees it.

    stdin, stdout: home's ends of the lane's streams. told: pipe on which the nursery tells how the lane ends.
    """

    def __init__(self, pid: int, stdin: IO[bytes], stdout: IO[bytes], told: IO[bytes]) -> None:
        self.pid = pid
        self._stdin, self._stdout, self._told = stdin, stdout, told
        self._process: IO[bytes] | None = None
        """Descriptor of the lane's process, which no later process can get; None if the process has ended already."""
        with contextlib.suppress(ProcessLookupError):
            self._process = os.fdopen(os.pidfd_open(pid), "rb", 0)

    def said(self) -> str:
        """Return the next line that the lane prints, "" if the lane ends before."""
        return self._stdout.readline().decode(errors="replace").rstrip()

    def wait(self) -> int | None:
        """Wait for the end of the process; return its status, or None if the nursery ended before it could tell."""
        line = self._told.readline()
        return int(line) if line else None

    def kill(self) -> None:
        """End the process."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process.fileno(), signal.SIGKILL)

    def leave(self) -> None:
        """Let the process end, by ending its standard input."""
        with contextlib.suppress(OSError):
            self._stdin.close()

    def end(self, deadline_s: float) -> None:
        """Wait for the end of the process until a deadline of the monotonic clock, then kill it."""
        if self._process is None:
            return
        poll = select.poll()
        poll.register(self._process, select.POLLIN)
        if not poll.poll(max(0.0, deadline_s - time.monotonic()) * 1000):
            self.kill()
            poll.poll()


class Started(Protocol):
    """The nursery's process, as `subprocess.Popen` has it."""

    def kill(self) -> None: ...

    def wait(self, timeout: float | None = None) -> int: ...


class Nursery:
    """Home's side of the nursery. If the nursery has died, another is started for the next lane. Thread-safe.

    framework: name of the module that runs in lanes. environment: variables of the lanes. log: file for the nursery's
    errors.
    """

    def __init__(self, framework: str, environment: Mapping[str, str], log: Path) -> None:
        self._framework, self._environment, self._log = framework, environment, log
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._process: Started | None = None
        self._is_closed = False

    def fork(self, start: Start, errors: IO[str]) -> Forked:
        """Return the process of a new lane. errors: file for its standard error. Raises OSError."""
        theirs_in, ours_in = os.pipe()
        ours_out, theirs_out = os.pipe()
        ours_told, theirs_told = os.pipe()
        files = os.fdopen(ours_in, "wb", 0), os.fdopen(ours_out, "rb"), os.fdopen(ours_told, "rb")
        try:
            asked = self._asked(start, [theirs_in, theirs_out, errors.fileno(), theirs_told])
        finally:
            for each in (theirs_in, theirs_out, theirs_told):
                os.close(each)
        if line := files[2].readline():
            return Forked(int(line), *files)
        self._is_lost(asked)
        told = self._log.read_text(errors="replace").strip().splitlines()
        raise OSError(f"the process that lanes are forked from has ended: {told[-1] if told else 'no reason told'}")

    def close(self, deadline_s: float) -> None:
        """End the nursery, by a deadline of the monotonic clock. Living lanes go on."""
        with self._lock:
            self._is_closed = True
        self.forget()
        if self._process is not None:
            try:
                self._process.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def forget(self) -> None:
        """Let the nursery end, without waiting for it.

        Takes no lock: a fork of home may have inherited a lock that no thread of it will release.
        """
        if self._socket is not None:
            self._socket.close()

    def _asked(self, start: Start, descriptors: Sequence[int]) -> socket.socket:
        """Ask the nursery for a lane; return the socket of the nursery that was asked. Raises OSError."""
        message = json.dumps(asdict(start)).encode()
        asked = self._connected()
        try:
            socket.send_fds(asked, [message], descriptors)
        except OSError:  # the nursery has died since the last request
            self._is_lost(asked)
            asked = self._connected()
            socket.send_fds(asked, [message], descriptors)
        return asked

    def _connected(self) -> socket.socket:
        with self._lock:
            if self._is_closed:
                raise OSError("no lane is forked any more")
            if self._socket is None:
                self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                with theirs:
                    self._process = start_process(theirs, self._framework, self._environment, self._log)
            return self._socket

    def _is_lost(self, asked: socket.socket) -> None:
        with self._lock:
            if self._socket is asked and not self._is_closed:
                asked.close()
                self._socket = None


def _started(theirs: socket.socket, framework: str, environment: Mapping[str, str], log: Path) -> Started:
    with log.open("w") as errors:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(theirs.fileno()), framework],
            pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
            start_new_session=True, env=dict(environment),
        )  # fmt: skip


start_process: Callable[[socket.socket, str, Mapping[str, str], Path], Started] = _started
"""Function that starts the nursery; tests replace it, to fork the nursery from a process with the framework imported.
"""


# --- the nursery's own process ----------------------------------------------------------------------------------------


def keep(connection: socket.socket) -> None:
    """Fork the lanes that home asks for, and tell how each ends, until home's socket ends."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    living: dict[int, tuple[int, int]] = {}
    """Process number of each lane, and the descriptor on which home is told, by the lane's process descriptor."""
    while True:
        for descriptor, _ in poll.poll():
            if descriptor in living:
                poll.unregister(descriptor)
                pid, told = living.pop(descriptor)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                _tell(told, status)
                os.close(told)
                os.close(descriptor)
                continue
            message, given, *_ = socket.recv_fds(connection, 1 << 20, 4)
            if not message:
                for ended in living:  # so that home learns the CPU of lanes that have ended just now
                    with contextlib.suppress(ChildProcessError):
                        os.waitid(os.P_PIDFD, ended, os.WEXITED | os.WNOHANG)
                return
            *streams, told = given
            pid = os.fork()
            if not pid:
                connection.close()
                for each in (told, *(each for process, (_, own) in living.items() for each in (process, own))):
                    os.close(each)
                _become(message, streams)
            for each in streams:
                os.close(each)
            process = os.pidfd_open(pid)
            living[process] = pid, told
            poll.register(process, select.POLLIN)
            _tell(told, pid)


def _tell(told: int, number: int) -> None:
    with contextlib.suppress(OSError):  # home has closed its end
        os.write(told, b"%d\n" % number)


def _become(message: bytes, streams: Sequence[int]) -> None:
    """Run a lane in this process, and end the process with it."""
    try:
        for number, each in enumerate(streams):
            os.dup2(each, number)
            os.close(each)
        serve(Start(**json.loads(message)))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def main() -> None:
    """Import a framework, and fork lanes from this process.

    If the import fails, each lane tries it again, and home is shown why it fails there.
    """
    connection = socket.socket(fileno=int(sys.argv[1]))
    with contextlib.suppress(Exception):
        cast(Framework, importlib.import_module(sys.argv[2])).load()
    keep(connection)
    os._exit(0)


if __name__ == "__main__":
    main()
