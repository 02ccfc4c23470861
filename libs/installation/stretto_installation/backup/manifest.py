"""Contents of a backup: which files it has, of which moment they are, and whether they are whole."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError
from stretto_wire.contract.registry import CHANNELS, DEAD_LETTERS, STATE, STREAM

from ..errors import BackupError

FORMAT = 1
MANIFEST_FILE = "manifest.json"
TRUST_COPY = "trust.conf"
READ_BYTES = 1 << 20
EFFECTS_FIRST = (STATE, DEAD_LETTERS, STREAM)
"""Order of saving: what refers to other streams comes before them; streams of inputs only come last"""
UNSAVED_S = 60.0
"""Inputs that are younger than this may be in no snapshot yet (``owner.state.saving``: 30 s, and a stop)."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class SavedFile(_Part):
    """A file beside the manifest."""

    name: str
    size_bytes: int
    sha256: str


class SavedStream(_Part):
    """A stream, or the bucket: its file and its extent. ``last_seq`` is the moment of which it is."""

    stream: str
    file: SavedFile
    messages: int
    first_seq: int
    last_seq: int


class Manifest(_Part):
    """All of a backup. ``versions`` has, for each service, the versions of its machines that wrote the cursors.

    ``complete_until_s``: restored later, it lacks inputs that have expired since, about the last seconds before it.
    ``unreadable``: messages that the server could not read when the backup was taken, in words.
    """

    format: int
    taken_at_s: float
    complete_until_s: float
    server_version: tuple[int, int, int]
    versions: dict[str, tuple[int, ...]]
    streams: tuple[SavedStream, ...]
    trust: SavedFile | None = None
    unreadable: tuple[str, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the manifest of ``folder``. Raises BackupError: there is none, or it is not one of ours."""
        path = folder / MANIFEST_FILE
        try:
            found = cls.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            raise BackupError(f"{path} is missing: {folder} holds no backup, or one that did not end") from None
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"])) or "the document"
            raise BackupError(f"{path}: {field}: {first['msg']}; take another backup") from error
        if found.format != FORMAT:
            raise BackupError(f"{path}: format = {found.format}: {FORMAT} is read here; use the version that wrote it")
        return found

    def write(self, folder: Path) -> None:
        """Write it whole or not at all: a folder without it is no backup."""
        draft = folder / f"{MANIFEST_FILE}.part"
        draft.write_text(self.model_dump_json(indent=1) + "\n")
        draft.replace(folder / MANIFEST_FILE)

    def stream(self, name: str) -> SavedStream:
        """Return the part of the stream ``name``. Raises BackupError: it has none."""
        for saved in self.streams:
            if saved.stream == name:
                return saved
        raise BackupError(f"{MANIFEST_FILE}: the stream {name} is missing; take another backup")

    def check_files(self, folder: Path) -> None:
        """Compare every file with its digest. Raises BackupError, which names the first that differs."""
        for file in [*(saved.file for saved in self.streams), *([self.trust] if self.trust else [])]:
            if Path(file.name).name != file.name:
                raise BackupError(f"{MANIFEST_FILE}: name = {file.name!r}: a file of this folder; take another backup")
            found = digest_of(folder / file.name)
            if found != file:
                raise BackupError(
                    f"{folder / file.name}: {found.size_bytes:,} bytes with SHA-256 {found.sha256}, the manifest has "
                    f"{file.size_bytes:,} with {file.sha256}: it is damaged; use another copy of this backup"
                )


def digest_of(path: Path) -> SavedFile:
    """Return size and SHA-256 of a file. Raises BackupError: it cannot be read."""
    digest, size_bytes = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            while piece := file.read(READ_BYTES):
                digest.update(piece)
                size_bytes += len(piece)
    except OSError as error:
        raise BackupError(f"{path} cannot be read ({error.strerror}); use another copy of this backup") from error
    return SavedFile(name=path.name, size_bytes=size_bytes, sha256=digest.hexdigest())


def in_order(names: Iterable[str]) -> list[str]:
    """Return the streams in the order of saving (the package's docstring)."""
    return sorted(names, key=lambda name: EFFECTS_FIRST.index(name) if name in EFFECTS_FIRST else len(EFFECTS_FIRST))


def complete_until_s(moment_s: float) -> float:
    """Return until when the backup of ``moment_s`` can be restored with every input that was in no snapshot yet."""
    shortest_s = min(channel.kept_s for channel in CHANNELS if channel.kept_s is not None)
    return moment_s - UNSAVED_S + shortest_s
