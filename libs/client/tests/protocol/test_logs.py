"""Following a pod's log: every line once, though the gateway knows only the log's end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stretto_client.blocking import iterate
from stretto_client.errors import Refused
from stretto_client.protocol import logs
from stretto_client.protocol.connection import Answer, GatewayRequest
from stretto_client.protocol.logs import GAP, LOOK_LINES, continuation, follow_log


class Pod:
    """A pod that writes given pieces, one before each look, and ends; its log is read as the gateway does."""

    def __init__(
        self,
        pieces: list[str],
        kept_lines: int = 20_000,
        absent: int = 0,
        away_s: tuple[float, float] = (0.0, 0.0),
        short_end: str = "",
    ) -> None:
        self.pieces, self.kept_lines, self.absent = list(pieces), kept_lines, absent
        self.away_s, self.short_end = away_s, short_end
        self.text, self.now_s, self.widest = "", 0.0, 0

    async def send(self, request: GatewayRequest) -> Answer:
        if not request.path.endswith("/log"):
            state = "running" if self.pieces or self.absent else "exited"
            body = {"ended_at_s": None, "pods": {"worker-0": {"state": state}}}
            return Answer(200, {}, json.dumps(body).encode())
        if self.absent > 0:
            self.absent -= 1
            return problem("no-log")
        if self.pieces:
            self.text += self.pieces.pop(0)
        if self.away_s[0] <= self.now_s < self.away_s[1]:
            body = {"text": self.short_end, "is_short_end": True}
            return Answer(200, {"etag": '"1"'}, json.dumps(body).encode()) if self.short_end else problem("no-log")
        lines = int(dict(request.params)["lines"])
        self.widest = max(self.widest, lines)
        shown = "\n".join(self.text.splitlines()[-min(lines, self.kept_lines) :])
        if not shown:
            return problem("no-log")
        tag = f'"{hash(shown)}"'
        if request.headers.get("If-None-Match") == tag:
            return Answer(304, {"etag": tag}, b"")
        return Answer(200, {"etag": tag}, json.dumps({"text": shown}).encode())

    def stream(self, request: GatewayRequest) -> Any:
        raise AssertionError("a log is no stream")

    async def pause(self, duration_s: float) -> None:
        self.now_s += duration_s

    def now(self) -> float:
        return self.now_s


def problem(kind: str) -> Answer:
    body = {"type": f"urn:stretto:problem:{kind}", "detail": kind, "errors": [], "count": 1}
    return Answer(404, {}, json.dumps(body).encode())


def followed(pod: Pod, lines: int = 100_000) -> Iterator[str]:
    return iterate(follow_log(pod, "x", "worker-0", lines))


@st.composite
def writings(draw: st.DrawFn) -> list[str]:
    """Draw pieces of whole lines that differ, as those with a time do; lines may be empty or alike beside it."""
    number, pieces = 0, []
    for size in draw(st.lists(st.integers(0, 60), min_size=1, max_size=12)):
        pieces.append("".join(f"{number + k} {draw(st.sampled_from(['', 'step', 'step']))}\n" for k in range(size)))
        number += size
    return pieces


@given(writings(), st.integers(25, 80))
def test_every_line_is_followed_once_though_looks_are_short(pieces: list[str], look_lines: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "LOOK_LINES", look_lines)
        assert list(followed(Pod(pieces), 1))[-1:] == "".join(pieces).splitlines()[-1:]
        found = list(followed(Pod(["0 first\n", *pieces]), 1))
    assert found == ["0 first", *"".join(pieces).splitlines()]


def test_more_lines_than_a_look_has_need_a_wide_look() -> None:
    first, second = ("".join(f"{n}\n" for n in numbers) for numbers in (range(10), range(10, 3 * LOOK_LINES)))
    pod = Pod([first, second])
    assert list(followed(pod, 10)) == [str(n) for n in range(3 * LOOK_LINES)]
    assert pod.widest == logs.WIDE_LINES


def test_lines_that_nobody_keeps_leave_a_mark() -> None:
    first, second = ("".join(f"{n}\n" for n in numbers) for numbers in (range(10), range(10, 5000)))
    found = list(followed(Pod([first, second], kept_lines=2000), 10))
    assert found == [*map(str, range(10)), GAP, *map(str, range(3000, 5000))]


def test_a_line_that_is_being_written_is_not_repeated() -> None:
    assert list(followed(Pod(["a\nhal", "f\nb\n"]))) == ["a", "half", "b"]
    assert list(followed(Pod(["a\nhal", "", "", "f\nb\n"]))) == ["a", "hal", "f", "b"]
    assert list(followed(Pod(["a", "", "\nb"]))) == ["a", "b"]


def test_a_pod_that_has_no_log_yet_is_waited_for_and_one_that_never_has_is_not() -> None:
    assert list(followed(Pod(["a\n"], absent=3))) == ["a"]
    silent = Pod([])
    assert list(followed(silent)) == []
    assert silent.now_s > logs.KEPT_WITHIN_S


@pytest.mark.parametrize("away_s", [2.0, 5.0, logs.KEPT_WITHIN_S - 2])
def test_the_end_of_a_pod_is_followed_though_its_log_is_on_the_way_into_the_store(away_s: float) -> None:
    pod = Pod(["step 1\n", "Traceback\nValueError\n"], away_s=(1.0, 1.0 + away_s))
    assert list(followed(pod)) == ["step 1", "Traceback", "ValueError"]


def test_a_log_that_never_comes_into_the_store_is_given_up() -> None:
    pod = Pod(["step 1\n", "lost\n"], away_s=(1.0, 1e9))
    assert list(followed(pod)) == ["step 1"]
    assert logs.KEPT_WITHIN_S < pod.now_s < logs.KEPT_WITHIN_S + 5


def test_only_the_last_lines_of_an_old_log_are_emitted() -> None:
    assert list(followed(Pod(["a\nb\nc\n", "d\n"]), 2)) == ["b", "c", "d"]


def test_all_lines_of_a_pod_that_starts_later_are_emitted() -> None:
    lines = [str(n) for n in range(3 * LOOK_LINES)]
    pod = Pod(["".join(f"{line}\n" for line in lines), ""], absent=3)
    assert list(followed(pod, 2)) == lines


def test_a_pod_that_had_ended_before_the_first_look_is_cut_though_its_log_comes_later() -> None:
    assert list(followed(Pod(["a\nb\nc\n"], away_s=(0.0, 3.0)), 2)) == ["b", "c"]


@pytest.mark.parametrize("first", ["a\nb\n", "a\nb"])
def test_no_lines_are_none_of_the_old_ones(first: str) -> None:
    assert list(followed(Pod([first, "", f"{'' if first.endswith(chr(10)) else chr(10)}c\nd\n"]), 0)) == ["c", "d"]
    assert list(followed(Pod([first]), 0)) == []


def test_another_refusal_ends_it() -> None:
    class Forbidding(Pod):
        async def send(self, request: GatewayRequest) -> Answer:
            return problem("no-such-job")

    with pytest.raises(Refused, match="no-such-job"):
        list(followed(Forbidding(["a"])))


@pytest.mark.parametrize("end", ["ne 2\nTraceback\nKeyError", "Traceback\nKeyError", "KeyError", "line 1\nline 2"])
@pytest.mark.parametrize(
    "pieces", [["line 1\nline 2\n", "Traceback\nKeyError\n"], ["line 1\nline 2\nTraceback\nKeyError\n"]]
)
def test_the_short_end_of_a_failed_pod_waits_for_the_store(pieces: list[str], end: str) -> None:
    for began_s in (0.0, 1.0):
        pod = Pod(pieces, away_s=(began_s, 6.0), short_end=end)
        assert list(followed(pod)) == ["line 1", "line 2", "Traceback", "KeyError"]
        assert pod.now_s < logs.KEPT_WITHIN_S


@pytest.mark.parametrize(
    ("end", "last"),
    [
        ("line 2\nTraceback", ["Traceback"]),
        ("e 1\nline 2\nTraceback", ["Traceback"]),
        ("Traceback\nKeyError", [GAP, "Traceback", "KeyError"]),
        ("ine 2", []),
        ("KeyError", [GAP, "KeyError"]),
    ],
)
def test_where_no_store_has_the_log_the_short_end_of_a_failed_pod_is_its_end(end: str, last: list[str]) -> None:
    pod = Pod(["line 1\nline 2\n", "lost\n"], away_s=(1.0, 1e9), short_end=end)
    assert list(followed(pod)) == ["line 1", "line 2", *last]


def test_a_short_overlap_is_not_believed() -> None:
    assert continuation("a\nb\nsame", "same\nc") is None
    assert continuation("same", "same\nc") == "\nc"
