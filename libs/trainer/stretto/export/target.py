"""The folder of an export, on a disk or in an object store.

Files are written under another name first. The folder with the final name is complete: on a disk it is renamed as a
whole; in an object store, which cannot do that, `export.json` arrives last.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self, cast

from stretto_wire.stores.filesystems import StoreLibraryMissing, open_store

from ..errors import ExportRefused

DOCUMENT = "export.json"
_CHUNK = 4 * 2**20


def place_of(url: str) -> tuple[Any, str]:
    """Return the file system of a folder, and its path there. Raises ExportRefused."""
    try:
        return open_store(url)
    except (ValueError, ImportError, OSError, StoreLibraryMissing) as error:
        raise ExportRefused(f"{url} cannot be opened: {error}") from error


class Target:
    """A folder that is being written. Leaving the context without `publish` removes what was written."""

    def __init__(self, url: str) -> None:
        """Raises ExportRefused if there is something under this name, or if the store cannot be reached."""
        self.url = url.rstrip("/")
        self._store, path = place_of(self.url)
        self._path = path.rstrip("/")
        self._part = f"{self._path}.{secrets.token_hex(4)}.part"
        self._is_local = "file" in _protocols(self._store)
        self._is_moving = False
        self.files: dict[str, dict[str, Any]] = {}
        """Size and SHA-256 of each file that was written, by its name."""
        try:
            taken = self._store.exists(self._path)
        except Exception as error:  # whatever a file system raises
            raise ExportRefused(f"{self.url} cannot be reached ({type(error).__name__}: {error})") from error
        if taken:
            raise ExportRefused(f"{self.url} exists already: give --to another name, or remove it")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with contextlib.suppress(Exception):  # the first error is the one to report
            for path in (self._part, *([self._path] if self._is_moving else [])):
                if self._store.exists(path):
                    self._store.rm(path, recursive=True)

    @contextlib.contextmanager
    def writer(self, name: str) -> Generator[BinaryIO]:
        """Yield a file to write from beginning to end."""
        path = f"{self._part}/{name}"
        with self._failing(name):
            self._store.makedirs(path.rpartition("/")[0], exist_ok=True)
            with self._store.open(path, "wb") as file:
                hashing = _Hashing(file)
                yield cast("BinaryIO", hashing)
            self.files[name] = hashing.entry()

    @contextlib.contextmanager
    def local(self, name: str) -> Generator[Path]:
        """Yield a path on a disk for a file or folder; it is copied if the target is elsewhere."""
        with contextlib.ExitStack() as held, self._failing(name):
            scratch = Path(self._part if self._is_local else held.enter_context(tempfile.TemporaryDirectory()))
            path = scratch / name
            path.parent.mkdir(parents=True, exist_ok=True)
            yield path
            for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
                if file.is_file():
                    self._take(file, str(file.relative_to(scratch)))

    def _take(self, file: Path, name: str) -> None:
        if self._is_local:
            with open(file, "rb") as opened:
                hashing = _Hashing(None)
                while chunk := opened.read(_CHUNK):
                    hashing.write(chunk)
            self.files[name] = hashing.entry()
            return
        with self.writer(name) as copy, open(file, "rb") as opened:
            shutil.copyfileobj(opened, copy, _CHUNK)

    def publish(self, document: dict[str, Any]) -> dict[str, Any]:
        """Write `export.json` and give the folder its name. Return the document, which now has its files."""
        whole = {**document, "files": dict(sorted(self.files.items()))}
        with self.writer(DOCUMENT) as file:
            file.write(json.dumps(whole, indent=1).encode())
        with self._failing(self.url):
            if self._is_local:
                os.rename(self._part, self._path)
                return whole
            self._is_moving = True  # what is there now is ours, and is not yet whole
            for name in (*sorted(self.files.keys() - {DOCUMENT}), DOCUMENT):
                self._store.mv(f"{self._part}/{name}", f"{self._path}/{name}")
            self._is_moving = False
        return whole

    @contextlib.contextmanager
    def _failing(self, name: str) -> Generator[None]:
        try:
            yield
        except OSError as error:
            raise ExportRefused(
                f"{name} cannot be written to {self.url} ({type(error).__name__}: {error}); make room there, or give "
                "--to a place that you may write to"
            ) from error


class _Hashing:
    """A file, and the digest of all that is written to it."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._size = 0
        self._digest = hashlib.sha256()

    closed = False

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:
        if self._file is not None:
            self._file.write(data)
        self._digest.update(data)
        self._size += len(memoryview(data).cast("B"))
        return len(data)

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Leave that to the store."""

    def close(self) -> None:
        """Leave that to the owner of the file."""

    def entry(self) -> dict[str, Any]:
        return {"bytes": self._size, "sha256": self._digest.hexdigest()}


def _protocols(store: Any) -> tuple[str, ...]:
    found = store.protocol
    return (found,) if isinstance(found, str) else tuple(found)
