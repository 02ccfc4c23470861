"""The places of a checkpoint's image before it is stored, and the check that the store gets what was exported."""

import fcntl
import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
from stretto.engine import Exported, one_table
from stretto.engine.images import VERSION, _Blocks
from stretto.errors import CheckpointError
from stretto.server import flash_checkpoint
from stretto.server.flash_checkpoint import Exports
from stretto.server.image_file import ImageWriter, Part, open_image, verified
from stretto.server.shared_memory import Mappings, hold_whole, open_reserved
from stretto_parameters.checksums import PIECE_BYTES
from trainer_harness import wait_for

BLOCKS = {"bucket0/keys": np.arange(40_000), "bucket1/keys": np.arange(7)}


def export(control, image, base=None):
    """Stand in for the engine's export_image: two blocks, no server."""
    blocks = _Blocks(image)
    for name, block in BLOCKS.items():
        blocks.add(name, block)
    layout = one_table(4, 3).to_dict()
    fields = {"version": VERSION, "server": 0, "layout": layout, "columns": [0, 1], "bytes": image.offset}
    fields |= {"base": "", "whole": []}
    return Exported(fields | {"blocks": blocks.entries}, 0.25, 1)


@pytest.fixture
def made(tmp_path, monkeypatch):
    monkeypatch.setattr(flash_checkpoint, "export_image", export)
    monkeypatch.setattr(flash_checkpoint, "image_bytes", lambda store, base=None: 400_000)
    (tmp_path / "pod").mkdir()
    return Exports("full", "ps-0", None, tmp_path / "pod")  # type: ignore[arg-type]


def stored(made, name):
    wait_for(lambda: made.status(name)[0] != "memory")
    status = made.status(name)
    assert status[0] == "stored", status
    return json.loads(status[1])


def reserve(path: Path, size: int) -> str:
    """Reserve a file that holds the remains of an older image."""
    with open(path, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)
        file.write(b"\xff" * size)
    return str(path)


def test_reserved_memory_is_filled_and_what_is_too_much_given_back(made, tmp_path):
    memory = tmp_path / "image"
    export = made.begin("c1", "", f"file://{tmp_path}/store", reserve(memory, 500_000))
    assert (export.pause_s, export.memory) == (0.25, memory)
    part = stored(made, "c1")
    assert part["copies"] == [f"file:{memory}"]
    assert memory.stat().st_size == part["size_bytes"] < 400_000
    assert (tmp_path / "store/c1.ps-0.image").read_bytes() == memory.read_bytes()
    assert made.begin("c1", "", f"file://{tmp_path}/store", str(memory)) is export, "asked again"
    made.close()
    assert not memory.exists()


def test_reserved_memory_of_which_little_is_left_stays_for_the_next_image(made, tmp_path):
    made.begin("c1", "", f"file://{tmp_path}/store", reserve(tmp_path / "first", 500_000))
    reserved = int(1.03 * stored(made, "c1")["size_bytes"])
    memory = tmp_path / "second"
    made.begin("c2", "", f"file://{tmp_path}/store", reserve(memory, reserved))
    part = Part.parse(stored(made, "c2"))
    data = memory.read_bytes()
    assert len(data) == reserved > part.size_bytes
    image = open_image(part, [("memory", lambda offset, length: data[offset : offset + length])])
    assert all((image.blocks[name] == block).all() for name, block in BLOCKS.items())


def test_memory_that_is_short_foreign_or_nowhere_is_not_used_and_the_disk_leaves_nothing(made, tmp_path):
    short, foreign, victim, hole = (tmp_path / name for name in ("short", "foreign", "victim", "hole"))
    victim.write_bytes(b"theirs")
    foreign.symlink_to(victim)
    hole.touch()
    os.truncate(hole, 500_000)
    for number, memory in enumerate((reserve(short, 4000), str(foreign), str(tmp_path / "nowhere"), str(hole), "")):
        export = made.begin(f"c{number}", "", f"file://{tmp_path}/store", memory)
        assert export.memory is None
        part = stored(made, f"c{number}")
        assert part["copies"] == [f"cache:stretto:full:c{number}:ps-0"]
        assert (tmp_path / f"store/c{number}.ps-0.image").stat().st_size == part["size_bytes"]
    assert not short.exists(), "memory that was of no use is free"
    assert victim.read_bytes() == b"theirs"
    assert not list((tmp_path / "pod").iterdir())


def test_memory_that_was_given_back_meanwhile_is_neither_read_nor_written(tmp_path):
    """The checkpoints service reuses it for the next image, under another name."""
    path = tmp_path / "image"
    with open(reserve(path, 5000), "r+b") as opened, open(path, "r+b") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(FileNotFoundError, match="just being given back"):
            hold_whole(opened.fileno(), path)
        fcntl.flock(other, fcntl.LOCK_UN)
        hold_whole(opened.fileno(), path)
        path.rename(tmp_path / "spare")
        with pytest.raises(FileNotFoundError):
            hold_whole(opened.fileno(), path)
        reserve(path, 5000)
        with pytest.raises(FileNotFoundError, match="has been given back"):
            hold_whole(opened.fileno(), path)


def test_no_room_anywhere_is_told(made, tmp_path):
    (tmp_path / "pod").rmdir()
    with pytest.raises(CheckpointError, match=r"no room \(.*image.*; .*pod.*No such file"):
        made.begin("c1", "", f"file://{tmp_path}/store", reserve(tmp_path / "image", 100))
    assert made.status("c1")[0] == "unknown"


def test_a_file_that_changed_after_the_export_is_not_stored(tmp_path):
    file = io.BytesIO()
    writer = ImageWriter(file)
    size, digest = writer.finish(export(None, writer).manifest)
    whole = file.getvalue()
    part = Part("ps-0", "c1.ps-0.image", "", size, digest)
    path = tmp_path / "image"

    def stored(data: bytes) -> bytes:
        path.write_bytes(data)
        with open(path, "rb") as file:
            return b"".join(verified(part, file, PIECE_BYTES))

    assert stored(whole) == whole
    places = ((4, "description"), (size - 30, "description"), (64 + 300_000, "bucket0"), (64 + 320_010, "bucket1"))
    for position, what in places:
        changed = bytearray(whole)
        changed[position] ^= 1
        with pytest.raises(CheckpointError, match=what):
            stored(bytes(changed))
    with pytest.raises(CheckpointError, match="description"):
        stored(whole[:500])


def test_a_mapping_follows_its_file_and_ends_with_it(tmp_path):
    """A mapping of a removed file would keep memory that the checkpoints service has freed."""
    mappings, path = Mappings(), tmp_path / "image"
    with open_reserved(Path(reserve(path, 5000))) as file:
        mappings.of(file)[:] = 1
        file.truncate(4096)
    with open(path, "r+b") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a kept mapping locks nothing
        os.posix_fallocate(other.fileno(), 0, 50_000)
    path.rename(tmp_path / "spare.ps-0")
    with open_reserved(tmp_path / "spare.ps-0") as file:
        memory = mappings.of(file)
        assert (len(memory), memory[:4097].tolist()) == (50_000, [1] * 4096 + [0])
        memory[-1] = 7
        del memory
    assert (tmp_path / "spare.ps-0").read_bytes()[-1] == 7
    mappings.tidy()
    assert mapped(tmp_path) == 1
    (tmp_path / "spare.ps-0").unlink()
    mappings.tidy()
    assert mapped(tmp_path) == 0
    for number in range(3):
        with open_reserved(Path(reserve(tmp_path / f"image{number}", 5000))) as file:
            mappings.of(file)
    assert mapped(tmp_path) == 2, "one for the newest image, one for the next"
    mappings.close()
    assert mapped(tmp_path) == 0


def mapped(folder: Path) -> int:
    """Return how many files below a folder this process has mapped."""
    return len({line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line})
