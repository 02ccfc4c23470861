"""Pods that use up what all processes of their user have together, and that leave processes behind."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from local_pods import ended
from stretto_actuator.backend import PodSpec
from stretto_actuator.local import exhaustion, landlock, mounts
from stretto_actuator.local.backend import LocalBackend
from stretto_actuator.local.boxes import boxes_of
from stretto_actuator.local.landlock import ABI_SCOPES
from stretto_actuator.settings import ActuatorSettings
from stretto_installation.one_machine.processes import end_pods, pods_of
from stretto_runtime.process.views import threads_of

from tests.waits import until

MIB = 2**20
SKIPPED = 77
AS_ANOTHER_USER = f"""
import ctypes, os, resource, sys
from stretto_actuator.local import mounts

if not os.getuid():  # root has no limits
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
    ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE: its files in /proc are its own again
os.chdir("/")
if (tried := os.fork()) == 0:
    os._exit(ctypes.CDLL(None).unshare(0x10000000) and 1)  # CLONE_NEWUSER
if os.waitpid(tried, 0)[1]:
    sys.exit({SKIPPED})
mounts.PROCESSES = 30
before = resource.getrlimit(resource.RLIMIT_SIGPENDING)[1]
mounts.shelter([], [], [], lambda path: os.open(path, os.O_PATH))
children = 0
try:
    while children < 100:
        if os.fork() == 0:
            os.read(os.pipe()[0], 1)
        children += 1
except BlockingIOError:
    pass
libc = ctypes.CDLL(None)
queues = 0
while libc.inotify_init1(0) >= 0 and queues < 100:
    queues += 1
users = libc.unshare(0x10000000)
os.kill(0, 0)
print(children, queues, users, resource.getrlimit(resource.RLIMIT_SIGPENDING)[1] < before, flush=True)
os.killpg(0, 9)
"""
"""A pod's process before its program, of a user with limits."""
OF_ALL_PORTS = """
import ctypes, fcntl, os, socket, struct, sys
from stretto_actuator.local import exhaustion

if ctypes.CDLL(None).unshare(0x40000000 | (0x10000000 if os.getuid() else 0)):  # CLONE_NEWNET, CLONE_NEWUSER
    sys.exit(77)
with socket.socket() as any_socket:  # SIOCSIFFLAGS, IFF_UP
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 1))
open("/proc/sys/net/ipv4/ip_local_port_range", "w").write("60000 60003")
print(exhaustion.used_up())
held = [socket.socket() for _ in range(4)]
for each in held:
    each.bind(("0.0.0.0", 0))
print(exhaustion.used_up())
"""

pytestmark = pytest.mark.skipif(landlock.abi() < ABI_SCOPES, reason="the kernel offers no such Landlock")


def run(script: str) -> list[str]:
    """Return the lines of a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, start_new_session=True
    )
    if done.returncode == SKIPPED:
        pytest.skip("this user gets no such namespace here")
    assert done.stdout, done.stderr
    return done.stdout.splitlines()


def test_a_pod_of_a_user_without_control_groups_is_bounded_and_leaves_room_to_the_user() -> None:
    (line,) = run(AS_ANOTHER_USER)
    children, instances, users, fewer = line.split()
    assert 0 < int(children) < 30
    assert int(instances) == mounts.OF_THE_NAMESPACE["max_inotify_instances"]
    assert (users, fewer) == ("-1", "True"), "no further namespace, fewer pending signals than the user has"


def test_what_one_program_has_used_up_is_found() -> None:
    assert run(OF_ALL_PORTS) == ["", "ports of connections"]


class Place:
    """A state folder, and a backend that has no control groups."""

    def __init__(self, folder: Path) -> None:
        self.state = folder.resolve() / "a state"
        self.backend = LocalBackend(
            self.state, cgroups=False, boxes=boxes_of(ActuatorSettings(state_folder=self.state))
        )

    async def launch(self, pod: str, script: str) -> None:
        command = (sys.executable, "-S", "-c", script)
        environment = {"STRETTO_POD_FOLDER": self.backend.places("j", pod).scratch}
        await self.backend.launch(PodSpec("j", pod, command, environment, 1.0, 256 * MIB))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


HOLDS = "import os, time; held = [os.dup(0) for _ in range(700)]; print('up', flush=True); time.sleep(60)"
PORTS = "import socket; bound = [socket.socket() for _ in range(700)]; [each.bind(('0.0.0.0', 0)) for each in bound]\n"
PORTS += HOLDS.replace("700", "0")
WATCHES = """
import os, select
pipes = [os.dup(os.pipe()[0]) for _ in range(70)]
watching = [select.epoll() for _ in range(10)]
for each in watching:
    for pipe in pipes:
        each.register(pipe)
"""
WATCHES += HOLDS.replace("700", "0")
HIDES = """
import os, socket, time
pair = socket.socketpair()
socket.send_fds(pair[0], [b"x"], [os.dup(0) for _ in range(20)])
print("up", flush=True)
time.sleep(60)
"""


OF_A_THREAD = """
import ctypes, os, socket, threading, time
def hold():
    ctypes.CDLL(None).unshare(0x400)  # CLONE_FILES
    held.extend(socket.socket() for _ in range(700))
    print("up", flush=True)
    time.sleep(60)
held = []
threading.Thread(target=hold).start()
"""


@pytest.mark.parametrize(
    ("greedy", "found"),
    [
        (PORTS, exhaustion.PORTS),
        (OF_A_THREAD, exhaustion.PORTS),
        (HIDES, exhaustion.PORTS),
        (WATCHES, exhaustion.WATCHES),
        (HIDES, exhaustion.WATCHES),
    ],
)
async def test_the_pod_that_holds_most_of_what_is_used_up_is_ended(
    place: Place, monkeypatch: pytest.MonkeyPatch, greedy: str, found: str
) -> None:
    """The other one has as many files open, none of which is of that kind."""
    await place.launch("worker-0", HOLDS)
    await place.launch("worker-1", greedy)
    logs = [place.state / f"pods/j/worker-{number}/log" for number in (0, 1)]
    await until(lambda: all(log.exists() and log.read_text() for log in logs))
    looks: list[str] = []
    monkeypatch.setattr("stretto_actuator.local.exhaustion.used_up", lambda: looks.append("") or found)
    monkeypatch.setitem(exhaustion.HELD, found, (exhaustion.HELD[found][0], 500))
    await place.backend.open()
    try:
        async with asyncio.timeout(60):
            while [pod.state for pod in await place.backend.list()] != ["running", "exited"]:
                await asyncio.sleep(0.05)
        seen = len(looks)
        await until(lambda: len(looks) > seen + 1)  # the other pod was looked at once more: it has few, and stays
        assert [pod.state for pod in await place.backend.list()] == ["running", "exited"]
    finally:
        await place.backend.close()
        end_pods(place.state, 0.0)


async def test_the_kernel_takes_memory_from_a_pod_first_and_the_pod_cannot_change_it(place: Place) -> None:
    script = """
own = "/proc/self/oom_score_adj"
print(open(own).read(), end="", flush=True)
try:
    print("0", file=open(own, "w"), flush=True)
except OSError:
    print("closed", flush=True)
"""
    await place.launch("worker-0", script)
    await ended(place.backend)
    assert (await place.backend.logs("j", "worker-0", 5)).split() == ["800", "closed"]


async def test_the_end_of_an_installation_is_no_fault_of_its_pods(place: Place) -> None:
    """A job survives five losses of parameters, and any number of restarts of its installation."""
    for pod, script in (("ps-0", "import time; time.sleep(60)"), ("ps-1", "raise SystemExit(4)")):
        await place.launch(pod, script)
    await until((place.state / "pods/j/ps-1/exit").exists)
    end_pods(place.state, 10.0)
    assert [(pod.pod, pod.reason) for pod in await ended(place.backend)] == [("ps-0", "evicted"), ("ps-1", "failed")]


DAEMON = """
import ctypes, os, threading, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        with open("daemon.tmp", "w") as file:
            file.write(str(os.getpid()))
        os.rename("daemon.tmp", "daemon")
        FIRST
"""
"""Leaves its session, and its environment or its first thread behind."""
ENDS = {
    "another program": 'os.execve("/bin/sleep", ["sleep", "600"], {})',
    "no first thread": "threading.Thread(target=time.sleep, args=(600,)).start(); ctypes.CDLL(None).syscall(END, 0)",
}
END = {"x86_64": "60", "aarch64": "93"}


def lives(pid: int) -> bool:
    """Return whether a process has a thread that has not ended."""
    states = [Path(f"{thread}/stat").read_text().rpartition(")")[2].split()[0] for thread in threads_of(pid)]
    return any(state not in "ZX" for state in states)


@pytest.mark.parametrize("by", ["forget", "down"])
@pytest.mark.parametrize("way", ENDS)
async def test_who_has_left_its_session_and_its_environment_ends_with_its_pod(place: Place, by: str, way: str) -> None:
    if mounts.lack():
        pytest.skip("this user gets no view of his own")
    await place.launch("worker-0", DAEMON.replace("FIRST", ENDS[way].replace("END", END[os.uname().machine])))
    await until((place.state / "pods/j/worker-0/work/daemon").exists)
    pid = int((place.state / "pods/j/worker-0/work/daemon").read_text())
    await ended(place.backend)
    assert lives(pid)
    if by == "forget":
        await place.backend.forget("j", "worker-0")
    else:
        await until(lambda: [each.pid for each in pods_of(place.state)] == [pid])  # its parent ends when it gets to it
        end_pods(place.state, 0.0)
    await until(lambda: not lives(pid))
