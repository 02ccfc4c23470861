"""A journal is whole, or its reader learns that it is not, wherever it was cut."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stretto_client.documents import Documents
from stretto_client.drivers import Driver
from stretto_client.errors import Refused, Unreachable
from stretto_client.places import Place

LINES = [json.dumps({"seq": seq, "data": "x" * seq}).encode() for seq in range(6)]
"""the stream's facts, and messages"""


def body_of(lines: list[bytes], messages: int, fault: str | None = None) -> bytes:
    return b"\n".join([*lines, json.dumps({"messages": messages, "fault": fault}).encode(), b""])


def asked(parts: Iterable[bytes], status: int = 200) -> list[bytes]:
    """Return the lines of a journal whose body comes in these parts."""
    transport = httpx.MockTransport(lambda request: httpx.Response(status, content=parts))
    with Documents(place := Place("http://gateway"), Driver(place, transport)) as documents:
        return list(documents.journal("x", [("subject", "a"), ("subject", "b")]))


def read(*parts: bytes, status: int = 200) -> list[bytes]:
    return asked(iter(parts), status)


@given(piece=st.integers(1, 80), count=st.integers(1, 6))
def test_a_whole_journal_has_every_line_whatever_its_pieces(piece: int, count: int) -> None:
    body = body_of(LINES[:count], count - 1)
    assert read(*(body[at : at + piece] for at in range(0, len(body), piece))) == LINES[:count]


def test_a_journal_that_is_cut_at_any_byte_is_no_whole_one() -> None:
    body = body_of(LINES, 5)
    for cut in range(len(body)):
        with pytest.raises(Unreachable, match="broke off"):
            read(body[:cut])


@pytest.mark.parametrize("messages", [0, 4, 6])
def test_a_journal_that_lacks_a_line_is_no_whole_one(messages: int) -> None:
    with pytest.raises(Unreachable, match="broke off after 7 lines"):
        read(body_of(LINES, messages))


def test_a_fault_of_the_gateway_in_the_middle_is_told() -> None:
    with pytest.raises(Unreachable, match="the server stopped in the middle"):
        read(body_of(LINES, 5, "the server stopped in the middle"))


def test_a_connection_that_breaks_is_told() -> None:
    def parts() -> Iterator[bytes]:
        yield body_of(LINES, 5)[:20]
        raise httpx.ReadError("gone")

    with pytest.raises(Unreachable, match="gone"):
        asked(parts())


def test_a_refused_journal_is_a_problem() -> None:
    with pytest.raises(Refused):
        read(b"{}", status=403)
