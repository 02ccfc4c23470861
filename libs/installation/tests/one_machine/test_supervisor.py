"""The supervisor with real processes."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import io
import itertools
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import nats
import psutil
import pytest
from installed_gateway import Installed
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from stretto_bus.reading.damage import UNREAD
from stretto_cli.main import app
from stretto_cli.options import connect
from stretto_core.algorithms import REINSTALL
from stretto_installation import one_machine as package
from stretto_installation.access.keys import Keys
from stretto_installation.errors import InstallationError, NotRunning, UnusableOption
from stretto_installation.one_machine import detached, state, supervisor
from stretto_installation.one_machine.detached import start_detached
from stretto_installation.one_machine.leftovers import end_leftovers
from stretto_installation.one_machine.processes import (
    BACKOFF_FIRST_S,
    Child,
    Command,
    end_all,
    pods_of,
    same_process,
    sessions_of,
)
from stretto_installation.one_machine.programs import Programs, StartOptions
from stretto_installation.one_machine.state import describe, read_state
from stretto_installation.one_machine.supervisor import Installation
from stretto_messages.actuator import JobFailed
from stretto_messages.profiler import StragglerCleared
from stretto_runtime.process.pid import ProcessIdentity
from stretto_runtime.settings import Settings
from stretto_wire.contract.registry import DECIDER, FORWARDER, SERVICES
from typer.testing import CliRunner

from tests.waits import until, wait_until

ROOT = Path(__file__).parents[4]
SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


def command(tmp_path: Path, code: str) -> Command:
    return Command("child", [sys.executable, "-c", code], dict(os.environ), tmp_path / "child.log")


@pytest.mark.parametrize("detached", [True, False])
def test_a_port_that_is_taken_is_told_before_anything_is_started(tmp_path: Path, detached: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        options = ["--folder", str(tmp_path / "s"), "--port", str(port), *(["--detach"] if detached else [])]
        refused = CliRunner().invoke(app, ["up", *options])
    assert refused.exit_code == 2
    named = f"--port {port}: Address already in use by process {os.getpid()} ("
    assert named in " ".join(refused.stderr.split())
    assert "Traceback" not in refused.stderr
    assert not list((tmp_path / "s" / "logs").glob("nats.log"))


def test_no_log_grows_without_bound_while_its_process_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "LOG_BYTES_MOST", 10)
    log, kept = tmp_path / "nats.log", tmp_path / "nats.log.1"
    with log.open("a") as of_the_process:
        for text in ("short", " and longer", "third", " is longer, too"):
            of_the_process.write(text)
            of_the_process.flush()
            supervisor.rotate_logs(tmp_path)
            if text == " and longer":
                assert (log.read_text(), kept.read_text()) == ("", "short and longer")
    assert (log.read_text(), kept.read_text()) == ("", "third is longer, too")


@pytest.mark.parametrize("detached", [True, False])
@pytest.mark.parametrize("form", [[], ["-o", "json"]])
def test_a_folder_that_cannot_be_is_a_sentence(tmp_path: Path, detached: bool, form: list[str]) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        options = ["--folder", str(folder), *(["--detach"] if detached else []), *form]
        refused = CliRunner().invoke(app, ["up", *options])
        assert refused.exit_code == 1
        assert "choose a --folder" in refused.stderr
        assert "Traceback" not in refused.stderr


def test_a_full_disk_is_told_before_anything_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "FREE_BYTES_LEAST", 1 << 60)
    for options in ([], ["--detach"]):
        refused = CliRunner().invoke(app, ["up", "--folder", str(tmp_path), *options])
        assert refused.exit_code == 1
        assert "make room" in refused.stderr


async def test_a_process_that_dies_is_started_again_with_growing_pauses(tmp_path: Path) -> None:
    changes: list[float] = []
    child = Child(command(tmp_path, "raise SystemExit(3)"), lambda: changes.append(time.monotonic()))
    await child.start()
    await until(lambda: child.restarts >= 3)
    assert child.last_exit == 3
    await child.stop(1.0)
    pauses = [changes[2 * n + 2] - changes[2 * n + 1] for n in range(2)]  # from each end to the next start
    assert all(pause >= 0.99 * BACKOFF_FIRST_S * 2**n for n, pause in enumerate(pauses)), pauses


async def test_a_process_that_does_not_heed_sigterm_is_killed(tmp_path: Path) -> None:
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    child = Child(command(tmp_path, stubborn), lambda: None)
    await child.start()
    await until(lambda: child.command.log.exists() and "up" in child.command.log.read_text())
    process = psutil.Process(child.pid)
    await child.stop(0.2)
    assert not process.is_running()


def restarts_of_gateway(installed: Installed) -> int:
    """Return how often the shared gateway was started again."""
    return json.loads(installed.stretto("status", "-o", "json").stdout)["processes"][-1]["restarts"]


SQUATTED = [(host, option) for host in ("127.0.0.1", "0.0.0.0", "::") for option in ("", "ADDR", "PORT")]


def taken(at: tuple[str, str], port: int) -> bool:
    """Return whether a stranger can listen at this address, with this way to reuse the port."""
    host, option = at
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as squatter:
        if option:
            squatter.setsockopt(socket.SOL_SOCKET, getattr(socket, f"SO_REUSE{option}"), 1)
        try:
            squatter.bind((host, port))
            squatter.listen()
        except OSError:
            return False
        return True


def test_a_killed_gateway_comes_back_knows_everything_and_followers_miss_nothing(
    installed: Installed, tmp_path: Path
) -> None:
    spec = tmp_path / "job.json"
    spec.write_text(json.dumps({"name": "survivor", "model": {"entry": "m:M"}, "dataset": {"samples": 5}}))
    installed.stretto("submit", str(spec))
    followed: list[str] = []

    def follow() -> None:
        with connect(installed.folder, None, None) as gateway:
            for event in gateway.events("survivor"):
                followed.append(event.name)
                if event.name == "job-failed":
                    return

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    wait_until(lambda: bool(followed))
    gateway = installed.installation.children["gateway"]
    before, restarts = gateway.pid, restarts_of_gateway(installed)  # tests of the client kill it, too
    assert before is not None
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: gateway.pid != before)
    url = installed.elsewhere()[1]
    assert [at for at in SQUATTED if taken(at, int(url.rpartition(":")[2]))] == []
    at_port, by_command = httpx.get(f"{url}/healthz", trust_env=False, timeout=60), installed.stretto("jobs")
    assert (at_port.status_code, by_command.exit_code) == (200, 0), by_command.output  # both waited for it
    installed.publish(StragglerCleared(job="survivor", pod="worker-1"), JobFailed(job="survivor", reason="end"))

    def knows_everything() -> bool:  # a gateway lists jobs while it still reads the stream
        return "survivor" in [job["name"] for job in json.loads(installed.stretto("jobs", "-o", "json").stdout)]

    wait_until(knows_everything)
    assert restarts_of_gateway(installed) == restarts + 1
    follower.join(60)
    assert [name for name in followed if name != "change-audited"] == [
        "job-submitted",
        "straggler-cleared",
        "job-failed",
    ]


def test_a_killed_bus_comes_back_with_everything_that_was_stored(installed: Installed, tmp_path: Path) -> None:
    def submit(name: str) -> int:
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps({"name": name, "model": {"entry": "m:M"}, "dataset": {"samples": 5}}))
        return installed.stretto("submit", str(file)).exit_code

    assert submit("before-the-crash") == 0
    nats = installed.installation.children["nats"]
    before = nats.pid
    assert before is not None
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: nats.pid not in (None, before) and submit("after-the-crash") == 0)
    names = [job["name"] for job in json.loads(installed.stretto("jobs", "-o", "json").stdout)]
    assert {"before-the-crash", "after-the-crash"} <= set(names)


def test_secrets_are_readable_by_the_owner_only(installed: Installed) -> None:
    for name in (
        "gateway.token",
        "run/gateway.sock",
        "nats/keys/operator/bus.creds",
        "nats/nats.conf",
        "redis/redis.conf",
    ):
        assert stat.S_IMODE((installed.folder / name).stat().st_mode) == 0o600, name


def test_everything_listens_on_loopback_only(installed: Installed) -> None:
    """Everything that `up` starts; where it is promised, it is said that parameter servers listen on no port."""
    for promise in (ROOT / "README.md", ROOT / "libs/cli/README.md", Path(str(package.__file__))):
        assert re.search(r"on\s+no\s+(>\s+)?port", promise.read_text()), promise
    for child in installed.installation.children.values():
        assert child.pid is not None
        for connection in psutil.Process(child.pid).net_connections():
            if connection.status == psutil.CONN_LISTEN:
                assert connection.laddr.ip in ("127.0.0.1", "::1"), (child.command.name, connection)


def test_a_tool_outside_replays_events_that_it_missed(installed: Installed) -> None:
    """`up` makes the stream of the tool that it made credentials for, so the documented replay works as it is."""
    submitted = f"job-{uuid.uuid4().hex[:12]}"
    with connect(installed.folder, None, None) as gateway:
        gateway.submit(json.dumps({"name": submitted, "model": {"entry": "m:M"}, "dataset": {"samples": 1000}}))

    async def replayed() -> list[str]:
        connection = await nats.connect(
            read_state(installed.folder)["nats_url"],
            user_credentials=str(installed.folder / "nats/keys/external/bus.creds"),
            inbox_prefix=b"_INBOX.external",
        )
        try:
            everything = ConsumerConfig(deliver_policy=DeliverPolicy.ALL, ack_policy=AckPolicy.EXPLICIT)
            reader = await connection.jetstream().pull_subscribe("evt.v1.>", stream="EVENTS", config=everything)
            found: list[str] = []
            async with asyncio.timeout(60):
                while submitted not in found:
                    found += [json.loads(each.data).get("job") for each in await reader.fetch(10, timeout=60)]
            return found
        finally:
            await connection.close()

    assert submitted in asyncio.run(replayed())


def test_a_folder_has_one_installation(installed: Installed) -> None:
    with pytest.raises(InstallationError, match="already"):
        asyncio.run(Installation(StartOptions(installed.folder), {}).up())
    told = describe(installed.folder)
    again = start_detached(StartOptions(installed.folder))
    assert (again["pid"], again["ran_before"]) == (told["pid"], True)
    assert told["power"].startswith("a loss of power may cost what was accepted in the last 120 s")
    with pytest.raises(InstallationError, match="already; its options stay"):
        start_detached(StartOptions(installed.folder, cpu_cores=1.0))


def test_what_a_killed_supervisor_leaves_is_ended(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with (tmp_path / "x.log").open("w") as log:
        left = psutil.Popen(SLEEP, stdout=log)
    stranger = psutil.Popen(SLEEP)  # named by a job that has written the folder
    entry, named = ({"pid": each.pid, "birth": ProcessIdentity.of(each.pid)} for each in (left, stranger))
    other = {"pid": os.getpid(), "birth": ["", 1]}  # a pid that somebody else has now
    pod = tmp_path / "pods" / "j" / "worker-0" / "pod.json"
    pod.parent.mkdir(parents=True)
    pod.write_text(json.dumps(named))
    up = {"pid": 2**22 - 1, "birth": ["", 1], "processes": {"x": entry, "y": other, "z": named}}
    (tmp_path / "run" / "up.json").write_text(json.dumps(up))
    with pytest.raises(NotRunning):
        read_state(tmp_path)
    assert end_leftovers(tmp_path) == 1
    assert not left.is_running()
    (tmp_path / "run" / "up.json").write_text(json.dumps({**named, "processes": {}}))
    assert CliRunner().invoke(app, ["down", "--folder", str(tmp_path)]).exit_code == 1
    assert stranger.is_running()
    end_all([stranger], 0.0)


def test_what_a_supervisor_leaves_that_is_killed_while_it_ends_the_others_is_ended_and_told(tmp_path: Path) -> None:
    """Method: a supervisor that hears SIGTERM and never ends anything; somebody kills it."""
    deaf = "import signal, time; signal.signal(15, lambda *_: print('stopping')); print('up'); time.sleep(60)"
    with (tmp_path / "supervisor.log").open("w") as log:
        supervisor = psutil.Popen([sys.executable, "-uc", deaf], stdout=subprocess.PIPE, stderr=log)
        left = psutil.Popen(SLEEP, start_new_session=True, stdout=log)
    supervisor.stdout.readline()
    (tmp_path / "run").mkdir()
    entry = {"pid": left.pid, "birth": ProcessIdentity.of(left.pid)}
    up = {"pid": supervisor.pid, "birth": ProcessIdentity.of(supervisor.pid), "processes": {"nats": entry}}
    (tmp_path / "run" / "up.json").write_text(json.dumps(up))
    try:
        with ThreadPoolExecutor(1) as beside:
            told = beside.submit(CliRunner().invoke, app, ["down", "--folder", str(tmp_path)])
            assert supervisor.stdout.readline() == b"stopping\n"
            supervisor.kill()
            done = told.result()
        assert done.exit_code == 0
        assert "what it had left was ended now: 1 process" in " ".join(done.stdout.split())
        assert not left.is_running()
    finally:
        end_all([supervisor, left], 0.0)


def test_what_a_living_supervisor_of_another_container_holds_is_not_ended(tmp_path: Path) -> None:
    """The supervisor's process id says nothing here: only the lock shows that it lives."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "up.json").write_text(json.dumps({"pid": 2**22 - 1, "birth": ["", 1], "processes": {}}))
    pod = {**os.environ, "STRETTO_POD_FOLDER": str(tmp_path.resolve() / "pods" / "a" / "worker-0")}
    process = psutil.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env=pod)
    try:
        with (tmp_path / "run" / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            refused = CliRunner().invoke(app, ["down", "--folder", str(tmp_path)])
        assert refused.exit_code == 1
        assert "held by a supervisor that is not a process of this container" in " ".join(refused.stderr.split())
        assert process.is_running()
        assert (tmp_path / "run" / "up.json").exists()
        assert CliRunner().invoke(app, ["down", "--folder", str(tmp_path)]).exit_code == 0
        assert not process.is_running()
    finally:
        end_all([process], 0.0)


def test_pods_are_found_by_their_files_and_ended_with_their_children(tmp_path: Path) -> None:
    pod = tmp_path / "pods" / "a" / "worker-0"
    pod.mkdir(parents=True)
    with (pod / "log").open("w") as log:
        shell = psutil.Popen(["/bin/sh", "-c", "sleep 60 & wait"], start_new_session=True, stdout=log)
    (pod / "pod.json").write_text(json.dumps({"pid": shell.pid, "birth": ProcessIdentity.of(shell.pid)}))
    (tmp_path / "pods" / "a" / "worker-1").mkdir()
    (tmp_path / "pods" / "a" / "worker-1" / "pod.json").write_text("{")
    wait_until(lambda: len(pods_of(tmp_path)) == 2)
    assert end_all(pods_of(tmp_path), 2.0) == 2
    shell.wait(60)
    assert pods_of(tmp_path) == []


def test_a_pod_that_starts_while_pods_are_ended_is_ended_too(tmp_path: Path) -> None:
    """Method: the pod's shell does not heed SIGTERM, and starts the pod only then."""
    start = "trap : TERM; touch up; while ! [ -e asked ]; do sleep 0.02; done; sleep 60 & echo $! > pid; wait; wait"
    pod = tmp_path / "pods" / "a" / "worker-0"
    pod.mkdir(parents=True)
    with (pod / "log").open("w") as log:
        shell = psutil.Popen(["/bin/sh", "-c", start.replace("trap :", "trap 'touch asked'")], start_new_session=True,
                             cwd=tmp_path, stdout=log)  # fmt: skip
    (pod / "pod.json").write_text(json.dumps({"pid": shell.pid, "birth": ProcessIdentity.of(shell.pid)}))
    wait_until(lambda: (tmp_path / "up").exists())
    end_leftovers(tmp_path)
    shell.wait(60)
    assert (tmp_path / "pid").exists(), "the case that this is about"
    assert pods_of(tmp_path) == []


def test_a_process_with_an_id_that_was_seen_before_is_ended(tmp_path: Path) -> None:
    """Method: psutil keeps the processes that it has seen; the pod has the id of one of them, which has ended."""
    environment = {"STRETTO_POD_FOLDER": str(tmp_path.resolve() / "pods" / "a" / "worker-0")}
    pod = psutil.Popen(["sleep", "60"], env=environment)
    before = psutil.Process(pod.pid)
    assert before in [*psutil.process_iter()]
    before._ident = (before.pid, before.create_time() - 1.0)
    psutil._pmap[before.pid] = before
    assert end_leftovers(tmp_path) == 1
    assert not pod.is_running()


def test_what_outlives_the_leader_of_its_session_is_ended_too(tmp_path: Path) -> None:
    shell = psutil.Popen(
        ["/bin/sh", "-c", f"exec > '{tmp_path}/log'; setsid sleep 60 & sleep 61 & exec sleep 62"],
        start_new_session=True,
    )
    leader, birth = shell.pid, ProcessIdentity.of(shell.pid)
    assert birth is not None

    def in_sessions_of_their_own() -> list[psutil.Process]:
        return [child for child in shell.children(recursive=True) if os.getsid(child.pid) != leader]

    wait_until(lambda: bool(in_sessions_of_their_own()) and len(sessions_of([(leader, birth)])) == 2)
    others = in_sessions_of_their_own()
    shell.kill()
    shell.wait(60)
    (tmp_path / "run").mkdir()
    up = {"pid": 2**22 - 1, "birth": ["", 1], "processes": {"x": {"pid": leader, "birth": birth}}}
    (tmp_path / "run" / "up.json").write_text(json.dumps(up))
    later = birth._replace(ticks=birth.ticks + 100_000)
    assert sessions_of([(leader, later)]) == []  # an older process of that number is another's
    assert end_leftovers(tmp_path) == 1
    assert all(other.is_running() for other in others)
    end_all(others, 1.0)


async def test_a_process_that_cannot_be_started_again_for_a_while_is_tried_until_it_can(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.symlink_to("/bin/sh")
    child = Child(Command("child", [str(program), "-c", "sleep 60"], {}, tmp_path / "log"), lambda: None)
    await child.start()
    program.unlink()
    first = child.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await until(lambda: child.restarts >= 2)
    assert "No such file" in child.last_words()
    program.symlink_to("/bin/sh")
    await until(lambda: child.pid not in (None, first))
    assert "No such file" not in child.last_words()
    await child.stop(1.0)


async def test_processes_are_kept_alive_and_ended_while_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installation = Installation(StartOptions(tmp_path / "s"), {})
    installation._claim_folder()
    await installation._start(command(tmp_path, "import time; time.sleep(600)"))
    child = installation.children["child"]
    installation.children["nats"] = child
    first = child.pid
    assert first is not None

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(supervisor, "write_json", full)
    os.kill(first, signal.SIGKILL)
    await until(lambda: child.pid not in (None, first))
    second = psutil.Process(child.pid)
    await installation.down()
    assert not second.is_running()


async def test_an_installation_that_still_frees_its_memory_has_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installation = Installation(StartOptions(tmp_path), {})
    installation._claim_folder()
    installation._write_state()
    states: list[str] = []
    monkeypatch.setattr(supervisor, "free_memory", lambda folder: states.append(read_state(folder)["state"]))
    await installation.down()
    assert states == ["stopping"]
    with pytest.raises(NotRunning):
        read_state(tmp_path)
    Installation(StartOptions(tmp_path), {})._claim_folder()


async def test_a_bus_that_never_answers_is_told_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installation = Installation(StartOptions(tmp_path), {})
    installation.children["nats"] = child = Child(command(tmp_path, ""), lambda: None)
    child.command.log.write_text("starting\nno space left\n")
    monkeypatch.setattr(supervisor, "READY_S", 0.3)
    with pytest.raises(InstallationError, match="no space left"):
        await installation._provision("nats://127.0.0.1:1", supervisor.keys_of(tmp_path / "nats"))


async def test_a_service_of_packages_that_are_not_installed_anew_is_told_with_the_remedy(tmp_path: Path) -> None:
    installation = Installation(StartOptions(tmp_path), {})
    child = Child(command(tmp_path, "import a_package_that_came_with_the_pull"), lambda: None)
    installation.children["planner"] = child
    await child.start()
    with pytest.raises(InstallationError) as told:
        async for _ in installation._until_ready(("planner",)):
            pass
    await child.stop(1.0)
    _, *words = str(told.value).splitlines()
    assert words == ["ModuleNotFoundError: No module named 'a_package_that_came_with_the_pull'", REINSTALL]


async def test_a_gateway_that_is_ready_late_may_look_at_its_messages_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: each answer takes four seconds of a clock of its own, so that the first ready one comes after READ_S."""
    clock_s = itertools.count(0.0, 4.0)
    answers = iter([(False, ""), (False, ""), (True, UNREAD), (True, "1 message cannot be read")])
    now_s = 0.0

    async def readiness(*_: object) -> dict[str, Any]:
        nonlocal now_s
        now_s = next(clock_s)
        ready, warning = next(answers)
        return {"ready": ready, "warning": warning}

    installation = Installation(StartOptions(tmp_path), {})
    monkeypatch.setattr(supervisor, "readiness", readiness)
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=lambda: now_s))
    installation.children["gateway"] = Child(command(tmp_path, ""), lambda: None)
    assert [ready async for ready in installation._until_ready(("gateway",))] == [("gateway", 12.0)]
    assert installation._warnings == ["gateway: 1 message cannot be read"]


async def test_a_store_that_cannot_be_used_is_told_when_the_installation_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: a real bus and a real checkpoints service, whose store lies where nobody can
    write. The time to get ready is over once it has said so."""
    monkeypatch.setattr(supervisor, "SERVICES", ("checkpoints",))
    readiness = supervisor.readiness

    async def answer(*given: Any) -> dict[str, Any]:
        found = await readiness(*given)
        if "cannot be written" in found.get("warning", ""):
            monkeypatch.setattr(supervisor, "READY_S", 0.0)
        return found

    monkeypatch.setattr(supervisor, "readiness", answer)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("STRETTO_")}
    store = {"STRETTO_CHECKPOINTS_STORE_URL": "file:///proc/stretto"}
    installation = Installation(StartOptions(tmp_path / "s", settings=store), environment)
    try:
        with pytest.raises(InstallationError, match="checkpoints: the store file:///proc/stretto cannot be written"):
            await installation.up()
    finally:
        await installation.down()


@pytest.mark.parametrize("made_anew", [False, True])
async def test_an_installation_whose_folder_is_removed_ends_and_touches_no_other_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_anew: bool
) -> None:
    monkeypatch.setattr(supervisor, "FOLDER_POLL_S", 0.02)
    folder = tmp_path / "s"
    installation = Installation(StartOptions(folder), {})
    installation._claim_folder()
    child = Child(command(folder / "logs", "import time; time.sleep(600)"), installation._write_state)
    installation.children["redis"] = child
    await child.start()
    looks: list[bool] = []
    owns_folder = installation._owns_folder
    monkeypatch.setattr(installation, "_owns_folder", lambda: looks.append(True) or owns_folder())
    staying = asyncio.create_task(installation.watch_folder())
    await until(lambda: len(looks) > 2)
    assert not staying.done()
    shutil.rmtree(folder)
    if made_anew:
        (folder / "run").mkdir(parents=True)
        for name in ("lock", "up.json"):
            (folder / "run" / name).write_text("another's")
    with pytest.raises(InstallationError, match="was removed while an installation ran in it"):
        await asyncio.wait_for(staying, 60)
    process = psutil.Process(child.pid)
    await installation.down()
    assert not process.is_running()
    assert folder.exists() == made_anew
    if made_anew:
        assert (folder / "run" / "up.json").read_text() == "another's"


def test_a_supervisor_that_is_not_ready_in_time_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def popen(argv: list[str], **options: object) -> subprocess.Popen[bytes]:
        started.append(real([sys.executable, "-c", "import time; time.sleep(60)"]))
        log = options["stdout"]
        assert isinstance(log, io.BufferedWriter)
        log.write(b"long")
        log.flush()
        monkeypatch.setattr(supervisor, "LOG_BYTES_MOST", 3)
        supervisor.rotate_logs(tmp_path / "logs")
        log.write(b"short")
        log.flush()
        return started[0]

    monkeypatch.setattr(detached.subprocess, "Popen", popen)
    monkeypatch.setattr(detached, "START_S", 0.2)
    with pytest.raises(InstallationError, match="not ready"):
        start_detached(StartOptions(tmp_path))
    assert started[0].returncode == -signal.SIGTERM
    assert (tmp_path / "logs" / "supervisor.log").read_bytes() == b"short"


def test_of_two_starts_at_once_the_second_does_not_take_the_first_ones_installation_for_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: the first one is ready before the supervisor of the second finds the folder taken."""
    real = subprocess.Popen

    def popen(argv: list[str], **options: Any) -> subprocess.Popen[bytes]:
        for name, body in (("up", entry | {"state": "ready"}), ("gateway", {"host": "127.0.0.1", "port": 1})):
            state.write_json(tmp_path / "run" / f"{name}.json", body)
        return real(["/bin/sh", "-c", "sleep 0.5; echo 'error: it runs already' >&2; exit 1"], **options)

    (tmp_path / "run").mkdir()
    entry = {"pid": os.getpid(), "birth": ProcessIdentity.of(os.getpid()), "nats_url": "", "ready_s": 1, "warnings": []}
    monkeypatch.setattr(detached.subprocess, "Popen", popen)
    with pytest.raises(InstallationError, match="it runs already"):
        start_detached(StartOptions(tmp_path))


@pytest.mark.slow
def test_who_interrupts_the_start_leaves_nothing_running(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    up = [str(Path(sys.executable).with_name("stretto")), "up", "--detach", "--folder", str(folder)]
    starting = subprocess.Popen(up, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    asyncio.run(until(lambda: (folder / "logs" / "nats.log").exists()))  # the supervisor is at work
    starting.send_signal(signal.SIGINT)
    assert starting.wait(90) == 130
    left = [process.info["cmdline"] for process in psutil.process_iter(["cmdline"])]
    assert [words for words in left if str(folder) in " ".join(words or ())] == []


@pytest.mark.slow
@pytest.mark.night
def test_the_whole_installation_comes_up_and_goes_down(tmp_path: Path) -> None:
    where = start_detached(StartOptions(tmp_path, settings={"STRETTO_ARBITER_SETTLE_S": "5"}))
    try:
        up = read_state(tmp_path)
        assert set(up["processes"]) == {"nats", "redis", *SERVICES}
        assert where["ready_s"] is not None
        pids = [(entry["pid"], ProcessIdentity.parse(entry["birth"])) for entry in up["processes"].values()]
    finally:
        os.kill(read_state(tmp_path)["pid"], signal.SIGTERM)
        wait_until(lambda: not (tmp_path / "run" / "up.json").exists())
    assert all(same_process(pid, birth) is None for pid, birth in pids)


@pytest.mark.slow
@pytest.mark.night
def test_a_service_that_refuses_its_settings_fails_the_start_with_its_words(tmp_path: Path) -> None:
    with pytest.raises(InstallationError, match="STRETTO_ARBITER_SETLE_S"):
        start_detached(StartOptions(tmp_path, settings={"STRETTO_ARBITER_SETLE_S": "5"}))


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("STRETTO_ARBITRE_SETTLE_S", "5", "is a setting of no service; did you mean STRETTO_ARBITER_SETTLE_S?"),
        ("STRETTO_TRAINER_SETTLE_S", "5", "is a setting of no service"),
        ("STRETTO_ARBITER_SETTLE_S", "soon", "STRETTO_ARBITER_SETTLE_S='soon' is refused: give a number"),
        ("STRETTO_STREAMS_MAX_BYTES", "1", "STRETTO_STREAMS_MAX_BYTES='1' is refused"),
    ],
)
def test_a_setting_that_no_service_has_or_takes_is_refused_before_anything_starts(
    tmp_path: Path, name: str, value: str, told: str
) -> None:
    with pytest.raises(UnusableOption, match=re.escape(told)):
        StartOptions(tmp_path, settings={name: value}).check_settings({})
    fine = {"STRETTO_ARBITER_SETTLE_S": "5", "STRETTO_LEASE_S": "5", "STRETTO_STREAMS_REPLICAS": "1"}
    StartOptions(tmp_path, settings=fine).check_settings({"STRETTO_JOB": "of a pod", "HOME": "/"})


def documented() -> Iterator[tuple[str, str]]:
    """Yield each variable of the page of settings, in all ways in which it may be written, with a value."""
    page = (ROOT / "libs/docs/pages/reference/settings.md").read_text()
    for section in page.split("\n## ")[1:]:
        service = section.split()[0].upper()
        if service == DECIDER.upper():  # it decides for objects of Kubernetes alone
            continue
        for name, default in re.findall(r"^\| `(STRETTO_\w+)` \| (.*?) \| ", section, re.MULTILINE):
            value = default.strip("`").strip('"') if default.startswith("`") else str(1 << 30 if default else 30)
            yield name, value
            if service.lower() in (*SERVICES, FORWARDER):
                yield name.replace(f"_{service}_", "_", 1), value


def test_each_documented_setting_is_taken_as_an_option_and_from_the_environment(tmp_path: Path) -> None:
    names = dict(documented())
    assert {"STRETTO_STORE_URL", "STRETTO_CPU_CORES", "STRETTO_SETTLE_S", "STRETTO_ARBITER_SETTLE_S"} <= names.keys()
    refused = list[str]()
    for name, value in names.items():
        for options, environ in (({name: value}, {}), ({}, {name: value})):
            try:
                StartOptions(tmp_path, settings=options).check_settings(environ)
            except UnusableOption as fault:
                refused.append(str(fault))
    assert refused == []


@pytest.mark.parametrize("is_option", [True, False])
def test_each_service_gets_its_settings_however_they_are_written(tmp_path: Path, is_option: bool) -> None:
    given = {"STRETTO_STORE_URL": "file:///store", "STRETTO_SETTLE_S": "5", "STRETTO_CPU_CORES": "3"}
    given |= {"STRETTO_MEMORY_FOLDER": "/own", "STRETTO_BACKEND": "docker", "STRETTO_RATE_BURST": "7"}
    options = StartOptions(tmp_path, settings=given if is_option else {})
    programs = Programs(
        tmp_path, options, {} if is_option else given, Keys(tmp_path / "nats", 0), Path("/dev/shm/ours")
    )

    def settings(service: str) -> dict[str, Any]:
        kind: type[Settings] = programs._kinds[service]
        return kind.load(service, programs.service(service).environment).model_dump()

    of = {service: settings(service) for service in (*SERVICES, FORWARDER)}
    for service in ("actuator", "checkpoints"):
        assert (of[service]["store_url"], of[service]["memory_folder"]) == ("file:///store", Path("/own"))
    assert of["arbiter"]["settle_s"] == 5
    assert (of["arbiter"]["cpu_cores"], of["planner"]["cpu_cores"], of["actuator"]["backend"]) == (3, 3, "docker")
    assert (of["gateway"]["rate_burst"], of["gateway"]["code_is_here"]) == (7, False)
