"""The local backend with real processes: one of each name, adopted, limited, ended, and told truly."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from local_pods import LIMIT_S, ended, running_pid
from stretto_actuator.backend import PodSpec, stated_reason
from stretto_actuator.local import control_groups as limits
from stretto_actuator.local.backend import LocalBackend, backend_of
from stretto_actuator.local.control_groups import Cgroups, Group
from stretto_actuator.local.processes import PodProcesses
from stretto_actuator.local.records import Record, clear_spans
from stretto_actuator.settings import ActuatorSettings

from tests.waits import until

MIB = 2**20


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    backend = LocalBackend(tmp_path)

    async def clear() -> None:
        for pod in await backend.list():
            await backend.kill(pod.job, pod.pod)
        for pod in await ended(backend):
            await backend.forget(pod.job, pod.pod)

    asyncio.run(clear())
    for hierarchy in set(backend._cgroups._of.values()):
        assert hierarchy.version == 2 or not hierarchy.folder.exists(), "nothing is left of the pods' control groups"


def spec(folder: Path, pod: str, script: str, memory: int = 256 * MIB, cpu: float = 1.0) -> PodSpec:
    environment = {"PATH": os.environ["PATH"], "STRETTO_POD": pod, "STRETTO_POD_FOLDER": str(folder / "pods/j" / pod)}
    command = (sys.executable, "-S", "-c", script) if script else ("sleep", "60")
    return PodSpec("j", pod, command, environment, cpu, memory)


def is_gone(pid: int) -> bool:
    """Return True if a process has ended; nobody may have waited for it."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def miss_looks(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Let the first looks for the processes of a pod find none: they start just after it."""
    members, looks = PodProcesses.members, []

    def late(processes: PodProcesses, record: Record) -> list[psutil.Process]:
        looks.append(record)
        return members(processes, record) if len(looks) > count else []

    monkeypatch.setattr(PodProcesses, "members", late)


async def running(folder: Path) -> tuple[LocalBackend, int]:
    """Start worker-0, which sleeps; return its backend and its process."""
    backend = LocalBackend(folder)
    await backend.launch(spec(folder, "worker-0", ""))
    return backend, await running_pid(folder, "worker-0")


async def over(folder: Path, script: str) -> LocalBackend:
    """Run worker-0 to its end; return its backend."""
    backend = LocalBackend(folder)
    await backend.launch(spec(folder, "worker-0", script))
    await ended(backend)
    return backend


async def test_whatever_a_pod_leaves_behind_is_removed_while_others_go_on(folder: Path) -> None:
    """Method: more folders in one another than Python's stack is deep, and very many files beside them."""
    script = """
    import os
    for number in range(20000):
        open(f"f{number}", "w").close()
    for _ in range(1500):
        os.mkdir("deeper")
        os.chdir("deeper")
    """
    backend = await over(folder, textwrap.dedent(script))
    removing, longest_s, first_s = asyncio.create_task(backend.forget("j", "worker-0")), 0.0, time.monotonic()
    while not removing.done():
        began_s = time.monotonic()
        await asyncio.sleep(0.01)
        longest_s = max(longest_s, time.monotonic() - began_s)
    await removing
    assert not (folder / "pods/j/worker-0/work").exists()
    assert longest_s < (time.monotonic() - first_s) / 2
    assert await backend.list() == []


async def test_a_record_that_cannot_be_read_costs_its_pod_alone(folder: Path) -> None:
    """A loss of power leaves empty files."""
    backend = LocalBackend(folder)
    for pod in ("worker-0", "worker-1"):
        await backend.launch(spec(folder, pod, ""))
    pid = await running_pid(folder, "worker-0")
    record = folder / "pods/j/worker-0/pod.json"
    text = record.read_text()
    for damaged in ("", "{}", "[]", '{"group": 3}'):
        record.write_text(damaged)
        assert [pod.pod for pod in await backend.list()] == ["worker-1"]
    record.write_text(text)
    assert (await backend.list())[0].state == "running"
    assert psutil.pid_exists(pid)


async def test_pod_started_but_never_recorded_is_found_again(folder: Path) -> None:
    first = LocalBackend(folder)
    await first.launch(spec(folder, "ps-0", ""))
    pid = await running_pid(folder, "ps-0")
    (folder / "pods/j/ps-0/pod.json").unlink()  # the launcher died just before it wrote this
    second = LocalBackend(folder)
    assert await second.list() == []
    await second.launch(spec(folder, "ps-0", ""))
    (pod,) = await second.list()
    assert pid in pod.pids
    assert await running_pid(folder, "ps-0") == pid


async def test_reused_pid_is_neither_believed_nor_killed(folder: Path) -> None:
    backend = LocalBackend(folder)
    await backend.launch(spec(folder, "worker-0", ""))
    await running_pid(folder, "worker-0")
    await backend.kill("j", "worker-0")
    await ended(backend)
    stranger = await asyncio.create_subprocess_exec("sleep", "30")
    try:
        here = folder / "pods/j/worker-0"
        (here / "exit").unlink()
        (here / "pid").write_text(str(stranger.pid))
        record = backend._records.read("j", "worker-0")
        assert record is not None
        text = (here / "pod.json").read_text().replace(f'"pid": {record.pid}', f'"pid": {stranger.pid}')
        (here / "pod.json").write_text(text.replace(str(record.birth.ticks), str(record.birth.ticks - 10_000)))
        (pod,) = await LocalBackend(folder).list()
        assert (pod.state, pod.exit_code) == ("exited", None)
        await backend.kill("j", "worker-0")
        await backend.forget("j", "worker-0")
        assert stranger.returncode is None
        assert psutil.pid_exists(stranger.pid)
    finally:
        stranger.kill()
        await stranger.wait()


async def test_a_stepped_clock_ends_no_pod(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await LocalBackend(folder).launch(spec(folder, "worker-0", ""))
    pid = await running_pid(folder, "worker-0")
    monkeypatch.setattr(psutil._pslinux, "boot_time", lambda: psutil.boot_time() + 3600)
    (pod,) = await LocalBackend(folder).list()
    assert pod.state == "running"
    assert pid in pod.pids


@pytest.mark.parametrize("step_s", [3600.0, -3600.0])
async def test_a_step_of_the_time_of_day_changes_no_grace(folder: Path, step_s: float) -> None:
    now, up = [10_000.0], [100.0]
    backend = LocalBackend(folder, clock=lambda: now[0], uptime_s=lambda: up[0])
    stubborn = "import signal,time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    await backend.launch(spec(folder, "worker-0", stubborn))
    await until(lambda: "up" in (folder / "pods/j/worker-0/log").read_text())
    await backend.stop("j", "worker-0", 5.0)
    now[0] += step_s
    await backend.stop("j", "worker-0", 5.0)
    assert (await backend.list())[0].state == "running"
    up[0] += 6
    await backend.stop("j", "worker-0", 5.0)
    assert (await ended(backend))[0].exit_code == 137


async def test_pod_that_missed_the_first_request_is_asked_again(folder: Path) -> None:
    now = [100.0]
    backend = LocalBackend(folder, uptime_s=lambda: now[0])
    script = """import signal, sys, time
def asked(*_):
    print("asked", flush=True)
    signal.signal(15, lambda *_: sys.exit(0))
signal.signal(15, asked)
print("up", flush=True)
while True:
    time.sleep(0.05)
"""
    await backend.launch(spec(folder, "worker-0", script))
    log = folder / "pods/j/worker-0/log"
    await until(lambda: "up" in log.read_text())
    await backend.stop("j", "worker-0", 60.0)
    await until(lambda: "asked" in log.read_text())
    await backend.stop("j", "worker-0", 60.0)
    assert (await backend.list())[0].state == "running"
    now[0] += 2.5
    await backend.stop("j", "worker-0", 60.0)
    assert (await ended(backend))[0].exit_code == 0


async def test_children_of_a_dead_pod_are_ended_with_it(folder: Path) -> None:
    script = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid, flush=True)"
    backend = await over(folder, script)
    orphan = int((folder / "pods/j/worker-0/log").read_text())
    assert psutil.pid_exists(orphan)
    await backend.forget("j", "worker-0")
    await until(lambda: is_gone(orphan))


HUNGRY = "x = bytearray(300 * 2**20); print('fed', flush=True); import time; time.sleep(60)"
BUSY = "import time\nwhile True: pass"


@pytest.mark.parametrize("cgroups", [True, False])
async def test_memory_beyond_the_limit_is_an_oom_kill_by_whatever_means_there_are(folder: Path, cgroups: bool) -> None:
    backend = LocalBackend(folder, cgroups=cgroups)
    await backend.launch(spec(folder, "ps-0", HUNGRY, memory=64 * MIB))
    (pod,) = await ended(backend)
    assert (pod.reason, pod.exit_code) == ("oom-killed", 137)
    kernel = "cgroup1-memory" in pod.limits or "cgroup2-memory" in pod.limits
    assert kernel or "memory-watch" in pod.limits
    assert cgroups or not kernel


async def test_memory_of_what_a_pod_starts_is_the_pods(folder: Path) -> None:
    """A program of the user's is a child of the process that runs it."""
    backend = LocalBackend(folder, cgroups=False)
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {HUNGRY!r}])"
    await backend.launch(spec(folder, "worker-0", script, memory=512 * MIB))
    await until(lambda: "fed" in (folder / "pods/j/worker-0/log").read_text())
    _, memory = await backend.resize("j", "worker-0", 1.0, 100 * MIB)
    assert memory > 300 * MIB, "no less than the child holds"
    record = backend._records.read("j", "worker-0")
    assert record is not None
    backend._records.write(replace(record, memory_bytes=64 * MIB))
    (pod,) = await ended(backend)
    assert (pod.reason, pod.exit_code) == ("oom-killed", 137)


async def test_a_kill_for_memory_that_an_actuator_did_not_live_to_finish_is_finished_by_the_next(folder: Path) -> None:
    first = LocalBackend(folder, cgroups=False)
    await first.launch(spec(folder, "ps-0", ""))
    pid = await running_pid(folder, "ps-0")
    record = first._records.read("j", "ps-0")
    assert record is not None
    first._records.write(replace(record, oom_killed=True))
    for process, number in ((record.pid, signal.SIGSTOP), (pid, signal.SIGKILL)):
        os.kill(process, number)
    (pod,) = await ended(LocalBackend(folder, cgroups=False))
    assert pod.reason == "oom-killed"


async def test_cpu_limit_binds_and_changes_live(folder: Path) -> None:
    backend = LocalBackend(folder)
    if not backend._cgroups.has("cpu"):
        pytest.skip("no writable cpu controller: affinity is tested below")
    await backend.launch(spec(folder, "worker-0", BUSY, cpu=0.2))
    pid = await running_pid(folder, "worker-0")

    async def used(seconds: float) -> float:
        process = psutil.Process(pid)
        before, began_s = process.cpu_times(), time.monotonic()
        await asyncio.sleep(seconds)
        after, ended_s = process.cpu_times(), time.monotonic()
        return (after.user + after.system - before.user - before.system) / (ended_s - began_s)

    await asyncio.sleep(0.3)
    assert await used(1.0) < 0.32
    assert await backend.resize("j", "worker-0", 0.05, 256 * MIB) == (0.05, 256 * MIB)
    await asyncio.sleep(0.2)
    assert await used(1.5) < 0.12


async def test_without_cgroups_whole_cores_are_pinned(folder: Path) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core: nothing to pin")
    backend = LocalBackend(folder, cgroups=False)
    await backend.launch(spec(folder, "worker-0", "", cpu=0.5))
    pid = await running_pid(folder, "worker-0")
    (pod,) = await backend.list()
    assert pod.limits == ("cpu-affinity", "memory-watch")
    assert len(os.sched_getaffinity(pid)) == 1
    await backend.resize("j", "worker-0", 512.0, 256 * MIB)
    assert os.sched_getaffinity(pid) == os.sched_getaffinity(0)


@pytest.mark.parametrize("cgroups", [True, False])
async def test_memory_in_use_is_never_taken_away(folder: Path, cgroups: bool) -> None:
    backend = LocalBackend(folder, cgroups=cgroups)
    if cgroups and not backend._cgroups.has("memory"):
        pytest.skip("no writable memory controller")
    await backend.launch(spec(folder, "ps-0", HUNGRY, memory=512 * MIB))
    await until(lambda: "fed" in (folder / "pods/j/ps-0/log").read_text())
    _, memory = await backend.resize("j", "ps-0", 1.0, 100 * MIB)
    assert 300 * MIB < memory < 400 * MIB
    (pod,) = await backend.list()
    assert pod.state == "running"


def quota_us(group: Group) -> int:
    cpu, version = group.folders["cpu"]
    return int(Path(cpu, "cpu.max" if version == 2 else "cpu.cfs_quota_us").read_text().split()[0])


async def test_limits_of_an_adopted_pod_are_found_where_they_were_made(folder: Path) -> None:
    first = LocalBackend(folder)
    if not first._cgroups.has("cpu"):
        pytest.skip("no writable cpu controller")
    await first.launch(spec(folder, "worker-0", "", cpu=0.5))
    pid = await running_pid(folder, "worker-0")
    elsewhere = LocalBackend(folder, cgroups=False)  # as an actuator that was restarted in another group
    await elsewhere.resize("j", "worker-0", 0.25, 256 * MIB)
    (pod,) = await elsewhere.list()
    assert any(name.endswith("-cpu") for name in pod.limits)
    record = elsewhere._records.read("j", "worker-0")
    assert record is not None
    assert pid in record.group.pids()
    assert quota_us(record.group) == 25000
    assert LocalBackend(folder)._cgroups.has("cpu"), "others' groups do not hide the place"


def test_cgroups_that_cannot_be_had_claim_nothing() -> None:
    nothing = Cgroups([]).group("g")
    assert nothing.names == ()
    assert nothing.entries == []
    assert nothing.oom_kills() == 0
    assert nothing.set(1.0, MIB) == MIB


async def test_pod_that_cannot_enter_its_control_group_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = LocalBackend(folder, cgroups=False)
    monkeypatch.setattr(Group, "entries", property(lambda group: [f"{folder}/no/cgroup.procs"]))
    await backend.launch(spec(folder, "worker-0", "print('it ran')"))
    (pod,) = await ended(backend)
    assert pod.exit_code == 125
    assert "cannot enter its control group" in stated_reason(pod.log, pod.exit_code)
    assert "it ran" not in pod.log


async def test_logs_are_for_nobody_elses_eyes(folder: Path) -> None:
    backend = LocalBackend(folder, cgroups=False)
    await backend.launch(spec(folder, "worker-0", "print('secret')"))
    await ended(backend)
    assert (folder / "pods").stat().st_mode & 0o777 == 0o700
    assert (folder / "pods/j/worker-0/log").stat().st_mode & 0o777 == 0o600


def test_control_groups_that_cannot_be_entered_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that only looks like a hierarchy: in one, a process can be entered; in the other, it cannot."""
    monkeypatch.setattr(limits, "_mounts", lambda: [(1, tmp_path, {"cpu"}, "/")])
    monkeypatch.setattr(limits.os, "access", lambda *_: True)
    assert Cgroups.find("stretto-x").has("cpu")
    (tmp_path / "stretto-y").mkdir()
    (tmp_path / f"stretto-y/probe-{os.getpid()}").mkdir()
    (tmp_path / f"stretto-y/probe-{os.getpid()}/cgroup.procs").mkdir()  # nobody can write a folder
    assert not Cgroups.find("stretto-y").has("cpu")


async def test_no_process_that_starts_while_the_others_are_looked_for_outlives_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: the first look misses the pod, which the shell may have started just after it."""
    backend, pid = await running(folder)
    miss_looks(monkeypatch, 1)
    await backend.kill("j", "worker-0")
    (pod,) = await ended(backend)
    assert pod.exit_code == 137
    assert not psutil.pid_exists(pid)


async def test_no_process_that_starts_while_those_left_are_looked_for_outlives_a_dead_pod(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: the first look misses the process, which another one may have started just after it."""
    script = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid, flush=True)"
    backend = await over(folder, script)
    miss_looks(monkeypatch, 1)
    left = int(await backend.logs("j", "worker-0", 1))
    await backend.forget("j", "worker-0")
    await until(lambda: is_gone(left))


async def test_a_pod_whose_start_was_under_way_when_its_shell_was_stopped_does_not_outlive_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: two looks miss the pod, and its id is not written down yet: a fork ends also while a stop is pending."""
    backend, pid = await running(folder)
    (folder / "pods/j/worker-0/pid").unlink()
    miss_looks(monkeypatch, 2)
    await backend.kill("j", "worker-0")
    await until(lambda: is_gone(pid))
    (pod,) = await ended(backend)
    assert pod.reason == "vanished"


async def test_a_process_with_an_id_that_was_seen_before_is_killed_too(folder: Path) -> None:
    """Method: psutil keeps the processes that it has seen; the pod has the id of one of them, which has ended."""
    backend = LocalBackend(folder)
    await backend.launch(spec(folder, "worker-0", ""))
    before = psutil.Process(await running_pid(folder, "worker-0"))
    assert before in [*psutil.process_iter()]
    before._ident = (before.pid, before.create_time() - 1.0)
    psutil._pmap[before.pid] = before
    await backend.kill("j", "worker-0")
    (pod,) = await ended(backend)
    assert pod.exit_code == 137


async def test_followers_of_a_job_hear_of_the_end_of_its_pods_also_of_adopted_ones(folder: Path) -> None:
    await LocalBackend(folder).launch(spec(folder, "worker-0", ""))
    backend = LocalBackend(folder)
    heard = asyncio.Event()
    leave = backend.follow("j", heard.set)
    await backend.list("j")
    os.kill(await running_pid(folder, "worker-0"), signal.SIGKILL)
    await asyncio.wait_for(heard.wait(), LIMIT_S)
    (pod,) = await backend.list("j")
    assert pod.reason == "killed"
    leave()
    await backend.close()


async def test_files_of_a_pod_are_there_when_it_starts_and_gone_with_it(folder: Path) -> None:
    backend = LocalBackend(folder)
    where = backend.places("j", "worker-0").files
    script = f"print(open('{where}/job.json').read())"
    await backend.launch(replace(spec(folder, "worker-0", script), files={"job.json": b"{}"}))
    await ended(backend)
    assert await backend.logs("j", "worker-0", 1) == "{}"
    file = Path(where) / "job.json"
    assert [path.stat().st_mode & 0o777 for path in (file.parent, file)] == [0o700, 0o400]
    await backend.forget("j", "worker-0")
    assert not file.parent.exists()
    assert await backend.logs("j", "worker-0", 9) == "{}", "its log stays"


async def test_folders_of_pods_and_spans_stay_as_long_as_the_settings_say(tmp_path: Path) -> None:
    kept = {"STRETTO_KEPT_PODS_DAYS": "3", "STRETTO_KEPT_SPANS_DAYS": "5", "STRETTO_STATE_FOLDER": str(tmp_path)}
    backend = backend_of(ActuatorSettings.load("actuator", kept))
    left = {days: (tmp_path / f"pods/{days}/worker-0", tmp_path / f"spans/{days}") for days in (2, 4, 6)}
    for days, (pods, spans) in left.items():
        pods.mkdir(parents=True)
        spans.mkdir(parents=True)
        (pods / "pod.done.json").write_text("{}")
        for path in (pods / "pod.done.json", spans):
            os.utime(path, (time.time() - days * 86400,) * 2)
    await backend.launch(spec(tmp_path, "worker-0", "pass"))

    def there() -> dict[int, list[bool]]:
        return {days: [path.exists() for path in paths] for days, paths in left.items()}

    await until(lambda: not left[6][1].exists())  # spans go last
    assert there() == {2: [True, True], 4: [False, True], 6: [False, False]}
    await ended(backend)
    await backend.forget("j", "worker-0")


def test_spans_of_long_ago_go_unless_their_job_goes_on(tmp_path: Path) -> None:
    for job in ("old", "live", "young"):
        (tmp_path / job).mkdir()
        (tmp_path / job / "worker-0.jsonl").write_text("{}\n")
        written_s = 2000.0 if job == "young" else 100.0
        for path in (tmp_path / job / "worker-0.jsonl", tmp_path / job):
            os.utime(path, (written_s, 200.0 if path.is_dir() and job == "young" else written_s))
    (tmp_path / "dispatcher.jsonl").write_text("{}\n")
    os.utime(tmp_path / "dispatcher.jsonl", (100.0, 100.0))
    (tmp_path / "link").symlink_to(tmp_path / "young")
    clear_spans(tmp_path, 1000.0, {"live"})
    assert {path.name for path in tmp_path.iterdir()} == {"live", "young", "dispatcher.jsonl", "link"}
    assert (tmp_path / "young" / "worker-0.jsonl").exists()
