"""Room for images: really there, ours alone, given back; and never so much that the machine starves."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import pytest
from deep_folders import lay_deep
from stretto_checkpoints import memory
from stretto_checkpoints.memory import SharedMemory


def one(shared: SharedMemory, job: str, checkpoint: str, pod: str, size_bytes: int) -> str:
    return shared.reserve(job, checkpoint, {pod: size_bytes}).get(pod, "")


@pytest.fixture
def shared(tmp_path: Path) -> SharedMemory:
    return SharedMemory(tmp_path, Path("/an/installation"))


def test_reserved_room_is_there_and_asked_again_it_is_the_same(shared: SharedMemory) -> None:
    path = Path(one(shared, "j", "j-000001", "ps-0", 100_000))
    status = path.stat()
    assert (status.st_size, status.st_mode & 0o777) == (100_000, 0o600)
    assert status.st_blocks * 512 >= 100_000
    path.write_bytes(b"an image")
    assert one(shared, "j", "j-000001", "ps-0", 100_000) == str(path)
    assert path.read_bytes()[:8] == b"an image"


def test_too_small_a_file_grows_and_a_finished_image_that_was_cut_stays_whole(shared: SharedMemory) -> None:
    path = Path(one(shared, "j", "c", "ps-0", 5000))
    path.write_bytes(b"an image")  # as its server cuts it
    assert one(shared, "j", "c", "ps-0", 9000) == str(path)
    status = path.stat()
    assert (status.st_size, status.st_blocks * 512 >= 9000) == (9000, True)
    assert path.read_bytes()[:9] == b"an image\0"
    assert one(shared, "j", "c", "ps-0", 100) == str(path)
    assert path.stat().st_size == 9000, "it never shrinks: somebody may be writing"


def test_no_room_to_grow_leaves_what_is_there(shared: SharedMemory, monkeypatch: Any) -> None:
    path = Path(one(shared, "j", "c", "ps-0", 5000))
    path.write_bytes(b"an image")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(memory.os, "posix_fallocate", full)
    assert shared.reserve("j", "c", {"ps-0": 9000, "ps-1": 9000}) == {"ps-0": str(path)}
    assert [found.name for found in path.parent.iterdir()] == [path.name]
    assert path.read_bytes() == b"an image"


def test_all_of_an_installation_goes_and_nothing_of_another(shared: SharedMemory, tmp_path: Path) -> None:
    mine = [one(shared, job, "c", "ps-0", 10) for job in ("j", "k")]
    other = one(SharedMemory(tmp_path, Path("/another")), "j", "c", "ps-0", 10)
    shared.free_all()
    assert [path for path in (*mine, other) if Path(path).exists()] == [other]


def test_whatever_a_pod_has_laid_beside_its_images_goes_with_its_job(shared: SharedMemory) -> None:
    image = Path(one(shared, "j", "j-000001", "ps-0", 10))
    lay_deep(image.parent / "spare.ps-0")
    (image.parent / "large").write_bytes(b"x")
    shared.free("j")
    shared.end("j")
    assert not image.parent.exists()


def test_only_what_is_named_is_kept_of_a_job_of_this_installation(shared: SharedMemory, tmp_path: Path) -> None:
    kept = [one(shared, "j", "j-000002", f"ps-{number}", 10) for number in (0, 1)]
    old = one(shared, "j", "j-000001", "ps-0", 10)
    others = [
        one(shared, "j-2", "j-2-000001", "ps-0", 10),
        one(SharedMemory(tmp_path, Path("/another")), "j", "j-000001", "ps-0", 10),
    ]
    shared.free("j", ("j-000002",))
    assert not Path(old).exists()
    assert all(Path(path).exists() for path in (*kept, *others))
    shared.free("j")
    assert not list(tmp_path.glob("stretto.j.*/spare*")), "nothing outlives the job"
    assert [path for path in (*kept, *others) if Path(path).exists()] == others


def test_too_much_nothing_nowhere_and_a_strangers_file_are_no_room(
    shared: SharedMemory, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(memory, "_available_bytes", lambda: 4000)
    assert one(shared, "j", "c", "ps-0", 1001) == ""
    assert shared.reserve("j", "c", {"ps-0": 600, "ps-1": 600}) == {}, "together they are too much"
    assert one(shared, "j", "c", "ps-0", 0) == ""
    assert one(SharedMemory(None, tmp_path), "j", "c", "ps-0", 10) == ""
    assert one(SharedMemory(tmp_path / "gone", tmp_path), "j", "c", "ps-0", 10) == ""
    assert not list(tmp_path.glob("*/*"))
    path = Path(one(shared, "j", "c", "ps-0", 1000))
    path.unlink()
    path.symlink_to(tmp_path / "victim")
    assert one(shared, "j", "c", "ps-0", 1000) == ""
    assert not (tmp_path / "victim").exists()


def test_the_memory_of_an_image_that_is_no_longer_wanted_is_that_of_the_next(
    shared: SharedMemory, tmp_path: Path, monkeypatch: Any
) -> None:
    first = Path(one(shared, "j", "j-000001", "ps-0", 9000))
    gone = Path(one(shared, "j", "j-000001", "ps-1", 9000))
    memory_of_first = first.stat().st_ino
    one(shared, "j", "j-000002", "ps-0", 9000)
    shared.free("j", ("j-000002",))
    shared.free("j", ("j-000002",))
    assert not first.exists()
    assert not gone.exists()
    third = Path(one(shared, "j", "j-000003", "ps-0", 9500))
    assert (third.stat().st_ino, third.stat().st_size) == (memory_of_first, 9500)
    assert len(list(third.parent.iterdir())) == 2, "a server that has left needs none"

    monkeypatch.setattr(memory, "_available_bytes", lambda: 50_000)
    shared.free("j", ("j-000003",))
    assert [path.name for path in third.parent.iterdir()] == [third.name], "it is too much beside what is available"


def test_memory_that_some_process_still_writes_or_reads_is_not_used_again(shared: SharedMemory, tmp_path: Path) -> None:
    """Nor what a service had spared that was killed before it could look."""
    path = Path(one(shared, "j", "j-000001", "ps-0", 9000))
    newest = one(shared, "j", "j-000002", "ps-0", 9000)
    with open(path, "rb") as frozen:
        fcntl.flock(frozen, fcntl.LOCK_SH)
        shared.free("j", ("j-000002",))
        third = Path(one(shared, "j", "j-000003", "ps-0", 9000))
        assert third.stat().st_ino != os.fstat(frozen.fileno()).st_ino
        assert sorted(str(path) for path in third.parent.iterdir()) == [newest, str(third)], "it is let go"


def test_a_pipe_or_a_link_that_a_pod_puts_in_the_place_of_a_spare_image_stops_nobody(
    shared: SharedMemory, tmp_path: Path
) -> None:
    first = Path(one(shared, "j", "j-000001", "ps-0", 9000))
    other = tmp_path / "another's"
    other.write_bytes(b"another's")
    os.mkfifo(first.with_name("spare.ps-0"))
    first.with_name("spare.ps-1").symlink_to(other)
    found = shared.reserve("j", "j-000002", {"ps-0": 9000, "ps-1": 9000})
    assert sorted(found) == ["ps-1"], "nothing is written to the pipe"
    assert other.read_bytes() == b"another's"


def test_all_that_is_spared_together_is_little_beside_what_is_available(
    shared: SharedMemory, tmp_path: Path, monkeypatch: Any
) -> None:
    rooms = {f"ps-{number}": 9000 for number in range(3)}
    shared.reserve("j", "j-000001", rooms)
    shared.reserve("j", "j-000002", rooms)
    monkeypatch.setattr(memory, "_available_bytes", lambda: 300_000)  # a tenth is room for two of 12,288 bytes
    shared.free("j", ("j-000002",))
    assert len(list(tmp_path.glob("*/spare.*"))) == 2


def test_where_there_is_no_room_for_the_next_image_nothing_waits_for_it(
    shared: SharedMemory, tmp_path: Path, monkeypatch: Any
) -> None:
    for checkpoint in ("j-000001", "j-000002"):
        one(shared, "j", checkpoint, "ps-0", 9000)
    shared.free("j", ("j-000002",))
    monkeypatch.setattr(memory, "_available_bytes", lambda: 50_000)
    assert one(shared, "j", "j-000003", "ps-0", 20_000) == ""
    assert [path.name.partition(".")[0] for path in tmp_path.glob("*/*")] == ["j-000002"]


def test_a_difference_leaves_the_memory_of_full_images_to_the_next_full_one(tmp_path: Path) -> None:
    """A server cuts a file to its image: memory of a full one that a small image took would be lost."""
    memory = SharedMemory(tmp_path, tmp_path)
    full = Path(memory.reserve("j", "j-000001", {"ps-0": 200_000})["ps-0"])
    inode = full.stat().st_ino
    memory.reserve("j", "j-000002", {"ps-0": 9000})
    memory.free("j", ("j-000003",))
    (spare,) = tmp_path.glob("*/spare.ps-0")
    assert spare.stat().st_ino == inode, "of a chain, the largest is spared"
    small = Path(memory.reserve("j", "j-000003", {"ps-0": 9000})["ps-0"])
    assert small.stat().st_ino != inode
    assert spare.exists()
    large = Path(memory.reserve("j", "j-000004", {"ps-0": 210_000})["ps-0"])
    assert large.stat().st_ino == inode
    assert not spare.exists()
