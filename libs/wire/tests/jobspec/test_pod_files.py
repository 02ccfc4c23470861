"""Volumes, files and code of a job: what a specification may say, and what the list of volumes gives."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stretto_wire import WireError
from stretto_wire.jobspec.jobfile import read_job
from stretto_wire.jobspec.pod_files import FILE_BYTES_MAX, RESERVED
from stretto_wire.jobspec.spec import JobSpec
from stretto_wire.policy.allowed import Allowed
from stretto_wire.policy.allowed_volumes import checked_volumes

JOB: dict[str, Any] = {"name": "j", "model": {"entry": "m:M"}, "dataset": {"samples": 10}}
SHA = "0" * 64


def job(**more: Any) -> JobSpec:
    return JobSpec.parse({**JOB, **more})


def refusal(**more: Any) -> str:
    with pytest.raises(WireError) as refused:
        job(**more)
    return str(refused.value)


def volume(source: str, name: str = "v", path: str = "/v", writable: bool = False) -> dict[str, Any]:
    kind, _, of = source.partition(":")
    return {"name": name, "path": path, kind: of, "writable": writable}


def given_by(entries: str, source: str, writable: bool = False, by: str | None = None) -> bool:
    allowed = Allowed(volumes=tuple(checked_volumes(entries).split(",")))
    return allowed.findings(job(volumes=[volume(source, writable=writable)]), by) == []


def test_a_volume_is_read_only_unless_it_says_otherwise() -> None:
    (made,) = job(volumes=[{"name": "clicks", "path": "/data", "claim": "clicks"}]).volumes
    assert (made.kind, made.source, made.writable) == ("claim", "clicks", False)


@pytest.mark.parametrize(
    ("volumes", "said"),
    [
        ([{"name": "v", "path": "/v"}], "exactly one source: claim, docker_volume, folder"),
        ([{"name": "v", "path": "/v", "claim": "c", "folder": "/srv"}], "exactly one source"),
        ([{"name": "v", "path": "a/b", "claim": "c"}], "a relative path is one name"),
        ([{"name": "v", "path": "/v", "folder": "/srv/../etc"}], "an absolute path below /"),
        ([{"name": "v", "path": "/v", "folder": "/"}], "an absolute path below /"),
        ([{"name": "v", "path": "/v", "folder": "srv"}], "an absolute path below /"),
        ([volume("claim:a"), volume("claim:b", path="/w")], "the name v is stated twice"),
        ([volume("claim:a"), volume("claim:b", "w", "/v/below")], "/v/below of w and /v of v overlap"),
    ],
)
def test_a_volume_that_cannot_be_is_refused(volumes: list[dict[str, Any]], said: str) -> None:
    assert said in refusal(volumes=volumes)


paths = st.lists(st.sampled_from(["data", "..", ".", "", "run", "stretto", "var", "lib", "proc", "tmp", "a b"])).map(
    "/".join
)


@given(paths, st.sampled_from(["", "/"]))
def test_no_place_is_strettos_or_leads_elsewhere(path: str, begin: str) -> None:
    """Whatever is accepted is below the root or the pod's folder, and neither holds nor lies in a reserved place."""
    place = begin + path
    try:
        job(files={place: "x"})
    except WireError:
        return
    assert ".." not in place.split("/")
    for taken in RESERVED:
        assert not f"{place}/".startswith(f"{taken}/")
        assert not f"{taken}/".startswith(f"{place}/")


@pytest.mark.parametrize(
    ("entry", "source", "writable", "is_given"),
    [
        ("claim:clicks", "claim:clicks", False, True),
        ("claim:clicks", "claim:clicks", True, False),
        ("claim:clicks:write", "claim:clicks", True, True),
        ("claim:clicks:write", "claim:clicks", False, True),
        ("claim:ads-*", "claim:ads-clicks", False, True),
        ("claim:ads", "claim:ads-clicks", False, False),
        ("claim:clicks", "docker_volume:clicks", False, False),
        ("docker_volume:clicks", "docker_volume:clicks", False, True),
        ("folder:/srv", "folder:/srv", False, True),
        ("folder:/srv", "folder:/srv/clicks", False, False),
        ("folder:/srv/*", "folder:/srv/clicks/day=1", False, True),
        ("folder:/srv/*", "folder:/srv", False, False),
        ("folder:/srv/*", "folder:/srvx", False, False),
        ("folder:/srv/*,folder:/srv/out:write", "folder:/srv/out", True, True),
        ("folder:/srv/*,folder:/srv/out:write", "folder:/srv/out/link", False, False),
        ("", "claim:clicks", False, False),
    ],
)
def test_an_installation_gives_the_volumes_that_it_lists(
    entry: str, source: str, writable: bool, is_given: bool
) -> None:
    """In a folder that pods may write, one may have laid a link to anywhere: nothing below it is given."""
    entries = [each for each in entry.split(",") if each]
    allowed = Allowed(volumes=tuple(entries))
    found = allowed.findings(job(volumes=[volume(source, writable=writable)]))
    assert (found == []) == is_given
    assert all("STRETTO_ALLOWED_VOLUMES" in each.remedy for each in found)


def test_a_volume_may_be_one_submitters() -> None:
    entry = "claim:clicks:write=ada"
    assert given_by(entry, "claim:clicks", True, "ada")
    assert not given_by(entry, "claim:clicks", True, "bob")
    assert given_by(entry, "claim:clicks", True, None), "who acts knows the names alone"


@pytest.mark.parametrize(
    "entry",
    [
        *("clicks", "claim:*", "docker_volume:*", "claim:", "claim:a|b", "claim:(a", "secret:x"),
        *("folder:/", "folder:/*", "folder:/srv*", "folder:/srv/*:write", "folder:/srv/../etc", "folder:srv"),
    ],
)
def test_an_entry_that_gives_too_much_is_refused(entry: str) -> None:
    """Among all claims and volumes are the installation's own; a star for writing lets a pod link to anywhere."""
    with pytest.raises(ValueError, match="instead of"):
        checked_volumes(f"claim:good, {entry}")


def test_files_are_few_small_and_hold_no_key() -> None:
    """The refusal names the file and the line, never the value."""
    assert job(files={"conf/model.yaml": "lr: 0.1", "/etc/ads/model.yaml": "units: 64"})
    assert f"at most {FILE_BYTES_MAX} bytes" in refusal(files={"a": "x" * (FILE_BYTES_MAX + 1)})
    assert "together" in refusal(files={str(n): "x" * FILE_BYTES_MAX for n in range(2)})
    assert "names a folder, too" in refusal(files={"/a": "x"})
    assert "overlap" in refusal(files={"data/a": "x"}, volumes=[volume("claim:c", path="data")])
    said = refusal(files={"conf.yaml": "a: 1\ndb:\n  password: canary\n"})
    assert "files.conf.yaml = line 3 (not shown)" in said
    assert "environment_from" in said
    assert "canary" not in said


def test_the_place_of_a_file_with_a_key_is_told() -> None:
    text = 'name: j\nmodel: {entry: "m:M"}\ndataset: {samples: 10}\nfiles:\n  conf.ini: |\n    api_key = canary\n'
    with pytest.raises(WireError, match=r"line 5, column .*files\.conf\.ini"):
        read_job(text)


@pytest.mark.parametrize(
    "line",
    [
        "api_key: ${API_KEY}",
        'password: ""',
        "token: null",
        "api_key = <yours>",
        "pad_token: 0",
        "primary_key: id",
        "a: b",
    ],
)
def test_a_file_may_name_keys_without_having_them(line: str) -> None:
    assert job(files={"conf.yaml": line})


@pytest.mark.parametrize(
    "line", ['"api_key": "abc"', "- secret: abc", "{password: abc}", "db.password=abc", "url: http://ada:pw@host/"]
)
def test_keys_are_found_in_every_notation(line: str) -> None:
    assert "line 1" in refusal(files={"conf.yaml": line})


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ({"url": "s3://bucket/ads.whl"}, "model.code.sha256"),
        ({"url": "ftp://host/ads.whl", "sha256": SHA}, "a URL with one of s3"),
        ({"url": "s3://bucket/ads", "sha256": SHA}, "a URL that ends in one of .whl"),
        ({"url": "https://ada:key@host/ads.zip", "sha256": SHA}, "plain URL"),
        ({"url": "https://host/../ads.zip", "sha256": SHA}, "plain URL"),
        ({"url": "/models/ads", "sha256": SHA}, "leave it out for a folder"),
        ({"url": "/models/ads", "subfolder": "/etc"}, "a path within the code"),
        ({"url": "/models/ads", "subfolder": "../x"}, "model.code.subfolder"),
    ],
)
def test_code_that_could_be_another_one_is_refused(code: dict[str, Any], said: str) -> None:
    assert said in refusal(model={"entry": "m:M", "code": code})


def test_code_where_the_pods_run_needs_no_list() -> None:
    """A path is one of the image, of a volume, or of the machine: the pod reads it anyway."""
    spec = job(model={"entry": "m:M", "code": {"url": "file:///models/ads.whl", "sha256": SHA}})
    assert spec.model.code is not None
    assert spec.model.code.url == "/models/ads.whl"
    assert Allowed().findings(spec) == []


@pytest.mark.parametrize(
    "requirement",
    [
        "-r file",
        "--index-url=http://evil",
        "a @ http://evil/a.whl",
        "a; python_version>'3'",
        "git+https://x",
        "",
        "a==1 b",
    ],
)
def test_a_requirement_is_a_package_and_nothing_else(requirement: str) -> None:
    assert "model.requirements.0" in refusal(model={"entry": "m:M", "requirements": [requirement]})


@pytest.mark.parametrize(
    ("entry", "requirement", "is_given"),
    [
        ("lightgbm", "LightGBM==4.6.0", True),
        ("ads_features", "ads.features[all]>=1,<2", True),
        ("ads-*", "ads_features", True),
        ("*", "anything", True),
        ("lightgbm", "lightgbm-evil", False),
        ("light", "lightgbm", False),
    ],
)
def test_packages_are_compared_by_their_names(entry: str, requirement: str, is_given: bool) -> None:
    spec = job(model={"entry": "m:M", "requirements": [requirement]})
    assert (Allowed(requirements=(entry,)).findings(spec) == []) == is_given
