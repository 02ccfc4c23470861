"""Damage to a checkpoint between export and restore, with a real server, files, Redis and a tmpfs."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import redis
from stretto.engine import ParameterServer, one_table
from stretto.errors import CheckpointError, ImageDamaged
from stretto.server import flash_checkpoint
from stretto.server.flash_checkpoint import Exports
from stretto_checkpoints.memory import SharedMemory
from trained_server import TrainedServer

pytestmark = pytest.mark.slow


class Job(TrainedServer):
    """A trained server in this process, its checkpoints, and new servers that read them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, one_table(4, 200))
        self.servers: list[ParameterServer] = []

    def new(self):
        self.servers.append(ParameterServer(0, self.layout))
        return self.servers[-1]

    def close(self) -> None:
        super().close()
        for server in self.servers:
            server.close()

    def train_more(self) -> None:
        """Train one more batch, on new rows."""
        self.train(np.arange(2000 * self.trained, 2000 * (self.trained + 1)))

    def read(self, server, name: str, cache: str = "") -> int:
        reader = Exports("job", "ps-0", server.store, self.folder)
        return reader.load(f"file://{self.manifest(name)}", range(self.layout.columns), cache)

    def same(self, server) -> bool:
        """Compare parameters, optimiser slots and books to the last bit."""
        one, other = server.store.applied(), self.server.store.applied()
        books = (one.samples == other.samples).all() and (one.fingerprints == other.fingerprints).all()
        return bool(books) and server.store.checksum() == self.server.store.checksum()

    def comes_back(self, name: str, cache: str = "") -> bool:
        """Read a checkpoint into a new server, and compare."""
        server = self.new()
        self.read(server, name, cache)
        return self.same(server)


@pytest.fixture
def job(tmp_path):
    made = Job(tmp_path)
    made.train_more()
    yield made
    made.close()


def reserve(path: Path, size: int = 10**6) -> str:
    with open(path, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)
    return str(path)


def flip(path: Path, position: int) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 16]))


def middle_of_last_rows(path: Path) -> int:
    data = path.read_bytes()
    length = int.from_bytes(data[-16:-8], "little")
    blocks = json.loads(data[-16 - length : -16])["blocks"]
    name = max((n for n in blocks if n.endswith("/rows") and blocks[n]["bytes"]), key=lambda n: blocks[n]["offset"])
    return 64 + blocks[name]["offset"] + blocks[name]["bytes"] // 2


def cut(path: Path, size: int) -> None:
    os.truncate(path, size)


def sparse(path: Path) -> None:
    """Make a file of the right size out of a hole: reading it could end the process if no memory is left."""
    size = path.stat().st_size
    os.truncate(path, 0)
    os.truncate(path, size)


DAMAGES = {
    "its beginning": lambda path: flip(path, 3),
    "a bit of a block": lambda path: flip(path, 200),
    "a bit near the end": lambda path: flip(path, path.stat().st_size - 40),
    "truncated": lambda path: cut(path, path.stat().st_size // 2),
    "empty": lambda path: cut(path, 0),
    "gone": Path.unlink,
}


def test_whatever_is_wrong_with_a_copy_in_memory_the_store_has_it(job):
    for number, damage in enumerate((*DAMAGES.values(), sparse)):
        memory = job.folder / "memory"
        part = job.take(f"c{number}", reserve(memory))
        assert part["copies"] == [f"file:{memory}"]
        damage(memory)
        assert job.comes_back(f"c{number}"), number


def test_a_damaged_checkpoint_is_refused_with_the_reason_and_the_one_before_it_read_on_the_same_server(job):
    for number, (what, damage) in enumerate(DAMAGES.items()):
        job.take(f"good{number}")
        job.take(f"bad{number}", reserve(job.folder / f"memory{number}"))
        for path in (job.image(f"bad{number}"), job.folder / f"memory{number}"):
            damage(path)
        server = job.new()
        with pytest.raises(ImageDamaged) as refused:
            job.read(server, f"bad{number}")
        assert str(job.image(f"bad{number}")) in str(refused.value), what
        assert "use another checkpoint" in str(refused.value)
        assert server.store.columns() == []
        job.read(server, f"good{number}")
        assert job.same(server), what


def test_what_was_read_before_the_damage_leaves_no_trace(job):
    """A block of the last bucket is damaged: the other buckets are in the tables when it is found."""
    job.take("before")
    expected = job.server.store.checksum(), job.server.store.applied().samples.tolist()
    job.train_more()
    job.take("after")
    flip(job.image("after"), middle_of_last_rows(job.image("after")))
    server = job.new()
    with pytest.raises(ImageDamaged, match="bucket"):
        job.read(server, "after")
    job.read(server, "before")
    assert (server.store.checksum(), server.store.applied().samples.tolist()) == expected


def test_a_manifest_that_is_no_manifest_is_refused(job):
    job.take("c")
    whole = job.manifest("c").read_text()
    for bad in (whole[: len(whole) // 2], "", "[]", '{"parts": []}', '{"parts": [{"pod": "ps-0"}]}', "\0" * 50):
        job.manifest("c").write_text(bad)
        with pytest.raises(CheckpointError, match=r"(another|complete) checkpoint"):
            job.read(job.server, "c")


@pytest.fixture
def small_memory(tmp_path):
    """A private tmpfs of one MiB."""
    folder = tmp_path / "shm"
    folder.mkdir()
    if (
        os.geteuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=False).returncode
    ):
        pytest.skip("a file system can be mounted by root only")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_shared_memory_that_is_full_costs_the_fast_way_back_nothing_else(job, small_memory, tmp_path):
    shared = SharedMemory(small_memory, tmp_path)
    room = flash_checkpoint.image_bytes(job.server.store)
    assert room > 2**20
    assert shared.reserve("job", "c", {"ps-0": room}) == {}
    assert not [path for path in small_memory.rglob("*") if path.is_file()], (
        "a reservation that is too small is not kept"
    )
    # it filled up after the reservation of too little
    path = reserve(small_memory / "image", 50_000)
    (small_memory / "other").write_bytes(bytes(900_000))
    part = job.take("c", path)
    assert part["copies"] == ["cache:stretto:job:c:ps-0"]
    assert not Path(path).exists()
    assert job.comes_back("c")


def test_redis_killed_between_two_checkpoints_costs_the_cache_only(job, cache):
    url, process = cache
    job.take("c1", cache=url)
    process.kill()
    process.wait(60)
    second = job.take("c2", cache=url)
    assert "not cached" in second["detail"]
    for name in ("c1", "c2"):
        assert job.comes_back(name, url)


def test_redis_that_lost_a_piece_or_hangs_does_not_hold_a_restore_up(job, cache, monkeypatch):
    """If each block asked a hanging Redis, the restore would take too long."""
    monkeypatch.setattr(flash_checkpoint, "_CACHE_TIMEOUT_S", 0.5)
    url, process = cache
    job.take("c", cache=url)
    with redis.Redis.from_url(url) as client:
        assert client.unlink(*client.scan_iter("*:0")) == 1
    assert job.comes_back("c", url)
    process.send_signal(signal.SIGSTOP)
    server, begun = job.new(), time.monotonic()
    job.read(server, "c", url)
    assert job.same(server)
    waited_s = time.monotonic() - begun
    process.send_signal(signal.SIGCONT)
    blocks = 2 * job.layout.buckets + 9
    assert waited_s < blocks * 0.5, "it was asked once"
