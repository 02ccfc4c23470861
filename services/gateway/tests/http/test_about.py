"""The caller, ways to become one, and the state of the gateway."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from stretto_gateway.access.callers import Access, TokenFile
from stretto_gateway.http.routes.about import login_routes
from stretto_gateway.settings import GatewaySettings

from ..gateway_process import Running, installed
from ..rest_documents import problem, spec
from ..token_holders import client, given


def test_a_caller_learns_what_its_token_is(tmp_path: Path) -> None:
    end = datetime(2999, 1, 1, tzinfo=UTC)
    token = given(tmp_path, "ci", "submitter", end, team="ads")
    with (
        installed(tmp_path, {"STRETTO_GATEWAY_INSTALLATION": "north"}) as running,
        client(running, token) as ci,
        running.http() as root,
    ):
        found, own = ci.get("/me").json(), root.get("/me").json()
        assert problem(httpx.get(f"{running.url}/api/v1/me", trust_env=False, timeout=60))["status"] == 401
    version = found.pop("version")
    assert version.count(".") == 2
    assert found == {
        "name": "ci", "role": "submitter", "team": "ads", "reads_all_teams": False, "expires_at_s": end.timestamp(),
        "installation": "north",
    }  # fmt: skip
    assert (own["name"], own["role"], own["reads_all_teams"], own["expires_at_s"]) == ("admin", "admin", True, None)


def test_everybody_learns_how_to_log_in(gateway: Running) -> None:
    found = httpx.get(f"{gateway.url}/api/v1/login", trust_env=False, timeout=60)
    assert (found.status_code, found.json()) == (200, {"ways": ["token"], "oidc": None})


@pytest.mark.parametrize(
    ("token", "settings", "ways", "client_id"),
    [
        ("", {}, ["none"], None),
        ("own", {"oidc_issuer": "https://id.example", "oidc_audience": "stretto"}, ["token", "oidc"], None),
        (
            "own",
            {"oidc_issuer": "https://id.example", "oidc_audience": "stretto", "oidc_client_id": "console"},
            ["token", "oidc"],
            "console",
        ),
    ],
)
async def test_the_ways_in_are_those_of_the_settings(
    tmp_path: Path, token: str, settings: dict[str, str], ways: list[str], client_id: str | None
) -> None:
    from fastapi import FastAPI

    access = Access(lambda: token, TokenFile(tmp_path / "none"), None, None, lambda: 0.0)  # type: ignore[arg-type]
    app = FastAPI()
    app.include_router(login_routes(access, GatewaySettings.model_validate(settings)))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as http:
        found = json.loads((await http.get("/login")).text)
    assert found["ways"] == ways
    assert (found["oidc"] or {"client_id": None})["client_id"] == client_id
    if client_id:
        assert found["oidc"] == {
            "issuer": "https://id.example", "audience": "stretto", "client_id": "console", "scopes": "openid"
        }  # fmt: skip


def test_the_state_counts_jobs_by_their_state(gateway: Running) -> None:
    document = spec()
    with gateway.http() as http:
        before = http.get("/status").json()
        http.post("/jobs", json=document)
        after = http.get("/status").json()
        http.delete(f"/jobs/{document['name']}")
        ended = http.get("/status").json()
    assert after["jobs"] == before["jobs"] + 1 == sum(after["jobs_by_status"].values())
    assert ended["jobs_by_status"]["cancelled"] == after["jobs_by_status"].get("cancelled", 0) + 1
