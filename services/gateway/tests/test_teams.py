"""Teams: a job belongs to its submitter's team."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from .conftest import Running, installed
from .test_callers import client, given
from .test_rest import problem, spec

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
    """Goal: only an admin chooses a team. Method: submit with and without the header, read views and the list."""
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
    """Goal: a refusal names field, value and remedy, and ends with a live job. Method: submit too many, end one."""
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
        assert "STRETTO_TEAMS_QUOTAS" in refused["remedy"]
        accepted = [each.json()["job"] for each in answers if each.status_code == 201]
        repeated = next(each for each in documents if each["name"] == accepted[0])
        assert sam.post("/jobs", json=repeated).status_code == 200, "a known job is not a new one"
        assert sam.delete(f"/jobs/{accepted[0]}").status_code == 202
        assert sam.post("/jobs", json=spec()).status_code == 201
    with client(teams[0], teams[1]["bob"]) as bob:
        assert bob.post("/jobs", json=spec() | {"priority": 51.0}).status_code == 422
        assert bob.post("/jobs", json=spec() | {"priority": 50.0}).status_code == 201
