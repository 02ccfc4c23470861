"""Processes that start with modules imported, for tests that start many: TensorFlow's import costs some 5 s of CPU.

One server process imports the modules once; each process that a test starts is a fork of it. The fork happens before
any session, server or thread pool of a framework exists.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}


class WarmProcesses:
    """The server of forks. It ends with its last user, and its forks with it.

    modules: names of those that it imports. Of each that has a function ``forked``, a fork calls it before its program.
    """

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._lock = threading.Lock()
        self._server: subprocess.Popen[bytes] | None = None

    def start(
        self,
        *argv: str,
        environment: dict[str, str] | None = None,
        cwd: str | None = None,
        stdin: IO[Any] | int | None = None,
        stdout: IO[Any] | int | None = None,
        stderr: IO[Any] | int | None = None,
    ) -> WarmProcess:
        """Run ``argv``, as Python itself would take it: ``-m module`` or a script. A stream of None is /dev/null."""
        with self._lock:
            if self._server is None:
                self._open()
        request = {
            "argv": argv,
            "environment": environment if environment is not None else dict(os.environ),
            "cwd": cwd or os.getcwd(),
        }
        with open(os.devnull, "r+") as nothing:
            files = (nothing if each is None else each for each in (stdin, stdout, stderr))
            fds = [each if isinstance(each, int) else each.fileno() for each in files]
            return WarmProcess(self, self.ask(request, fds)["pid"], argv)

    def _open(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()), *self._modules],
                pass_fds=[theirs.fileno()],
                env=os.environ | QUIET | {"PYTHONPATH": os.pathsep.join(sys.path)},
                stdin=subprocess.DEVNULL,
            )

    def ask(self, request: dict[str, Any], fds: list[int] | None = None) -> dict[str, Any]:
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], fds or [])
            answer = self._socket.recv(2**16)
        if not answer:
            raise EOFError("the server of warm processes ended: see its error above")
        return json.loads(answer)

    def close(self) -> None:
        if self._server is not None:
            self._socket.shutdown(socket.SHUT_RDWR)  # a fork of this process may hold it, too
            self._socket.close()
            self._server.wait(60)


class WarmProcess:
    """A fork, with the methods of ``subprocess.Popen`` that tests use."""

    def __init__(self, server: WarmProcesses, pid: int, args: tuple[str, ...]) -> None:
        self.pid, self.args = pid, args
        self.returncode: int | None = None
        self._server = server

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._server.ask({"poll": self.pid})["returncode"]
        return self.returncode

    def wait(self, timeout: float = 60.0) -> int:
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(0.01)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def serve(connection: socket.socket, names: list[str]) -> None:
    modules = [importlib.import_module(name) for name in names]
    at_fork = [module.forked for module in modules if hasattr(module, "forked")]
    living: set[int] = set()
    ended: dict[int, int] = {}
    while True:
        message, fds, *_ = socket.recv_fds(connection, 2**18, 3)
        if not message:
            break
        request = json.loads(message)
        if "poll" in request:
            pid, status = os.waitpid(request["poll"], os.WNOHANG) if request["poll"] in living else (0, 0)
            if pid:
                living.discard(pid)
                ended[pid] = os.waitstatus_to_exitcode(status)
            answer = {"returncode": ended.get(request["poll"])}
        else:
            pid = os.fork()
            if not pid:
                connection.close()
                become(request["argv"], request["environment"], request["cwd"], fds, at_fork)
            living.add(pid)
            answer = {"pid": pid}
            for fd in fds:
                os.close(fd)
        connection.send(json.dumps(answer).encode())
    for pid in living:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def become(
    argv: list[str], environment: dict[str, str], cwd: str, fds: list[int], at_fork: list[Callable[[], None]]
) -> None:
    """Run ``argv`` in this process, which ends with it."""
    code = 1
    try:
        for target, fd in enumerate(fds):
            os.dup2(fd, target)
            os.close(fd)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(cwd)
        tempfile.tempdir = None
        sys.path[0] = cwd if argv[0] == "-m" else str(Path(argv[0]).resolve().parent)
        sys.path[1:1] = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
        for each in at_fork:
            each()
        if argv[0] == "-m":
            sys.argv = argv[1:]
            runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = argv
            runpy.run_path(argv[0], run_name="__main__")
        code = 0
    except SystemExit as ended:
        code = 0 if ended.code is None else ended.code if isinstance(ended.code, int) else 1
        if isinstance(ended.code, str):
            sys.stderr.write(f"{ended.code}\n")
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
