"""Access and rate limits: viewers read, submitters change their own jobs, admins change everything."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from stretto_gateway.access.buckets import Buckets
from stretto_gateway.access.callers import OWN, Access, Caller, TokenFile
from stretto_gateway.problems import Problem
from stretto_runtime.access.tokens import FILE, digest_of, issue, write_tokens
from stretto_runtime.process.faults import SettingsFault

from ..gateway_process import Running, installed
from ..rest_documents import problem, spec
from ..token_holders import NOW, client, given

ADDRESS = "192.0.2.1"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def access(folder: Path, clock: Clock, token: str = "own", per_s: float = 0) -> Access:
    return Access(lambda: token, TokenFile(folder / FILE), None, Buckets(per_s, 3), clock)


async def refused(access: Access, bearer: str | None, address: str = ADDRESS) -> Problem:
    with pytest.raises(Problem) as caught:
        await access.admit(bearer, address)
    return caught.value


async def test_a_token_is_known_by_its_digest_alone(tmp_path: Path, clock: Clock) -> None:
    token = given(tmp_path, "ci", "submitter")
    assert token not in (tmp_path / FILE).read_text()
    assert digest_of(token) in (tmp_path / FILE).read_text()
    door = access(tmp_path, clock)
    assert await door.admit(token, ADDRESS) == Caller("ci", "submitter")
    assert await door.admit("own", ADDRESS) == OWN
    for wrong in (None, "", token + "x", digest_of(token), "a.b.c"):
        assert (await refused(door, wrong)).status == 401


async def test_what_is_created_and_revoked_holds_at_once_without_a_restart(tmp_path: Path, clock: Clock) -> None:
    door = access(tmp_path, clock)
    token = given(tmp_path, "late", "viewer")
    assert await door.admit(token, ADDRESS) == Caller("late", "viewer")
    (tmp_path / FILE).write_text("{")  # half a file changes nothing
    assert await door.admit(token, ADDRESS) == Caller("late", "viewer")
    write_tokens(tmp_path / FILE, ())
    assert (await refused(door, token)).status == 401


async def test_an_expired_token_says_so(tmp_path: Path, clock: Clock) -> None:
    token = given(tmp_path, "old", "admin", datetime.now(UTC) - timedelta(seconds=1))
    told = await refused(access(tmp_path, clock), token)
    assert (told.status, told.detail.startswith("the token old expired at")) == (401, True)


async def test_who_guesses_is_slowed_down_and_nobody_else(tmp_path: Path, clock: Clock) -> None:
    door = access(tmp_path, clock)
    answers = [(await refused(door, f"guess-{number}")).status for number in range(30)]
    assert answers == [401] * 20 + [429] * 10
    assert await door.admit("own", ADDRESS) == OWN  # by the same proxy, perhaps
    assert (await refused(door, "guess", "192.0.2.2")).status == 401
    clock.now += float((await refused(door, "guess")).headers["Retry-After"])
    assert (await refused(door, "guess")).status == 401


async def test_each_caller_has_a_rate_of_its_own(tmp_path: Path, clock: Clock) -> None:
    token = given(tmp_path, "ci", "viewer")
    door = access(tmp_path, clock, per_s=1)
    for _ in range(3):
        await door.admit(token, ADDRESS)
    assert (await refused(door, token)).headers["Retry-After"] == "1"
    await door.admit("own", ADDRESS)
    clock.now += 1
    await door.admit(token, ADDRESS)


async def test_an_open_gateway_counts_addresses(tmp_path: Path, clock: Clock) -> None:
    door = access(tmp_path, clock, token="", per_s=1)
    for _ in range(3):
        assert (await door.admit(None, ADDRESS)).role == "admin"
    assert (await refused(door, None)).status == 429
    await door.admit(None, "192.0.2.2")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "document"),
        ('[{"name": "a", "role": "root", "sha256": "0", "created_at": "2026-01-01T00:00:00Z"}]', "0.role"),
        ("[" + ", ".join([issue("a", "viewer", NOW)[1].model_dump_json()] * 2) + "]", "a is there twice"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_the_place(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(SettingsFault, match=words):
        TokenFile(tmp_path / FILE)


@pytest.mark.parametrize("name", ["", "Ada", "a b", "a" * 64, "oidc:ada", "admin", "anonymous"])
def test_a_name_that_could_be_taken_for_another_is_refused(name: str) -> None:
    with pytest.raises(SettingsFault, match="is refused"):
        issue(name, "viewer", NOW)


# a real gateway --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def roles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, dict[str, str]]]:
    """A gateway, and a token of each name in the file that it reads."""
    folder = tmp_path_factory.mktemp("roles")
    tokens = {"ada": given(folder, "ada", "submitter"), "bob": given(folder, "bob", "submitter")}
    tokens |= {"eve": given(folder, "eve", "viewer"), "root": given(folder, "root", "admin")}
    with installed(folder) as running:
        yield running, tokens


def told_of(running: Running, **wanted: Any) -> list[dict[str, Any]]:
    """The changes in the audit log with these fields."""
    with running.http() as http:
        text = http.get("/audit-log").text
    events = [json.loads(line)["change"] for line in text.splitlines()]
    return [event for event in events if all(event[name] == value for name, value in wanted.items())]


def test_each_role_does_what_it_may_and_every_change_is_told(roles: tuple[Running, dict[str, str]]) -> None:
    running, tokens = roles
    document = spec()
    job = document["name"]
    with client(running, tokens["eve"]) as eve, client(running, tokens["ada"]) as ada:
        assert problem(eve.post("/jobs", json=document))["type"].endswith("forbidden")
        assert ada.post("/jobs", json=document).status_code == 201
        assert eve.get(f"/jobs/{job}").json()["submitted_by"] == "ada"
        assert problem(eve.delete(f"/jobs/{job}"))["status"] == 403
    with client(running, tokens["bob"]) as bob:
        assert bob.get(f"/jobs/{job}").status_code == 200
        for answer in (
            bob.delete(f"/jobs/{job}"),
            bob.post(f"/jobs/{job}/plan", json={"workers": 2}),
            bob.post(f"/jobs/{job}/data", json={"close": True}),
            bob.post(f"/jobs/{job}/checkpoints"),
        ):
            assert problem(answer)["type"].endswith("not-yours")
            assert "submitted by ada" in answer.json()["detail"]
        assert problem(bob.delete("/jobs/no-such-job"))["status"] == 404
    with client(running, tokens["ada"]) as ada:
        assert ada.delete(f"/jobs/{job}").json()["status"] == "cancelled"
    changes = [(e["actor"], e["role"], e["action"], e["outcome"], e["problem"]) for e in told_of(running, job=job)]
    assert changes == [
        ("ada", "submitter", "submit", "done", ""),
        ("eve", "viewer", "cancel", "refused", "forbidden"),
        ("bob", "submitter", "cancel", "refused", "not-yours"),
        ("bob", "submitter", "scale", "refused", "not-yours"),
        ("bob", "submitter", "data", "refused", "not-yours"),
        ("bob", "submitter", "checkpoint", "refused", "not-yours"),
        ("ada", "submitter", "cancel", "done", ""),
    ]
    (unread,) = told_of(running, actor="eve", action="submit")
    assert (unread["job"], unread["status"], unread["address"]) == ("unknown", 403, "127.0.0.1")
    assert told_of(running, job="no-such-job", problem="no-such-job")


def test_an_admin_changes_any_job_and_submits_for_others(roles: tuple[Running, dict[str, str]]) -> None:
    running, tokens = roles
    document, given_away = spec(), spec()
    with client(running, tokens["ada"]) as ada:
        ada.post("/jobs", json=document, headers={"X-Stretto-User": "bob"})
        assert ada.get(f"/jobs/{document['name']}").json()["submitted_by"] == "ada"
    with client(running, tokens["root"]) as root:
        assert root.delete(f"/jobs/{document['name']}").json()["status"] == "cancelled"
        root.post("/jobs", json=given_away, headers={"X-Stretto-User": "bob"})
    with client(running, tokens["bob"]) as bob:
        assert bob.delete(f"/jobs/{given_away['name']}").status_code == 202


def test_refusals_beyond_some_are_counted_and_not_told(roles: tuple[Running, dict[str, str]]) -> None:
    running, tokens = roles
    name = f"job-{uuid.uuid4().hex[:12]}"
    with client(running, tokens["eve"]) as eve:
        for _ in range(60):
            assert eve.delete(f"/jobs/{name}").status_code == 403
    with client(running, tokens["root"]) as root:
        root.post("/jobs", json=spec())
    told = told_of(running, actor="eve", job=name)
    assert 10 <= len(told) < 40
    assert len(told) + sum(event["suppressed_count"] for event in told_of(running)) == 60


def test_nobody_is_told_of_who_is_not_let_in_without_end(roles: tuple[Running, dict[str, str]]) -> None:
    running, _ = roles
    with client(running, "wrong") as stranger:
        answers = [stranger.post("/jobs", json=spec()).status_code for _ in range(40)]
    assert answers[0] == 401
    assert set(answers) == {401, 429}
    assert 1 <= len(told_of(running, actor="anonymous")) < 30


def test_answers_say_to_browsers_that_they_are_no_pages(roles: tuple[Running, dict[str, str]]) -> None:
    running, tokens = roles
    with client(running, tokens["root"]) as root:
        for answer in (root.get("/jobs"), root.get("/nowhere"), root.post("/jobs", content=b" " * 200_000)):
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            assert answer.headers["cache-control"] == "no-store"
            assert "server" not in answer.headers
            assert "access-control-allow-origin" not in answer.headers
        preflight = {"Origin": "https://a.example", "Access-Control-Request-Method": "GET"}
        assert "access-control-allow-origin" not in root.options("/jobs", headers=preflight).headers
