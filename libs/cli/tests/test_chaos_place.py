"""What a chaos run that was killed has left is cleared away by the next; what a living one holds is not touched."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from stretto_cli import leftovers
from stretto_cli.chaos import place
from stretto_cli.errors import CliError
from stretto_runtime.process.pid import ProcessIdentity

from .conftest import Installed

Started = Callable[[], psutil.Process]


@pytest.fixture
def sleeper() -> Iterator[Started]:
    """Starts a process that only sleeps."""
    begun: list[subprocess.Popen[bytes]] = []

    def start() -> psutil.Process:
        begun.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True))
        return psutil.Process(begun[-1].pid)

    yield start
    for process in begun:
        process.kill()
        process.wait()


def named(process: psutil.Process) -> dict[str, Any]:
    return {**leftovers.ourselves(), "pid": process.pid, "birth": ProcessIdentity.of(process.pid)}


def dead(start: Started) -> dict[str, Any]:
    process = start()
    owner = named(process)
    process.kill()
    process.wait()
    return owner


def stopped(process: psutil.Process) -> bool:
    return process.is_running() and process.status() == psutil.STATUS_STOPPED


def a_run(tmp_path: Path, name: str, owner: dict[str, Any], service: psutil.Process) -> Path:
    """A folder as a run has it that has frozen a service; its supervisor is gone."""
    folder = tmp_path / f"{place.PREFIX}{name}"
    (folder / "run").mkdir(parents=True)
    (folder / place.MARK).write_text(json.dumps({**owner, "job": "chaos-1"}))
    known = {"oom": {"pid": service.pid, "birth": ProcessIdentity.of(service.pid)}}
    (folder / "run" / "up.json").write_text(json.dumps({"pid": 2**22 - 1, "birth": ["", 1], "processes": known}))
    service.suspend()
    return folder


def test_what_a_killed_run_has_frozen_and_mounted_goes_and_a_living_one_keeps_everything(
    tmp_path: Path, sleeper: Started
) -> None:
    frozen, held = sleeper(), sleeper()
    killed = a_run(tmp_path, "killed", dead(sleeper), frozen)
    living = a_run(tmp_path, "living", leftovers.ourselves(), held)
    elsewhere = a_run(tmp_path, "elsewhere", {**dead(sleeper), "namespace": "pid:[1]"}, sleeper())
    (over := tmp_path / f"{place.PREFIX}over").mkdir()  # kept: nobody's any more
    (killed / "memory").mkdir()
    options = ["-t", "tmpfs", "-o", "size=1m", "tmpfs", str(killed / "memory")]
    mounted = os.geteuid() == 0 and subprocess.run(["mount", *options], capture_output=True).returncode == 0
    assert os.path.ismount(killed / "memory") == mounted
    assert place.clear_away(tmp_path) == [killed]
    assert not os.path.ismount(killed / "memory")
    assert sorted(tmp_path.iterdir()) == sorted([living, elsewhere, over])
    assert not frozen.is_running() or frozen.status() == psutil.STATUS_ZOMBIE
    assert stopped(held)


def test_the_next_run_lets_go_what_a_killed_one_has_frozen_in_the_installation_of_the_user(
    installed: Installed, sleeper: Started, tmp_path: Path
) -> None:
    spec = tmp_path / "job.json"
    spec.write_text(json.dumps({"name": "chaos-7-abc", "model": {"entry": "m:M"}, "dataset": {"samples": 5}}))
    installed.stretto("submit", str(spec))
    redis = installed.installation.children["redis"].pid
    assert redis is not None
    mark = installed.folder / place.MARK
    leftovers.write(mark, {**dead(sleeper), "job": "chaos-7-abc"})
    os.kill(redis, signal.SIGSTOP)
    told: list[str] = []
    with place.of_the_user(installed.folder, told.append) as here:
        assert not stopped(psutil.Process(redis))
        assert "1 frozen processes let go, its job chaos-7-abc ended" in told[0]
        with (
            pytest.raises(CliError, match=f"process {os.getpid()} is at work in it"),
            place.of_the_user(installed.folder, told.append),
        ):
            pass
        assert here.memory is None
    assert not mark.exists()
    jobs = json.loads(installed.stretto("jobs", "-o", "json").stdout)
    assert [job["status"] for job in jobs if job["name"] == "chaos-7-abc"] == ["cancelled"]


def test_of_two_runs_that_begin_in_one_moment_one_goes_on(installed: Installed) -> None:
    with place.of_the_user(installed.folder, print) as here:
        here.unmark()  # as it is before the mark is written
        with (
            pytest.raises(CliError, match="another chaos run is at work in it"),
            place.of_the_user(installed.folder, print),
        ):
            pass
    with place.of_the_user(installed.folder, print):
        pass


def test_a_stepped_clock_makes_nobody_dead_and_no_stranger_ours(
    sleeper: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    living, gone = named(sleeper()), dead(sleeper)
    monkeypatch.setattr(psutil._pslinux, "boot_time", lambda: psutil.boot_time() + 3600)
    assert not leftovers.is_dead(living)
    assert leftovers.is_dead(gone)
    earlier = living["birth"]._replace(ticks=living["birth"].ticks - 1)
    assert leftovers.is_dead({**living, "birth": earlier})  # its id is another's now


@pytest.mark.slow
def test_the_installation_of_a_run_that_is_killed_ends_by_itself(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("stretto")), "chaos", "--undisturbed", "1", "--seed", "1"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STRETTO_")}
    environment |= {"TMPDIR": str(tmp_path)}
    run = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert run.stdout is not None
    with run.stdout as told:
        assert next(line for line in told if "all ready" in line)
        [folder] = tmp_path.glob(f"{place.PREFIX}*")
        run.kill()
        run.wait(10)
    supervisor = psutil.Process(json.loads((folder / "run" / "up.json").read_text())["pid"])
    psutil.wait_procs([supervisor], timeout=60)
    assert [words for process in psutil.process_iter(["cmdline"])
            if str(folder) in (words := " ".join(process.info["cmdline"] or ()))] == []  # fmt: skip
    assert place.clear_away(tmp_path) == [folder]
    assert not folder.exists()


class TestImagesInSharedMemory:
    """Of an installation that was killed."""

    def room(self, shared: Path, folder: Path, owner: dict[str, Any] | None = None) -> Path:
        room = leftovers.claim_memory(folder, shared)
        assert room is not None
        (room / "stretto.j.1234.j-000001.ps-0").write_bytes(bytes(100))
        if owner is not None:
            leftovers.write(room / leftovers.OWNER, {**owner, "folder": str(folder)})
        return room

    def test_are_removed_when_nobody_can_come_back_to_them(
        self, tmp_path: Path, sleeper: Started, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        temporary = tmp_path / "temporary"
        monkeypatch.setattr(leftovers.tempfile, "gettempdir", lambda: str(temporary))
        folders = {name: tmp_path / name for name in ("gone", "living", "to-come-back", "elsewhere")}
        folders |= {name: temporary / name for name in ("killed", "orphans")}
        (shared := tmp_path / "shm").mkdir()
        owners = {name: dead(sleeper) for name in folders} | {"living": None}
        owners["elsewhere"] = {**dead(sleeper), "namespace": "pid:[1]"}
        rooms = {name: self.room(shared, folder, owners[name]) for name, folder in folders.items()}
        for name in ("to-come-back", "killed", "orphans"):
            (folders[name] / "run").mkdir(parents=True)
        orphan = sleeper()  # its supervisor is gone, it trains on
        known = {"processes": {"actuator": {"pid": orphan.pid, "birth": ProcessIdentity.of(orphan.pid)}}}
        (folders["orphans"] / "run" / "up.json").write_text(json.dumps(known))
        assert sorted(leftovers.sweep_memory(shared)) == sorted([folders["gone"], folders["killed"]])
        left = {name for name, room in rooms.items() if room.exists()}
        assert left == {"living", "to-come-back", "elsewhere", "orphans"}

    def test_of_an_earlier_version_are_removed_once_nobody_has_its_owners_id(
        self, tmp_path: Path, sleeper: Started
    ) -> None:
        """It wrote down no births; what looked like nobody's stayed in memory for ever."""
        (shared := tmp_path / "shm").mkdir()
        living, gone = sleeper(), dead(sleeper)
        for name, pid in (("living", living.pid), ("gone", gone["pid"])):
            owner = {"pid": pid, "created_s": 1.0, "namespace": gone["namespace"]}
            room = self.room(shared, tmp_path / name)
            leftovers.write(room / leftovers.OWNER, {**owner, "folder": str(tmp_path / name)})
        assert leftovers.sweep_memory(shared) == [tmp_path / "gone"]
        assert len(list(shared.iterdir())) == 1

    @pytest.mark.parametrize("made_anew", [False, True])
    def test_name_what_still_runs_of_an_installation_that_was_killed_and_removed(
        self, tmp_path: Path, sleeper: Started, made_anew: bool
    ) -> None:
        (shared := tmp_path / "shm").mkdir()
        service, stranger = sleeper(), sleeper()
        room = self.room(shared, tmp_path / "gone")
        named_there = {"oom": {"pid": service.pid, "birth": ProcessIdentity.of(service.pid)},
                       "arbiter": {"pid": stranger.pid, "birth": ["", 1]}}  # fmt: skip
        told = {**dead(sleeper), "folder": str(tmp_path / "gone"), "processes": named_there}
        leftovers.write(room / leftovers.OWNER, told)
        if made_anew:
            (tmp_path / "gone").mkdir()
            assert leftovers.end_leftovers(tmp_path / "gone", shared) == 1
        else:
            assert leftovers.sweep_memory(shared) == [tmp_path / "gone"]
            assert not room.exists()
        assert not service.is_running()
        assert stranger.is_running()

    def test_are_not_shared_with_the_same_folder_of_another_container(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ours = self.room(tmp_path, tmp_path / "a")
        monkeypatch.setattr(leftovers, "namespace_of", lambda: "pid:[1]")
        assert self.room(tmp_path, tmp_path / "a") != ours

    def test_are_found_again_by_the_next_life_and_removed_by_an_end_in_good_order(self, tmp_path: Path) -> None:
        room = self.room(tmp_path, tmp_path / "a")
        assert leftovers.claim_memory(tmp_path / "a", tmp_path) == room
        assert len(list(room.glob("stretto.*"))) == 1
        assert leftovers.claim_memory(tmp_path / "b", tmp_path) != room
        leftovers.free_memory(tmp_path / "a", tmp_path)
        assert not room.exists()

    def test_are_not_put_where_another_user_could_read_them(self, tmp_path: Path) -> None:
        room = self.room(tmp_path, tmp_path / "a")
        assert room.stat().st_mode & 0o077 == 0
        shutil.rmtree(room)
        room.symlink_to(tmp_path)
        assert leftovers.claim_memory(tmp_path / "a", tmp_path) is None
        assert leftovers.claim_memory(tmp_path / "a", tmp_path / "none") is None

    def test_are_left_alone_where_nobody_named_himself(self, tmp_path: Path) -> None:
        for name, owner in (("a", "{}"), ("b", "[1]"), ("c", '{"pid": 1, "folder": "/none"}')):
            (self.room(tmp_path, tmp_path / name) / leftovers.OWNER).write_text(owner)
        assert leftovers.sweep_memory(tmp_path) == []
