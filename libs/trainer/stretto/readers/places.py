"""Files of a local folder or an object store: found, opened and read, with requests repeated while a store is away."""

from __future__ import annotations

import fnmatch
import logging
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import PurePosixPath
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

import pyarrow as pa
from pyarrow import fs as pafs

from ..errors import DataError

log = logging.getLogger("stretto.readers")

_TABLES = re.compile(r"\.(parquet|arrow|feather)$", re.IGNORECASE)
"""Names of files that are never empty, unless their writer did not end."""
SCHEMES = ("file", "s3", "gs", "gcs", "abfs", "abfss", "http", "https")
_ATTEMPTS = 8
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 10.0
"""Attempts at a request and the pauses between them, doubled each time: a store may be away for about 25 s (taste)."""
REQUESTS = 32
"""Requests at a time for sizes and footers: 10,000 of 20 ms take 6 s."""
_REFUSED = re.compile(
    r"ACCESS_DENIED|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|INVALID_CLIENT_TOKEN_ID|EXPIRED_TOKEN|"
    r"UNRECOGNIZED_CLIENT|AuthenticationFailed|AuthorizationFailure|Unauthenticated|PermissionDenied|"
    r"Permission denied|HTTP status 40[013]|\b40[13], message="
)
_ABSENT = re.compile(r"NO_SUCH_BUCKET|NO_SUCH_KEY|RESOURCE_NOT_FOUND|\b404\b")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Store:
    """A filesystem that is asked again, after growing pauses, while it throttles, fails or breaks connections."""

    filesystem: pafs.FileSystem
    prefix: str = ""
    """The text before a path in messages, as in "s3://"; it has no credentials."""
    is_local: bool = False
    transient: tuple[type[Exception], ...] = (OSError,)

    def ask(self, place: str, request: Callable[[], T]) -> T:
        """Return the result of a request. Raises DataError if it is refused, or fails for too long."""
        pause_s = _FIRST_PAUSE_S
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return request()
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # a malformed file stays malformed
                raise
            except self.transient as error:
                final = _final(error, place)
                if final is not None:
                    raise final from error
                is_ending = not threading.main_thread().is_alive()  # the process waits for this thread only
                if self.is_local or is_ending or attempt == _ATTEMPTS:
                    raise DataError(
                        f"{place} cannot be read: {_first_line(error)}{_remedy(error, self.is_local)}"
                    ) from error
                log.warning("%s: %s; again in %.1f s", place, _first_line(error), pause_s)
                time.sleep(pause_s * random.uniform(0.5, 1.0))
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        raise AssertionError("unreachable")

    def show(self, path: str) -> str:
        """Return a path as a user writes it."""
        return self.prefix + path

    def open(self, path: str) -> Any:
        """Open a file for reads at any offset; local files are mapped."""
        if self.is_local:
            return self.ask(path, lambda: pa.memory_map(path))
        return self.ask(self.show(path), lambda: self.filesystem.open_input_file(path))

    def now(self, path: str, source: Any) -> tuple[int, int]:
        """Return the size and time of change of an open file, if possible without another request."""
        if not self.is_local:
            stated: bytes = (source.metadata() or {}).get("Last-Modified", b"")
            try:
                return source.size(), int(datetime.fromisoformat(stated.decode()).timestamp())
            except ValueError:
                pass  # this store states it otherwise
        info = self.stat(path)
        return int(info.size or 0), changed_s(info)

    def stat(self, path: str) -> pafs.FileInfo:
        """Return the size and the time of change of a file or folder."""
        return self.ask(self.show(path), lambda: self.filesystem.get_file_info(path))

    def read_all(self, path: str) -> bytes | None:
        """Return the content of a file, or None if there is none."""
        if self.stat(path).type != pafs.FileType.File:
            return None
        return self.ask(self.show(path), lambda: self.open(path).read())

    def write_all(self, path: str, content: bytes) -> None:
        """Write a file. Raises OSError."""
        with self.filesystem.open_output_stream(path) as stream:
            stream.write(content)


@dataclass(frozen=True, slots=True)
class File:
    """A file of the data as it was found. name: as in messages. keys: column -> value of its folders, as in day=3."""

    store: Store = field(compare=False, repr=False)
    path: str
    size: int
    changed_s: int
    """Time of change in whole seconds, 0 if the store states none; listings and single answers differ below them."""
    keys: tuple[tuple[str, str | None], ...] = ()

    @property
    def name(self) -> str:
        return self.store.show(self.path)


def find(paths: str | os.PathLike[str] | Sequence[str], filesystem: Any = None) -> list[File]:
    """Return the files that are named: files, folders, globs, or a list of them, as URLs or local paths.

    Order: as listed; within a folder or glob by path, character by character. In folders, empty files and names that
    begin with "_" or "." are left out. Raises DataError.
    """
    given = [str(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    if not given or not all(given) or "\0" in "".join(given):
        raise DataError(f"{given or 'no file'}: give a path, a URL, or a list of them")
    plain = [path for path in given if not _is_glob(path)]
    if len(given) > 1 and len(plain) == len(given):  # a list of files: their sizes are asked at the same time
        with ThreadPoolExecutor(min(REQUESTS, len(given))) as pool:
            found = list(pool.map(lambda path: _find(path, filesystem), given))
    else:
        found = [_find(path, filesystem) for path in given]
    return [file for files in found for file in files]


def locate(path: str, filesystem: Any = None) -> tuple[Store, str]:
    """Return the store of a URL or local path, and the path within it. Raises DataError."""
    if filesystem is not None:
        return _wrapped(filesystem), path
    scheme, separator, rest = path.partition("://")
    if not separator:
        return _LOCAL, path
    if scheme not in SCHEMES:
        raise DataError(
            f"{_without_secrets(path)}: {scheme}:// is unknown; expected one of {', '.join(SCHEMES)}, "
            "or give filesystem= (of pyarrow.fs or fsspec)"
        )
    if scheme == "file":
        return _LOCAL, unquote(rest)
    if scheme in ("http", "https"):
        return _http(), path
    body, _, query = rest.partition("?")
    authority, _, key = body.partition("/")
    root, base = _opened(scheme, authority, query, key.split("/")[0] if scheme.startswith("abfs") else "")
    if scheme.startswith("abfs") and "@" not in authority:
        key = key.partition("/")[2]  # the container stands in the path
    return root, f"{base}/{unquote(key)}".rstrip("/") if key else base


_LOCAL = Store(pafs.LocalFileSystem(), is_local=True)


@cache
def _opened(scheme: str, authority: str, query: str, container: str) -> tuple[Store, str]:
    """Return a store and the path of its bucket. Requests follow AWS_*, GOOGLE_* and AZURE_* of the environment."""
    url = f"{scheme}://{authority}"
    if scheme in ("gs", "gcs") and "retry_limit_seconds" not in query:
        query += ("&" if query else "") + "retry_limit_seconds=20"  # of itself the client repeats for 15 minutes
    if container and "@" not in authority:
        url += f"/{quote(container)}"
    try:
        filesystem, base = pafs.FileSystem.from_uri(url + (f"?{query}" if query else ""))
    except (pa.ArrowException, OSError, ValueError) as error:
        place = _without_secrets(url)
        refused = _final(error, place)
        raise refused or DataError(f"{place} cannot be opened: {_first_line(error)}") from error
    return Store(filesystem, f"{scheme}://"), base.rstrip("/")


@cache
def _http() -> Store:
    import aiohttp
    from fsspec.implementations.http import HTTPFileSystem

    handler = pafs.FSSpecHandler(HTTPFileSystem(cache_type="none"))
    return Store(pafs.PyFileSystem(handler), transient=(OSError, aiohttp.ClientError, TimeoutError))


def _wrapped(filesystem: Any) -> Store:
    if not isinstance(filesystem, pafs.FileSystem):
        filesystem = pafs.PyFileSystem(pafs.FSSpecHandler(filesystem))
    return Store(filesystem, is_local=isinstance(filesystem, pafs.LocalFileSystem), transient=(Exception,))


def _find(given: str, filesystem: Any) -> list[File]:
    store, path = locate(given, filesystem)
    shown = _without_secrets(given)
    if _is_glob(given) and not (store.is_local and os.path.exists(path)):  # a file may be called [a].parquet
        folder = path[: re.search(r"[*?\[]", path).start()].rpartition("/")[0]  # type: ignore[union-attr]
        pattern = re.compile(_glob_pattern(path.removeprefix("./")))
        root = folder or ("/" if path.startswith("/") else "" if filesystem or "://" in given else ".")
        files = [file for file in _listed(store, root, root) if pattern.fullmatch(file.path.removeprefix("./"))]
        if not files:
            raise DataError(f"{shown} matches no file; check the pattern (** passes folders, * does not)")
        return files
    info = store.stat(path)
    if info.type == pafs.FileType.File:
        return [_file(store, info, "")]
    if info.type == pafs.FileType.Unknown:
        raise DataError(f"{shown} is no file and no folder but a pipe or device; write it to a file")
    if info.type == pafs.FileType.NotFound:
        raise DataError(f"{shown} cannot be read: there is no such file, folder or bucket; check the path")
    if not store.prefix and not store.is_local and given.startswith("http"):
        raise DataError(f"{shown} is no file, and HTTP has no folders; give a list of the files' URLs")
    files = _listed(store, path, path)
    if not files:
        raise DataError(f"{shown} has no data file; names that begin with _ or . are left out")
    return files


def _listed(store: Store, folder: str, root: str) -> list[File]:
    selector = pafs.FileSelector(folder, recursive=True, allow_not_found=True)
    infos: Iterable[pafs.FileInfo] = store.ask(store.show(folder), lambda: store.filesystem.get_file_info(selector))
    files: list[File] = []
    for info in infos:
        parts = PurePosixPath(info.path.removeprefix(root).removeprefix("./")).parts
        is_empty = not info.size and not _TABLES.search(info.path)  # markers of folders, parts without rows
        if info.type == pafs.FileType.File and not is_empty and not any(part[0] in "_." for part in parts):
            files.append(_file(store, info, root))
    if store.is_local:
        _refuse_links_to_one_file(files)
    return sorted(files, key=lambda file: file.path)


def _refuse_links_to_one_file(files: Iterable[File]) -> None:
    """Raise DataError if links lead to a file twice: its samples would count twice, in a loop of folders 40 times."""
    seen: dict[str, File] = {}
    for file in sorted(files, key=lambda file: len(file.path)):
        other = seen.setdefault(os.path.realpath(file.path), file)
        if other is not file:
            raise DataError(f"{file.name} and {other.name} are one file by links; remove the link, or list the files")


def _file(store: Store, info: pafs.FileInfo, root: str) -> File:
    pairs = [part.partition("=") for part in info.path.removeprefix(root).split("/")[:-1] if "=" in part]
    keys = tuple((name, None if value == "__HIVE_DEFAULT_PARTITION__" else unquote(value)) for name, _, value in pairs)
    return File(store, info.path, int(info.size or 0), changed_s(info), keys)


def changed_s(info: pafs.FileInfo) -> int:
    """Return the time of change in whole seconds; 0 if the store states none."""
    return int((info.mtime_ns or 0) // 10**9)


def _is_glob(path: str) -> bool:
    return bool(re.search(r"[*\[]" if "://" in path else r"[*?\[]", path))


def _glob_pattern(path: str) -> str:
    """Translate a glob to a regular expression: ``**`` passes folders, ``*`` and ``?`` do not."""
    parts: list[str] = []
    for piece in re.split(r"(\*\*/?|\*|\?|\[[^]]*\])", path):
        if piece.startswith("**"):
            parts.append("(?:.*/)?" if piece.endswith("/") else ".*")
        elif piece in ("*", "?"):
            parts.append("[^/]" + piece.replace("?", ""))
        elif piece.startswith("["):
            parts.append(fnmatch.translate(piece).removeprefix("(?s:").removesuffix(")\\Z"))
        else:
            parts.append(re.escape(piece))
    return "".join(parts)


def _final(error: BaseException, place: str) -> DataError | None:
    """Return the error that a repetition cannot mend, with its remedy; None if it may be mended."""
    text = str(error)
    if isinstance(error, PermissionError) or _REFUSED.search(text):
        return DataError(
            f"{place}: access is refused ({_first_line(error)}); give credentials, as in AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, GOOGLE_APPLICATION_CREDENTIALS or AZURE_STORAGE_KEY, and check what they may read"
        )
    if isinstance(error, FileNotFoundError | IsADirectoryError) or _ABSENT.search(text):
        return DataError(f"{place} cannot be read: there is no such file, folder or bucket; check the path")
    return None


def _remedy(error: BaseException, is_local: bool) -> str:
    if not is_local or getattr(error, "errno", None) is not None:
        return ""
    is_encrypted = "ecrypt" in str(error)
    return f"; it is {'encrypted: write it plainly' if is_encrypted else 'damaged or cut off: write it anew'}"


def _without_secrets(url: str) -> str:
    """Return a URL without user, password and query."""
    if "://" not in url:
        return url
    parts = urlsplit(url.partition("?")[0])
    host = parts.netloc if parts.scheme.startswith("abfs") and ":" not in parts.netloc else parts.netloc.split("@")[-1]
    return f"{parts.scheme}://{host}{parts.path}"


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
