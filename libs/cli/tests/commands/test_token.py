"""Tokens are shown once, kept as digests, and taken back."""

from __future__ import annotations

import json
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from installed_gateway import Installed
from stretto_cli.commands.installation.token import create
from stretto_cli.main import app
from stretto_client.documents import Documents
from stretto_client.errors import Refused
from stretto_client.places import Place
from stretto_runtime.access.tokens import FILE, digest_of, read_tokens
from typer.testing import CliRunner

JOB = {"name": "before-the-renewal", "model": {"entry": "m:M"}, "dataset": {"samples": 5}}


def stretto(folder: Path, *arguments: str, status: int = 0) -> str:
    done = CliRunner().invoke(app, ["token", *arguments, "--folder", str(folder)])
    assert done.exit_code == status, done.output
    return done.output


def test_a_token_is_shown_once_and_can_be_taken_back(tmp_path: Path) -> None:
    made = json.loads(stretto(tmp_path, "create", "ci", "--role", "submitter", "--days", "1", "-o", "json"))
    (entry,) = read_tokens(tmp_path / FILE)
    assert entry.sha256 == digest_of(made["token"])
    assert entry.expires_at is not None
    assert (entry.expires_at - entry.created_at).total_seconds() == 86400
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    token = stretto(tmp_path, "create", "eve").strip()
    listed = stretto(tmp_path, "list")
    assert [name in listed for name in ("ci", "eve", "submitter", "viewer", "never")] == [True] * 5
    for secret in (token, made["token"], digest_of(token)):
        assert secret not in listed
    assert token not in (tmp_path / FILE).read_text()
    stretto(tmp_path, "revoke", "ci")
    assert [entry.name for entry in read_tokens(tmp_path / FILE)] == ["eve"]


def test_a_renewed_token_is_the_same_but_for_its_secret(tmp_path: Path) -> None:
    first = json.loads(
        stretto(tmp_path, "create", "ci", "--role", "submitter", "--days", "1", "--team", "ads", "-o", "json")
    )
    stretto(tmp_path, "create", "eve")
    second = json.loads(stretto(tmp_path, "renew", "ci", "-o", "json"))
    assert {key for key in first if first[key] != second[key]} - {"created_at"} == {"token"}
    assert [entry.name for entry in read_tokens(tmp_path / FILE)] == ["ci", "eve"]
    assert read_tokens(tmp_path / FILE)[0].sha256 == digest_of(second["token"])


def test_the_gateways_own_token_is_another_one_at_once(installed: Installed) -> None:
    """Method: an event stream was opened with the old one."""
    url, path = installed.elsewhere()[1], installed.folder / "gateway.token"
    old = path.read_text().strip()
    with Documents(Place(url, old)) as before:
        stream = before.events()
        installed.stretto("submit", "-", input=json.dumps(JOB))
        next(stream)
        done = installed.stretto("token", "renew")
        assert done.exit_code == 0, done.output
        with pytest.raises(Refused, match="not one of this gateway"):
            before.status()
        with pytest.raises(Refused, match="not one of this gateway"):
            list(stream)
    assert (new := path.read_text().strip()) != old
    assert new not in done.output
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert installed.stretto("jobs").exit_code == installed.stretto("console", "--no-browser").exit_code == 0


def test_a_token_has_a_team(tmp_path: Path) -> None:
    stretto(tmp_path, "create", "ci", "--team", "ads")
    stretto(tmp_path, "create", "eve")
    assert [entry.team for entry in read_tokens(tmp_path / FILE)] == ["ads", "default"]
    assert "ads" in stretto(tmp_path, "list")
    assert "team 'Ads Ltd' is refused" in stretto(tmp_path, "create", "bob", "--team", "Ads Ltd", status=2)


def test_tokens_that_are_made_at_once_are_all_kept(tmp_path: Path) -> None:
    names = [f"robot-{number}" for number in range(16)]
    with ThreadPoolExecutor(len(names)) as threads:
        for made in [threads.submit(create, name, file=tmp_path / FILE) for name in names]:
            made.result()
    assert sorted(entry.name for entry in read_tokens(tmp_path / FILE)) == sorted(names)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["create", "eve"], "has a token already"),
        (["create", "Eve!"], "lower-case"),
        (["create", "admin"], "none of admin, anonymous"),
        (["revoke", "bob"], "it has eve"),
        (["renew", "bob"], "it has eve"),
        (["renew"], "gateway.token is missing"),
    ],
)
def test_what_cannot_be_is_a_sentence_and_changes_nothing(tmp_path: Path, arguments: list[str], words: str) -> None:
    stretto(tmp_path, "create", "eve")
    before = (tmp_path / FILE).read_bytes()
    assert words in stretto(tmp_path, *arguments, status=2)
    assert (tmp_path / FILE).read_bytes() == before
