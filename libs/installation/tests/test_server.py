"""The embedded server ends with whoever started it."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from pathlib import Path

import psutil
from stretto_installation.server import tied

STARTER = """
import asyncio, sys, time
from pathlib import Path
from stretto_installation.server import EmbeddedServer

server = EmbeddedServer(Path(sys.argv[1]))
asyncio.run(server.start())
print(server.pid, flush=True)
time.sleep(60)
"""


def test_a_server_outlives_the_loop_that_started_it_but_not_the_process(tmp_path: Path) -> None:
    starter = subprocess.Popen([sys.executable, "-c", STARTER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    with starter.stdout as told:
        server = psutil.Process(int(told.readline()))
        assert server.name() == "nats-server"
        starter.kill()
        starter.wait(60)
    with contextlib.suppress(psutil.NoSuchProcess):
        server.wait(60)
    assert not server.is_running()


def test_a_command_that_is_tied_keeps_its_process_id_and_its_arguments() -> None:
    echo = subprocess.Popen(tied(["sh", "-c", "echo $$ $0", "a b"], signal.SIGTERM), stdout=subprocess.PIPE, text=True)
    assert echo.communicate(timeout=60)[0] == f"{echo.pid} a b\n"
