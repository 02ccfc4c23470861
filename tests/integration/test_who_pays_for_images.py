"""The kernel charges a parameter server nothing for its image if the checkpoints service reserved it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from stretto_actuator.local.control_groups import Cgroups, Group
from stretto_checkpoints.memory import SharedMemory

SIZE = 32 * 2**20
FILL = f"""
import os, sys
open(sys.argv[1], "w").write(str(os.getpid()))
file = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT, 0o600)
for _ in range({SIZE} >> 20):
    os.write(file, b"x" * 2**20)
"""


@pytest.fixture
def group() -> Iterator[Group]:
    cgroups = Cgroups.find("stretto-who-pays")
    if not cgroups.has("memory"):
        pytest.skip("no control group for memory can be made here")
    made = cgroups.group("server")
    made.make()
    yield made
    made.remove()


def charged_bytes(group: Group) -> int:
    folder, version = group.folders["memory"]
    return int(Path(folder, "memory.current" if version == 2 else "memory.usage_in_bytes").read_text())


def fill(group: Group, path: str) -> int:
    """Bytes that stay charged to the group in which a process wrote the file and ended."""
    entry = f"{group.folders['memory'][0]}/cgroup.procs"
    subprocess.run([sys.executable, "-c", FILL, entry, path], check=True)
    return charged_bytes(group)


def test_a_server_pays_for_what_it_reserves_itself_and_not_for_what_was_reserved_for_it(group: Group) -> None:
    shared = SharedMemory(Path("/dev/shm"), Path(f"/{__name__}"))
    try:
        reserved = shared.reserve("who-pays", "c1", {"ps-0": SIZE})["ps-0"]
        assert fill(group, reserved) < SIZE / 4
        own = reserved.replace("ps-0", "ps-1")
        assert fill(group, own) > SIZE * 3 / 4
    finally:
        shared.free("who-pays")
