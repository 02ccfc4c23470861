"""The manifest of a checkpoint: what makes its files one, written last and at once.

JSON: ``version``, ``id``, ``job``, ``samples``, ``size_bytes``, ``ps``, ``taken_at_s``, ``ledger`` (opaque, the
dispatcher's), ``digest`` (SHA-256 of the ledger) and ``parts``: one per parameter server, as that server described its
file, with the checksum of its header (which holds those of the blocks). The part of a difference has, as ``bases``, the
files that it adds to, of earlier checkpoints.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stretto_core.checkpoints.names import number_of
from stretto_messages.values import CheckpointRef
from stretto_wire.stores.filesystems import open_store

from . import local_files

VERSION = 1
SIZE_MAX_BYTES = 4 << 20
"""A larger manifest is none of ours: of 1,000 servers it has some 500 kB, and its ledger at most 200 kB.

A job can write one as it likes, whose values take 25 times its size in memory.
"""
LATER_MAX = 20
"""Checkpoints of the highest numbers that are looked at for a later one: a job can lay as many as it likes."""
NUMBER_MAX = 10**9
"""The highest number of a checkpoint that is looked at: a job can lay folders of any number."""
NO_FILE = (errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.EINVAL)
"""Errors of a folder of another kind, a link, a folder or a pipe in the place of a manifest."""
_LOCAL = "file://"


class ManifestError(Exception):
    """A manifest cannot be written or read; says which, why, and what to do."""


class ManifestDamaged(ManifestError):
    """There is no manifest, or it is no sound one: reading it again will not help."""


@dataclass(frozen=True, slots=True)
class CheckpointManifest:
    """A complete checkpoint as its manifest tells it."""

    checkpoint: CheckpointRef
    job: str
    taken_at_s: float
    ledger: str
    parts: tuple[dict[str, Any], ...]

    @property
    def bases(self) -> tuple[str, ...]:
        """The checkpoints that this one adds to, the full one first: those of the part with the longest chain.

        The file of each base lies in the folder of its checkpoint, which has the checkpoint's name. Raises
        ManifestDamaged.
        """
        try:
            longest: Sequence[Any] = max((part.get("bases", ()) for part in self.parts), key=len, default=())
            return tuple(str(base["url"]).rsplit("/", 2)[1] for base in longest)
        except (TypeError, KeyError, IndexError, AttributeError) as error:
            raise ManifestDamaged(f"{self.checkpoint.url} has unreadable bases ({error!r}); use another one") from error

    def write(self) -> None:
        """Under another name first: what has the final name is complete. Raises ManifestError."""
        document = {
            "version": VERSION,
            **{name: value for name, value in asdict(self.checkpoint).items() if name != "url"},
            "job": self.job,
            "taken_at_s": self.taken_at_s,
            "ledger": self.ledger,
            "digest": _digest(self.ledger),
            "parts": list(self.parts),
        }
        url = self.checkpoint.url
        content = json.dumps(document, indent=1).encode()
        try:
            if (file := _local(url)) is not None:
                local_files.write(file, content)
                return
            filesystem, path = open_store(url)
            filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
            filesystem.pipe_file(f"{path}.part", content)
            filesystem.mv(f"{path}.part", path)
        except Exception as error:  # whatever a file system raises
            raise ManifestError(
                f"{url} cannot be written ({type(error).__name__}: {error}); check the store"
            ) from error


def read(url: str) -> CheckpointManifest:
    """Raises ManifestError when the store does not give it, ManifestDamaged when what it gives is not sound."""
    try:
        if (file := _local(url)) is not None:
            text = local_files.read(file, SIZE_MAX_BYTES + 1)
        else:
            filesystem, path = open_store(url)
            text = filesystem.cat_file(path, start=0, end=SIZE_MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise ManifestDamaged(f"{url} is not there; name the manifest of a complete checkpoint") from error
    except Exception as error:  # whatever a file system raises
        if isinstance(error, OSError) and error.errno in NO_FILE:
            raise ManifestDamaged(f"{url} is no file ({error.strerror}); use another checkpoint") from error
        raise ManifestError(f"{url} cannot be read ({type(error).__name__}: {error}); check the store") from error
    if len(text) > SIZE_MAX_BYTES:
        raise ManifestDamaged(f"{url} is no manifest (more than {SIZE_MAX_BYTES} bytes); use another checkpoint")
    try:
        document = json.loads(text)
        version = document["version"]
        digest = document["digest"]
        names = ("id", "samples", "size_bytes", "ps")
        reference = CheckpointRef(url=url, **{name: document[name] for name in names})
        manifest = CheckpointManifest(
            reference, document["job"], float(document["taken_at_s"]), document["ledger"], tuple(document["parts"])
        )
    except Exception as error:
        raise ManifestDamaged(
            f"{url} is no manifest ({type(error).__name__}: {error}); name the manifest of a complete checkpoint"
        ) from error
    if version != VERSION or digest != _digest(manifest.ledger) or not manifest.parts:
        raise ManifestDamaged(f"{url} is damaged or of version {version}; use another checkpoint")
    return manifest


def later(folder: str, number: int) -> Iterator[CheckpointManifest]:
    """Yield the sound manifests of a job's folder whose checkpoints have higher numbers, the highest first.

    At most ``LATER_MAX`` are read, of the highest numbers. Raises ManifestError when the store does not list them.
    """
    try:
        names = sorted((name for name in _names_in(folder) if number < number_of(name) <= NUMBER_MAX), key=number_of)
    except Exception as error:  # whatever a file system raises
        raise ManifestError(f"{folder} cannot be listed ({type(error).__name__}: {error}); check the store") from error
    for name in reversed(names[-LATER_MAX:]):
        with contextlib.suppress(ManifestDamaged):
            yield read(f"{folder}/{name}/manifest.json")


def _names_in(folder: str) -> list[str]:
    """Return the names in a job's folder; none if it is not there."""
    try:
        if (path := _local(folder)) is not None:
            return local_files.names(path)
        filesystem, place = open_store(folder)
        return [str(name).rstrip("/").rpartition("/")[2] for name in filesystem.ls(place, detail=False)]
    except FileNotFoundError:
        return []


def remove(url: str) -> None:
    """Remove a checkpoint's folder; the manifest first, so that no half of it looks complete."""
    if (file := _local(url)) is not None:
        return local_files.remove(file.parent, file.name)
    filesystem, path = open_store(url)
    for target, recursive in ((path, False), (path.rpartition("/")[0], True)):
        try:
            filesystem.rm(target, recursive=recursive)
        except FileNotFoundError:
            continue


def open_folder(url: str) -> None:
    """Make the folder of a job in a local store before its pods begin. Raises OSError."""
    if (folder := _local(url)) is not None:
        local_files.make_folder(folder)


def _local(url: str) -> Path | None:
    """Return the path of a URL of the local file system, as all URLs of such stores are spelt, or None."""
    return Path(url.removeprefix(_LOCAL)) if url.startswith(_LOCAL) else None


def _digest(ledger: str) -> str:
    return hashlib.sha256(ledger.encode()).hexdigest()
