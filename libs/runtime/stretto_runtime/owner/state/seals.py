"""Checksums of stored state: damage is told apart from sound content that this code cannot continue.

A sealed body begins with a line that holds the CRC-32 of its subject and of the rest. So bytes that were changed, cut
off, written by anybody else or copied from another subject are recognised, whatever they are.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

DIGITS = 8
"""Hexadecimal digits of a CRC-32"""


class Damaged(Exception):
    """Stored bytes are not what an owner wrote there; the text says why."""


class Damage(NamedTuple):
    """A damaged message of the bucket, with the reason; ``seq`` is its sequence in the bucket's stream."""

    subject: str
    seq: int
    reason: str
    data: bytes


def seal(subject: str, *pieces: bytes) -> bytes:
    """Return the joined ``pieces`` with their checksum in front, for this ``subject`` only."""
    checksum = zlib.crc32(subject.encode())
    for piece in pieces:
        checksum = zlib.crc32(piece, checksum)
    return b"".join((b"%08x\n" % checksum, *pieces))


def unseal(subject: str, data: bytes) -> bytes:
    """Return the body that was sealed for ``subject``.

    Raises:
        Damaged: the checksum is missing or another one.
    """
    body = data[DIGITS + 1 :]
    if data[: DIGITS + 1] != b"%08x\n" % zlib.crc32(body, zlib.crc32(subject.encode())):
        raise Damaged(f"{len(data)} bytes without the checksum of their content and place")
    return body
