"""The newest messages of a stream are found with few questions and little reading, wherever they lie."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from stretto_bus.reading.newest import SURPLUS, beginning

LAST = 5000
PLACES = st.lists(st.integers(1, LAST), max_size=60, unique=True).map(sorted) | st.builds(
    lambda start, length, one: sorted({*range(start, start + length), one}),
    st.integers(1, 3000),
    st.integers(1, 2000),
    st.integers(1, LAST),
)
"""Sequences of matching messages: scattered, or many in a row and one elsewhere."""


@given(PLACES, st.integers(1, 20), st.integers(2, LAST + 1), st.integers(1, 50))
async def test_enough_is_read_and_not_much_more(places: list[int], limit: int, end: int, first: int) -> None:
    asked = list[int]()
    stored = [place for place in places if place >= first]

    async def count(start: int) -> int:
        asked.append(start)
        return sum(place >= start for place in stored)

    end = max(end, first + 1)
    start = await beginning(count, first, end, limit)
    before = [place for place in stored if place < end]
    read = [place for place in before if place >= start]
    assert start >= first
    assert len(read) >= min(limit, len(before))
    assert read == before[len(before) - len(read) :]
    assert len(read) <= SURPLUS * limit
    assert len(asked) <= 30
