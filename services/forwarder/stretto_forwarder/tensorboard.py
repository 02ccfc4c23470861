"""Writes points of metrics as event files of TensorBoard: ``<folder>/<job>/events.out.tfevents.stretto``.

A file is records of TFRecord: length, its checksum, an Event of protobuf, its checksum. Few fields of it are written,
so that no package is needed. Each event says in its last field which stored message it is: a file is continued behind
its last whole record, by whichever forwarder, and a message that comes again adds nothing.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
from pathlib import Path

from stretto_bus.ordered_consumer import Stored

from stretto_forwarder.points import Points, points_of
from stretto_forwarder.retrying import AttemptOutcome
from stretto_forwarder.settings import EndpointTarget

FILE = "events.out.tfevents.stretto"
_WRITER = b"stretto:"
_HEAD, _TAIL = 12, 4
FLOAT_MOST = (2 - 2**-23) * 2.0**127
"""Largest number of 32 bits; a job may measure a larger one."""


class Tensorboard:
    """A folder of event files, one for each job."""

    def __init__(self, target: EndpointTarget) -> None:
        self._folder = Path(target.endpoint.folder or "")

    async def send(self, stored: Stored, traceparent: str) -> AttemptOutcome:
        """Append the points of an event. Raises WireError."""
        points = points_of(stored)
        if not points.values:
            return AttemptOutcome(204, "it has no points")
        try:
            await asyncio.to_thread(append, self._folder / points.job / FILE, points)
        except OSError as error:
            return AttemptOutcome(0, f"{error}; let the forwarder write to the folder, and make room")
        return AttemptOutcome(200, "written")


def append(path: Path, points: Points) -> None:
    """Write points behind the last whole record, unless it is of the same message or a later one. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644), "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # another forwarder that writes just now: this one tries again
        whole, last = _end_of(file.read())
        if last >= points.seq:
            return
        file.seek(whole)
        if not whole:
            file.write(record(_double(1, points.time_s) + _text(3, b"brain.Event:2")))
        file.write(record(event(points)))
        file.truncate()
        file.flush()
        os.fsync(file.fileno())


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


def _end_of(content: bytes) -> tuple[int, int]:
    """Return where the last whole record ends, and the number of its message (0: none)."""
    end = last = 0
    while len(content) >= end + _HEAD:
        length = int.from_bytes(content[end : end + 8], "little")
        after = end + _HEAD + length + _TAIL
        head = content[end : end + _HEAD]
        if after > len(content) or head[8:] != struct.pack("<I", masked(head[:8])):  # cut off, or zeros
            break
        number = content[end + _HEAD : after - _TAIL].rpartition(_WRITER)[2]
        end, last = after, int(number) if number.isdigit() else last
    return end, last


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
