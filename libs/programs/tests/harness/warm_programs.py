"""Programs that start with their framework imported: the nursery of each is forked before the program begins.

A fork can make a framework's threads for itself only while its parent has none; so a program cannot fork its nursery
once it has begun. `forked` is called in each process that `warm_processes` forks.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from stretto_programs.lanes import nursery

SWITCH = "STRETTO_PIPELINE"
"""The switch of `stretto_programs.run`. Only the program imports that module, since `-m` runs it as `__main__`."""


class Child:
    """A nursery's process, with the methods of `subprocess.Popen` that home uses."""

    def __init__(self, pid: int) -> None:
        self._pid, self._pidfd = pid, os.pidfd_open(pid)

    def kill(self) -> None:
        signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        if not poll.poll(None if timeout is None else timeout * 1000):
            raise subprocess.TimeoutExpired("nursery", timeout or 0.0)
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])


def forked() -> None:
    """Fork the nursery of this process's program, which waits until home asks for it."""
    if os.environ.get(SWITCH) == "off":
        return
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if not pid:
        ours.close()
        with contextlib.suppress(BaseException):
            _become_nursery(theirs)
        os._exit(0)
    theirs.close()
    cold = nursery.start_process
    waiting = [Child(pid)]

    def started(
        connection: socket.socket, framework: str, environment: Mapping[str, str], log: Path
    ) -> nursery.Started:
        if not waiting:  # it was lost: another one is started as it is without tests
            return cold(connection, framework, environment, log)
        with log.open("w") as errors, ours:
            socket.send_fds(ours, [json.dumps(dict(environment)).encode()], [connection.fileno(), errors.fileno()])
        return waiting.pop()

    nursery.start_process = started


def _become_nursery(theirs: socket.socket) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for each in range(3):
        os.dup2(nothing, each)
    os.setsid()
    message, given, *_ = socket.recv_fds(theirs, 1 << 20, 2)
    if not message:
        return
    theirs.close()
    os.dup2(given[1], 2)
    os.environ.clear()
    os.environ.update(json.loads(message))
    sys.path[1:1] = [each for each in os.environ["PYTHONPATH"].split(os.pathsep) if each]
    nursery.keep(socket.socket(fileno=given[0]))
