"""Damage of the files in which a server keeps its streams."""

from __future__ import annotations

import os
from pathlib import Path

from stretto_installation.server import STORE


def blocks(server: Path, stream: str) -> list[Path]:
    """Return the files of messages of a stream in the folder of a server that has ended."""
    return sorted((server / STORE).glob(f"jetstream/*/streams/{stream}/msgs/*.blk"), key=lambda file: int(file.stem))


def flip(file: Path, text: bytes) -> None:
    """Flip a bit some bytes after the last place of ``text``: in the body or the headers of its message."""
    content = bytearray(file.read_bytes())
    at = content.rindex(text) + len(text) + 8
    content[at] ^= 4
    file.write_bytes(content)


def cut(file: Path, size_bytes: int) -> None:
    """Cut the end of a file off."""
    os.truncate(file, file.stat().st_size - size_bytes)
