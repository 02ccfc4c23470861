"""Services are forked from one process that has imported what they import, and live as processes of their own."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from stretto_installation.one_machine.nursery import Nursery
from stretto_installation.one_machine.processes import Child, Command, forked
from stretto_runtime.process.listeners import at_port

from tests.waits import until

SERVICE = """
import os, signal, socket, sys, threading
import stretto_none
print("imported by", stretto_none.IMPORTED_BY, "named", os.environ["NAME"], "of", len(os.environ), flush=True)
print("threads", threading.active_count(), "group", os.getsid(0) == os.getpid(), "argv", sys.argv, flush=True)
listener = socket.socket(fileno=int(os.environ["LISTENER"]))
connection, _ = listener.accept()
connection.sendall(b"served")
raise SystemExit(int(connection.recv(16)))
"""


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    """A nursery of a service whose package counts its imports, of which each has a process."""
    package = tmp_path / "stretto_none"
    package.mkdir()
    (package / "__init__.py").write_text("import os\nIMPORTED_BY = os.getpid()\n")
    (package / "__main__.py").write_text(f"if __name__ == '__main__':\n{SERVICE}".replace("\n", "\n    "))
    made = Nursery(["none", "nowhere"], tmp_path, {**os.environ, "PYTHONPATH": str(tmp_path)}, tmp_path / "nursery.log")
    made.start()
    yield made
    made.close()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with at_port("127.0.0.1", 0) as made:
        yield made


def command(folder: Path, name: str, listener: socket.socket) -> Command:
    environment = {"NAME": name, "LONG": "x" * (1 << 20)}  # longer than a message may be
    argv = [sys.executable, "-m", "stretto_none"]
    return Command(name, argv, environment, folder / f"{name}.log", {"LISTENER": listener})


async def end(listener: socket.socket, status: int) -> None:
    """Let the process that serves at the listener end with a status."""
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    assert await reader.readexactly(6) == b"served"
    writer.write(str(status).encode())
    await reader.read()
    writer.close()


async def test_services_are_processes_of_their_own_with_one_import(
    tmp_path: Path, nursery: Nursery, listener: socket.socket
) -> None:
    imported = set[str]()
    for name, status in (("first", 0), ("second", 3)):
        forked = await nursery.fork(command(tmp_path, name, listener))
        await end(listener, status)
        assert await forked.wait() == forked.returncode == status
        first, second = (tmp_path / f"{name}.log").read_text().splitlines()
        imported.add(first.split()[2])
        assert first.endswith(f"named {name} of 3"), first
        assert second == f"threads 1 group True argv {[str(tmp_path / 'stretto_none' / '__main__.py')]}"
    assert len(imported) == 1
    with pytest.raises(ProcessLookupError):
        forked.kill()


async def test_services_outlive_their_nursery_and_another_forks_the_next(
    tmp_path: Path, nursery: Nursery, listener: socket.socket
) -> None:
    child = Child(command(tmp_path, "service", listener), lambda: None, nursery.fork)
    await child.start()
    assert child.pid is not None
    service = psutil.Process(child.pid)
    [parent] = (each for each in psutil.Process().children() if each.pid == service.ppid())
    parent.kill()
    parent.wait()
    assert service.is_running()
    assert child.restarts == 0
    await end(listener, 0)
    await until(lambda: child.restarts == 1 and child.pid is not None)
    assert child.last_exit == 255, "nobody could tell the true one"
    assert child.pid != service.pid
    await child.stop(1.0)
    assert child.last_exit == -15


async def test_a_service_that_cannot_be_imported_says_so_itself(tmp_path: Path, nursery: Nursery) -> None:
    log = tmp_path / "nowhere.log"
    forked = await nursery.fork(Command("nowhere", [sys.executable, "-m", "stretto_nowhere"], {}, log))
    assert await forked.wait() == 1
    assert log.read_text().splitlines()[-1] == "ImportError: No module named stretto_nowhere"


def test_a_fork_has_no_handler_of_signals_that_end_its_parent() -> None:
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        fork = forked(lambda: sys.exit(signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert fork.wait(60) == 0
