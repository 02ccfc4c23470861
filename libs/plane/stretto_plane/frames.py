"""Frames, pure: a header of fixed size, sizes of further parts, and the parts, each padded to a multiple of 64 bytes.

=======  =====================================================================
bytes    little-endian
=======  =====================================================================
0-3      magic ``STPF``
4        version
5        flags: 0 message, 1 failure, 2 refusal
6-7      number of parts
8-11     kind
12-15    0
16-127   sizes of the first 14 parts in bytes; 0 where there are fewer
then     sizes of further parts, padded to a multiple of 64 bytes
then     the parts, each padded to a multiple of 64 bytes
=======  =====================================================================

Padding travels, so that a receiver reads all parts by one call into one buffer and each begins at an aligned place.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol, cast

from .errors import FrameRefused

MAGIC = b"STPF"
VERSION = 1
ALIGNMENT_BYTES = 64
INLINE_PARTS = 14
PARTS_MAX = 2**16 - 1
KIND_MAX = 2**31 - 1
TEXT_BYTES_MAX = 4096
"""Longest text of a failure or refusal."""

_HEADER = struct.Struct(f"<4sBBHII{INLINE_PARTS}Q")
HEADER_BYTES = _HEADER.size
_PADDING = [bytes(size) for size in range(ALIGNMENT_BYTES)]


class Array(Protocol):
    """An array of NumPy, whose declared types do not say that it is a buffer."""

    @property
    def __array_interface__(self) -> dict[str, Any]: ...


Bytes = bytes | bytearray | memoryview
Buffer = Bytes | Array
"""Contiguous memory."""


class Flag(IntEnum):
    """The purpose of a frame."""

    MESSAGE = 0
    FAILURE = 1
    """Frame whose part 0 is the text of an error that the peer's handler raised; the connection goes on."""
    REFUSAL = 2
    """Frame whose part 0 is the reason for which the peer ends the connection."""


@dataclass(frozen=True, slots=True)
class Message:
    """A request or its answer.

    The parts of a received message are views of one buffer, each at a multiple of 64 bytes of it. They may be kept: a
    buffer is not used again while a view of it lives, and one part that is kept keeps the whole buffer.
    """

    kind: int
    """0 to 2**31 - 1; its meaning is the users'"""
    parts: tuple[memoryview, ...]


@dataclass(frozen=True, slots=True)
class Head:
    """The fixed part of a frame. ``sizes``: of the first parts; those of the others are in a table that follows."""

    flag: Flag
    kind: int
    part_count: int
    sizes: tuple[int, ...]


def padded(size_bytes: int) -> int:
    """Round up to a multiple of 64 bytes."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def table_bytes(part_count: int) -> int:
    """Return the size of the table of further sizes, with its padding."""
    return padded(8 * max(0, part_count - INLINE_PARTS))


def parts_max(size_bytes_max: int) -> int:
    """Return the most parts of a frame that may have ``size_bytes_max`` bytes: one per 64 bytes, but at least 14."""
    return min(PARTS_MAX, INLINE_PARTS + size_bytes_max // ALIGNMENT_BYTES)


def bytes_of(index: int, part: Buffer) -> memoryview:
    """Return a part as a flat view of bytes. Raises FrameRefused."""
    try:
        view = memoryview(cast(bytes, part))
        if view.nbytes == 0:
            return memoryview(b"")
        return view if view.format == "B" and view.ndim == 1 and view.contiguous else view.cast("B")
    except (TypeError, ValueError, BufferError) as error:
        raise FrameRefused(
            f"part {index} ({type(part).__name__}) is refused ({error}): give contiguous bytes, such as "
            "np.ascontiguousarray(array).view(np.uint8)"
        ) from None


def encoded(kind: int, parts: Sequence[Buffer], flag: Flag = Flag.MESSAGE) -> list[Bytes]:
    """Return the buffers of a frame in order; the parts are not copied. Raises FrameRefused."""
    if not 0 <= kind <= KIND_MAX:
        raise FrameRefused(f"kind={kind} is refused: give 0 to {KIND_MAX}")
    count = len(parts)
    if count > PARTS_MAX:
        raise FrameRefused(f"{count} parts are refused: give at most {PARTS_MAX}, or join small ones")
    views = [bytes_of(index, part) for index, part in enumerate(parts)]
    sizes = [view.nbytes for view in views]
    inline = sizes[:INLINE_PARTS] + [0] * (INLINE_PARTS - count)
    frame: list[Bytes] = [_HEADER.pack(MAGIC, VERSION, flag, count, kind, 0, *inline)]
    if count > INLINE_PARTS:
        table = struct.pack(f"<{count - INLINE_PARTS}Q", *sizes[INLINE_PARTS:])
        frame.append(table.ljust(padded(len(table)), b"\0"))
    for view, size in zip(views, sizes, strict=True):
        if size:
            frame.append(view)
            if padding := -size % ALIGNMENT_BYTES:
                frame.append(_PADDING[padding])
    assert sum(map(len, frame)) % ALIGNMENT_BYTES == 0, "the receiver would take the next frame from a wrong place"
    return frame


def head_of(header: Bytes, size_bytes_max: int) -> Head:
    """Parse a header. Raises FrameRefused: it is none, of another version, or has too many parts."""
    magic, version, flag, count, kind, zero, *sizes = _HEADER.unpack(header)
    if magic != MAGIC:
        raise FrameRefused(f"a frame that begins with {magic!r} is refused: the peer has to speak Stretto's plane")
    if version != VERSION:
        raise FrameRefused(f"version {version} of a frame is refused: run version {VERSION} on both sides")
    if flag not in (0, 1, 2) or kind > KIND_MAX or zero or any(sizes[count:]):
        raise FrameRefused(f"flag={flag}, kind={kind}, {count} parts: a frame with such a header is refused as damaged")
    if flag and (kind or count != 1 or sizes[0] > TEXT_BYTES_MAX):
        raise FrameRefused(
            f"flag={flag}, kind={kind}, {count} parts: a frame whose text is not one short part is refused"
        )
    if count > parts_max(size_bytes_max):
        raise FrameRefused(
            f"a frame of {count} parts is refused: at most {parts_max(size_bytes_max)} are allowed with "
            f"size_bytes_max={size_bytes_max}; join small ones"
        )
    return Head(Flag(flag), kind, count, tuple(sizes[:count]))


def sizes_of(head: Head, table: Bytes, size_bytes_max: int) -> tuple[int, ...]:
    """Return the sizes of all parts. Raises FrameRefused: together they exceed ``size_bytes_max``."""
    assert len(table) == table_bytes(head.part_count), "the table was received by that length"
    sizes = head.sizes
    if head.part_count > INLINE_PARTS:
        sizes += struct.unpack_from(f"<{head.part_count - INLINE_PARTS}Q", table)
    if (total := sum(sizes)) > size_bytes_max:
        raise FrameRefused(
            f"a frame of {total} bytes is refused: size_bytes_max={size_bytes_max}; send less at once or raise it"
        )
    return sizes


def body_bytes(sizes: Sequence[int]) -> int:
    """Return the size of parts of these sizes, with their padding."""
    return sum(padded(size) for size in sizes)


def parts_of(body: memoryview, sizes: Sequence[int]) -> tuple[memoryview, ...]:
    """Cut a received body into its parts."""
    parts: list[memoryview] = []
    begin = 0
    for size in sizes:
        parts.append(body[begin : begin + size])
        begin += padded(size)
    assert begin == len(body), "the body was received by another length than its sizes have"
    return tuple(parts)


def text_frame(flag: Flag, text: str) -> list[Bytes]:
    """Return the frame of a failure or a refusal; long texts are cut."""
    return encoded(0, [text.encode(errors="replace")[:TEXT_BYTES_MAX]], flag)


def text_of(parts: Sequence[memoryview]) -> str:
    """Return the text of a failure or a refusal."""
    (text,) = parts
    return bytes(text).decode(errors="replace")
