"""The flash checkpoint of one parameter server (DLRover-RM section 5.2): to memory first, then to cache and store.

A page of shared memory is charged to the control group that touches it first. An image that this server allocated
would count against its limit, and the forecast of its tables would not know about it. Therefore the checkpoints service
reserves a file in shared memory and is charged for it; this server fills it bucket by bucket. If that is impossible
(another machine, no room), the image goes to the pod's disk, whose page cache the kernel can reclaim, and on to Redis,
where servers on other machines find it. A thread copies either to the persistent store. A restore reads the nearest
whole copy.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import logging
import math
import mmap
import os
import tempfile
import threading
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

from fsspec.implementations.local import LocalFileSystem
from stretto_wire.stores.filesystems import StoreLibraryMissing, open_store

from ..engine import Base, Exported, LockedStore, export_image, image_bytes, load_image, loaded_bytes
from ..errors import CheckpointError, NoRoom
from .image_file import ImageWriter, Part, ReadRange, open_chain, verified
from .shared_memory import Mappings, hold_whole, open_reserved

log = logging.getLogger("stretto.server")

Stage = Literal["unknown", "memory", "cached", "stored", "failed"]

_CHUNK = 4 * 2**20
_CACHE_KEPT_S = 3600
_CACHE_TIMEOUT_S = 10.0
_REMEMBERED = 16
_LEFT_SHARE = 1.05
"""Size of reserved memory, in sizes of its image, up to which it is not cut to that: the next image would need the rest
again, and new memory costs several times the copy to it."""


@dataclass(slots=True)
class Export:
    """An image that this server has written, or writes now.

    memory: its path in shared memory. pause_s: the longest that a push waited for it. base: what a difference needs.
    """

    stage: Stage
    memory: Path | None
    part: Part
    pause_s: float
    base: Base
    detail: str = ""


class Exports:
    """The exports of one server, one at a time. At most one bucket of an image is in memory of this process."""

    def __init__(self, job: str, pod: str, store: LockedStore, pod_folder: Path | None = None) -> None:
        self._job = job
        self._pod = pod
        self._store = store
        self._disk = pod_folder or Path(tempfile.gettempdir())
        self._lock = threading.Lock()
        self._exports: dict[str, Export] = {}
        self._mappings = Mappings()

    def follow(self, store: LockedStore) -> None:
        """Write from the next life of the server from now on: it was emptied.

        Images of the life before stay, but no difference adds to them: every bucket has lost rows since
        (engine/images.py).
        """
        self._store = store

    # --- writing ------------------------------------------------------------------------------------------

    def room_bytes(self, base: str = "") -> int:
        """Return an upper bound for the size of an image taken now. base: the checkpoint that it may add to."""
        return image_bytes(self._store, self._base(base))

    def _base(self, checkpoint: str) -> Base | None:
        export = self._exports.get(checkpoint)
        return export.base if export is not None and export.stage == "stored" else None

    def begin(self, checkpoint: str, cache_url: str, store_url: str, memory: str = "", base: str = "") -> Export:
        """Write everything owned to the reserved file ``memory``, or else to the disk.

        base: a complete checkpoint; if this process wrote its image, the new one is a difference to that. A repeated
        request for the same checkpoint copies nothing. Raises CheckpointError if ownership changes meanwhile, or
        if there is no room.
        """
        with self._lock:
            known = self._exports.get(checkpoint)
            if known is not None and known.stage != "failed":
                return known
            file, path, image, size, digest = self._write(memory, self._base(base))
            name = f"{checkpoint}.{self._pod}.image"
            part = Part(
                pod=self._pod,
                file=name,
                url=f"{store_url.rstrip('/')}/{name}",
                size_bytes=size,
                description_sha256=digest,
                columns=tuple(image.manifest["columns"]),
                copies=(f"file:{path}" if path else f"cache:{self._cache_key(checkpoint)}",),
                bases=self._exports[base].part.as_base() if image.manifest["base"] else (),
            )
            export = Export("memory", path, part, image.pause_seconds, image.as_base(digest))
            self._exports[checkpoint] = export
            while len(self._exports) > _REMEMBERED:
                self._exports.pop(next(iter(self._exports)))
        threading.Thread(
            target=self._copy_on, args=(checkpoint, export, file, cache_url), name="export", daemon=True
        ).start()
        return export

    def _write(self, memory: str, base: Base | None) -> tuple[BinaryIO, Path | None, Exported, int, str]:
        """Write to the first place with room: (file, its path in memory, export, bytes, SHA-256 of the description)."""
        wrong: list[str] = []
        for path in (Path(memory), None) if memory else (None,):
            try:
                with contextlib.ExitStack() as undo:
                    file = undo.enter_context(open_reserved(path) if path else self._on_disk())
                    writer = ImageWriter(file, memory=self._mappings.of(file)) if path else ImageWriter(file)
                    image = export_image(self._store, writer, base)
                    size, digest = writer.finish(image.manifest)
                    if os.fstat(file.fileno()).st_size > _LEFT_SHARE * size:
                        file.truncate(size)
                    undo.pop_all()
                return file, path, image, size, digest
            except OSError as error:
                wrong.append(f"{path or self._disk}: {error.strerror or error}")
                log.warning("no image at %s", wrong[-1])
                _free(path)
        raise CheckpointError(
            f"a checkpoint of at most {image_bytes(self._store, base)} bytes has no room ({'; '.join(wrong)}); "
            "free space on the disk of the state folder, or enlarge /dev/shm"
        )

    def _on_disk(self) -> BinaryIO:
        """Open a file without a name: nothing is left of it, however this process ends."""
        return cast("BinaryIO", tempfile.TemporaryFile(dir=self._disk))

    def _cache_key(self, checkpoint: str) -> str:
        return f"stretto:{self._job}:{checkpoint}:{self._pod}"

    def _copy_on(self, checkpoint: str, export: Export, file: BinaryIO, cache_url: str) -> None:
        part = export.part
        with file:
            if cache_url and export.memory is None:
                try:
                    _to_cache(cache_url, self._cache_key(checkpoint), file, part.size_bytes)
                    export.stage = "cached"
                except (OSError, ValueError) as error:
                    # the cache only makes a restore faster
                    export.detail = f"not cached: {error}"
                    log.warning("checkpoint %s %s", checkpoint, export.detail)
            try:
                _to_store(part, file)
                export.stage = "stored"
                log.info("checkpoint %s stored: %d bytes at %s", checkpoint, part.size_bytes, part.url)
            except Exception as error:
                # file systems raise errors of many kinds: in any case the checkpoint is not complete
                export.stage = "failed"
                export.detail = f"{part.url}: {type(error).__name__}: {error}"
                log.exception("checkpoint %s was not stored", checkpoint)
        if export.stage == "stored" and cache_url:
            self._uncache_older(checkpoint, cache_url)

    def _uncache_older(self, newest: str, cache_url: str) -> None:
        """Drop older checkpoints from the cache.

        The cache holds each server's newest image, the images that it adds to, and another one while it is written.
        """
        kept = {part.file for part in self._exports[newest].part.as_base()} if newest in self._exports else set[str]()
        cached = [(name, export) for name, export in list(self._exports.items()) if export.memory is None]
        older = [(name, export) for name, export in cached if export.part.file not in kept]
        try:
            with _cache_at(cache_url) as client:
                for name, export in older:
                    client.unlink(*(key for key, _ in _chunks(self._cache_key(name), export.part.size_bytes)))
        except OSError as error:  # they expire after an hour
            log.warning("older checkpoints stay in the cache: %s", error)

    def status(self, checkpoint: str) -> tuple[Stage, str, str]:
        """Return (stage, part for the manifest once stored, detail)."""
        export = self._exports.get(checkpoint)
        if export is None:
            return "unknown", "", f"{self._pod} has no export of that name"
        return export.stage, export.part.to_json() if export.stage == "stored" else "", export.detail

    def tidy(self) -> None:
        """Let go of shared memory that the service has freed; called now and then."""
        if self._lock.acquire(blocking=False):  # else an image is being written
            try:
                self._mappings.tidy()
            finally:
                self._lock.release()

    def close(self) -> None:
        """Free the shared memory of stored images: this server leaves, and the service that reserved it may be gone."""
        for export in self._exports.values():
            if export.stage == "stored":
                _free(export.memory)
        self._mappings.close()

    # --- reading ------------------------------------------------------------------------------------------

    def load(
        self,
        manifest_url: str,
        columns: Sequence[int],
        cache_url: str = "",
        room_bytes: float = math.inf,
        store: LockedStore | None = None,
    ) -> int:
        """Own ``columns`` as the checkpoint has them; return the bytes read.

        store: the life of the server that owns them; ServerEmptied if it ends meanwhile.
        Raises NoRoom, with nothing changed, if they might take more than ``room_bytes``, and CheckpointError.
        """
        parts = read_manifest(manifest_url).parts
        counted = [0]
        with contextlib.ExitStack() as held:
            cache = held.enter_context(contextlib.closing(_Cache(cache_url)))
            images = [
                open_chain(part, lambda link: _sources(link, manifest_url, cache, held, counted)) for part in parts
            ]
            if (needed := loaded_bytes(images, columns)) > room_bytes:
                raise NoRoom(
                    f"{len(columns)} columns of up to {needed} bytes have no room: {int(room_bytes)} bytes are left"
                )
            load_image(store or self._store, images, columns)
        return counted[0]


def _sources(
    part: Part, manifest_url: str, cache: _Cache, held: contextlib.ExitStack, counted: list[int]
) -> list[tuple[str, ReadRange]]:
    sources: list[tuple[str, ReadRange]] = []
    for copy in part.copies:
        kind, _, where = copy.partition(":")
        if kind == "file":
            sources.append((f"memory {where}", _file_reader(where, held)))
        elif kind == "cache":
            sources.append((f"cache {where}", cache.reader(where)))
    sources += stored_copies(part, manifest_url)
    return [(name, _counting(read, counted)) for name, read in sources]


def stored_copies(part: Part, manifest_url: str) -> list[tuple[str, ReadRange]]:
    """Return where the store may have an image, and the reader of each place.

    First beside the manifest and in the folders beside it, which may have been moved, then at the original place.
    """
    folder, job_folder = (manifest_url.rsplit("/", levels)[0] for levels in (1, 2))
    moved = f"{job_folder}/{'/'.join(part.url.rsplit('/', 2)[1:])}"
    return [(url, _store_reader(url)) for url in dict.fromkeys((f"{folder}/{part.file}", moved, part.url))]


def _free(path: Path | None) -> None:
    if path is not None:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _chunks(key: str, size_bytes: int) -> list[tuple[str, int]]:
    """Return (key in the cache, bytes) of each chunk of an image."""
    return [(f"{key}:{at // _CHUNK}", min(_CHUNK, size_bytes - at)) for at in range(0, size_bytes, _CHUNK)]


def _counting(read: ReadRange, counted: list[int]) -> ReadRange:
    def count(offset: int, length: int) -> bytes | memoryview:
        data = read(offset, length)
        counted[0] += len(data)
        return data

    return count


@contextlib.contextmanager
def _cache_at(url: str) -> Generator[Any]:
    """Yield a client of Redis. Raises OSError for every failure there.

    Redis is imported at its first use, as stores' clients are: a server would start a seventh later with them.
    """
    import redis

    try:
        with redis.Redis.from_url(url, socket_timeout=_CACHE_TIMEOUT_S) as client:
            yield client
    except redis.RedisError as error:
        raise OSError(str(error)) from error


def _to_cache(url: str, key: str, file: BinaryIO, size_bytes: int) -> None:
    with _cache_at(url) as client:
        file.seek(0)
        for name, length in _chunks(key, size_bytes):
            client.set(name, file.read(length), ex=_CACHE_KEPT_S)


def _to_store(part: Part, source: BinaryIO) -> None:
    """Write under another name first: the file with the final name is complete and verified."""
    filesystem, path = _resolve(part.url)
    filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
    with filesystem.open(f"{path}.part", "wb") as target:
        for chunk in verified(part, source, _CHUNK):
            target.write(chunk)
    stored = filesystem.size(f"{path}.part")
    if stored != part.size_bytes:
        raise CheckpointError(f"the store kept {stored} of {part.size_bytes} bytes")
    filesystem.mv(f"{path}.part", path)


def _resolve(url: str) -> tuple[Any, str]:
    try:
        return open_store(url)
    except (ValueError, StoreLibraryMissing) as error:
        raise CheckpointError(f"{url} cannot be opened: {error}") from error


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of a complete checkpoint, as far as a reader of images needs it."""

    url: str
    document: dict[str, Any]
    parts: list[Part]


def read_manifest(url: str) -> Manifest:
    """Read a manifest from the store. Raises CheckpointError."""
    filesystem, path = _resolve(url)
    try:
        document = json.loads(filesystem.cat_file(path))
        parts = document["parts"]
    except Exception as error:
        raise CheckpointError(
            f"manifest {url} cannot be read ({type(error).__name__}: {error}); name a complete checkpoint"
        ) from error
    if not isinstance(parts, list) or not parts:
        raise CheckpointError(f"manifest {url} has no parts; name a complete checkpoint")
    return Manifest(url, document, [Part.parse(part) for part in cast("list[object]", parts)])


def _file_reader(path: str, held: contextlib.ExitStack) -> ReadRange:
    """Return a reader of a file in shared memory, without copies. Its views are valid as long as ``held`` is open."""

    @functools.cache
    def whole() -> memoryview:
        with contextlib.ExitStack() as undo:
            file = undo.enter_context(open(path, "rb"))
            try:
                hold_whole(file.fileno(), path)
            except OSError as error:
                if error.errno == errno.EINVAL:
                    raise CheckpointError(str(error.strerror)) from error
                raise
            view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            held.push(undo.pop_all())
        return view

    return lambda offset, length: whole()[offset : offset + length]


class _Cache:
    """Redis during one restore. After one failure it is not asked again, or each block would wait for it."""

    def __init__(self, url: str) -> None:
        self._held = contextlib.ExitStack()
        self._client = self._held.enter_context(_cache_at(url)) if url else None
        self._wrong = ""

    def close(self) -> None:
        self._held.close()

    def reader(self, key: str) -> ReadRange:
        def read(offset: int, length: int) -> bytes:
            first = offset // _CHUNK
            last = (offset + length - 1) // _CHUNK
            chunks = [self._get(f"{key}:{number}") for number in range(first, last + 1)]
            return b"".join(chunks)[offset - first * _CHUNK :][:length]

        return read

    def _get(self, name: str) -> bytes:
        if self._client is None:
            raise FileNotFoundError("this server has no cache")
        if self._wrong:
            raise OSError(self._wrong)
        from redis import RedisError

        try:
            chunk = cast("bytes | None", self._client.get(name))
        except RedisError as error:
            self._wrong = str(error)
            log.warning("the cache is not asked again in this restore: %s", error)
            raise OSError(self._wrong) from error
        if chunk is None:
            raise FileNotFoundError("not in the cache")
        return chunk


def _store_reader(url: str) -> ReadRange:
    """Return a reader of an image. A local file stays open, so that it can be read on once its job has removed it."""
    opened = functools.cache(functools.partial(open, mode="rb"))

    def read(offset: int, length: int) -> bytes:
        filesystem, path = _resolve(url)
        try:
            if isinstance(filesystem, LocalFileSystem):
                return os.pread(opened(path).fileno(), length, offset)
            return cast("bytes", filesystem.cat_file(path, start=offset, end=offset + length))
        except OSError:
            raise
        except Exception as error:
            raise OSError(f"{type(error).__name__}: {error}") from error

    return read
