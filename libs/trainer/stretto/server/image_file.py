"""A parameter server's image as one file: its blocks, then their description.

``STRETTO5`` and zeros up to 64 bytes · blocks · description (JSON: the engine's manifest) · its length (8 bytes,
little-endian) · ``STRETTO5``. The description comes last because blocks are written one by one, as they are copied. It
holds every block's checksum, and the checkpoint's manifest holds its SHA-256. A block is read only when it is needed,
from the nearest whole copy.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, BinaryIO, cast

import numpy as np
from stretto_parameters.checksums import BlockChecksum, of_block

from ..engine.images import Blocks, Bytes, PsImage
from ..errors import CheckpointError, ImageDamaged

_MAGIC = b"STRETTO5"
_BEGIN = _ALIGN = 64
_TAIL = 8 + len(_MAGIC)

ReadRange = Callable[[int, int], bytes | memoryview]
"""(offset, length) -> bytes, fewer at the end; raises OSError or CheckpointError."""


@dataclass(frozen=True, slots=True)
class Part:
    """The file of a server in a checkpoint's manifest."""

    pod: str
    file: str
    url: str
    size_bytes: int
    description_sha256: str
    columns: tuple[int, ...] = ()
    """The columns in the file; the parts of a checkpoint have all columns together, each once."""
    copies: tuple[str, ...] = ()
    """Copies in the cache (keys) and in shared memory (paths), tried before the store."""
    bases: tuple[Part, ...] = ()
    """The images that a difference adds to, the full one first; they have neither columns nor bases here."""

    def as_base(self) -> tuple[Part, ...]:
        """Return the `bases` of a difference to this image."""
        return (*self.bases, replace(self, columns=(), bases=()))

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def parse(value: object) -> Part:
        """Read a part from the manifest's JSON, parsed or not. Raises CheckpointError."""
        try:
            data: dict[str, Any] = json.loads(value) if isinstance(value, str) else value  # type: ignore[assignment]
            fields = {name: data[name] for name in ("pod", "file", "url", "size_bytes", "description_sha256")}
            bases = tuple(Part.parse(base) for base in data.get("bases", ()))
            return Part(
                **fields, columns=tuple(data.get("columns", ())), copies=tuple(data.get("copies", ())), bases=bases
            )
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"manifest part {str(value)[:200]} cannot be read ({error!r}); use another checkpoint"
            ) from error


class ImageWriter:
    """Writes an image from beginning to end and keeps none of it.

    ``memory``: the whole file, mapped; blocks are then written where they stay. ``room_bytes``: the size beyond which
    the file must not grow, because a file in shared memory would then be charged to this process.
    """

    def __init__(self, file: BinaryIO, room_bytes: float = math.inf, memory: Bytes | None = None) -> None:
        self._file = file
        self._room_bytes = room_bytes if memory is None else min(room_bytes, len(memory))
        self._memory = memory
        self._size = 0
        self._waiting: list[Bytes] = []
        """Blocks that were handed out and are to be written, with the zeros behind each."""
        self._waiting_bytes = 0
        self._spare: Bytes = np.zeros(0, np.uint8)
        self._write(_MAGIC.ljust(_BEGIN, b"\0"))

    @property
    def offset(self) -> int:
        """Bytes of the blocks so far, padding included: where the next block begins."""
        return self._size + self._waiting_bytes - _BEGIN

    def room(self, size_bytes: int) -> Bytes:
        """Return the memory of the next block, to be filled before `settle`. Raises OSError; writes nothing."""
        self._need(self._waiting_bytes + size_bytes)
        begin = self._waiting_bytes
        if self._memory is not None:
            block = self._memory[self._size + begin :][:size_bytes]
        elif begin + size_bytes <= len(self._spare):
            block = self._spare[begin:][:size_bytes]
        else:
            block = np.empty(size_bytes, np.uint8)
        self._waiting.append(block)
        self._waiting_bytes += size_bytes + -size_bytes % _ALIGN
        return block

    def settle(self) -> None:
        """Write the blocks that wait. Raises OSError."""
        needed, self._waiting_bytes = self._waiting_bytes, 0
        waiting, self._waiting = self._waiting, []
        for block in waiting:
            if self._memory is None:
                self._write(block)
            else:
                self._size += len(block)
            self._write(bytes(-len(block) % _ALIGN))
        if self._memory is None and needed > len(self._spare):
            self._spare = np.ones(needed, np.uint8)  # touched here, and not while the caller holds a lock

    def finish(self, manifest: dict[str, Any]) -> tuple[int, str]:
        """Write the description; return (bytes of the whole file, SHA-256 of the description)."""
        self.settle()
        description = json.dumps(manifest, separators=(",", ":")).encode()
        self._write(description + struct.pack("<Q", len(description)) + _MAGIC)
        self._file.flush()
        return self._size, hashlib.sha256(description).hexdigest()

    def _need(self, size_bytes: int) -> None:
        if self._size + size_bytes > self._room_bytes:
            raise OSError(errno.ENOSPC, f"more than the {self._room_bytes} bytes that were reserved")

    def _write(self, data: Bytes | bytes) -> None:
        self._need(len(data))
        if self._memory is None:
            self._file.write(memoryview(cast("bytes", data)))
        else:
            self._memory[self._size : self._size + len(data)] = np.frombuffer(data, np.uint8)
        self._size += len(data)


def open_chain(part: Part, sources: Callable[[Part], Sequence[tuple[str, ReadRange]]]) -> PsImage:
    """Open an image and the images that it adds to. sources: returns an image's copies. Raises as `open_image` does."""
    image: PsImage | None = None
    digest = ""
    for link in part.as_base():
        opened = open_image(link, sources(link))
        if opened.manifest["base"] not in ("", digest):
            raise ImageDamaged(f"{link.url} adds to another image than the manifest says; use another checkpoint")
        image, digest = replace(opened, base=image), link.description_sha256
    assert image is not None
    return image


def open_image(part: Part, sources: Sequence[tuple[str, ReadRange]]) -> PsImage:
    """Open an image whose blocks are read on demand, each from the first source that has it undamaged.

    Raises CheckpointError, which names the fault of each copy, and ImageDamaged if all copies could be read.
    """
    description = _first_good(part.pod, "description", sources, lambda read: _description(part, read))
    manifest: dict[str, Any] = json.loads(description)
    return PsImage(manifest, _Blocks(part.pod, manifest["blocks"], sources))


def _description(part: Part, read: ReadRange) -> bytes:
    if read(0, len(_MAGIC)) != _MAGIC:
        raise CheckpointError("does not begin like an image")
    tail = read(part.size_bytes - _TAIL, _TAIL)
    if len(tail) != _TAIL or tail[8:] != _MAGIC:
        raise CheckpointError("does not end like an image: truncated")
    (length,) = struct.unpack("<Q", tail[:8])
    begin = part.size_bytes - _TAIL - length
    if begin < _BEGIN:
        raise CheckpointError(f"the description's length {length} is impossible")
    description = bytes(read(begin, length))
    if hashlib.sha256(description).hexdigest() != part.description_sha256:
        raise CheckpointError("the description's SHA-256 differs from the manifest")
    if int(json.loads(description)["bytes"]) != begin - _BEGIN:
        raise CheckpointError(f"it describes blocks of other lengths than the file of {part.size_bytes} bytes has")
    return description


def verified(part: Part, file: BinaryIO, chunk_bytes: int) -> Iterator[bytes]:
    """Yield the file from its beginning, in chunks. Raises CheckpointError at the end of a block that was changed.

    chunk_bytes: a multiple of PIECE_BYTES.
    """

    def read(offset: int, length: int) -> bytes:
        file.seek(offset)
        return file.read(length)

    def changed(what: str) -> CheckpointError:
        return CheckpointError(f"{what} of {part.file} changed after the export; take another checkpoint")

    try:
        description = _description(part, read)
    except (OSError, CheckpointError, ValueError, KeyError, struct.error) as error:
        raise changed("the description") from error
    yield read(0, _BEGIN)
    at = _BEGIN
    for name, entry in sorted(json.loads(description)["blocks"].items(), key=lambda item: item[1]["offset"]):
        yield read(at, _BEGIN + entry["offset"] - at)  # the zeros before it
        at = _BEGIN + entry["offset"]
        end = _BEGIN + entry["offset"] + entry["bytes"]
        checksum = BlockChecksum()
        while at < end:
            chunk = read(at, min(chunk_bytes, end - at))
            if not chunk:
                raise changed(f"block {name}")
            checksum.update(chunk)
            at += len(chunk)
            yield chunk
        if checksum.value() != entry["checksum"]:
            raise changed(f"block {name}")
    yield read(at, part.size_bytes - at)


class _Blocks(Blocks):
    def __init__(self, pod: str, entries: dict[str, dict[str, Any]], sources: Sequence[tuple[str, ReadRange]]) -> None:
        self._pod = pod
        self._entries = entries
        self._sources = sources
        self._small: dict[str, np.ndarray] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, name: str) -> np.ndarray:
        if name in self._small:
            return self._small[name]
        array = self.copied(name, lambda block: (of_block(block), block))
        if not name.startswith("bucket"):
            # slices and progress are read often, and are small
            self._small[name] = array
        return array

    def copied(self, name: str, copy: Callable[[Bytes], tuple[int, Any]]) -> Any:
        """Read a block by ``copy``, which returns its checksum and a result, from the first source that has it whole.

        Return the second value of ``copy``: an array of bytes gets the block's type and shape. After a damaged copy the
        next source is read. Raises CheckpointError.
        """
        entry = self._entries[name]

        def block(read: ReadRange) -> Any:
            raw = read(_BEGIN + entry["offset"], entry["bytes"]) if entry["bytes"] else b""
            if len(raw) != entry["bytes"]:
                raise CheckpointError(f"truncated: {len(raw)} of {entry['bytes']} bytes")
            checksum, found = copy(np.frombuffer(raw, np.uint8))
            if checksum != entry["checksum"]:
                raise CheckpointError("its checksum differs from the description")
            return found

        found = _first_good(self._pod, f"block {name}", self._sources, block)
        return found.view(entry["dtype"]).reshape(entry["shape"]) if isinstance(found, np.ndarray) else found


def _first_good(pod: str, what: str, sources: Sequence[tuple[str, ReadRange]], use: Callable[[ReadRange], Any]) -> Any:
    wrong: list[str] = []
    looked_at = True
    for name, read in sources:
        try:
            return use(read)
        except FileNotFoundError as error:
            wrong.append(f"{name}: {error}")
        except OSError as error:  # it may answer next time
            wrong.append(f"{name}: {error}")
            looked_at = False
        except (CheckpointError, ValueError, KeyError, struct.error) as error:
            wrong.append(f"{name}: {error}")
    kind = ImageDamaged if looked_at else CheckpointError
    raise kind(f"{what} of {pod}'s image is damaged or absent ({'; '.join(wrong)[:1200]}); use another checkpoint")
