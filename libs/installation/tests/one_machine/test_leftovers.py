"""Things that a killed installation leaves are cleared away by the next; those of a living one are not touched."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import psutil
import pytest
from deep_folders import lay_deep
from owners import Started, dead, named
from stretto_installation.one_machine import leftovers
from stretto_installation.one_machine.processes import remove_groups
from stretto_installation.one_machine.state import write_json
from stretto_runtime.process.pid import ProcessIdentity
from stretto_runtime.settings import groups_name


def test_a_stepped_clock_makes_nobody_dead_and_no_stranger_ours(
    sleeper: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    living, gone = named(sleeper()), dead(sleeper)
    monkeypatch.setattr(psutil._pslinux, "boot_time", lambda: psutil.boot_time() + 3600)
    assert not leftovers.is_dead(living)
    assert leftovers.is_dead(gone)
    earlier = living["birth"]._replace(ticks=living["birth"].ticks - 1)
    assert leftovers.is_dead({**living, "birth": earlier})  # its id is another's now


def test_images_go_however_deep_a_pod_has_laid_folders_among_them(tmp_path: Path) -> None:
    room = leftovers.claim_memory(tmp_path / "s", tmp_path)
    assert room is not None
    lay_deep(room / "stretto.j.1")
    leftovers.free_memory(tmp_path / "s", tmp_path)
    assert not room.exists()


def test_control_groups_of_ended_pods_go_and_those_in_use_and_of_others_stay(tmp_path: Path) -> None:
    """Method: plain folders, of which one with a file cannot be removed either."""
    hierarchies = [tmp_path / "cpu", tmp_path / "memory"]
    ours, others = (groups_name(tmp_path / name / "pods") for name in ("ours", "others"))
    for each in hierarchies:
        (each / ours / "job.worker-0").mkdir(parents=True)
        (each / others / "job.worker-0").mkdir(parents=True)
    used = hierarchies[1] / ours / "job.ps-0"
    used.mkdir()
    (used / "process").touch()
    remove_groups(tmp_path / "ours/pods", [*hierarchies, tmp_path / "absent"])
    left = {path for each in hierarchies for path in each.glob("*/*")}
    assert left == {used, *(each / others / "job.worker-0" for each in hierarchies)}
    assert not (hierarchies[0] / ours).exists()


class TestImagesInSharedMemory:
    """Images that a killed installation left."""

    def room(self, shared: Path, folder: Path, owner: dict[str, Any] | None = None) -> Path:
        room = leftovers.claim_memory(folder, shared)
        assert room is not None
        (room / "stretto.j.1234.j-000001.ps-0").write_bytes(bytes(100))
        if owner is not None:
            write_json(room / leftovers.OWNER, {**owner, "folder": str(folder)})
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
        orphan = sleeper(folders["orphans"])  # its supervisor is gone, it trains on
        known = {"processes": {"actuator": {"pid": orphan.pid, "birth": ProcessIdentity.of(orphan.pid)}}}
        (folders["orphans"] / "run" / "up.json").write_text(json.dumps(known))
        assert sorted(leftovers.sweep_memory(shared)) == sorted([folders["gone"], folders["killed"]])
        left = {name for name, room in rooms.items() if room.exists()}
        assert left == {"living", "to-come-back", "elsewhere", "orphans"}

    @pytest.mark.parametrize("gone", [False, True])
    def test_stay_when_their_installation_starts_while_another_looks_at_them(
        self, tmp_path: Path, sleeper: Started, monkeypatch: pytest.MonkeyPatch, gone: bool
    ) -> None:
        """Method: it claims its memory while the other looks for processes of it, which takes a while."""
        monkeypatch.setattr(leftovers.tempfile, "gettempdir", lambda: str(tmp_path))
        (shared := tmp_path / "shm").mkdir()
        folder = tmp_path / "s"
        room = self.room(shared, folder, dead(sleeper))
        if not gone:
            folder.mkdir()

        def starts(*_: object) -> int:
            assert leftovers.claim_memory(folder, shared) == room
            return 0

        monkeypatch.setattr(leftovers, "end_leftovers" if gone else "_lives", starts)
        assert leftovers.sweep_memory(shared) == []
        assert [path.name for path in shared.iterdir()] == [room.name]
        assert (room / "stretto.j.1234.j-000001.ps-0").exists()

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
        write_json(room / leftovers.OWNER, told)
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
