"""A broken event stream is continued without a gap or a repetition, wherever it breaks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from both_clients import Clock, Handler
from hypothesis import given
from hypothesis import strategies as st
from stretto_client.blocking import iterate
from stretto_client.errors import Refused, Unreachable, Unusable
from stretto_client.protocol.connection import Answer, GatewayRequest, TransportFault
from stretto_client.protocol.events import Event, events
from stretto_client.protocol.outage import RECONNECT_S

STREAM = {"content-type": "text/event-stream"}
Speaking = Callable[[Handler], Any]


def frame(seq: int) -> bytes:
    return f'id: {seq}\nevent: shard-leased\ndata: {{"seq": {seq}, "text": "ü\\u2028"}}\n\n'.encode()


class Network:
    """A stream of stored events that breaks after given numbers of bytes, and then at its end no more."""

    def __init__(self, seqs: list[int], cuts: list[int], piece: int) -> None:
        self.seqs, self.cuts, self.piece = seqs, list(cuts), piece
        self.now_s = 0.0

    @asynccontextmanager
    async def stream(self, request: GatewayRequest) -> AsyncGenerator[tuple[Answer, AsyncIterator[bytes]]]:
        after = int(request.headers["Last-Event-ID"])
        text = b"retry: 1000\n\n" + b"".join(frame(seq) for seq in self.seqs if seq > after)
        fails = bool(self.cuts) and self.cuts[0] < len(text)
        text = text[: self.cuts.pop(0)] if fails else text

        async def parts() -> AsyncIterator[bytes]:
            for begin in range(0, len(text), self.piece):
                yield text[begin : begin + self.piece]
            if fails:
                raise TransportFault("broken", "cut")

        yield Answer(200, {"content-type": "text/event-stream; charset=utf-8"}, b""), parts()

    async def send(self, request: GatewayRequest) -> Answer:
        return Answer(200, {}, b'{"ready": true}')

    async def pause(self, duration_s: float) -> None:
        self.now_s += duration_s

    def now(self) -> float:
        return self.now_s


def read(network: Network, after: int = 0) -> list[int]:
    return [event.id for event in iterate(events(network, "x", after, False, ()))]


@given(
    seqs=st.sets(st.integers(1, 50), max_size=12).map(sorted),
    cuts=st.lists(st.integers(0, 900), max_size=6),
    piece=st.integers(1, 400),
    after=st.integers(0, 50),
)
def test_a_stream_that_is_cut_at_any_byte_has_every_event_once(
    seqs: list[int], cuts: list[int], piece: int, after: int
) -> None:
    assert read(Network(seqs, cuts, piece), after) == [seq for seq in seqs if seq > after]


def test_what_a_server_has_lost_is_undone_and_read_anew_from_there(speaking_to: Speaking) -> None:
    """A reader that has less than is left stays where it is; whoever comes back says when his last event was stored,
    unless he was told of a loss since: the same words would bring him the same answer for ever.
    """
    asked: list[str] = []
    stored = b'id: 5\nevent: shard-leased\ndata: {"seq": 5, "time_s": 7.25}\n\n'
    loss = b'id: %d\nevent: end-lost\ndata: {"seq": %d, "time_s": 9.5}\n\n'
    texts = iter([frame(4) + stored, loss % (3, 3), frame(4) + stored + loss % (8, 8), frame(6)])

    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/status"):
            return httpx.Response(200, json={"ready": True})
        asked.append(request.headers["last-event-id"])
        text = next(texts, None)
        return httpx.Response(401) if text is None else httpx.Response(200, content=text, headers=STREAM)

    found: list[int] = []
    with pytest.raises(Refused, match="401"):
        collect(speaking_to(handle).events("x"), found)
    assert found == [4, 5, 3, 4, 5, 6]
    assert asked == ["0", "5@7.25", "3", "5", "6"]


def test_a_gateway_that_knows_no_times_of_events_is_asked_by_the_sequence_alone(speaking_to: Speaking) -> None:
    asked: list[str] = []
    stored = b'id: 5\nevent: shard-leased\ndata: {"seq": 5, "time_s": 7.25}\n\n'

    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/status"):
            return httpx.Response(200, json={"ready": True})
        asked.append(request.headers["last-event-id"])
        if len(asked) == 1:
            return httpx.Response(200, content=stored, headers=STREAM)
        return httpx.Response(400)

    found: list[int] = []
    with pytest.raises(Refused, match="400"):  # what is wrong with a sequence alone is wrong for good
        collect(speaking_to(handle).events("x"), found)
    assert (found, asked) == ([5], ["0", "5@7.25", "5"])


def test_every_single_cut_of_one_stream_is_bridged() -> None:
    seqs = [3, 4, 9]
    length = len(b"retry: 1000\n\n" + b"".join(map(frame, seqs)))
    for cut in range(length + 1):
        assert read(Network(seqs, [cut], 7)) == seqs


def test_a_lost_stream_is_taken_up_only_when_the_gateway_has_read_its_own(speaking_to: Speaking) -> None:
    asked: list[str] = []
    statuses = iter([{"ready": False}, {"ready": False}, {"ready": True}])

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path.removeprefix("/api/v1"))
        if request.url.path.endswith("/status"):
            return httpx.Response(200, json=next(statuses))
        if "/status" not in asked:
            raise httpx.ReadError("gone", request=request)
        return streamed(7)

    assert [event.id for event in speaking_to(handle).events("x", follow=False)] == [7]
    assert asked == ["/jobs/x/events", "/status", "/status", "/status", "/jobs/x/events"]


def test_a_gateway_that_stays_away_is_given_up_after_half_a_minute(speaking_to: Speaking, clock: Clock) -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadError("gone", request=request)

    with pytest.raises(Unreachable, match="went away"):
        list(speaking_to(handle).events("x"))
    assert RECONNECT_S <= clock.now_s < RECONNECT_S + 1


def test_a_refused_stream_is_a_problem(speaking_to: Speaking) -> None:
    body = {
        "type": "urn:stretto:problem:no-such-job", "detail": "there is no job x", "count": 1,
        "errors": [{"field": "job", "value": "x", "remedy": "see stretto jobs"}], "help": "/problems/no-such-job",
    }  # fmt: skip
    with pytest.raises(Refused) as refused:
        list(speaking_to(lambda request: httpx.Response(404, json=body)).events("x"))
    assert (refused.value.kind, refused.value.remedy) == ("no-such-job", "see stretto jobs")


def test_a_stream_is_opened_again_when_a_busy_gateway_says(speaking_to: Speaking, clock: Clock) -> None:
    asked: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        if len(asked) < 3:
            return httpx.Response(429, headers={"Retry-After": "7"})
        return streamed(7)

    assert [event.id for event in speaking_to(handle).events("x", follow=False)] == [7]
    assert clock.pauses_s == [7.0, 7.0]


def collect(events: Iterable[Event], found: list[int]) -> None:
    for event in events:
        found.append(event.id)


def streamed(*seqs: int) -> httpx.Response:
    return httpx.Response(200, content=b"".join(map(frame, seqs)), headers=STREAM)


def test_a_followed_stream_that_ends_is_opened_again(speaking_to: Speaking) -> None:
    opened: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/status"):
            return httpx.Response(200, json={"ready": True})
        opened.append(request.headers["last-event-id"])
        return streamed(*range(int(opened[-1]) + 1, int(opened[-1]) + 3)) if len(opened) < 4 else httpx.Response(401)

    found: list[int] = []
    with pytest.raises(Refused, match="401"):  # a token that is not valid any more ends it
        collect(speaking_to(handle).events("x"), found)
    assert (found, opened) == ([1, 2, 3, 4, 5, 6], ["0", "2", "4", "6"])


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("headers", [{"content-type": "text/html"}, {}])
def test_an_answer_that_is_no_stream_is_an_error(
    speaking_to: Speaking, clock: Clock, follow: bool, headers: dict[str, str]
) -> None:
    with pytest.raises(Unusable, match=r"http://gateway/api/v1/events.* no stream of events"):
        list(speaking_to(lambda request: httpx.Response(200, content=b"<h1>", headers=headers)).events(follow=follow))
    assert clock.now_s == 0


def test_a_redirection_of_a_stream_is_an_error(speaking_to: Speaking) -> None:
    leading = httpx.Response(302, headers={"location": "https://elsewhere/login"})
    with pytest.raises(Refused, match=r"http://gateway/api/v1/events.*https://elsewhere/login"):
        list(speaking_to(lambda request: leading).events())


def test_an_event_says_its_time_job_and_service() -> None:
    event = Event(1, "a", {"time_s": 2.0, "job": "x", "service": "arbiter", "data": {"b": 1}})
    assert (event.time_s, event.job, event.service, event.data) == (2.0, "x", "arbiter", {"b": 1})
