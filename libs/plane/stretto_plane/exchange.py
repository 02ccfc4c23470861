"""One frame at a time from a link, into a buffer of its own."""

from __future__ import annotations

from collections.abc import Callable

from .buffers import POOL
from .errors import FrameRefused
from .frames import HEADER_BYTES, Flag, Message, body_bytes, head_of, parts_of, sizes_of, table_bytes
from .transports import Link


class FrameReader:
    """Reads frames: first ``wait`` for a header, then ``take`` the message."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._header = memoryview(bytearray(HEADER_BYTES))

    def wait(self, deadline_s: float | None) -> None:
        """Wait for the header of a frame."""
        self._link.receive_into(self._header, deadline_s)

    def take(self, size_bytes_max: int, deadline_of: Callable[[int], float | None]) -> tuple[Flag, Message]:
        """Receive the rest of a frame. ``deadline_of``: the deadline for a body of so many bytes.

        Raises:
            FrameRefused: it breaks the limits, is damaged, or there is no memory for it.
        """
        head = head_of(self._header, size_bytes_max)
        table = memoryview(bytearray(table_bytes(head.part_count)))
        self._link.receive_into(table, deadline_of(len(table)))
        sizes = sizes_of(head, table, size_bytes_max)
        size_bytes = body_bytes(sizes)
        try:
            body = POOL.take(size_bytes)
        except (MemoryError, OSError) as error:
            raise FrameRefused(f"a frame of {size_bytes} bytes is refused: no memory for it ({error})") from None
        self._link.receive_into(body, deadline_of(size_bytes))
        return head.flag, Message(head.kind, parts_of(body, sizes))
