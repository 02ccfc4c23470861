"""The embedded server ends with whoever started it."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stretto_installation.access.keys import POD_CONNECTIONS
from stretto_installation.server import (
    Connections,
    EmbeddedServer,
    connections_here,
    connections_within,
    descriptors_of,
    tied,
)

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


@given(st.integers(16, 1 << 31))
def test_pods_leave_connections_to_services_and_connections_leave_descriptors_to_files(descriptors: int) -> None:
    found = connections_within(descriptors)
    assert 0 < found.of_pods < found.of_all < descriptors
    assert found.of_pods <= POD_CONNECTIONS


@pytest.mark.parametrize(
    ("descriptors", "expected"),
    [(1024, (512, 256)), (4096, (3072, 2560)), (20_000, (18_976, 18_464)), (1 << 20, (64_512, 20_000))],
)
def test_connections_follow_from_the_limit_of_descriptors(descriptors: int, expected: tuple[int, int]) -> None:
    assert connections_within(descriptors) == Connections(*expected)


async def test_a_server_has_the_descriptors_that_its_connections_were_derived_from(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path)
    await server.start()
    try:
        assert server.pid is not None
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        assert descriptors_of(server.pid) == hard, "it raises its limit itself"
        text = await asyncio.to_thread((tmp_path / "nats.conf").read_text)
        assert f"max_connections: {connections_here().of_all}\n" in text
    finally:
        server.stop()
