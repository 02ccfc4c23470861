"""Where a checkpoint's image goes before it is stored, and that it is stored as it was exported."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from stretto.engine import Layout, checkpoint
from stretto.errors import CheckpointError
from stretto.exports import Exports
from stretto.images import Part, pack, verified

pytestmark = pytest.mark.slow  # imports TensorFlow


def exports(tmp_path: Path, home: str = "state") -> Exports:
    pod = tmp_path / "pod"
    pod.mkdir(exist_ok=True)
    made = Exports("full", "ps-0", None, "", tmp_path / home, pod)  # type: ignore[arg-type]
    made._folders = [tmp_path / "shared", pod]
    (tmp_path / "shared").mkdir(exist_ok=True)
    return made


def test_full_shared_memory_is_found_out_before_it_is_written_to(tmp_path, monkeypatch):
    made, full, reserve = exports(tmp_path), {"shared"}, os.posix_fallocate

    def fallocate(file, offset, size):
        if Path(os.readlink(f"/proc/self/fd/{file}")).parent.name in full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        reserve(file, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", fallocate)
    path = made._reserve("image", 4096)
    assert path == tmp_path / "pod" / "image"
    assert (path.stat().st_size, path.stat().st_mode & 0o777) == (4096, 0o600)
    assert not list((tmp_path / "shared").iterdir())
    full.add("pod")
    with pytest.raises(CheckpointError, match="No space left"):
        made._reserve("image", 4096)
    full.clear()
    (tmp_path / "shared" / "image").symlink_to(tmp_path / "victim")
    assert made._reserve("image", 10).stat().st_size == 10
    assert not (tmp_path / "victim").exists()


def test_installations_do_not_share_names(tmp_path):
    first, second = exports(tmp_path), exports(tmp_path, "elsewhere")
    path = first._reserve(f"{first._stem}c1.ps-0", 10)
    assert list(first._images()) == [path]
    assert not list(second._images())


def test_a_file_that_changed_after_the_export_is_not_stored(tmp_path):
    blocks = {"bucket0/keys": np.arange(1000), "bucket1/keys": np.arange(7)}
    image = checkpoint._pack(blocks, Layout(dimension=4, dense_size=3), 0, [0, 1])
    head, digest, size = pack(image)
    whole = head + bytes(image.to_bytes())
    part = Part("ps-0", "c1.ps-0.image", "", size, digest)
    path = tmp_path / "image"

    def stored(data: bytes) -> bytes:
        path.write_bytes(data)
        with open(path, "rb") as file:
            return b"".join(verified(part, file, 512))

    assert stored(whole) == whole
    for position, what in ((4, "header"), (30, "header"), (len(head) + 3000, "bucket0"), (len(head) + 8010, "bucket1")):
        changed = bytearray(whole)
        changed[position] ^= 1
        with pytest.raises(CheckpointError, match=what):
            stored(bytes(changed))
    with pytest.raises(CheckpointError, match="bucket0"):
        stored(whole[: len(head) + 500])
