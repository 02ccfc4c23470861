"""Hostile pods in their boxes: real processes that try what their user may, beside an honest one."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from stretto_actuator.backend import BackendError, PodSpec
from stretto_actuator.local import boxes, landlock, mounts, seccomp
from stretto_actuator.local.backend import LocalBackend
from stretto_actuator.local.boxes import Box, Boxes, boxes_of, command_in, environment_in, warning_of
from stretto_actuator.local.landlock import ABI_LEAST, ABI_SCOPES
from stretto_actuator.settings import ActuatorSettings
from stretto_installation.server import free_port
from stretto_runtime import SettingsFault
from stretto_runtime.settings import images_folder
from stretto_wire.jobspec.pod_files import VolumeSpec

MIB = 2**20
LIMIT_S = 60.0
TRIES = """
import contextlib, ctypes, errno, json, os, signal, sys
done = []
def attempt(name, work):
    try:
        work()
    except OSError:
        return
    done.append(name)
def read(path):
    with open(path, "rb") as file:
        file.read(1)
def write(path):
    with open(path, "ab") as file:
        file.write(b"x")
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    words = [ctypes.byref(each) if isinstance(each, (ctypes.Array, ctypes.Structure)) else each for each in arguments]
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in words]
    result = libc.syscall(ctypes.c_long(number), *words)
    if result < 0 and ctypes.get_errno() != errno.EFAULT:  # nothing lies there, but it might have looked
        raise OSError(ctypes.get_errno(), str(number))
def trace(pid):
    if libc.ptrace(16, pid, None, None) != 0:  # PTRACE_ATTACH
        raise OSError(ctypes.get_errno(), "ptrace")
"""
"""Beginning of a pod's program: ``attempt`` lists what succeeds in ``done``."""

pytestmark = pytest.mark.skipif(landlock.abi() < ABI_SCOPES, reason="the kernel offers no such Landlock")


class Place:
    """An installation's state folder with what a hostile pod would like to have, and a folder beside it."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.beside = folder / "data"
        self.memory = folder / "shm"
        self.beside.mkdir()
        (self.beside / "dataset.csv").write_text("1,2")
        names = """
        nats/keys/root/account.seed nats/keys/gateway/bus.creds gateway.token redis/redis.conf
        secrets/s3 pods/other/worker-9/files/bus.creds pods/other/worker-9/files/plane.pem plane.secret
        pods/other/worker-9/log checkpoints/other/other-000001/manifest.json spans/other/worker-0.jsonl
        """
        self.secrets = [self.state / name for name in names.split()]
        self.secrets.append(images_folder(self.memory, self.state, "other") / "other-000001.ps-0")
        for file in self.secrets:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("secret")
        self.backend = LocalBackend(self.state, boxes=self.boxes())

    def boxes(self, **more: object) -> Boxes:
        made = boxes_of(ActuatorSettings(state_folder=self.state, memory_folder=self.memory, **more))
        assert made is not None
        return made

    def spec(self, script: str, job: str = "j", pod: str = "worker-0", **more: object) -> PodSpec:
        environment = {"PATH": os.environ["PATH"], "STRETTO_POD": pod}
        environment["STRETTO_POD_FOLDER"] = self.backend.places(job, pod).scratch
        command = (sys.executable, "-S", "-c", TRIES + textwrap.dedent(script))
        given = {"stores": (f"file://{self.state}/checkpoints/{job}",), **more}
        return PodSpec(job, pod, command, environment, 1.0, 256 * MIB, **given)  # type: ignore[arg-type]

    async def run(self, script: str, **more: object) -> list[str]:
        """Return what a pod could do of what the script attempts."""
        await self.backend.launch(self.spec(textwrap.dedent(script) + "\nprint(json.dumps(done))", **more))
        code = await self.ended()
        text = (await self.backend.logs("j", "worker-0", 5)).splitlines()
        assert code == 0, text
        return list(json.loads(text[-1]))

    async def ended(self) -> int | None:
        """Wait for the end of the one pod, and return its exit code."""
        deadline = time.monotonic() + LIMIT_S
        while (await self.backend.list("j"))[0].state != "exited":
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        return (await self.backend.list("j"))[0].exit_code


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path.resolve())
    yield made

    async def clear() -> None:
        while pods := await made.backend.list():
            for pod in pods:
                await made.backend.kill(pod.job, pod.pod)
                await made.backend.forget(pod.job, pod.pod)
            await asyncio.sleep(0.02)

    asyncio.run(clear())


def lay_traps(folder: Path, seed: Path) -> Path:
    """Fill a job's folder with programs, modules and a library that copy ``seed``; returns the place of the copy."""
    folder.mkdir()
    stolen = folder / "stolen"
    for name in ("mv", "kill", "sh", "python"):
        (folder / name).write_text(f"#!/bin/sh\n/bin/cat {seed} > {stolen}\n")
        (folder / name).chmod(0o700)
    for name in ("landlock", "sitecustomize"):
        (folder / f"{name}.py").write_text(f"open({str(stolen)!r}, 'w').write(open({str(seed)!r}).read())")
    (folder / "library.c").write_text(
        f'''
        #include <stdio.h>
        __attribute__((constructor)) static void steal(void) {{
            char text[7] = {{0}};
            FILE *from = fopen("{seed}", "r"), *to;
            if (from && fread(text, 1, 6, from) && (to = fopen("{stolen}", "w"))) {{ fputs(text, to); fclose(to); }}
        }}
        '''
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "library.so", folder / "library.c"], check=True)
    return stolen


async def test_a_pod_neither_reads_nor_writes_what_is_not_its_jobs(place: Place) -> None:
    script = f"""
    for path in {[str(path) for path in place.secrets]}:
        attempt("read " + path, lambda: read(path))
        attempt("write " + path, lambda: write(path))
        attempt("remove " + path, lambda: os.unlink(path))
        attempt("link " + path, lambda: os.link(path, "stolen"))
        attempt("move " + path, lambda: os.rename(path, "stolen"))
        attempt("replace " + path, lambda: (write("mine"), os.rename("mine", path)))
        attempt("by a link of its own", lambda: (os.symlink(path, "link"), read("link")))
        with contextlib.suppress(OSError):
            os.unlink("link")
    """
    assert await place.run(script) == []
    assert [path.read_text() for path in place.secrets] == ["secret"] * len(place.secrets)


async def test_a_pod_changes_nothing_that_services_run_from_or_the_user_keeps(place: Place) -> None:
    folders = {sys.prefix, str(Path(landlock.__file__).parent), str(Path.home()), str(place.beside), "/tmp", "/etc"}
    folders |= {str(place.state / name) for name in ("run", "pods/j/worker-0", "pods/j", "pods", "spans", ".")}
    script = f"""
    for folder in {sorted(folders)}:
        attempt("write into " + folder, lambda: write(folder + "/planted"))
    attempt("record", lambda: write("../pod.json"))
    attempt("files", lambda: write("../files/job.json"))
    """
    (place.state / "run").mkdir()
    assert await place.run(script, files={"job.json": b"{}"}) == []
    assert not [folder for folder in folders if os.path.exists(f"{folder}/planted")]  # noqa: ASYNC240


async def test_a_pod_neither_ends_nor_traces_nor_sees_into_others(place: Place) -> None:
    await place.backend.launch(place.spec("import time; print('up', flush=True); time.sleep(60)", job="other"))
    (other,) = await place.backend.list("other")
    service = await asyncio.create_subprocess_exec("sleep", "60")
    try:
        pids = [service.pid, os.getpid(), *other.pids]
        script = f"""
        for pid in {pids}:
            attempt(f"look at {{pid}}", lambda: os.kill(pid, 0))
            attempt(f"end {{pid}}", lambda: os.kill(pid, signal.SIGCONT))
            attempt(f"trace {{pid}}", lambda: trace(pid))
            attempt(f"environment of {{pid}}", lambda: read(f"/proc/{{pid}}/environ"))
            attempt(f"memory of {{pid}}", lambda: read(f"/proc/{{pid}}/mem"))
            attempt(f"files of {{pid}}", lambda: os.readlink(f"/proc/{{pid}}/fd/1"))
            attempt(f"root of {{pid}}", lambda: read(f"/proc/{{pid}}/root{place.secrets[0]}"))
        attempt("its shell", lambda: os.kill(os.getppid(), signal.SIGCONT))
        """
        assert await place.run(script) == []
        assert service.returncode is None
        assert psutil.Process(service.pid).status() != psutil.STATUS_ZOMBIE
        assert [pod.state for pod in await place.backend.list("other")] == ["running"]
    finally:
        service.kill()
        await service.wait()


CALLS = """
two, eight = (ctypes.c_uint64 * 2)(1, 1), (ctypes.c_uint64 * 8)()
attribute = (ctypes.c_uint32 * 12)(48, 5)  # SCHED_IDLE
own = (ctypes.c_uint64 * 2)(ctypes.addressof(eight), 64)
def calls_on(pid):
    return {
        "prlimit64": (302, pid, 0, two, 0),
        "prlimit64 that reads": (302, pid, 0, 0, two),
        "setpriority": (141, 0, pid, 19),
        "ioprio_set": (251, 1, pid, 3 << 13),
        "sched_setaffinity": (203, pid, 8, two),
        "sched_setscheduler": (144, pid, 5, (ctypes.c_uint32 * 1)(0)),
        "sched_setparam": (142, pid, (ctypes.c_uint32 * 1)(0)),
        "sched_setattr": (314, pid, attribute, 0),
        "migrate_pages": (256, pid, 64, two, two),
        "move_pages": (279, pid, 0, 0, 0, 0, 0),
        "process_vm_readv": (310, pid, own, 1, own, 1, 0),
        "process_vm_writev": (311, pid, own, 1, own, 1, 0),
        "kcmp": (312, os.getpid(), pid, 1, 0, 0),
        "pidfd_open": (434, pid, 0),
        "get_robust_list": (274, pid, two, eight),
        "perf_event_open": (298, (ctypes.c_uint32 * 32)(1, 128), pid, -1, -1, 0),
        "kill": (62, pid, 0),
        "tkill": (200, pid, 0),
        "tgkill": (234, pid, pid, 0),
        "shmget": (29, 4711, 4096, 0o1600),
        "rt_sigqueueinfo": (129, pid, 0, (ctypes.c_uint32 * 32)(0, 0, 0xFFFFFFFF)),
    }
"""
"""Each system call that names a process, as ``call`` takes it."""
OF_ALL = {
    "setpriority of the user's": "(141, 2, 0, 19)",
    "ioprio_set of the user's": "(251, 3, os.getuid(), 3 << 13)",
    "real time": "(144, 0, 1, (ctypes.c_uint32 * 1)(50))",
    "add_key": "(248, 0, 0, 0, 0, -4)",
    "keyctl": "(250, 11, -4, 0, 0)",
    "userfaultfd": "(323, 1)",
    "mq_open": "(240, 0, os.O_CREAT, 0o600, 0)",
}


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers are those of x86-64")
async def test_a_pod_changes_and_observes_no_process_outside_its_box_by_any_system_call(place: Place) -> None:
    await place.backend.launch(place.spec("import time; print('up', flush=True); time.sleep(60)", job="other"))
    (other,) = await place.backend.list("other")
    service = await asyncio.create_subprocess_exec("sleep", "60")
    try:
        script = f"""
        for pid in {[service.pid, *other.pids]}:
            for name, words in calls_on(pid).items():
                attempt(f"{{name}} of {{pid}}", lambda: call(*words))
        """
        script += "".join(f"\n        attempt({name!r}, lambda: call(*{words}))" for name, words in OF_ALL.items())
        before = state_of(service.pid)
        assert await place.run(CALLS + textwrap.dedent(script)) == []
        assert state_of(service.pid) == before
    finally:
        service.kill()
        await service.wait()


async def test_a_pod_takes_no_port_of_its_choice_and_listens_where_the_kernel_chooses(place: Place) -> None:
    """Method: a bus, a cache or a gateway is away for a moment, and the pod wants its port, with every kind of socket
    that a client of TCP would reach."""
    port = free_port()
    script = f"""
    import socket
    def listen(family, protocol, port, reused=0):
        with socket.socket(family, socket.SOCK_STREAM, protocol) as made:
            if reused:
                made.setsockopt(socket.SOL_SOCKET, reused, 1)
            made.bind(("::" if family == socket.AF_INET6 else "127.0.0.1", port))
            made.listen()
    for family in (socket.AF_INET, socket.AF_INET6, 43):  # SMC
        for protocol in (0, socket.IPPROTO_TCP, 262, 256):  # MPTCP, SMC
            for reused in (0, socket.SO_REUSEADDR, socket.SO_REUSEPORT):
                attempt(f"{{family}} {{protocol}} {{reused}}", lambda: listen(family, protocol, {port}, reused))
    attempt("ring", lambda: call(425, 8, (ctypes.c_uint32 * 30)()))
    attempt("own", lambda: listen(socket.AF_INET, 0, 0))
    """
    assert await place.run(script) == ["own"]


async def test_a_program_of_several_ranks_listens_at_one_port_that_was_kept_for_it(place: Place) -> None:
    """The port stays bound from before the box on, so that nobody else was given it, and may be listened at again."""
    script = """
    import socket
    port = int(os.environ["PROGRAM_PORT"])
    def listen(port, reused):
        with socket.socket() as made:
            if reused:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(("", port))
            made.listen()
    attempt("other", lambda: listen(port + 1 if port < 65535 else port - 1, True))
    attempt("taken", lambda: listen(port, False))
    attempt("kept", lambda: listen(port, True))
    attempt("again", lambda: listen(port, True))
    """
    assert await place.run(script, listens="PROGRAM_PORT") == ["kept", "again"]


def state_of(pid: int) -> list[object]:
    process = psutil.Process(pid)
    return [process.nice(), process.ionice(), process.cpu_affinity(), os.sched_getscheduler(pid), process.rlimit(0)]


@pytest.mark.skipif(bool(mounts.lack()), reason="this user gets no mount namespace here")
async def test_a_pod_changes_no_mode_owner_or_time_of_others_files_and_reaches_no_socket(
    place: Place,
) -> None:
    others = [*place.secrets, place.state, place.state / "pods/other", place.beside, place.beside / "dataset.csv"]
    server = socket.socket(socket.AF_UNIX)
    with contextlib.chdir(place.state / "pods/other/worker-9"):  # the whole path may be too long for a socket
        server.bind("plane.sock")
    server.listen()
    (place.state / "pods/j/ps-0/work").mkdir(parents=True)
    peer = socket.socket(socket.AF_UNIX)
    with contextlib.chdir(place.state / "pods/j/ps-0/work"):
        peer.bind("plane.sock")
    peer.listen()
    _, open_by_handle = seccomp.FILE_HANDLES[os.uname().machine]
    script = f"""
    import fcntl, socket, struct
    def held(path, change):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            change(descriptor)
        finally:
            os.close(descriptor)
    def tries(path):
        attempt("mode " + path, lambda: os.chmod(path, 0o000))
        attempt("owner " + path, lambda: os.chown(path, os.getuid(), os.getgid()))
        attempt("times " + path, lambda: os.utime(path, (1, 1)))
        attempt("attribute " + path, lambda: os.setxattr(path, "user.x", b"x"))
        attempt("mode by descriptor " + path, lambda: held(path, lambda each: os.fchmod(each, 0o000)))
        attempt("times by descriptor " + path, lambda: held(path, lambda each: os.utime(each, (1, 1))))
        attempt("another view " + path, lambda: call(165, path.encode(), path.encode(), b"none", 4096, 0))
    for path in {[str(path) for path in others]} + ["/proc/1", "/", "/etc/passwd"]:
        tries(path)
    def connect(path):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
    attempt("socket", lambda: connect({server.getsockname()!r}))
    connect({str(place.state / "pods/j/ps-0/work/plane.sock")!r})
    write("own")
    root = struct.pack("=IiII", 8, 1, 2, 0)  # by type and inode of ext4, which asks no name of it
    for place in (".", "/", "/tmp"):
        opened = os.open(place, os.O_RDONLY)
        attempt(f"root by its handle at {{place}}", lambda: call({open_by_handle}, opened, root, os.O_PATH))
    attempt("a lease", lambda: fcntl.fcntl(os.open("own", os.O_RDONLY), 1024, fcntl.F_RDLCK))
    os.chmod("own", 0o600)
    os.utime("own", (1, 1))
    os.rename("own", "other")
    """
    with server, peer:
        assert await place.run(script) == []
    assert all(path.read_text() == "secret" for path in place.secrets)


async def test_a_pod_neither_reads_from_nor_writes_to_a_terminal_of_its_user(place: Place) -> None:
    keyboard, terminal = os.openpty()
    script = f"""
    attempt("keys", lambda: os.open("{os.ttyname(terminal)}", os.O_RDONLY | os.O_NOCTTY))
    attempt("screen", lambda: os.open("{os.ttyname(terminal)}", os.O_WRONLY | os.O_NOCTTY))
    """
    try:
        assert await place.run(script) == []
    finally:
        os.close(keyboard)
        os.close(terminal)


async def test_a_folder_of_checkpoints_that_another_job_turned_into_a_link_starts_nothing(place: Place) -> None:
    """Method: a store that jobs choose lies in a job's own folder, which holds links to the keys."""
    keys, store = place.secrets[0].parent, place.beside / "store"
    (store / "hostile").mkdir(parents=True)
    for name in ("j", "sub"):
        (store / "hostile" / name).symlink_to(keys)
    place.backend = LocalBackend(place.state, boxes=place.boxes(allowed_stores=f"file://{store}/*"))
    for url in (f"file://{store}/hostile/j", f"file://{store}/hostile/sub/j"):
        with pytest.raises(BackendError, match="a link"):
            await place.backend.launch(place.spec("", stores=(url,)))
    assert {path.name for path in keys.iterdir()} == {place.secrets[0].name}


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "make room there"),
        (errno.EDQUOT, "make room there"),
        (errno.EROFS, "let the installation's user write there"),
        (errno.EACCES, "let the installation's user write there"),
    ],
)
async def test_a_pod_that_gets_no_folder_names_the_remedy_of_its_cause(
    place: Place, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
) -> None:
    def refuse(path: Path, *_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), str(path))

    spec, pod_boxes = place.spec(""), place.boxes()
    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(BackendError, match=f"{os.strerror(number)}: .*; {remedy}$"):
        pod_boxes.box(spec, place.beside, place.beside / "scratch")


async def test_a_job_reads_of_a_nested_store_only_the_job_that_it_starts_from(place: Place) -> None:
    store = place.beside / "store"
    own, others = (store / "team" / job / f"{job}-000001" / "manifest.json" for job in ("mine", "other"))
    for file in (own, others):
        file.parent.mkdir(parents=True)
        file.write_text("secret")
    place.backend = LocalBackend(place.state, boxes=place.boxes(allowed_stores=f"file://{store}/*"))
    script = f"""
    attempt("own", lambda: read("{own}"))
    attempt("others", lambda: read("{others}"))
    """
    assert await place.run(script, stores=(f"file://{store}/team/j",), reads=(f"file://{own}",)) == ["own"]


@pytest.mark.parametrize("way", ["PATH", "LD_PRELOAD", "PYTHONPATH", "ENV"])
async def test_no_variable_of_a_job_brings_its_code_in_front_of_the_box(place: Place, way: str) -> None:
    """Method: a former pod of the job has laid programs into the job's folder, and the job's variable names them."""
    folder = place.state / "checkpoints/j"
    stolen = lay_traps(folder, place.secrets[0])
    value = {"PATH": f"{folder}:{os.environ['PATH']}", "LD_PRELOAD": f"{folder}/library.so", "ENV": f"{folder}/mv"}
    script = f"assert os.environ.get({way!r}, '') == {value.get(way, str(folder))!r}\nprint(json.dumps(done))"
    spec = place.spec(script)
    await place.backend.launch(replace(spec, environment=spec.environment | {way: value.get(way, str(folder))}))
    assert await place.ended() == 0
    assert not stolen.exists()


async def test_an_honest_pod_has_all_that_it_needs(place: Place) -> None:
    images = images_folder(place.memory, place.state, "j")
    script = f"""
    import socket, subprocess, tempfile
    attempt("dataset", lambda: read("{place.beside}/dataset.csv"))
    attempt("list beside", lambda: os.listdir("{place.state.parent}"))
    attempt("own files", lambda: read("../files/job.json"))
    attempt("scratch", lambda: (write("a"), os.rename("a", "b"), os.mkdir("c"), os.rename("b", "c/b")))
    attempt("temporary", lambda: tempfile.NamedTemporaryFile().write(b"x"))
    attempt("null", lambda: write("/dev/null"))
    attempt("random", lambda: read("/dev/urandom"))
    attempt("image", lambda: (write("{images}/j-000001.worker-0"), os.unlink("{images}/j-000001.worker-0")))
    attempt("spans", lambda: write("{place.state}/spans/j/worker-0.jsonl"))
    def checkpoint():
        os.makedirs("{place.state}/checkpoints/j/j-000001", exist_ok=True)
        write("{place.state}/checkpoints/j/j-000001/part")
        os.rename("{place.state}/checkpoints/j/j-000001/part", "{place.state}/checkpoints/j/j-000001/whole")
    attempt("checkpoint", checkpoint)
    attempt("server", lambda: socket.create_server(("127.0.0.1", 0)))
    attempt("child", lambda: subprocess.run([sys.executable, "-c", "pass"], check=True))
    import resource, threading
    attempt("limit itself", lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)))
    attempt("limit itself by number", lambda: resource.prlimit(os.getpid(), resource.RLIMIT_CORE, (0, 0)))
    attempt("yield", lambda: (os.nice(1), os.sched_setaffinity(0, os.sched_getaffinity(os.getpid()))))
    attempt("threads", lambda: [each.join() for each in [threading.Thread(target=os.getpid)] if not each.start()])
    child = subprocess.Popen(["sleep", "60"])
    attempt("end its child", lambda: (child.kill(), child.wait()))
    """
    found = await place.run(script, files={"job.json": b"{}"})
    every = ["dataset", "list beside", "own files", "scratch", "temporary", "null", "random", "image", "spans"]
    itself = ["limit itself", "limit itself by number", "yield", "threads"]
    assert found == [*every, "checkpoint", "server", "child", *itself, "end its child"]
    await place.backend.forget("j", "worker-0")
    assert not (place.state / "pods/j/worker-0/work").exists(), "its disk goes with it"


@pytest.mark.parametrize("images", [True, False])
async def test_shared_memory_is_open_where_it_holds_no_images(place: Place, images: bool) -> None:
    if not images:
        place.memory = None  # type: ignore[assignment]
        place.backend = LocalBackend(place.state, boxes=place.boxes())
    script = """
    import multiprocessing
    attempt("lock", multiprocessing.Lock)
    """
    assert await place.run(script) == ([] if images else ["lock"])


async def test_a_job_reads_the_checkpoint_that_it_starts_from_and_does_not_change_it(place: Place) -> None:
    file = place.state / "checkpoints/other/other-000001/manifest.json"
    script = f'attempt("read", lambda: read("{file}"))\nattempt("write", lambda: write("{file}"))'
    assert await place.run(script, reads=(f"file://{file}",)) == ["read"]


async def test_a_volume_is_read_and_written_only_where_the_job_may_write(place: Place) -> None:
    """Method: the same folder as a volume at its own path, and at one in the pod's folder."""
    other = place.beside / "models"
    other.mkdir()
    script = f"""
    attempt("read", lambda: read("clicks/dataset.csv"))
    attempt("read it where it is", lambda: read("{place.beside}/dataset.csv"))
    attempt("write", lambda: write("clicks/planted"))
    attempt("write it where it is", lambda: write("{place.beside}/planted"))
    attempt("output", lambda: write("out/model"))
    attempt("secret by a link", lambda: (os.symlink("{place.secrets[0]}", "out/link"), read("out/link")))
    """
    volumes = (
        VolumeSpec(name="clicks", path="clicks", folder=str(place.beside)),
        VolumeSpec(name="models", path="out", folder=str(other), writable=True),
    )
    assert await place.run(script, volumes=volumes) == ["read", "read it where it is", "output"]
    assert (other / "model").read_bytes() == b"x"
    await place.backend.forget("j", "worker-0")
    assert (place.beside / "dataset.csv").exists(), "the pod's folder goes, the volume stays"


@pytest.mark.parametrize("which", ["state", "above the state", "in the state", "absent", "link"])
async def test_a_volume_opens_no_place_of_the_installation(place: Place, which: str) -> None:
    """The list of an operator who did not think of it opens neither keys nor other jobs' checkpoints."""
    (place.beside / "link").symlink_to(place.state)
    folders = {
        "state": place.state,
        "above the state": place.state.parent,
        "in the state": place.state / "checkpoints/other",
        "absent": place.beside / "absent",
        "link": place.beside / "link",
    }
    volumes = (VolumeSpec(name="v", path="v", folder=str(folders[which])),)
    with pytest.raises(BackendError, match=r"volumes\.v = folder:"):
        await place.backend.launch(place.spec("", volumes=volumes))
    assert await place.backend.list() == []


async def test_places_of_secrets_outside_the_state_folder_are_closed_and_listed_outputs_open(place: Place) -> None:
    seed, output = place.beside / "pods.seed", place.beside / "models"
    seed.write_text("secret")
    output.mkdir()
    place.backend = LocalBackend(place.state, boxes=place.boxes(signing_key_file=seed, local_writable=str(output)))
    script = f"""
    attempt("seed", lambda: read("{seed}"))
    attempt("dataset", lambda: read("{place.beside}/dataset.csv"))
    attempt("output", lambda: write("{output}/model"))
    """
    assert await place.run(script) == ["dataset", "output"]


async def test_the_actuator_asks_and_ends_a_confined_pod(place: Place) -> None:
    polite = "import time; signal.signal(15, lambda *_: sys.exit(0)); print('up', flush=True); time.sleep(60)"
    await place.backend.launch(place.spec(polite))
    deadline = time.monotonic() + LIMIT_S
    while "up" not in await place.backend.logs("j", "worker-0", 5):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    await place.backend.stop("j", "worker-0", 5.0)
    while (await place.backend.list())[0].state != "exited":
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    assert (await place.backend.list())[0].exit_code == 0


@pytest.mark.parametrize("version", range(ABI_LEAST, ABI_SCOPES + 1))
def test_older_kernels_close_files_too(place: Place, version: int) -> None:
    """The rights of each version of Landlock, as a kernel of that version is asked for them."""
    box = place.boxes().box(place.spec(""), place.state, place.state / "work")
    program = f"""
import sys
sys.path.insert(0, {str(Path(landlock.__file__).parent)!r})
import landlock
landlock.confine({box.closed!r}, (), {box.writes!r}, {version})
open({str(place.secrets[0])!r})
"""
    command = [sys.executable, "-I", "-S", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "PermissionError" in done.stderr


def test_a_box_that_cannot_be_made_starts_nothing(tmp_path: Path) -> None:
    command = command_in(Box((), (), (str(tmp_path / "gone"),)), (sys.executable, "-c", "print('it ran')"))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == landlock.CANNOT_CONFINE
    assert "cannot be confined" in done.stdout
    assert "it ran" not in done.stdout


def test_temporary_files_go_where_the_pod_may_write(tmp_path: Path) -> None:
    box = Box((), (), (str(tmp_path),))
    assert environment_in(box, {"TMPDIR": "/tmp"}, tmp_path / "work")["TMPDIR"] == str(tmp_path / "work/tmp")
    assert environment_in(box, {"TMPDIR": f"{tmp_path}/x"}, tmp_path / "work")["TMPDIR"] == f"{tmp_path}/x"


def test_where_the_kernel_cannot_pods_start_as_before_and_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = ActuatorSettings(state_folder=tmp_path)
    assert boxes_of(here) is not None, "what this user gets is known from now on"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert warning_of(here.model_copy(update={"cgroups": False})).startswith("local pods of root may have more than")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert warning_of(here) == ""
    assert "unset it" in warning_of(ActuatorSettings(state_folder=tmp_path, local_confine="off"))
    assert boxes_of(ActuatorSettings(state_folder=tmp_path, local_confine="off")) is None
    monkeypatch.setattr(landlock, "abi", lambda: 0)
    assert boxes_of(here) is None
    assert "not confined" in warning_of(here)
    assert "Linux 6.12" in warning_of(here)
    with pytest.raises(SettingsFault, match="LOCAL_CONFINE=required is refused"):
        boxes_of(ActuatorSettings(state_folder=tmp_path, local_confine="required"))
    monkeypatch.setattr(landlock, "abi", lambda: ABI_SCOPES - 1)
    assert boxes_of(here) is not None
    assert "signals" in warning_of(here)
    monkeypatch.setattr(seccomp, "available", lambda: False)
    assert "may send signals to" in warning_of(here)
    assert "may limit and slow down" in warning_of(here)
    monkeypatch.setattr(boxes, "_unsheltered", lambda: "it gives no mount namespace")
    assert "may change mode, owner and times of files of this user, and leave processes behind" in warning_of(here)
    assert "it gives no mount namespace" in warning_of(here)
    found = boxes_of(here)
    assert found is not None
    assert not found.sheltered


@pytest.mark.parametrize("folder", ["relative", "/nowhere/at/all", "/"])
def test_an_unsuitable_folder_to_write_is_refused(tmp_path: Path, folder: str) -> None:
    with pytest.raises(SettingsFault, match="LOCAL_WRITABLE"):
        boxes_of(ActuatorSettings(state_folder=tmp_path, local_writable=folder))


def test_a_folder_to_write_that_holds_a_store_or_a_secret_is_refused(tmp_path: Path) -> None:
    state, data = tmp_path / "state", tmp_path / "data"
    for place in (state, data / "secrets", data / "checkpoints"):
        place.mkdir(parents=True)
    for held in ({"secrets_folder": data / "secrets"}, {"memory_folder": data / "checkpoints"}):
        with pytest.raises(SettingsFault, match=r"LOCAL_WRITABLE.*it holds .*data/"):
            boxes_of(ActuatorSettings(state_folder=state, local_writable=str(data), **held))


def test_the_box_is_little_beside_the_start_of_a_pod(place: Place) -> None:
    box = place.boxes().box(place.spec(""), place.state, place.state / "work")
    took_s = []
    for _ in range(5):
        began = psutil.Process().cpu_times()
        subprocess.run(command_in(box, ("/bin/true",), sheltered=True), check=True)
        now = psutil.Process().cpu_times()
        took_s.append(now.children_user + now.children_system - began.children_user - began.children_system)
    assert min(took_s) < 0.05
