"""The parser of server-sent events."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st
from stretto_client.protocol.server_sent import Frame, Parser

WORDS = st.text(st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs"]), max_size=12)
ENDS = st.sampled_from(["\n", "\r\n", "\r"])
IDS = st.integers(1, 10**12).map(str)


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[Frame]]:
    """Draw the text of a stream, with comments and hints, and the events in it."""
    text, frames, last, end = "", [], "", draw(ENDS)
    for _ in range(draw(st.integers(0, 5))):
        lines = [f": {draw(WORDS)}"] * draw(st.integers(0, 2)) + ["retry: 1000"] * draw(st.integers(0, 1))
        name, data = draw(WORDS), draw(st.lists(WORDS, min_size=1, max_size=3))
        if draw(st.booleans()):
            last = draw(IDS)
            lines.append(f"id: {last}")
        lines += [f"event: {name}", *(f"data: {each}" for each in data), ""]
        text += "".join(line + end for line in lines)
        frames.append(Frame(last, name or "message", "\n".join(data)))
    return text.encode(), frames


@given(streams(), st.data())
def test_events_are_the_same_however_the_stream_is_cut(made: tuple[bytes, list[Frame]], data: st.DataObject) -> None:
    text, frames = made
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=20)))
    parser = Parser()
    found = [
        frame for begin, end in itertools.pairwise([0, *cuts, len(text)]) for frame in parser.feed(text[begin:end])
    ]
    if text.endswith(b"\r"):  # a line feed could follow: the next byte tells
        found += parser.feed(b":")
    assert found == frames


@given(streams())
def test_an_event_counts_only_with_its_last_byte(made: tuple[bytes, list[Frame]]) -> None:
    text, frames = made
    for end in range(len(text)):
        found = list(Parser().feed(text[:end]))
        assert found == frames[: len(found)]


def test_comments_hints_and_unknown_fields_are_skipped() -> None:
    text = b'retry: 1000\n\n: still here\n\nnonsense\nid: 7\nevent: plan-decided\ndata: {"a":\ndata: 1}\n\n'
    assert list(Parser().feed(text)) == [Frame("7", "plan-decided", '{"a":\n1}')]
