"""The tutorial on a cluster without a cluster: its commands can be read, and every name in it leads somewhere."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import PurePosixPath
from typing import Any

import kubernetes_validate
import yaml
from stretto_cli.main import load
from stretto_wire import JobSpec
from stretto_wire.policy.allowed_volumes import volumes_allow

from tests.charts.rendering import Object, chart, component, containers, merged, name_of, of_kind, with_pods
from tests.e2e.tutorials import commands, steps
from tests.e2e.typed import ROOT
from tests.kubernetes import helm

PAGE = "on-a-cluster.md"
NEWEST = max(version for version in kubernetes_validate.utils.all_versions())
FILES = {step.file: step.text for step in steps(PAGE) if step.file}
OTHERS = {"kubectl", "export", "mkdir"}
"""Commands that are neither Helm's nor ours."""


def typed(program: str) -> Iterator[list[str]]:
    """Yield the words after each use of a program."""
    for line in commands(PAGE).splitlines():
        words = shlex.split(line)
        if words[0] == program:
            yield words[1:]


@cache
def installed() -> list[Object]:
    """Return the objects of the release that the page installs."""
    (given,) = (found for words in typed("helm") if (found := helm.arguments(words)).do == "install")
    own, of_page = ([path for path in given.values if (str(path) in FILES) is kind] for kind in (False, True))
    values = merged(helm.values_of([ROOT / path for path in own]), yaml.safe_load(FILES[str(of_page[0])]))
    assert [*own, *of_page] == given.values, "the page's own values go over the chart's"
    assert ROOT / given.chart == ROOT / "charts" / "stretto"
    texts = chart().render(values, name=given.release, namespace=given.namespace)
    manifests = (text for path, text in texts.items() if not path.endswith("NOTES.txt"))
    return [each for text in manifests for each in yaml.safe_load_all(text) if each]


def variables() -> dict[str, str]:
    return {
        variable["name"]: variable.get("value", "")
        for _, container in containers(installed())
        for variable in container.get("env", [])
    }


def by_kind(file: str) -> dict[str, Object]:
    return {each["kind"]: each for each in yaml.safe_load_all(FILES[file])}


def test_every_command_can_be_read() -> None:
    """A shell reads them all, Helm's and ours know each option, and nothing else is typed."""
    script = commands(PAGE)
    assert subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=True).stderr == ""
    assert {shlex.split(line)[0] for line in script.splitlines()} <= OTHERS | {"helm", "stretto"}
    assert [helm.arguments(words).do for words in typed("helm")] == ["install", "uninstall"]
    for name, *rest in typed("stretto"):
        load(name).make_context(name, rest)  # raises for an option that there is not


def test_every_manifest_is_as_the_newest_official_schema_wants_it() -> None:
    for each in [*installed(), *by_kind("claim.yaml").values()]:
        if not each["apiVersion"].startswith(("keda.sh", "monitoring.coreos.com")):
            kubernetes_validate.validate(each, NEWEST, strict=True)


def test_the_job_may_mount_the_claim_that_the_page_fills() -> None:
    spec = JobSpec.parse(yaml.safe_load(FILES["job.yaml"]))
    (volume,) = spec.volumes
    made = by_kind("claim.yaml")
    assert volume.claim == made["PersistentVolumeClaim"]["metadata"]["name"]
    assert volumes_allow(variables()["STRETTO_ALLOWED_VOLUMES"].split(","), volume, None)
    assert made["Pod"]["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"] == volume.claim
    assert made["Pod"]["spec"]["volumes"][0]["name"] == volume.name
    (loader,) = made["Pod"]["spec"]["containers"]
    assert loader["volumeMounts"][0]["mountPath"] == volume.path
    copied = {words[2].partition(":")[2] for words in typed("kubectl") if words[0] == "cp"}
    module = spec.model.entry.partition(":")[0]
    assert copied == {f"{spec.model.path}/{module}.py", spec.model.arguments["data"]}
    assert all(PurePosixPath(place).is_relative_to(volume.path) for place in copied)


def test_the_loader_runs_the_image_of_training_pods() -> None:
    (loader,) = by_kind("claim.yaml")["Pod"]["spec"]["containers"]
    assert loader["image"] == variables()["STRETTO_ACTUATOR_POD_IMAGE"]
    ours = [container for _, container in containers(installed()) if "stretto/" in container["image"]]
    assert {container["imagePullPolicy"] for container in ours} == {loader["imagePullPolicy"]}


def test_services_and_folders_that_are_named_are_there() -> None:
    places = {name_of(each).lower(): each for each in of_kind(installed(), "Service", "Deployment")}
    words: list[str] = [word for line in typed("kubectl") for word in line]
    named = {word for word in words if word.startswith(("service/", "deployment/"))}
    assert len(named) == 2
    assert named <= places.keys()
    (checkpoints,) = [each for each in with_pods(installed()) if component(each) == "checkpoints"]
    mounts: list[dict[str, Any]] = checkpoints["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    (store,) = [mount["mountPath"] for mount in mounts if mount["name"] == "store"]
    assert words[words.index("-C") + 1] == store


def test_the_token_is_read_from_the_secret_that_the_gateway_has() -> None:
    (made,) = [words for words in typed("kubectl") if words[:3] == ["create", "secret", "generic"]]
    files = [source for each in with_pods(installed()) if component(each) == "gateway" for source in _secrets(each)]
    assert made[3] in files
    assert f"kubectl get secret {made[3]} " in commands(PAGE)


def _secrets(each: Object) -> Iterator[str]:
    for volume in each["spec"]["template"]["spec"]["volumes"]:
        for source in volume.get("projected", {}).get("sources", []):
            if "secret" in source:
                yield source["secret"]["name"]
