"""Writes points of metrics as event files of TensorBoard: ``<folder>/<job>/events.out.tfevents.stretto``.

A file is records of TFRecord: length, its checksum, an Event of protobuf, its checksum. Few fields of it are written,
so that no package is needed. Each event says in its last field which stored message it is: a file is continued behind
its last whole record, by whichever forwarder, and a message that comes again adds nothing. A later message with a lower
number is of another stream, as after a fresh start or from a backup, and is added.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
from dataclasses import dataclass
from pathlib import Path

from stretto_bus.reading.ordered_consumer import Stored

from stretto_forwarder.points import Points, points_of
from stretto_forwarder.retrying import AttemptOutcome
from stretto_forwarder.settings import EndpointTarget

FILE = "events.out.tfevents.stretto"
_WRITER = b"stretto:"
_HEAD, _TAIL = 12, 4
FLOAT_MOST = (2 - 2**-23) * 2.0**127
"""Largest number of 32 bits; a job may measure a larger one."""


@dataclass(frozen=True, slots=True)
class End:
    """Where the last whole record of a file ends, and the stored message that it is of."""

    offset: int = 0
    seq: int = 0
    time_s: float = 0.0


class Tensorboard:
    """A folder of event files, one for each job."""

    def __init__(self, target: EndpointTarget) -> None:
        self._folder = Path(target.endpoint.folder or "")
        self._ends: dict[str, End] = {}
        """End of the file of each job that goes on, as this forwarder left it."""

    async def send(self, stored: Stored, traceparent: str) -> AttemptOutcome:
        """Append the points of an event. Raises WireError."""
        points = points_of(stored)
        known = self._ends.pop(points.job, End())
        if not points.values:
            return AttemptOutcome(204, "it has no points")
        try:
            end = await asyncio.to_thread(append, self._folder / points.job / FILE, points, known)
        except OSError as error:
            return AttemptOutcome(0, f"{error}; let the forwarder write to the folder, and make room")
        if not points.end:
            self._ends[points.job] = end
        return AttemptOutcome(200, "written")


def append(path: Path, points: Points, known: End) -> End:
    """Write points behind the last whole record, unless it is of the same message or a later one; return the new end.

    known: the end that was returned last; a file that ends elsewhere now is read for it. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644), "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # another forwarder that writes just now: this one tries again
        end = known if os.fstat(file.fileno()).st_size == known.offset else end_of(file.read())
        if points.seq <= end.seq and points.time_s <= end.time_s:
            return end
        file.seek(end.offset)
        if not end.offset:
            file.write(record(_double(1, points.time_s) + _text(3, b"brain.Event:2")))
        file.write(record(event(points)))
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
        return End(file.tell(), points.seq, points.time_s)


def event(points: Points) -> bytes:
    """Return points as an Event: wall_time, step, summary of simple values, source_metadata.writer."""
    values = b"".join(
        _text(1, _text(1, name.encode()) + b"\x15" + struct.pack("<f", max(-FLOAT_MOST, min(value, FLOAT_MOST))))
        for name, value in points.values.items()
    )
    head = _double(1, points.time_s) + b"\x10" + _varint(points.step) + _text(5, values)
    return head + _text(10, _text(1, _WRITER + str(points.seq).encode()))


def record(data: bytes) -> bytes:
    """Return a record of TFRecord."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked(length)) + data + struct.pack("<I", masked(data))


def masked(data: bytes) -> int:
    """Return the masked CRC-32C (Castagnoli) of TFRecord."""
    value = 0xFFFFFFFF
    for byte in data:
        value = _CRC[(value ^ byte) & 0xFF] ^ value >> 8
    value ^= 0xFFFFFFFF
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


def end_of(content: bytes) -> End:
    """Return where the last whole record of a file ends."""
    end = End()
    while len(content) >= end.offset + _HEAD:
        head = content[end.offset : end.offset + _HEAD]
        begin, length = end.offset + _HEAD, int.from_bytes(head[:8], "little")
        after = begin + length + _TAIL
        if after > len(content) or head[8:] != struct.pack("<I", masked(head[:8])):  # cut off, or zeros
            break
        (time_s,) = struct.unpack_from("<d", content, begin + 1)
        number = content[begin : after - _TAIL].rpartition(_WRITER)[2]
        end = End(after, int(number) if number.isdigit() else end.seq, time_s)
    return end


def _table() -> list[int]:
    table: list[int] = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_CRC = _table()


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def _text(field: int, data: bytes) -> bytes:
    return bytes([field << 3 | 2]) + _varint(len(data)) + data


def _double(field: int, value: float) -> bytes:
    return bytes([field << 3 | 1]) + struct.pack("<d", value)
