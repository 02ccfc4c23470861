"""Requests and answers of both clients, against a gateway that is slow, silent, busy, refusing or still starting.

A real gateway cannot be made silent at a given request, so a function stands for the network here.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from both_clients import Clock, Handler, job_of
from stretto_client import aio
from stretto_client import client as blocking
from stretto_client.errors import ClientError, NotRunning, Refused, Unreachable, Unusable
from stretto_client.places import Place, place_of
from stretto_client.protocol.exchange import PATIENCE_S
from stretto_client.protocol.operations import ENDED_STATES
from stretto_runtime.process.listeners import at_path
from stretto_wire.rest.views import OVER

Speaking = Callable[[Handler], Any]
ME = {
    "name": "ada", "role": "admin", "team": "default", "reads_all_teams": True, "expires_at_s": None,
    "installation": "i", "version": "1",
}  # fmt: skip
PROBLEM = {
    "type": "urn:stretto:problem:bad-job", "title": "x", "status": 422, "detail": "2 things are wrong",
    "instance": "/api/v1/jobs", "help": "/problems/bad-job", "field": "dataset.samples", "value": "-1",
    "remedy": "at least 1", "count": 2,
    "errors": [
        {"field": "dataset.samples", "value": "-1", "remedy": "at least 1", "line": 3, "column": 5},
        {"field": "nmae", "value": "x", "remedy": "did you mean name?", "line": None, "column": None},
    ],
}  # fmt: skip


def failing(error: type[httpx.TransportError], times: int) -> tuple[Handler, list[str]]:
    asked: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request.method)
        if len(asked) <= times:
            raise error("too slow", request=request)
        return httpx.Response(200, json=ME)

    return handle, asked


def test_both_clients_have_the_same_names_with_the_same_parameters() -> None:
    for one, other in ((blocking.Client, aio.AsyncClient), (blocking.Job, aio.AsyncJob)):
        names = [name for name, found in inspect.getmembers(one, inspect.isfunction) if not name.startswith("_")]
        assert names == [n for n, found in inspect.getmembers(other, inspect.isfunction) if not n.startswith("_")]
        for name in names:
            mine, its = (inspect.signature(getattr(each, name)).parameters for each in (one, other))
            assert list(mine.values()) == list(its.values()), name


def test_one_slow_answer_is_asked_for_again(speaking_to: Speaking) -> None:
    handle, asked = failing(httpx.ReadTimeout, 1)
    assert speaking_to(handle).me().name == "ada"
    assert asked == ["GET", "GET"]


@pytest.mark.parametrize("error", [httpx.ReadTimeout, httpx.ReadError, httpx.RemoteProtocolError, httpx.PoolTimeout])
def test_a_gateway_that_stays_silent_is_a_sentence(speaking_to: Speaking, error: type[httpx.TransportError]) -> None:
    handle, asked = failing(error, 99)
    with pytest.raises(Unreachable, match=error.__name__):
        speaking_to(handle).me()
    assert asked == ["GET", "GET"]


def test_what_changes_something_is_not_sent_twice(speaking_to: Speaking) -> None:
    handle, asked = failing(httpx.ReadTimeout, 99)
    with pytest.raises(Unreachable, match="ReadTimeout"):
        speaking_to(handle).submit({"name": "x"})
    assert asked == ["POST"]


def test_nobody_there_says_how_to_start_one(speaking_to: Speaking) -> None:
    handle, asked = failing(httpx.ConnectError, 99)
    with pytest.raises(NotRunning, match="stretto up"):
        speaking_to(handle).me()
    assert asked == ["GET"]


def test_a_certificate_that_is_not_trusted_names_the_variable(speaking_to: Speaking) -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed", request=request)

    with pytest.raises(Unreachable, match="STRETTO_CLI_CA"):
        speaking_to(handle).me()


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_a_busy_gateway_is_asked_again_when_it_says(speaking_to: Speaking, clock: Clock, method: str) -> None:
    asked: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request.method)
        if len(asked) < 3:
            return httpx.Response(429, headers={"Retry-After": "7"})
        return httpx.Response(200, json=ME)

    client = speaking_to(handle)
    if method == "GET":
        client.me()
    else:
        with pytest.raises(Unusable):  # the answer is none of a cancellation
            job_of(client).cancel()
    assert asked == [method] * 3
    assert clock.pauses_s == [7.0, 7.0]


@pytest.mark.parametrize(("kind", "asked_again"), [("busy", True), ("over", False)])
def test_a_checkpoint_is_asked_for_again_while_another_is_taken(
    speaking_to: Speaking, clock: Clock, kind: str, asked_again: bool
) -> None:
    """Case: jobs take one every ten seconds by themselves."""
    asked: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        if len(asked) == 1:
            return httpx.Response(409, json=PROBLEM | {"type": f"urn:stretto:problem:{kind}", "status": 409})
        return httpx.Response(202, json={"job": "j", "id": "j-000002"})

    job = job_of(speaking_to(handle))
    if asked_again:
        assert job.checkpoint().id == "j-000002"
    else:
        with pytest.raises(Refused) as refused:
            job.checkpoint()
        assert refused.value.kind == kind
    assert len(asked) == 1 + asked_again
    assert clock.pauses_s == [1.0] * asked_again


def test_a_gateway_that_stays_busy_is_refused_within_the_patience(speaking_to: Speaking, clock: Clock) -> None:
    with pytest.raises(Refused) as refused:
        speaking_to(lambda request: httpx.Response(429, headers={"Retry-After": "9"})).me()
    assert refused.value.status == 429
    assert PATIENCE_S - 9 < sum(clock.pauses_s) <= PATIENCE_S


def test_a_problem_has_kind_fields_values_remedies_and_page(speaking_to: Speaking) -> None:
    with pytest.raises(Refused) as caught:
        speaking_to(lambda request: httpx.Response(422, json=PROBLEM)).submit({"name": "x"})
    refused = caught.value
    assert (refused.kind, refused.status, refused.count) == ("bad-job", 422, 2)
    assert (refused.field, refused.value, refused.remedy) == ("dataset.samples", "-1", "at least 1")
    assert refused.findings[1].remedy == "did you mean name?"
    assert refused.page == "http://gateway/problems/bad-job"
    told = str(refused)
    for words in ("line 3, column 5", "did you mean name?", "http://gateway/problems/bad-job"):
        assert words in told


def test_a_remedy_that_the_detail_has_is_not_told_twice(speaking_to: Speaking) -> None:
    remedy = "at most 1, the ceiling of the team search"
    one = {"field": "priority", "value": "3.0", "remedy": remedy}
    problem = PROBLEM | {"detail": f"priority = 3.0: {remedy}", "errors": [one], "count": 1} | one
    with pytest.raises(Refused) as caught:
        speaking_to(lambda request: httpx.Response(422, json=problem)).submit({"name": "x"})
    assert caught.value.remedy == remedy
    assert str(caught.value).count(remedy) == 1


@pytest.mark.parametrize("body", [b"<h1>proxy</h1>", b"[]", b'{"type": 1}', b""])
def test_an_error_of_something_else_is_one_too(speaking_to: Speaking, body: bytes) -> None:
    with pytest.raises(Refused, match="HTTP 502"):
        speaking_to(lambda request: httpx.Response(502, content=body)).me()


@pytest.mark.parametrize("body", [b"<h1>login</h1>", b'{"name": "ada"}', b"\xff"])
def test_an_answer_that_cannot_be_read_is_a_sentence(speaking_to: Speaking, body: bytes) -> None:
    with pytest.raises(Unusable):
        speaking_to(lambda request: httpx.Response(200, content=body)).me()


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirection_is_an_error_that_names_both_addresses(speaking_to: Speaking, status: int) -> None:
    leading = httpx.Response(status, headers={"location": "https://elsewhere/login"})
    for ask in (
        lambda: speaking_to(lambda request: leading).me(),
        lambda: job_of(speaking_to(lambda _: leading)).wait(),
    ):
        with pytest.raises(Refused, match=r"http://gateway/api/v1/.*https://elsewhere/login"):
            ask()


@pytest.mark.parametrize("ask", [
    lambda client, name: client.job(name),
    lambda client, name: list(client.events(name, follow=False)),
    lambda client, name: job_of(client).logs(name),
])  # fmt: skip
@pytest.mark.parametrize("name", ["../me?a#b", "..", ".", "a\n", "%2e%2e", "\udcff", "A", "a" * 64])
def test_what_is_no_name_enters_no_address(speaking_to: Speaking, ask: Callable[[Any, str], object], name: str) -> None:
    client = speaking_to(lambda _: httpx.Response(404, json=PROBLEM))
    with pytest.raises(Unusable, match=f"{re.escape(ascii(name))} is no name; names of jobs and pods are lower-case"):
        ask(client, name)


def test_fields_of_a_newer_gateway_are_ignored(speaking_to: Speaking) -> None:
    assert speaking_to(lambda request: httpx.Response(200, json={**ME, "mood": "fine"})).me().name == "ada"


def test_every_page_of_the_jobs_is_read(speaking_to: Speaking) -> None:
    asked: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url.query, "ascii"))
        number = len(asked)
        more = {"Link": f'</api/v1/jobs?status=training&cursor=c{number}>; rel="next"'} if number < 3 else {}
        return httpx.Response(200, json=[summary(f"job-{number}")], headers=more)

    found = speaking_to(handle).jobs("training")
    assert [job.name for job in found] == ["job-1", "job-2", "job-3"]
    assert asked == [
        "status=training&order=submitted",
        *(f"status=training&order=submitted&cursor=c{number}" for number in (1, 2)),
    ]


def summary(name: str) -> dict[str, Any]:
    return {
        "name": name, "team": "default", "status": "training", "submitted_at_s": 1.0, "ended_at_s": None,
        "plan_version": 0, "plan": None, "samples_done": 0, "samples_total": 1, "samples_per_s": 0.0,
        "stalled_since_s": None, "reason": "", "submitted_by": "ada", "cost_per_hour": None, "priority": 1.0,
        "deadline_s": None, "ends_at_s": None, "oom_in_s": None, "pods_pending": 0,
    }  # fmt: skip


def test_a_place_comes_from_arguments_then_the_environment_then_the_folder(tmp_path: Path) -> None:
    folder_of_a_gateway(tmp_path)
    environ = {"STRETTO_CLI_URL": "https://far/", "STRETTO_CLI_TOKEN": "far", "STRETTO_STATE_FOLDER": str(tmp_path)}
    assert place_of("http://here", "t", environ=environ) == Place("http://here", "t")
    assert place_of(environ=environ) == Place("https://far", "far")
    own = Place("http://127.0.0.1:7", "secret", socket=tmp_path / "run" / "gateway.sock")
    assert place_of(folder=tmp_path, environ=environ) == own
    assert place_of(environ={"STRETTO_STATE_FOLDER": str(tmp_path)}) == own
    with pytest.raises(NotRunning, match=r"stretto up.*connect\(url="):
        place_of(folder=tmp_path / "none", environ=environ)
    assert issubclass(NotRunning, ClientError)


@pytest.mark.parametrize(
    "url", ["http://far:7", "https://127.0.0.1:7", "http://127.0.0.1:8", "http://127.0.0.1.far:7", "http://127.0.0.1:x"]
)
def test_a_token_does_not_go_to_a_gateway_that_it_was_not_made_for(tmp_path: Path, url: str) -> None:
    folder = folder_of_a_gateway(tmp_path)
    assert place_of(url, folder=folder, environ={}) == Place(url)
    assert place_of(environ={"STRETTO_CLI_URL": url, "STRETTO_STATE_FOLDER": str(folder)}) == Place(url)
    assert place_of(url, environ={"STRETTO_CLI_URL": "https://mine", "STRETTO_CLI_TOKEN": "far"}) == Place(url)
    assert place_of(url, folder=tmp_path / "none", environ={}) == Place(url)


@pytest.mark.parametrize("url", ["http://127.0.0.1:7", "http://127.0.0.1:7/", "HTTP://127.0.0.1:7"])
def test_a_token_goes_to_its_own_gateway(tmp_path: Path, url: str) -> None:
    folder = folder_of_a_gateway(tmp_path)
    assert place_of(url, folder=folder, environ={}).token == "secret"
    assert place_of(url, environ={"STRETTO_CLI_URL": "http://127.0.0.1:7", "STRETTO_CLI_TOKEN": "far"}).token == "far"
    assert place_of(url, environ={"STRETTO_CLI_TOKEN": "far"}).token == "far"  # whoever sets it alone means it for any
    assert place_of(url, "t", folder=folder, environ={"STRETTO_CLI_TOKEN": "far"}).token == "t"


def folder_of_a_gateway(folder: Path) -> Path:
    (folder / "run").mkdir()
    (folder / "run" / "gateway.json").write_text('{"host": "127.0.0.1", "port": 7}')
    (folder / "gateway.token").write_text("secret\n")
    at_path(folder / "run" / "gateway.sock").close()
    return folder


def test_a_job_has_ended_where_the_wire_says_so() -> None:
    assert set(ENDED_STATES) == OVER
