"""Operations that wait go on over a restart of the gateway, for half a minute."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from both_clients import VIEW, Clock, Handler, job_of
from pydantic import TypeAdapter
from stretto_client.errors import ClientError, NotReady, NotRunning, Refused, Unreachable
from stretto_client.protocol.outage import RECONNECT_S
from stretto_wire.rest.summaries import JobSummary
from stretto_wire.rest.views import JobView

Speaking = Callable[[Handler], Any]
JOB = TypeAdapter(JobView)
TRAINING, ENDED = JOB.dump_json(VIEW), JOB.dump_json(replace(VIEW, status="finished", ended_at_s=1.0))
SUMMARY = ("x", "", "cancelled", 0.0, 1.0, 1, None, 0, 1, 0.0, None, "why", "ada", None, 0.0, None, None, None, 0)
CANCELLED = TypeAdapter(JobSummary).dump_json(JobSummary(*SUMMARY))
CATCHING_UP = {"type": "urn:stretto:problem:catching-up", "detail": "not ready", "errors": [], "count": 1}


class Restarting:
    """A gateway that nobody reaches at first, then reads its stream and answers with ``status``, and then is ready."""

    def __init__(self, error: Exception | None, starting: int = 2, status: int = 0) -> None:
        self.error, self.starting, self.status = error, starting, status
        self.asked: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/api/v1")
        self.asked.append(path)
        if len(self.asked) <= 3 and self.error is not None:
            raise self.error
        if path == "/status":
            self.starting -= 1
            return httpx.Response(200, json={"ready": self.starting < 0})
        if self.starting > 0:
            return httpx.Response(self.status, json=CATCHING_UP)
        return self.answer(path)

    def answer(self, path: str) -> httpx.Response:
        if path.endswith("/log"):
            return httpx.Response(200, json={"text": "a\nb"}, headers={"etag": '"1"'})
        if path.endswith("/parts"):
            return httpx.Response(200, json={"ended_at_s": 1.0, "pods": {}})
        if path.endswith("/events"):
            return httpx.Response(
                200,
                text='id: 7\nevent: job-finished\ndata: {"a": 1}\n\n',
                headers={"content-type": "text/event-stream"},
            )
        return httpx.Response(200, content=ENDED)


RESTARTS: list[Callable[[], Restarting]] = [
    lambda: Restarting(httpx.ConnectError("refused")),
    lambda: Restarting(httpx.ConnectTimeout("slow")),
    lambda: Restarting(httpx.ReadError("gone")),
    lambda: Restarting(None, status=503),
    lambda: Restarting(None, status=502),
]


@pytest.mark.parametrize("restarting", RESTARTS)
def test_a_wait_goes_on_over_a_restart(speaking_to: Speaking, restarting: Callable[[], Restarting]) -> None:
    seen: list[int] = []
    job = job_of(speaking_to(restarting())).wait(on_event=lambda event: seen.append(event.id))
    assert (job.status, seen) == ("finished", [7])


@pytest.mark.parametrize("restarting", RESTARTS)
def test_following_a_log_goes_on_over_a_restart(speaking_to: Speaking, restarting: Callable[[], Restarting]) -> None:
    assert list(job_of(speaking_to(restarting())).logs("worker-0", follow=True)) == ["a", "b"]


@pytest.mark.parametrize("restarting", RESTARTS)
def test_showing_a_job_goes_on_over_a_restart(
    speaking_to: Speaking, monkeypatch: pytest.MonkeyPatch, restarting: Callable[[], Restarting]
) -> None:
    output = SimpleNamespace(update=lambda job: None)
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=lambda job, display_id: output))
    assert job_of(speaking_to(restarting())).live().status == "finished"


def test_a_restart_between_two_streams_of_one_reader_is_bridged(speaking_to: Speaking) -> None:
    asked: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path.removeprefix("/api/v1"))
        match len(asked):
            case 1:
                raise httpx.ReadError("gone")
            case 3:
                raise httpx.ConnectError("refused")
        if request.url.path.endswith("/status"):
            return httpx.Response(200, json={"ready": True})
        return Restarting(None).answer("/events")

    assert [event.id for event in speaking_to(handle).events("x", follow=False)] == [7]
    assert asked == ["/jobs/x/events", "/status"] * 2 + ["/jobs/x/events"]


@pytest.mark.parametrize("wait", [lambda job: job.wait(), lambda job: list(job.logs("ps-0", follow=True))])
def test_a_gateway_that_stays_away_is_given_up(
    speaking_to: Speaking, clock: Clock, wait: Callable[[Any], object]
) -> None:
    def nobody(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(Unreachable, match="went away"):
        wait(job_of(speaking_to(nobody)))
    assert RECONNECT_S <= clock.now_s < RECONNECT_S + 1


def test_a_request_that_fails_though_the_gateway_is_ready_is_given_up_too(speaking_to: Speaking, clock: Clock) -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/status"):
            return httpx.Response(200, json={"ready": True})
        return httpx.Response(503, json={**CATCHING_UP, "type": "urn:stretto:problem:bus"})

    with pytest.raises(Refused, match="bus"):
        job_of(speaking_to(handle)).wait()
    assert RECONNECT_S - 1 <= clock.now_s <= RECONNECT_S


def test_of_a_gateway_that_stays_unready_its_own_sentence_is_told(speaking_to: Speaking, clock: Clock) -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        return httpx.Response(503, json={**CATCHING_UP, "type": "urn:stretto:problem:bus", "detail": "no room"})

    with pytest.raises(Refused, match="no room"):
        job_of(speaking_to(handle)).cancel()
    assert clock.now_s == RECONNECT_S


@pytest.mark.parametrize("gone", [httpx.ReadError("gone"), None])
def test_cancelling_is_tried_again_while_the_bus_stores_nothing(
    speaking_to: Speaking, clock: Clock, gone: Exception | None
) -> None:
    asked: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/status"):
            return httpx.Response(200, json={"ready": True})
        asked.append(request.method)
        if len(asked) <= 2:
            if gone is not None:
                raise gone
            return httpx.Response(503, json={**CATCHING_UP, "type": "urn:stretto:problem:bus"})
        return httpx.Response(200, content=CANCELLED)

    assert job_of(speaking_to(handle)).cancel("why").status == "cancelled"
    assert asked == ["DELETE"] * 3
    assert 0 < clock.now_s < RECONNECT_S


def test_cancelling_without_any_gateway_is_refused_at_once(speaking_to: Speaking, clock: Clock) -> None:
    with pytest.raises(NotRunning, match="stretto up"):
        job_of(speaking_to(refusing)).cancel()
    assert clock.now_s == 0


def test_a_certificate_that_is_not_trusted_is_no_outage(speaking_to: Speaking, clock: Clock) -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed")

    with pytest.raises(ClientError, match="STRETTO_CLI_CA"):
        job_of(speaking_to(handle)).wait()
    assert clock.now_s == 0


def test_a_stream_of_a_gateway_that_never_was_there_is_refused_at_once(speaking_to: Speaking, clock: Clock) -> None:
    def nobody(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(NotRunning, match="stretto up"):
        list(speaking_to(nobody).events())
    assert clock.now_s == 0


def training(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, content=TRAINING)


def refusing(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused")


def busy(request: httpx.Request) -> httpx.Response:
    return httpx.Response(429, headers={"Retry-After": "9"})


@pytest.mark.parametrize("gateway", [training, refusing, busy])
@pytest.mark.parametrize("timeout_s", [0.2, 0.7, 10.0])
def test_a_wait_ends_at_its_timeout_whatever_the_gateway_does(
    speaking_to: Speaking, clock: Clock, gateway: Handler, timeout_s: float
) -> None:
    with pytest.raises(NotReady, match=f"within {timeout_s:g} s") as late:
        job_of(speaking_to(gateway)).wait(timeout_s)
    assert ("it goes on" in str(late.value)) == (gateway is training), "only who was asked knows"
    assert clock.now_s == pytest.approx(timeout_s)
