"""The client of the gateway, against a gateway that is slow, silent or still starting."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest
from stretto_cli import client
from stretto_cli.client import Gateway, parse_events
from stretto_cli.errors import CliError, NotRunning

Handler = Callable[[httpx.Request], httpx.Response]


def speaking_to(handler: Handler) -> Gateway:
    gateway = Gateway("http://gateway", "t")
    gateway._http = httpx.Client(transport=httpx.MockTransport(handler), base_url="http://gateway/api/v1")
    return gateway


def failing(error: type[httpx.TransportError], times: int) -> tuple[Handler, list[str]]:
    asked: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request.method)
        if len(asked) <= times:
            raise error("too slow", request=request)
        return httpx.Response(200, json={"name": "x"})

    return handle, asked


def test_one_slow_answer_is_asked_for_again() -> None:
    handle, asked = failing(httpx.ReadTimeout, 1)
    assert speaking_to(handle).job("x") == {"name": "x"}
    assert asked == ["GET", "GET"]


@pytest.mark.parametrize("error", [httpx.ReadTimeout, httpx.ReadError, httpx.RemoteProtocolError, httpx.PoolTimeout])
def test_a_gateway_that_stays_silent_is_a_sentence(error: type[httpx.TransportError]) -> None:
    handle, asked = failing(error, 99)
    with pytest.raises(CliError, match=error.__name__):
        speaking_to(handle).job("x")
    assert asked == ["GET", "GET"]


def test_what_changes_something_is_not_sent_twice() -> None:
    handle, asked = failing(httpx.ReadTimeout, 99)
    with pytest.raises(CliError, match="ReadTimeout"):
        speaking_to(handle).submit("name: x")
    assert asked == ["POST"]


def test_nobody_there_says_how_to_start_one() -> None:
    handle, asked = failing(httpx.ConnectError, 99)
    with pytest.raises(NotRunning, match="stretto up"):
        speaking_to(handle).jobs()
    assert asked == ["GET"]


def test_every_page_of_the_jobs_is_read() -> None:
    asked: list[dict[str, str]] = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(dict(request.url.params))
        number = len(asked)
        more = {"Link": f'</api/v1/jobs?status=training&cursor=c{number}>; rel="next"'} if number < 3 else {}
        return httpx.Response(200, json=[{"name": f"job-{number}"}], headers=more)

    found = speaking_to(handle).jobs("training")
    assert [job["name"] for job in found] == ["job-1", "job-2", "job-3"]
    assert asked == [{"status": "training"}, *({"status": "training", "cursor": f"c{number}"} for number in (1, 2))]


def test_a_lost_stream_is_taken_up_only_when_the_gateway_has_read_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "RECONNECT_PAUSE_S", 0.0)
    asked: list[str] = []
    statuses = iter([{"ready": False}, {"ready": False}, {"ready": True}])

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path.removeprefix("/api/v1"))
        if request.url.path.endswith("/status"):
            return httpx.Response(200, json=next(statuses))
        if "/status" not in asked:
            raise httpx.ReadError("gone", request=request)
        return httpx.Response(200, text='id: 7\nevent: job-failed\ndata: {"a": 1}\n\n')

    assert [event.id for event in speaking_to(handle).events("x")] == [7]
    assert asked == ["/jobs/x/events", "/status", "/status", "/status", "/jobs/x/events"]


def test_events_are_parsed_around_comments_and_retry_hints() -> None:
    text = 'retry: 1000\n\n: still here\n\nid: 7\nevent: plan-decided\ndata: {"a":\ndata: 1}\n\n'
    events = list(parse_events(iter(text.split("\n"))))
    assert [(event.id, event.name, event.body) for event in events] == [(7, "plan-decided", {"a": 1})]
