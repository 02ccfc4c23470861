"""Frames and buffers, pure: round trips, damage, limits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stretto_plane import FrameRefused
from stretto_plane.buffers import BufferPool, capacity_of
from stretto_plane.frames import (
    HEADER_BYTES,
    Flag,
    body_bytes,
    encoded,
    head_of,
    parts_max,
    parts_of,
    sizes_of,
    table_bytes,
    text_frame,
    text_of,
)

LIMIT_BYTES = 1 << 16


def decoded(frame: bytes, limit_bytes: int = LIMIT_BYTES) -> tuple[int, list[bytes]]:
    head = head_of(frame[:HEADER_BYTES], limit_bytes)
    rest = memoryview(frame)[HEADER_BYTES:]
    sizes = sizes_of(head, rest[: table_bytes(head.part_count)], limit_bytes)
    body = rest[table_bytes(head.part_count) :]
    assert len(body) == body_bytes(sizes)
    return head.kind, [bytes(part) for part in parts_of(body, sizes)]


@given(st.integers(0, 2**31 - 1), st.lists(st.binary(max_size=200), max_size=40))
def test_frames_round_trip(kind: int, parts: list[bytes]) -> None:
    frame = b"".join(encoded(kind, parts))
    assert len(frame) % 64 == 0
    assert decoded(frame) == (kind, parts)


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES))
def test_any_header_is_taken_or_refused(header: bytes) -> None:
    for each in (header, b"STPF\1\0" + header[6:], b"STPF\1\0\2\0" + header[8:12] + bytes(4) + header[16:]):
        try:
            head = head_of(each, LIMIT_BYTES)
            assert sum(sizes_of(head, bytes(table_bytes(head.part_count)), LIMIT_BYTES)) <= LIMIT_BYTES
        except FrameRefused:
            pass


@given(st.text(max_size=5000), st.sampled_from([Flag.FAILURE, Flag.REFUSAL]))
def test_a_text_is_one_short_part(text: str, flag: Flag) -> None:
    header, *body = text_frame(flag, text)
    assert head_of(header, LIMIT_BYTES).flag is flag
    assert text_of([memoryview(body[0] if body else b"")]) == text.encode()[:4096].decode(errors="replace")
    for kind, parts in ((0, []), (0, [b"a", b"b"]), (1, [b"a"]), (0, [bytes(4097)])):
        with pytest.raises(FrameRefused, match="text is not one short part"):
            head_of(encoded(kind, parts, flag)[0], LIMIT_BYTES)


def test_counts_of_parts_are_bounded_by_the_size() -> None:
    assert parts_max(0) == 14
    assert parts_max(1 << 40) == 65535
    many = b"".join(encoded(0, [b""] * 2000))
    with pytest.raises(FrameRefused, match="2000 parts"):
        head_of(many[:HEADER_BYTES], LIMIT_BYTES)
    assert head_of(many[:HEADER_BYTES], LIMIT_BYTES * 2).part_count == 2000


@pytest.mark.parametrize("size_bytes", [1, 1 << 14, (1 << 14) + 1, 100_000, 1 << 20, (1 << 20) + 1, 5_000_001])
def test_size_classes_waste_at_most_a_quarter(size_bytes: int) -> None:
    assert size_bytes <= capacity_of(size_bytes) <= max(size_bytes * 5 / 4, 4096 * 5)
    assert capacity_of(size_bytes) % 4096 == 0


def test_a_buffer_is_used_again_only_without_views() -> None:
    pool = BufferPool()

    def place(view: memoryview) -> int:
        return np.frombuffer(view, np.uint8).__array_interface__["data"][0]

    first = pool.take(100_000)
    at = place(first)
    part = first[64:128]
    array = np.frombuffer(part, np.uint8)[3:]
    del first
    assert place(pool.take(100_000)) != at
    del part
    assert place(pool.take(100_000)) != at
    del array
    again = pool.take(100_001)  # of the same size class
    assert {place(again), place(pool.take(100_000))} >= {at}
    del again
    small = BufferPool(kept_bytes_max=1 << 20)
    kept = [small.take(200_000) for _ in range(20)]
    assert len({place(view) for view in kept}) == 20
    assert sum(len(buffer) for buffer in small._kept) <= 1 << 20
