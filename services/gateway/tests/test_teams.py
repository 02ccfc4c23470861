"""Teams: a job belongs to its submitter's team."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .conftest import Running, installed
from .test_callers import client, given
from .test_rest import problem, spec

Teams = tuple[Running, dict[str, str]]


@pytest.fixture(scope="module")
def teams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Teams]:
    """A gateway with callers of two teams."""
    folder = tmp_path_factory.mktemp("teams")
    tokens = {"ada": given(folder, "ada", "submitter", team="ads")}
    tokens |= {"eve": given(folder, "eve", "viewer", team="ads"), "bob": given(folder, "bob", "submitter", team="feed")}
    tokens |= {"root": given(folder, "root", "admin")}
    with installed(folder) as running:
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
