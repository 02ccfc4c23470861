"""A job may ask for what the installation lists, and start from checkpoints of its submitter alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stretto_gateway.problems import Problem
from stretto_gateway.requests.checks import check_allowed, owner_of
from stretto_messages.checkpoints import CheckpointFlushed
from stretto_messages.values import CheckpointRef
from stretto_wire import JobSpec
from stretto_wire.policy.allowed import Allowed
from stretto_wire.rest.views import CheckpointView, JobView

from ..gateway_process import Running, installed
from ..rest_documents import problem, spec

STORE = "s3://bucket/store"


def job(name: str = "mine", **checkpoint: Any) -> JobSpec:
    return JobSpec.parse({**spec(name), "checkpoint": checkpoint})


def checkpoint_of(job: str, store: str = STORE) -> CheckpointRef:
    name = f"{job}-000001"
    return CheckpointRef(id=name, url=f"{store}/{job}/{name}/manifest.json", samples=1, size_bytes=1, ps=1)


def view(name: str, by: str, *checkpoints: CheckpointRef) -> JobView:
    shown = [CheckpointView(each.id, "stored", 0.0, each) for each in checkpoints]
    return JobView(name, "finished", job(name), 0.0, by, checkpoints=shown)


def refused(restore_from: str, by: str, *jobs: JobView, allowed: Allowed | None = None) -> str:
    """Return the remedy of the refusal; empty: the job may start from there."""
    found: list[Problem] = []
    try:
        check_allowed(job(restore_from=restore_from), by, allowed or Allowed(), {each.name: each for each in jobs})
    except Problem as problem:
        found.append(problem)
    seen = [(each.status, each.kind, each.field) for each in found]
    assert seen in ([], [(422, "not-allowed", "checkpoint.restore_from")])
    return found[0].remedy if found else ""


ADAS, BOBS = view("ads", "ada", checkpoint_of("ads")), view("bids", "bob", checkpoint_of("bids"))


class TestAStart:
    def test_is_from_jobs_of_the_same_submitter(self) -> None:
        assert refused(checkpoint_of("ads").url, "ada", ADAS, BOBS) == ""
        assert refused("S3://bucket//store/ads/ads-000001/manifest.json", "ada", ADAS, BOBS) == ""
        assert "STRETTO_ALLOWED_RESTORES" in refused(checkpoint_of("bids").url, "ada", ADAS, BOBS)

    def test_tells_nothing_of_a_place_that_is_not_the_submitters(self) -> None:
        """The answer about another user's checkpoint is that about one which does not exist."""
        absent = checkpoint_of("nobody").url
        assert refused(checkpoint_of("bids").url, "ada", ADAS, BOBS) == refused(absent, "ada", ADAS, BOBS)

    def test_has_a_url_of_one_spelling(self) -> None:
        for url in ("", "s3://ada:key@bucket/x/manifest.json", "s3://bucket/%61ds/manifest.json"):
            assert "plain URL" in refused(url, "ada")

    def test_is_not_made_ones_own_by_having_started_there(self) -> None:
        """A job's view shows also the checkpoint that it came from; the next job needs the right to it again."""
        came_from = view("heir", "ada", checkpoint_of("bids"))
        assert refused(checkpoint_of("bids").url, "ada", came_from)

    def test_is_anybodys_from_a_shared_folder(self) -> None:
        shared = Allowed(restores=("s3://bucket/shared",))
        assert refused("s3://bucket/shared/best/1/manifest.json", "ada", allowed=shared) == ""
        assert refused("s3://bucket/shared-not/x/manifest.json", "ada", allowed=shared)
        assert refused("s3://bucket/shared/../store/x/manifest.json", "ada", allowed=shared)

    def test_is_that_of_every_object_of_the_namespace(self) -> None:
        """Whoever may create TrainingJobs in a namespace may read and delete them all."""
        theirs = view("ads", "trainingjob/team-a/ads", checkpoint_of("ads"))
        assert refused(checkpoint_of("ads").url, "trainingjob/team-a/other", theirs) == ""
        assert refused(checkpoint_of("ads").url, "trainingjob/team-b/other", theirs)
        assert owner_of("oidc:a/b") == "oidc:a/b"


@pytest.mark.parametrize(
    ("entry", "by", "allows"),
    [
        ("s3=ada", "ada", True),
        ("s3=ada", "bob", False),
        ("s3=trainingjob/team-a", "trainingjob/team-a/ads", True),
        ("s3=trainingjob/team-a", "trainingjob/team-b/ads", False),
        ("s3", "bob", True),
    ],
)
def test_a_secret_is_for_the_submitter_that_the_list_names(entry: str, by: str, allows: bool) -> None:
    wanted = JobSpec.parse({**spec("mine"), "environment_from": ["s3"]})
    fields: list[str] = []
    try:
        check_allowed(wanted, by, Allowed(secrets=(entry,)), {})
    except Problem as problem:
        fields.append(problem.field)
    assert fields == ([] if allows else ["environment_from.0"])


pieces = st.sampled_from(
    ["store", "ads", "bids", "bids-000001", "ads-000001", "manifest.json", "..", "", "%2e%2e", "."]
)


@given(st.lists(pieces, max_size=8), st.sampled_from(["s3://bucket/", "S3://bucket/", "s3://x@bucket/", "file:///"]))
def test_no_spelling_leads_to_another_users_checkpoint(parts: list[str], begin: str) -> None:
    """Any URL that ada may start from is, in its one spelling, the checkpoint of her own job."""
    url = begin + "/".join(parts)
    if not refused(url, "ada", ADAS, BOBS):
        assert "ads-000001" in url
        assert "bids" not in url


@pytest.fixture(scope="module")
def listing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A gateway with a list of each kind, and its cluster's devices."""
    listed = {"STRETTO_ALLOWED_QUEUES": "team-*", "STRETTO_ALLOWED_VOLUMES": "claim:clicks, claim:models:write=ada"}
    devices = {"STRETTO_EXTENDED_RESOURCES": '{"nvidia.com/gpu": 4}'}
    with installed(tmp_path_factory.mktemp("listing"), listed | devices) as running, running.http() as http:
        yield http


def test_a_gateway_refuses_what_is_not_listed_and_says_which_setting_would_list_it(listing: httpx.Client) -> None:
    wishes: dict[str, Any] = {"kubernetes": {"queue": "team-ads", "priority_class": "system-node-critical"}}
    told = problem(listing.post("/jobs", json=spec(image="evil.example/miner:1", **wishes)))
    assert (told["status"], told["type"]) == (422, "urn:stretto:problem:not-allowed")
    assert [(each["field"], each["value"]) for each in told["errors"]] == [
        ("image", "evil.example/miner:1"),
        ("kubernetes.priority_class", "system-node-critical"),
    ]
    assert "STRETTO_ALLOWED_IMAGES" in told["remedy"]
    assert listing.post("/jobs", json=spec(kubernetes={"queue": "team-ads"})).status_code == 201


def test_a_gateway_refuses_devices_that_the_cluster_does_not_have(listing: httpx.Client) -> None:
    """A resource that is not there at all, and more units than there are for the job's fewest pods."""

    def answered(name: str, count: int, least: int) -> httpx.Response:
        workers = {"count": {"min": least}, "extended": {name: count}}
        return listing.post("/jobs", json=spec(resources={"workers": workers}))

    for name, count, least, remedy in (
        ("example.com/fpga", 1, 1, "the cluster has none, and the fewest pods of the job need 1: lower it, "),
        ("nvidia.com/gpu", 2, 3, "the cluster has 4, and the fewest pods of the job need 6: lower it, "),
    ):
        told = problem(answered(name, count, least))
        assert (told["status"], told["type"]) == (422, "urn:stretto:problem:beyond-cluster")
        assert (told["field"], told["value"]) == (f"resources.workers.extended.{name}", str(count))
        assert told["remedy"].startswith(remedy)
        assert told["remedy"].endswith("STRETTO_EXTENDED_RESOURCES")
    assert answered("nvidia.com/gpu", 2, 2).status_code == 201


def test_a_gateway_gives_the_volumes_of_its_list_to_those_that_it_names(listing: httpx.Client) -> None:
    """A volume to read for all, one to write for ada alone."""
    clicks = {"name": "clicks", "path": "/data", "claim": "clicks"}
    models = {"name": "models", "path": "models", "claim": "models", "writable": True}

    def answered(by: str, *volumes: dict[str, Any]) -> httpx.Response:
        return listing.post("/jobs", json=spec(volumes=list(volumes)), headers={"X-Stretto-User": by})

    assert answered("bob", clicks).status_code == answered("ada", clicks, models).status_code == 201
    for volumes, value in (((clicks, models), "models"), ((clicks | {"writable": True},), "clicks")):
        told = problem(answered("bob", *volumes))
        assert (told["status"], told["value"]) == (422, f"claim:{value}:write")
        assert told["field"].endswith(".claim")
        assert "STRETTO_ALLOWED_VOLUMES" in told["remedy"]


def test_a_job_starts_from_a_checkpoint_that_the_stream_says_is_its_submitters(gateway: Running) -> None:
    """A job of ada is checkpointed; ada may start another job from it, bob may not, and a repeated one stays."""
    with gateway.http() as http:
        ada, bob = {"X-Stretto-User": "ada"}, {"X-Stretto-User": "bob"}
        first = spec()
        assert http.post("/jobs", json=first, headers=ada).status_code == 201
        checkpoint = checkpoint_of(first["name"])
        gateway.publish(CheckpointFlushed(job=first["name"], checkpoint=checkpoint, took_s=1.0))
        url = checkpoint.url
        heir = spec(checkpoint={"restore_from": url})
        refusal = problem(http.post("/jobs", json=heir, headers=bob))
        assert (refusal["status"], refusal["field"]) == (422, "checkpoint.restore_from")
        for _ in range(500):
            if http.get(f"/jobs/{first['name']}").json()["checkpoints"]:
                break
        assert http.post("/jobs", json=heir, headers=ada).status_code == 201
        assert http.post("/jobs", json=heir, headers=bob).status_code == 200, "it is there: nothing is submitted"


@pytest.mark.parametrize(
    ("wishes", "field"),
    [
        ({"environment": {"DB_PASSWORD": "canary-of-a-job"}}, "environment.DB_PASSWORD"),
        ({"environment": {"AWS_SECRET_ACCESS_KEY": "canary-of-a-job"}}, "environment.AWS_SECRET_ACCESS_KEY"),
        ({"files": {"conf/db.yaml": "password: canary-of-a-job"}}, "files.conf/db.yaml"),
    ],
)
def test_a_key_in_a_specification_is_refused_and_not_repeated(
    gateway: Running, wishes: dict[str, Any], field: str
) -> None:
    """The answer, the audit log and the gateway's log name the variable or the file, and never its value."""
    with gateway.http() as http:
        answer = http.post("/jobs", json=spec(**wishes))
        told = problem(answer)
        assert (told["status"], told["field"]) == (422, field)
        assert "environment_from" in told["remedy"]
        assert "canary" not in answer.text
        assert "canary" not in http.get("/events", params={"follow": False}).text
    assert "canary" not in (gateway.folder / "gateway.log").read_text()
