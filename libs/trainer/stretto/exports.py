"""Flash checkpoint of one parameter server (DLRover-RM section 5.2): shared memory at once, cache and store behind it.

The reply to an export waits for a copy in memory only. A thread copies on to Redis, where servers on other machines
find it, and to the persistent store. Reading goes the other way round: the nearest whole copy wins.
"""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import os
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import fsspec
import redis

from .engine import Control, export_image, load_image
from .errors import CheckpointError
from .images import Part, ReadRange, open_image, pack, verified

log = logging.getLogger("stretto.exports")

Stage = Literal["unknown", "memory", "cached", "stored", "failed"]

_CHUNK = 4 * 2**20
_CACHE_KEPT_S = 3600
_REMEMBERED = 16


@dataclass(slots=True)
class _Export:
    stage: Stage
    memory: Path
    begun_at_s: float
    part: str = ""
    detail: str = ""


class Exports:
    """The exports of one server, one at a time."""

    def __init__(
        self,
        job: str,
        pod: str,
        control: Control,
        redis_url: str,
        state_folder: Path | None = None,
        pod_folder: Path | None = None,
    ) -> None:
        self._job, self._pod, self._control, self._redis_url = job, pod, control, redis_url
        self._lock = threading.Lock()
        self._exports: dict[str, _Export] = {}
        shared = Path("/dev/shm")
        wanted = [shared, pod_folder or Path(tempfile.gettempdir())]
        self._folders = [folder for folder in wanted if folder.is_dir() and os.access(folder, os.W_OK)]
        # installations on one machine may have jobs of the same name
        home = hashlib.sha256(str(state_folder or pod_folder or "").encode()).hexdigest()[:8]
        self._stem = f"stretto.{job}.{home}."

    # --- writing ------------------------------------------------------------------------------------------

    def begin(self, checkpoint: str, cache_url: str, store_url: str) -> tuple[int, str]:
        """Copy everything owned into shared memory; (bytes, digest). The same checkpoint again is not copied again.

        Raises CheckpointError when ownership changes meanwhile, or memory is short.
        """
        with self._lock:
            known = self._exports.get(checkpoint)
            if known is not None and known.stage != "failed":
                part = Part.parse(known.part)
                return part.size_bytes, f"sha256:{part.header_sha256}"
            begun_at_s = time.time()
            image = export_image(self._control)
            head, digest, size = pack(image)
            memory = self._reserve(f"{self._stem}{checkpoint}.{self._pod}", size)
            with open(memory, "r+b") as file, mmap.mmap(file.fileno(), size) as mapped:
                mapped[: len(head)] = head
                with memoryview(mapped) as view, view[len(head) :] as blocks:
                    image.write(blocks)
            name = f"{checkpoint}.{self._pod}.image"
            part = Part(
                pod=self._pod,
                file=name,
                url=f"{store_url.rstrip('/')}/{name}",
                size_bytes=size,
                header_sha256=digest,
                columns=tuple(image.columns),
                copies=(f"file:{memory}", f"cache:{self._cache_key(checkpoint)}"),
            )
            export = self._exports[checkpoint] = _Export("memory", memory, begun_at_s, part.to_json())
            self._prune()
        threading.Thread(
            target=self._copy_on, args=(checkpoint, export, part, cache_url), name="export", daemon=True
        ).start()
        return size, f"sha256:{digest}"

    def _reserve(self, name: str, size: int) -> Path:
        """A new file of so many bytes that are really there: in shared memory, else in the pod's folder.

        Written to without, a full shared memory would end the process by a signal (SIGBUS).
        """
        wrong: list[str] = []
        for folder in self._folders:
            path = folder / name
            try:
                path.unlink(missing_ok=True)  # left by an earlier life of this pod
                file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
                try:
                    os.posix_fallocate(file, 0, size)
                except OSError:
                    path.unlink(missing_ok=True)
                    raise
                finally:
                    os.close(file)
                return path
            except OSError as error:
                wrong.append(f"{folder}: {error.strerror}")
                log.warning("no room for %d bytes of a checkpoint at %s", size, wrong[-1])
        raise CheckpointError(
            f"a checkpoint of {size} bytes has no room ({'; '.join(wrong) or 'no folder can be written to'}); "
            "enlarge /dev/shm or free space on the disk of the state folder"
        )

    def _images(self) -> Iterator[Path]:
        """Of this job in this installation, whoever wrote them."""
        for folder in self._folders:
            yield from folder.glob(f"{self._stem}*")

    def _cache_key(self, checkpoint: str) -> str:
        return f"stretto:{self._job}:{checkpoint}:{self._pod}"

    def _copy_on(self, checkpoint: str, export: _Export, part: Part, cache_url: str) -> None:
        try:
            _to_cache(cache_url, self._cache_key(checkpoint), export.memory)
            export.stage = "cached"
        except (redis.RedisError, OSError, ValueError) as error:
            # the cache only makes a restore faster
            export.detail = f"not cached: {error}"
            log.warning("checkpoint %s %s", checkpoint, export.detail)
        try:
            _to_store(part, export.memory)
            export.stage = "stored"
            log.info("checkpoint %s stored: %d bytes at %s", checkpoint, part.size_bytes, part.url)
        except Exception as error:
            # whatever a file system raises: the checkpoint is not complete
            export.stage, export.detail = "failed", f"{part.url}: {type(error).__name__}: {error}"
            log.exception("checkpoint %s was not stored", checkpoint)
        self._drop_older(export)

    def _drop_older(self, newest: _Export) -> None:
        """Shared memory is precious: only the newest checkpoint of the job stays there, whoever wrote the others.

        What a server left that was killed goes, too: it was kept for the restore that has been since.
        """
        for path in self._images():
            try:
                # the other servers' files of this checkpoint are of the same stem
                if path.stem != newest.memory.stem and path.stat().st_mtime < newest.begun_at_s:
                    path.unlink()
            except OSError:
                continue  # another server of the job was faster

    def _prune(self) -> None:
        while len(self._exports) > _REMEMBERED:
            name = next(iter(self._exports))
            self._exports.pop(name).memory.unlink(missing_ok=True)

    def status(self, checkpoint: str) -> tuple[Stage, str, str]:
        """(stage, part for the manifest once stored, detail)."""
        export = self._exports.get(checkpoint)
        if export is None:
            return "unknown", "", f"{self._pod} has no export of that name"
        return export.stage, export.part if export.stage == "stored" else "", export.detail

    def close(self) -> None:
        """Free the shared memory of what is stored."""
        with self._lock:
            for export in self._exports.values():
                if export.stage in ("stored", "failed"):
                    export.memory.unlink(missing_ok=True)

    # --- reading ------------------------------------------------------------------------------------------

    def load(self, manifest_url: str, columns: Iterable[int]) -> int:
        """Own ``columns`` as the checkpoint has them; bytes read. Raises CheckpointError."""
        parts = _parts(manifest_url)
        counted = [0]
        images = [open_image(part, self._sources(part, manifest_url, counted)) for part in parts]
        load_image(self._control, images, columns)
        return counted[0]

    def _sources(self, part: Part, manifest_url: str, counted: list[int]) -> list[tuple[str, ReadRange]]:
        sources: list[tuple[str, ReadRange]] = []
        for copy in part.copies:
            kind, _, where = copy.partition(":")
            if kind == "file":
                sources.append((f"memory {where}", _file_reader(where)))
            elif kind == "cache" and self._redis_url:
                sources.append((f"cache {where}", _cache_reader(self._redis_url, where)))
        # beside its manifest, wherever that was moved to; else where it was written
        beside = f"{manifest_url.rpartition('/')[0]}/{part.file}"
        for url in dict.fromkeys((beside, part.url)):
            sources.append((url, _store_reader(url)))
        return [(name, _counting(read, counted)) for name, read in sources]


def _counting(read: ReadRange, counted: list[int]) -> ReadRange:
    def count(offset: int, length: int) -> bytes:
        data = read(offset, length)
        counted[0] += len(data)
        return data

    return count


def _to_cache(url: str, key: str, memory: Path) -> None:
    if not url:
        raise ValueError("no cache is configured")
    client = redis.Redis.from_url(url, socket_timeout=10.0)
    with client, open(memory, "rb") as file:
        number = 0
        while chunk := file.read(_CHUNK):
            client.set(f"{key}:{number}", chunk, ex=_CACHE_KEPT_S)
            number += 1


def _to_store(part: Part, memory: Path) -> None:
    """Write under another name first: what has the final name is complete, and what the server had exported."""
    filesystem, path = _resolve(part.url)
    filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
    with open(memory, "rb") as source, filesystem.open(f"{path}.part", "wb") as target:
        for chunk in verified(part, source, _CHUNK):
            target.write(chunk)
    stored = filesystem.size(f"{path}.part")
    if stored != part.size_bytes:
        raise CheckpointError(f"the store kept {stored} of {part.size_bytes} bytes")
    filesystem.mv(f"{path}.part", path)


def _resolve(url: str) -> tuple[Any, str]:
    try:
        filesystem, path = cast("tuple[Any, str]", fsspec.core.url_to_fs(url))
    except (ValueError, ImportError) as error:
        raise CheckpointError(f"{url} cannot be opened: {error}") from error
    return filesystem, path


def _parts(manifest_url: str) -> list[Part]:
    filesystem, path = _resolve(manifest_url)
    try:
        manifest = json.loads(filesystem.cat_file(path))
        parts = manifest["parts"]
    except Exception as error:
        raise CheckpointError(
            f"manifest {manifest_url} cannot be read ({type(error).__name__}: {error}); name a complete checkpoint"
        ) from error
    if not isinstance(parts, list) or not parts:
        raise CheckpointError(f"manifest {manifest_url} has no parts; name a complete checkpoint")
    return [Part.parse(part) for part in cast("list[object]", parts)]


def _file_reader(path: str) -> ReadRange:
    def read(offset: int, length: int) -> bytes:
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(length)

    return read


def _cache_reader(url: str, key: str) -> ReadRange:
    client = redis.Redis.from_url(url, socket_timeout=10.0)

    def read(offset: int, length: int) -> bytes:
        first, last = offset // _CHUNK, (offset + length - 1) // _CHUNK
        try:
            chunks = [client.get(f"{key}:{number}") for number in range(first, last + 1)]
        except redis.RedisError as error:
            raise OSError(str(error)) from error
        if any(chunk is None for chunk in chunks):
            raise OSError("not in the cache")
        joined = b"".join(cast("list[bytes]", chunks))
        return joined[offset - first * _CHUNK :][:length]

    return read


def _store_reader(url: str) -> ReadRange:
    def read(offset: int, length: int) -> bytes:
        filesystem, path = _resolve(url)
        try:
            return cast("bytes", filesystem.cat_file(path, start=offset, end=offset + length))
        except OSError:
            raise
        except Exception as error:
            raise OSError(f"{type(error).__name__}: {error}") from error

    return read
