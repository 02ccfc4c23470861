"""Teams: a job belongs to its submitter's team, whose quota it needs and whose members read it."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from nats.aio.msg import Msg
from stretto_gateway.access.buckets import Buckets
from stretto_gateway.access.callers import Access, TokenFile
from stretto_gateway.http.app import routed
from stretto_gateway.service import Gateway
from stretto_gateway.settings import GatewaySettings

from ..gateway_process import Running, installed
from ..rest_documents import problem, spec
from ..token_holders import client, given

QUOTAS = {"small": {"jobs": 2, "priority_max": 2}, "*": {"priority_max": 50}}
Teams = tuple[Running, dict[str, str]]


@pytest.fixture(scope="module")
def teams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Teams]:
    """A gateway with callers of two teams."""
    folder = tmp_path_factory.mktemp("teams")
    tokens = {"ada": given(folder, "ada", "submitter", team="ads")}
    tokens |= {
        "eve": given(folder, "eve", "viewer", team="ads"),
        "sam": given(folder, "sam", "submitter", team="small"),
    }
    tokens |= {"bob": given(folder, "bob", "submitter", team="feed")}
    tokens |= {"watcher": given(folder, "watcher", "observer")}
    tokens |= {"root": given(folder, "root", "admin")}
    with installed(folder, {"STRETTO_TEAMS_QUOTAS": json.dumps(QUOTAS)}) as running:
        yield running, tokens


def submitted(teams: Teams, who: str, headers: dict[str, str] | None = None) -> str:
    """Submit a job; return its name."""
    document = spec()
    with client(teams[0], teams[1][who]) as caller:
        assert caller.post("/jobs", json=document, headers=headers or {}).status_code == 201
    return document["name"]


def test_a_job_has_the_team_of_its_submitter(teams: Teams) -> None:
    jobs = {
        "ads": submitted(teams, "ada", {"X-Stretto-Team": "feed"}),
        "feed": submitted(teams, "root", {"X-Stretto-Team": "feed"}),
        "default": submitted(teams, "root"),
    }
    with client(teams[0], teams[1]["root"]) as root:
        for team, job in jobs.items():
            assert root.get(f"/jobs/{job}").json()["team"] == team
        assert jobs.items() <= {each["team"]: each["name"] for each in root.get("/jobs").json()}.items()
        refused = problem(root.post("/jobs", json=spec(), headers={"X-Stretto-Team": "Ads Ltd"}))
        assert (refused["status"], refused["field"]) == (400, "X-Stretto-Team")


def test_live_jobs_and_priority_are_bounded_by_the_teams_quota(teams: Teams) -> None:
    with client(teams[0], teams[1]["sam"]) as sam:
        above = problem(sam.post("/jobs", json=spec() | {"priority": 2.5}))
        assert (above["status"], above["field"], above["value"]) == (422, "priority", "2.5")
        assert "at most 2, the ceiling of the team small (STRETTO_TEAMS_QUOTAS)" in above["remedy"]
        documents = [spec() | {"priority": 2.0} for _ in range(6)]
        with ThreadPoolExecutor(len(documents)) as threads:
            answers = list(threads.map(lambda each: sam.post("/jobs", json=each), documents))
        assert sorted(each.status_code for each in answers) == [201, 201, 409, 409, 409, 409]
        refused = next(problem(each) for each in answers if each.status_code == 409)
        assert refused["type"].endswith("quota-used")
        assert (refused["field"], refused["value"]) == ("team", "small")
        assert refused["detail"] == "the team small has 2 of its 2 live jobs"
        assert "STRETTO_TEAMS_QUOTAS" in refused["remedy"]
        accepted = [each.json()["job"] for each in answers if each.status_code == 201]
        repeated = next(each for each in documents if each["name"] == accepted[0])
        assert sam.post("/jobs", json=repeated).status_code == 200, "a known job is not a new one"
        assert sam.delete(f"/jobs/{accepted[0]}").status_code == 202
        assert sam.post("/jobs", json=spec()).status_code == 201
    with client(teams[0], teams[1]["bob"]) as bob:
        assert bob.post("/jobs", json=spec() | {"priority": 51.0}).status_code == 422
        assert bob.post("/jobs", json=spec() | {"priority": 50.0}).status_code == 201


def routes() -> list[tuple[str, str]]:
    """Return method and path of every route of the gateway."""
    access = Access(lambda: "own", TokenFile(Path("none")), None, Buckets(0, 1), time.monotonic)
    gateway = Gateway(cast(Any, None), GatewaySettings(), time.time)
    app = routed(gateway, access, cast(Any, None))

    def flat(candidates: Iterable[Any]) -> Iterator[tuple[str, str]]:
        for each in candidates:
            if hasattr(each, "effective_candidates"):  # an included router
                yield from flat(each.effective_candidates())
            else:
                yield from ((method, each.path) for method in each.methods - {"HEAD"})

    return sorted(flat(app.routes))


SAY_NOTHING = {
    *("/", "/problems", "/problems/{kind}", "/console", "/console/{path:path}", "/console/assets/{name}"),
    *("/console/docs", "/console/docs/{path:path}"),
    *("/healthz", "/readyz", "/metrics", "/openapi.json", "/asyncapi.yaml", "/api/v1/login", "/api/v1/me"),
    *("/api/v1/schema/job", "/api/v1/schema/parts", "/api/v1/schema/events/{name}"),
}
"""Routes that answer the same to everybody, and name no job."""
FILTERED = {
    "/api/v1/jobs": True,
    "/api/v1/events": True,
    "/api/v1/events/newest": True,
    "/api/v1/history": False,
    "/api/v1/status": False,
    "/api/v1/cluster": False,
    "/api/v1/alerts": False,
}
"""Routes that answer about the jobs of readable teams; True: the job of this test must be there for its readers. The
cluster has jobs in test_inquiries.py only."""
ADMINS = {"/api/v1/audit-log", "/api/v1/audit-log/newest", "/api/v1/jobs/{job}/journal"}
"""Routes that answer about all teams, to admins only. A journal has what concerns other jobs of its partition, too."""
SUBMIT = {("POST", "/api/v1/jobs"), ("POST", "/api/v1/jobs/preview")}


def test_every_route_is_closed_to_other_teams(teams: Teams) -> None:
    """Method: each route of the app; one without a rule here fails. A path with a job answers about another team's job
    as about none; other routes never name it."""
    running, tokens = teams
    job, unknown = submitted(teams, "ada"), f"none-{uuid.uuid4().hex[:12]}"

    def asked(who: str, method: str, path: str, name: str = job) -> httpx.Response:
        told = {"job": name, "kind": "no-such-job", "pod": "worker-0", "name": "no-such-event", "path": "jobs"}
        url = running.url + path.replace(":path}", "}").format(**told)
        document = spec() | {"name": job} if (method, path) in SUBMIT else None
        with client(running, tokens[who]) as caller:
            return caller.request(
                method, url, params={"follow": False} if path.endswith("/events") else {}, json=document
            )

    every = routes()
    assert len(every) > 40
    for method, path in every:
        route = f"{method} {path}"
        everybody = ("bob", "eve", "ada", "watcher", "root")
        if "{job}" in path:
            foreign, none = asked("bob", method, path), asked("bob", method, path, unknown)
            assert (foreign.status_code, none.status_code) == (404, 404), route
            one, other = problem(foreign), problem(none)
            alike = ("type", "title", "detail", "instance", "field", "value")  # a remedy may name jobs of a like name
            assert [one[name] for name in alike] == [other[name].replace(unknown, job) for name in alike], route
            assert "ads" not in foreign.text, route
            assert asked("ada", method, path).status_code != 404, route
            assert method != "GET" or asked("eve", method, path).status_code != 404, route
            if path in ADMINS:
                refused = [asked(who, method, path).status_code == 403 for who in everybody[1:]]
                assert refused == [True, True, True, False], route
        elif (method, path) in SUBMIT:
            answer = asked("bob", method, path)
            taken = answer.json()["findings"][0] if "preview" in path else problem(answer)
            assert (taken["status"], taken["detail"]) == (409, f"another team has, or had, a job called {job}"), route
        else:
            assert method == "GET", route
            answers = [asked(who, method, path) for who in everybody]
            if path in ADMINS:
                assert [each.status_code for each in answers] == [403, 403, 403, 403, 200], route
                continue
            assert path in SAY_NOTHING | FILTERED.keys(), f"say here what the new route shows to whom: {route}"
            readers = FILTERED.get(path, False)
            assert [job in each.text for each in answers] == [False, *[readers] * 4], route


async def test_the_log_of_a_pod_is_read_part_by_part_until_its_lines_are_there(teams: Teams) -> None:
    """Method: an actuator that has a log of 30 parts, and counts how many are asked for."""
    running, tokens = teams
    job = await asyncio.to_thread(submitted, teams, "ada")
    actuator = await running.operator()
    text = "".join(f"line {number}\n" for number in range(3000))
    part, asked_for = 1000, [0]

    def tell(asked: Msg) -> None:
        request = json.loads(asked.data)
        assert request["whole"]
        end = len(text) - request["skip"]
        asked_for[0] += 1
        body = {"job": job, "answer": "ok", "part": text[max(end - part, 0) : end], "more": end > part}
        actuator.bus.offer(asked.reply, json.dumps(body).encode())

    await actuator.bus.subscribe(f"rpc.v1.actuator.get-pod-log.*.{job}", tell)
    await actuator.bus.flush()

    def asked(lines: int) -> list[str]:
        with client(running, tokens["ada"]) as caller:
            answer = caller.get(f"/jobs/{job}/pods/worker-0/log", params={"lines": lines})
            return answer.json()["text"].splitlines()

    try:
        assert await asyncio.to_thread(asked, 5) == [f"line {number}" for number in range(2995, 3000)]
        assert asked_for == [1]
        assert await asyncio.to_thread(asked, 100_000) == text.splitlines()
    finally:
        await actuator.close()


def test_a_trace_shows_no_span_of_another_job(teams: Teams) -> None:
    """A submitter chooses the trace of a job: naming another team's shows nothing of that team's jobs."""
    running, tokens = teams
    traces = f"{uuid.uuid4().hex}"
    head = {"traceparent": f"00-{traces}-00f067aa0ba902b7-01"}
    mine, other = spec(), spec()
    with client(running, tokens["ada"]) as ada, client(running, tokens["bob"]) as bob:
        ada.post("/jobs", json=other, headers=head).raise_for_status()
        bob.post("/jobs", json=mine, headers=head).raise_for_status()
        found = bob.get(f"/jobs/{mine['name']}/trace").json()
        assert found["trace_id"] == traces
        assert [(event["service"], event["event"]) for event in found["events"]] == [("gateway", "job-submitted")]
        assert [span["name"] for span in found["spans"]] == ["publish job-submitted"]
        assert {span["attributes"]["stretto.job"] for span in found["spans"]} == {mine["name"]}
        assert bob.get(f"/jobs/{other['name']}/trace").status_code == 404


async def test_the_last_lines_of_a_pod_are_for_readers_of_its_job(teams: Teams) -> None:
    """Goal: readers of a job, and nobody else, read what its pods said. Method: an actuator that answers, two teams."""
    running, tokens = teams
    job = await asyncio.to_thread(submitted, teams, "ada")
    actuator = await running.operator()

    def tell(asked: Msg) -> None:
        pod = json.loads(asked.data)["pod"]
        known = {"answer": "ok", "text": "column 7"} if pod == "worker-0" else {"answer": "unknown"}
        actuator.bus.offer(asked.reply, json.dumps({"job": job, **known}).encode())

    await actuator.bus.subscribe(f"rpc.v1.actuator.get-pod-log.*.{job}", tell)
    await actuator.bus.flush()

    def asked(who: str, pod: str) -> httpx.Response:
        with client(running, tokens[who]) as caller:
            return caller.get(f"/jobs/{job}/pods/{pod}/log")

    try:
        answers = [await asyncio.to_thread(asked, who, "worker-0") for who in ("ada", "eve", "bob")]
        assert [answer.status_code for answer in answers] == [200, 200, 404]
        assert answers[0].json() == {"job": job, "pod": "worker-0", "text": "column 7", "is_short_end": True}
        with client(running, tokens["ada"]) as ada:
            held = {"If-None-Match": answers[0].headers["etag"]}
            again = await asyncio.to_thread(ada.get, f"/jobs/{job}/pods/worker-0/log", headers=held)
            assert (again.status_code, again.content) == (304, b"")
        assert problem(await asyncio.to_thread(asked, "ada", "worker-1"))["type"].endswith(":no-log")
        assert (await asyncio.to_thread(asked, "ada", "Worker-1")).status_code == 400
    finally:
        await actuator.close()


def test_an_event_stream_has_the_readers_team_only_and_resumes(teams: Teams) -> None:
    running, tokens = teams
    with (
        client(running, tokens["bob"]) as bob,
        bob.stream("GET", "/events", params={"event": "job-submitted"}) as lines,
    ):
        foreign, own = submitted(teams, "ada"), submitted(teams, "bob")
        seen = list[str]()
        for line in lines.iter_lines():
            if line.startswith("data: "):
                seen.append(json.loads(line[6:])["job"])
                if seen[-1] == own:
                    break
        assert foreign not in seen
    with client(running, tokens["watcher"]) as watcher:
        text = watcher.get("/events", params={"follow": False}).text
        assert foreign in text
        assert own in text


def test_an_observer_reads_everything_and_changes_nothing(teams: Teams) -> None:
    jobs = [submitted(teams, "ada"), submitted(teams, "bob")]
    with client(teams[0], teams[1]["watcher"]) as watcher:
        assert set(jobs) <= {each["name"] for each in watcher.get("/jobs").json()}
        assert [watcher.get(f"/jobs/{job}").status_code for job in jobs] == [200, 200]
        for answer in (watcher.post("/jobs", json=spec()), watcher.delete(f"/jobs/{jobs[0]}")):
            assert problem(answer)["type"].endswith("forbidden")
