"""No file that a person gives can fill the memory or keep a command for ever."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from pathlib import Path

import pytest
from stretto_wire.given_file import read_given, text_of

MOST = 1 << 20


def test_files_pipes_and_marks_of_the_byte_order_are_read(tmp_path: Path) -> None:
    file, pipe = tmp_path / "job.yaml", tmp_path / "pipe"
    file.write_bytes(b"\xef\xbb\xbfname: a\n")
    assert text_of(read_given(file, MOST)) == "name: a\n"
    assert read_given(file, file.stat().st_size) == file.read_bytes()
    os.mkfifo(pipe)
    threading.Thread(target=pipe.write_bytes, args=[b"x" * 200_000], daemon=True).start()
    assert read_given(pipe, MOST) == b"x" * 200_000


def test_what_never_ends_or_is_too_large_is_refused_at_once(tmp_path: Path) -> None:
    sparse, pipe = tmp_path / "sparse", tmp_path / "pipe"
    with sparse.open("wb") as file:
        file.truncate(10 << 30)
    os.mkfifo(pipe)
    threading.Thread(target=_endless, args=[pipe], daemon=True).start()
    for endless in ("/dev/zero", sparse, pipe):
        with pytest.raises(OSError, match="larger than 1 MiB, the most that is read") as refused:
            read_given(endless, MOST)
        assert refused.value.errno == errno.EFBIG


def _endless(pipe: Path) -> None:
    with contextlib.suppress(BrokenPipeError), pipe.open("wb", buffering=0) as file:
        while True:
            file.write(b"#" * 4096)


def test_a_pipe_into_which_nobody_writes_is_given_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match=r"nothing came for 0\.01 s"):
        read_given(tmp_path / "pipe", MOST, silence_s=0.01)
    with pytest.raises(IsADirectoryError):
        read_given(tmp_path, MOST)
