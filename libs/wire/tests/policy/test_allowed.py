"""A job may ask for what is listed, and for nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stretto_wire.jobspec.kubernetes import KubernetesSpec
from stretto_wire.jobspec.spec import JobSpec
from stretto_wire.policy.allowed import Allowed, checked_folders, checked_images

EVERYTHING: dict[str, Any] = {
    "image": "registry.example.com/team/trainer:1",
    "environment_from": ["ads-s3"],
    "checkpoint": {"url": "s3://bucket/ads"},
    "model": {
        "entry": "m:M",
        "code": {"url": "https://git.example.com/ads/1.tar.gz", "sha256": "0" * 64},
        "requirements": ["Light_GBM>=4,<5"],
    },
    "volumes": [{"name": "clicks", "path": "/data", "claim": "clicks"}],
    "kubernetes": {
        "priority_class": "system-node-critical",
        "service_account": "reader",
        "queue": "team-ads",
        "image_pull_secrets": ["pull"],
        "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}],
    },
}
FIELDS = {
    "image": "images",
    "environment_from.0": "secrets",
    "checkpoint.url": "stores",
    "model.code.url": "code",
    "model.requirements.0": "requirements",
    "volumes.0.claim": "volumes",
    "kubernetes.priority_class": "priority_classes",
    "kubernetes.service_account": "service_accounts",
    "kubernetes.queue": "queues",
    "kubernetes.image_pull_secrets.0": "image_pull_secrets",
    "kubernetes.tolerations.0": "tolerations",
}
LISTED = Allowed(
    stores=("s3://bucket/ads",),
    images=("registry.example.com/team/*",),
    priority_classes=("system-node-critical",),
    tolerations=("node-role.kubernetes.io/control-plane",),
    image_pull_secrets=("pull",),
    service_accounts=("reader",),
    queues=("team-*",),
    secrets=("ads-*",),
    volumes=("claim:clicks",),
    code=("https://git.example.com/ads/*",),
    requirements=("light-gbm",),
)


def job(**more: Any) -> JobSpec:
    return JobSpec.parse({"name": "j", "model": {"entry": "m:M"}, "dataset": {"samples": 10}, **more})


def fields(allowed: Allowed, spec: JobSpec, submitter: str | None = None) -> list[str]:
    return [found.field for found in allowed.findings(spec, submitter)]


def test_by_default_a_job_may_name_nothing() -> None:
    """Each field is refused by name and value, and the remedy names the variable that an operator changes."""
    found = {each.field: each for each in Allowed().findings(job(**EVERYTHING))}
    assert found.keys() == FIELDS.keys()
    for field, name in FIELDS.items():
        assert f"STRETTO_ALLOWED_{name.upper()}" in found[field].remedy
        assert found[field].value


def test_a_job_that_names_nothing_is_never_refused() -> None:
    assert fields(Allowed(), job()) == []


def test_what_is_listed_is_allowed() -> None:
    assert fields(LISTED, job(**EVERYTHING)) == []


def test_the_installations_own_may_be_repeated() -> None:
    """A job that states what it would get anyway is not refused."""
    own = KubernetesSpec.model_validate(EVERYTHING["kubernetes"])
    assert fields(Allowed().with_own(own, EVERYTHING["image"]), job(**EVERYTHING)) == [
        "checkpoint.url",
        "environment_from.0",
        "volumes.0.claim",
        "model.code.url",
        "model.requirements.0",
    ]


def test_a_secret_may_be_one_submitters() -> None:
    allowed = Allowed(secrets=("ads-s3=ada", "shared"))
    both = job(environment_from=["ads-s3", "shared"])
    assert fields(allowed, both, "ada") == []
    assert fields(allowed, both, "bob") == ["environment_from.0"]
    assert fields(allowed, both) == [], "who acts knows the names alone"


@pytest.mark.parametrize(
    ("image", "entry", "fits"),
    [
        ("ubuntu", "docker.io/library/ubuntu", True),
        ("ubuntu:24.04", "ubuntu", True),
        ("index.docker.io/library/ubuntu", "ubuntu", True),
        ("team/x:1", "docker.io/team/*", True),
        ("team/x", "team/*", True),
        ("REGISTRY.example.com/team/x", "registry.example.com/team/*", True),
        ("registry.example.com/team/x@sha256:00", "registry.example.com/team/x", True),
        ("registry.example.com/team/x:2", "registry.example.com/team/x:1", False),
        ("registry.example.com/team-of-others/x", "registry.example.com/team/*", False),
        ("registry.example.com/team/../others/x", "registry.example.com/team/*", False),
        ("registry.example.com//team/x", "registry.example.com/team/*", False),
        ("registry.example.com.evil.example/team/x", "registry.example.com/*", False),
        ("registry.example.com:5000/team/x", "registry.example.com/*", False),
        ("evil.example/ubuntu", "ubuntu", False),
        ("Team/x", "team/*", False),
        ("localhost/x", "x", False),
        ("anything.example/at:all", "*", True),
    ],
)
def test_images_are_compared_by_their_full_names(image: str, entry: str, fits: bool) -> None:
    checked_images(entry)
    assert (fields(Allowed(images=(entry,)), job(image=image)) == []) == fits


parts = st.sampled_from(["team", "Team", "..", ".", "", "x", "x:1", "x@sha256:0", "a.b", "team-2"])


@given(st.lists(parts, min_size=1, max_size=4), st.sampled_from(["r.example", "R.example", "r.example:5000", "r"]))
def test_no_image_outside_an_allowed_folder_passes(path: list[str], host: str) -> None:
    """Any reference that passes begins with the folder's registry and path, part by part."""
    image = "/".join([host, *path])
    try:
        spec = job(image=image)
    except ValueError:
        return
    if fields(Allowed(images=("r.example/team/*",)), spec) == []:
        assert image.lower().startswith("r.example/team/")
        assert ".." not in image.split("/")


@pytest.mark.parametrize(
    ("toleration", "entry", "covers"),
    [
        ({"key": "pool", "value": "gpu"}, "pool", True),
        ({"key": "pool", "value": "gpu"}, "pool=gpu", True),
        ({"key": "pool", "value": "cpu"}, "pool=gpu", False),
        ({"key": "pool", "operator": "Exists"}, "pool=gpu", False),
        ({"key": "pool", "value": "gpu", "effect": "NoSchedule"}, "pool=gpu:NoSchedule", True),
        ({"key": "pool", "value": "gpu"}, "pool=gpu:NoSchedule", False),
        ({"operator": "Exists"}, "pool", False),
        ({"operator": "Exists"}, "*", True),
    ],
)
def test_an_entry_covers_every_taint_that_the_toleration_covers(
    toleration: dict[str, str], entry: str, covers: bool
) -> None:
    spec = job(kubernetes={"tolerations": [toleration]})
    assert (fields(Allowed(tolerations=(entry,)), spec) == []) == covers


def test_a_store_is_one_folder_unless_the_list_says_more() -> None:
    """A folder below an allowed one could be another job's."""
    for url, listed in (("s3://bucket/ads/job-a", False), ("s3://bucket/ads/", True), ("S3://bucket//ads", True)):
        assert (fields(LISTED, job(checkpoint={"url": url})) == []) == listed
    wide = Allowed(stores=("s3://bucket/ads/*",))
    assert fields(wide, job(checkpoint={"url": "s3://bucket/ads/team"})) == []
    assert fields(wide, job(checkpoint={"url": "s3://bucket/adsx"})) == ["checkpoint.url"]


@pytest.mark.parametrize("text", ["s3://bucket/../x", "https://user:key@a/", "S3://b", "file:///a/"])
def test_an_entry_that_could_be_read_in_two_ways_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        checked_folders(f"file:///good, {text}")
    with pytest.raises(ValueError, match=r"registry/name"):
        checked_images("a b")
