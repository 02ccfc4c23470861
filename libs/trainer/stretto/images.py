"""A parameter server's image as one file: a header that describes it, then its blocks.

``STRETTO1`` · length of the header (8 bytes, little-endian) · header (JSON: the engine's manifest) · zeros up to a
multiple of 64 · blocks. The header's SHA-256 stands in the checkpoint's manifest; the header holds every block's
CRC-32. A block is read only when it is wanted, from the nearest copy that is whole.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

import numpy as np

from .engine.checkpoint import PsImage
from .engine.layout import block_checksum
from .errors import CheckpointError

_MAGIC = b"STRETTO1"
_ALIGN = 64

ReadRange = Callable[[int, int], bytes]
"""(offset, length) -> bytes; raises OSError or CheckpointError."""


@dataclass(frozen=True, slots=True)
class Part:
    """One server's file in a checkpoint's manifest."""

    pod: str
    file: str
    url: str
    size_bytes: int
    header_sha256: str
    columns: tuple[int, ...] = ()
    """the buckets and slices in it; those of a checkpoint's parts together are all columns, each once"""
    copies: tuple[str, ...] = ()
    """keys of the copies in the cache, and paths in shared memory: tried before the store"""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def parse(value: object) -> Part:
        """From the manifest's JSON, parsed or not. Raises CheckpointError."""
        try:
            data: dict[str, Any] = json.loads(value) if isinstance(value, str) else value  # type: ignore[assignment]
            fields = {name: data[name] for name in ("pod", "file", "url", "size_bytes", "header_sha256")}
            return Part(**fields, columns=tuple(data.get("columns", ())), copies=tuple(data.get("copies", ())))
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"manifest part {str(value)[:200]} cannot be read ({error!r}); use another checkpoint"
            ) from error


def pack(image: PsImage) -> tuple[bytes, str, int]:
    """(everything before the blocks, the header's SHA-256, bytes of the whole file)."""
    header = json.dumps(image.manifest, separators=(",", ":")).encode()
    begin = len(_MAGIC) + 8 + len(header)
    padding = b"\0" * (-begin % _ALIGN)
    head = _MAGIC + struct.pack("<Q", len(header)) + header + padding
    return head, hashlib.sha256(header).hexdigest(), len(head) + image.nbytes


def open_image(part: Part, sources: Sequence[tuple[str, ReadRange]]) -> PsImage:
    """An image whose blocks are read on demand, each from the first source that has it undamaged.

    Raises CheckpointError that names what is wrong with each copy.
    """
    header, begin = _first_good(part.pod, "header", sources, lambda read: _header(part, read))
    manifest: dict[str, Any] = json.loads(header)
    return PsImage(manifest, _Blocks(part.pod, manifest["blocks"], begin, sources))


def _header(part: Part, read: ReadRange) -> tuple[bytes, int]:
    start = read(0, len(_MAGIC) + 8)
    if start[: len(_MAGIC)] != _MAGIC:
        raise CheckpointError("does not begin like an image")
    (length,) = struct.unpack("<Q", start[len(_MAGIC) :])
    if not 0 < length < part.size_bytes:
        raise CheckpointError(f"the header's length {length} is impossible")
    header = read(len(start), length)
    if hashlib.sha256(header).hexdigest() != part.header_sha256:
        raise CheckpointError("the header's SHA-256 differs from the manifest")
    begin = len(start) + length
    begin += -begin % _ALIGN
    size = int(json.loads(header)["bytes"]) + begin
    if size != part.size_bytes:
        raise CheckpointError(f"it describes {size} bytes, the manifest {part.size_bytes}")
    return header, begin


def verified(part: Part, file: BinaryIO, chunk_bytes: int) -> Iterator[bytes]:
    """The file from its beginning, in chunks. Raises CheckpointError at the end of a block that was changed."""

    def read(offset: int, length: int) -> bytes:
        file.seek(offset)
        return file.read(length)

    def changed(what: str) -> CheckpointError:
        return CheckpointError(f"{what} of {part.file} changed in memory after the export; take another checkpoint")

    try:
        header, begin = _header(part, read)
    except (OSError, CheckpointError, ValueError, KeyError, struct.error) as error:
        raise changed("the header") from error
    yield read(0, begin)
    at = begin
    for name, entry in sorted(json.loads(header)["blocks"].items(), key=lambda item: item[1]["offset"]):
        yield read(at, begin + entry["offset"] - at)  # the zeros before it
        at, end, crc = begin + entry["offset"], begin + entry["offset"] + entry["bytes"], 0
        while at < end:
            chunk = read(at, min(chunk_bytes, end - at))
            if not chunk:
                raise changed(f"block {name}")
            crc = zlib.crc32(chunk, crc)
            at += len(chunk)
            yield chunk
        if crc != entry["crc32"]:
            raise changed(f"block {name}")
    yield read(at, part.size_bytes - at)


class _Blocks(Mapping[str, np.ndarray]):
    def __init__(
        self, pod: str, entries: dict[str, dict[str, Any]], begin: int, sources: Sequence[tuple[str, ReadRange]]
    ) -> None:
        self._pod, self._entries, self._begin, self._sources = pod, entries, begin, sources
        self._small: dict[str, np.ndarray] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, name: str) -> np.ndarray:
        if name in self._small:
            return self._small[name]
        entry = self._entries[name]

        def block(read: ReadRange) -> bytes:
            raw = read(self._begin + entry["offset"], entry["bytes"]) if entry["bytes"] else b""
            if len(raw) != entry["bytes"]:
                raise CheckpointError(f"truncated: {len(raw)} of {entry['bytes']} bytes")
            if block_checksum(raw) != entry["crc32"]:
                raise CheckpointError("its checksum differs from the header")
            return raw

        raw = _first_good(self._pod, f"block {name}", self._sources, block)
        array = np.frombuffer(raw, entry["dtype"]).reshape(entry["shape"])
        if not name.startswith("bucket"):
            # slices and progress are asked for again and again, and are small
            self._small[name] = array
        return array


def _first_good(pod: str, what: str, sources: Sequence[tuple[str, ReadRange]], use: Callable[[ReadRange], Any]) -> Any:
    wrong: list[str] = []
    for name, read in sources:
        try:
            return use(read)
        except (OSError, CheckpointError, ValueError, KeyError) as error:
            wrong.append(f"{name}: {error}")
    raise CheckpointError(
        f"{what} of {pod}'s image is damaged or absent ({'; '.join(wrong)[:1200]}); use another checkpoint"
    )
