"""File systems of stores by URL: object stores by pyarrow, which needs no further package; others by fsspec.

Needs the extra ``stretto-wire[stores]``. Both packages are imported at their first use: a service and a parameter
server would start later with them. Credentials come from the environment, as the clients of the stores read it: AWS_*,
GOOGLE_APPLICATION_CREDENTIALS, AZURE_*.
"""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import uuid
from functools import cache
from typing import Any, cast

OBJECT_STORES = ("s3", "gs", "gcs", "abfs", "abfss")
"""Schemes that pyarrow opens; the container of the last two is the first part of the path."""
COPIED_AT_ONCE_BYTES = 5 << 30
"""A store copies no larger object within itself by one request."""
_CHUNK_BYTES = 16 << 20
EXTRA = "stretto-wire[stores]"


class StoreLibraryMissing(Exception):
    """The library for a store is not installed; the text names the package."""


def check_library(url: str) -> None:
    """Raise StoreLibraryMissing if a package is missing for the store, ValueError if nothing knows its scheme."""
    scheme = url.partition("://")[0]
    for package in ("fsspec", *(("pyarrow",) if scheme in OBJECT_STORES else ())):
        if importlib.util.find_spec(package) is None:
            raise StoreLibraryMissing(f"{scheme}:// needs the package {package}; install {EXTRA}")
    if scheme not in OBJECT_STORES:
        import fsspec

        try:
            fsspec.get_filesystem_class(scheme)
        except ImportError as error:
            raise StoreLibraryMissing(f"{scheme}:// needs a package: {error}") from error


def open_store(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, as fsspec has them, and the path in it.

    Raises:
        StoreLibraryMissing: a package has to be installed.
        ValueError: nothing knows the scheme.
        OSError: the store refuses, or cannot be reached.
    """
    scheme, separator, rest = url.partition("://")
    if separator and scheme in OBJECT_STORES:
        authority, _, path = rest.partition("/")
        if scheme.startswith("abfs"):
            container, _, path = path.partition("/")
            return _object_store(scheme, authority, container), f"{container}/{path}".rstrip("/")
        return _object_store(scheme, authority), f"{authority}/{path}".rstrip("/")
    try:
        import fsspec

        return cast("tuple[Any, str]", fsspec.core.url_to_fs(url))
    except ImportError as error:
        raise StoreLibraryMissing(f"{scheme or 'file'}:// needs a package ({error}); install {EXTRA}") from error


@cache
def _object_store(scheme: str, authority: str, container: str = "") -> Any:
    try:
        import pyarrow as pa
        from fsspec.implementations.arrow import ArrowFSWrapper
        from pyarrow import fs
    except ImportError as error:
        raise StoreLibraryMissing(f"{scheme}:// needs the package {error.name}; install {EXTRA}") from error

    class ObjectStore(ArrowFSWrapper):
        """An object store, whose objects are there whole or not at all."""

        def mv(self, path1: str, path2: str, **kwargs: Any) -> None:  # pyrefly: ignore[bad-override]
            """Rename an object: copied within the store, a large one through this process."""
            if cast("int", self.size(path1)) <= COPIED_AT_ONCE_BYTES:
                super().mv(path1, path2, **kwargs)
                return
            files: Any = self  # fsspec's types know neither the files of pyarrow nor their options
            with files.open(path1, "rb", seekable=False) as source, files.open(path2, "wb") as target:
                shutil.copyfileobj(source, target, _CHUNK_BYTES)
            self.rm_file(path1)

        def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
            """Read an object, or a part of it."""
            seekable = start is not None or end is not None
            return cast("bytes", super().cat_file(path, start, end, **{"seekable": seekable, **kwargs}))

        def rmdir(self, path: str) -> None:  # pyrefly: ignore[bad-override]
            """Do nothing, either: pyarrow would remove what is below."""

        def makedirs(self, path: str, exist_ok: bool = False) -> None:  # pyrefly: ignore[bad-override]
            """Do nothing: object stores have no folders."""

    query = "?retry_limit_seconds=20" if scheme in ("gs", "gcs") else ""  # of itself the client repeats for 15 minutes
    place = f"{scheme}://{authority}{f'/{container}' if container else ''}"
    try:
        return ObjectStore(fs.FileSystem.from_uri(place + query)[0], skip_instance_cache=True)
    except pa.ArrowException as error:
        raise OSError(f"{place} cannot be opened: {error}") from error


def check_store(url: str) -> str:
    """Write, read and remove a small file in a store; return the reason if that fails, else an empty text.

    Raises StoreLibraryMissing.
    """
    place = f"{url}/.stretto-check-{uuid.uuid4().hex}"
    step = "opened"
    try:
        filesystem, path = open_store(place)
        with contextlib.ExitStack() as undo:
            step = "written"
            filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
            filesystem.pipe_file(path, b"stretto")
            undo.callback(filesystem.rm_file, path)
            step = "read"
            if filesystem.cat_file(path) != b"stretto":
                return f"the store {url} gives back something else than was written; check its configuration"
            step = "removed from"
    except StoreLibraryMissing:
        raise
    except Exception as error:  # whatever a file system raises
        text = " ".join(f"{type(error).__name__}: {error}".split())[:500]
        return f"the store {url} cannot be {step} ({text}); check its URL, its credentials and the network"
    return ""
