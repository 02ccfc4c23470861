"""The admission policies of the chart, evaluated: the actuator's own pods pass, and no pod that would reach further."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import celpy
import celpy.adapter
import pytest
from stretto_actuator.backend import PodSpec
from stretto_actuator.kubernetes.backend.manifest import Installation, manifest, policy, secret
from stretto_wire.kubernetes import KubernetesSpec
from stretto_wire.pod_files import VolumeSpec

from tests.charts.rendering import EVERYTHING, Object, of_kind, rendered

ACTUATOR = "system:serviceaccount:training:demo-stretto-actuator"
INSTALLATION = Installation(
    "demo",
    "trainer:1",
    defaults=KubernetesSpec(service_account="demo-stretto-trainer", image_pull_secrets=("pull",)),
    checkpoints_claim="store",
    dns_searches=("training.svc.cluster.local",),
)
Change = Callable[[Object], Any]


def spec(secrets: tuple[str, ...] = (), **kubernetes: Any) -> PodSpec:
    files = {"job.json": json.dumps({"kubernetes": kubernetes or None}).encode(), "bus.creds": b"k"}
    return PodSpec("ads", "ps-0", ("python",), {"A": "b"}, 1.0, 2**28, files=files, near="ps-1", secrets=secrets)


def with_volumes(*volumes: dict[str, Any]) -> Object:
    """Return the actuator's own manifest of a pod with these volumes, and with a file of its job's."""
    wanted = tuple(
        VolumeSpec.model_validate({"name": f"v{n}", "path": f"/v{n}", **each}) for n, each in enumerate(volumes)
    )
    return manifest(replace(spec(), volumes=wanted, texts={"/etc/ads/model.yaml": b"x"}), INSTALLATION)


def evaluated(expression: str, **variables: Any) -> bool:
    environment = celpy.Environment()
    program = environment.program(environment.compile(expression))
    return bool(program.evaluate({name: celpy.adapter.json_to_cel(value) for name, value in variables.items()}))


def matches(kind: str, user: str) -> bool:
    request = {"userInfo": {"username": user}}
    conditions = [one["expression"] for one in found(kind)["spec"]["matchConditions"]]
    return all(evaluated(each, request=request) for each in conditions)


def found(kind: str) -> Object:
    made = of_kind(rendered(EVERYTHING), "ValidatingAdmissionPolicy")
    (one,) = [each for each in made if each["metadata"]["name"].endswith(kind)]
    return one


def refusals(kind: str, new: Object | None, old: Object | None = None) -> list[str]:
    """Messages of the validations that fail."""
    return [
        one["message"]
        for one in found(kind)["spec"]["validations"]
        if not evaluated(one["expression"], object=new, oldObject=old)
    ]


def changed(change: Change) -> Object:
    pod = copy.deepcopy(manifest(spec(), INSTALLATION))
    change(pod)
    return pod


def of_container(**fields: Any) -> Change:
    return lambda pod: pod["spec"]["containers"][0].update(fields)


def of_security(**fields: Any) -> Change:
    return lambda pod: pod["spec"]["containers"][0]["securityContext"].update(fields)


def of_spec(**fields: Any) -> Change:
    return lambda pod: pod["spec"].update(fields)


def mounts(**volume: Any) -> Change:
    return lambda pod: pod["spec"]["volumes"].append({"name": "more", **volume})


def mounted(volume: str, **fields: Any) -> Change:
    """Add a mount of a volume that the pod has."""
    place = {"name": volume, "mountPath": "/more", **fields}
    return lambda pod: pod["spec"]["containers"][0]["volumeMounts"].append(place)


@pytest.mark.parametrize(
    "volume",
    [
        {"claim": "clicks"},
        {"claim": "out-1", "writable": True},
        {"claim": "out-1"},
        {"folder": "/srv/clicks/day"},
        {"folder": "/srv/out", "writable": True},
        {"folder": "/srv/clicks/made", "writable": True},
        {"folder": "/srv/clicks/made-1"},
    ],
)
def test_volumes_that_jobs_may_name_are_admitted(volume: dict[str, Any]) -> None:
    """Evaluate the chart's expressions on the actuator's own manifests of a job with volumes and files."""
    assert refusals("pods", with_volumes(volume)) == []


@pytest.mark.parametrize(
    ("volume", "said"),
    [
        ({"claim": "clicks", "writable": True}, "writes only to volumes that jobs may write"),
        ({"claim": "clicks-of-others"}, "mounts only the Secret of its own name"),
        ({"claim": "outx", "writable": True}, "mounts only the Secret of its own name"),
        ({"folder": "/srv/clicks"}, "mounts only the Secret of its own name"),
        ({"folder": "/srv/clicks/day", "writable": True}, "writes only to volumes that jobs may write"),
        ({"folder": "/srv/outer", "writable": True}, "mounts only the Secret of its own name"),
        ({"folder": "/srv/clicks/made/link"}, "mounts only the Secret of its own name"),
        ({"folder": "/etc"}, "mounts only the Secret of its own name"),
    ],
)
def test_no_other_volume_of_a_job_is_admitted(volume: dict[str, Any], said: str) -> None:
    """An actuator that was talked into more than the lists allow is refused by the API server."""
    assert any(said in each for each in refusals("pods", with_volumes(volume)))


@pytest.mark.parametrize("kubernetes", [{}, {"service_account": "reader", "node_selector": {"a": "b"}, "queue": "all"}])
def test_every_pod_of_the_actuator_is_admitted(kubernetes: dict[str, Any]) -> None:
    """Evaluate the chart's expressions on manifests that the actuator makes with the chart's settings."""
    pod = manifest(spec(**kubernetes), INSTALLATION)
    assert refusals("pods", pod) == []
    named = manifest(spec(("ads-s3",), **kubernetes), INSTALLATION)
    assert named["spec"]["containers"][0]["envFrom"], "a job may name the secrets that the chart lists"
    assert refusals("pods", named) == []
    of_security(procMount="Default")(pod)
    assert refusals("pods", pod) == [], "the API server may fill in this default"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (mounts(secret={"secretName": "bus-operator"}), "mounts only the Secret of its own name"),
        (mounts(hostPath={"path": "/srv/clicks//made/link", "type": "Directory"}), "mounts only the Secret"),
        (mounts(hostPath={"path": "/srv/clicks/./made/link", "type": "Directory"}), "mounts only the Secret"),
        (mounts(hostPath={"path": "/"}), "mounts only the Secret of its own name"),
        (mounts(projected={"sources": [{"serviceAccountToken": {"path": "t"}}]}), "mounts only the Secret"),
        (mounts(persistentVolumeClaim={"claimName": "another"}), "mounts only the Secret of its own name"),
        (
            mounts(hostPath={"path": "/srv/clicks/../../etc", "type": "Directory"}),
            "mounts only the Secret of its own name",
        ),
        (
            mounts(hostPath={"path": "/srv/clicks/day", "type": "DirectoryOrCreate"}),
            "mounts only the Secret of its own",
        ),
        (mounted("checkpoints"), "of the store only its job's folder"),
        (mounted("checkpoints", subPath="."), "of the store only its job's folder"),
        (lambda pod: pod["metadata"].update(name="bus-operator"), "mounts only the Secret of its own name"),
        (
            of_container(env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "store", "key": "k"}}}]),
            "variables hold no ConfigMap, and no Secret",
        ),
        (of_container(envFrom=[{"secretRef": {"name": "store"}}]), "variables hold no ConfigMap, and no Secret but"),
        (of_container(envFrom=[{"secretRef": {"name": "ads-s3x"}}]), "and no Secret but those that jobs may name"),
        (of_container(envFrom=[{"configMapRef": {"name": "ads-s3"}}]), "variables hold no ConfigMap"),
        (of_container(ports=[{"containerPort": 1, "hostPort": 1}]), "shares nothing with its node"),
        (of_spec(hostNetwork=True), "shares nothing with its node"),
        (of_spec(hostPID=True), "shares nothing with its node"),
        (of_spec(hostIPC=True), "shares nothing with its node"),
        (of_spec(initContainers=[{"name": "i", "image": "i"}]), "only containers are those of spec.containers"),
        (of_spec(securityContext={}), "restricted Pod Security"),
        (of_security(privileged=True), "restricted Pod Security"),
        (of_security(allowPrivilegeEscalation=True), "restricted Pod Security"),
        (of_security(capabilities={"drop": ["ALL"], "add": ["NET_ADMIN"]}), "restricted Pod Security"),
        (of_security(capabilities={}), "restricted Pod Security"),
        (of_security(procMount="Unmasked"), "restricted Pod Security"),
        (of_security(runAsUser=0), "restricted Pod Security"),
        (of_security(seccompProfile={"type": "Unconfined"}), "restricted Pod Security"),
        (of_container(securityContext=None), "restricted Pod Security"),
        (of_spec(automountServiceAccountToken=True), "no token"),
        (of_spec(serviceAccountName="demo-stretto-gateway"), "an account of training pods"),
    ],
)
def test_no_pod_that_reaches_further_is_admitted(change: Change, said: str) -> None:
    """Change one thing of a pod that would pass; exactly that is refused."""
    pod = changed(change)
    pod["spec"]["containers"] = [
        {name: value for name, value in each.items() if value is not None} for each in pod["spec"]["containers"]
    ]
    (refusal,) = refusals("pods", pod)
    assert said in refusal


def test_the_actuator_writes_no_objects_but_its_own() -> None:
    """Create, change and delete objects with and without the label, and a foreign Secret that is to get it."""
    own, foreign = secret(spec(), INSTALLATION), {"metadata": {"name": "bus-operator", "labels": {"a": "b"}}}
    bare = {"metadata": {"name": "bus-operator"}}
    assert refusals("objects", own) == refusals("objects", own, own) == refusals("objects", None, own) == []
    assert refusals("objects", policy("ads", True, INSTALLATION)) == []
    for new, old in ((foreign, None), (None, foreign), (own, foreign), (foreign, own), (None, bare)):
        assert refusals("objects", new, old), (new, old)


def test_only_the_actuator_is_meant() -> None:
    """Others in the namespace, such as the owners of its other pods, are not held to Stretto's rules."""
    for kind in ("pods", "objects"):
        assert matches(kind, ACTUATOR)
        assert not matches(kind, "system:serviceaccount:training:demo-stretto-gateway")
        assert found(kind)["spec"]["failurePolicy"] == "Fail"


def test_each_policy_is_bound_and_denies() -> None:
    """A policy without a binding does nothing."""
    bound = {
        each["spec"]["policyName"]: each["spec"]["validationActions"]
        for each in of_kind(rendered(EVERYTHING), "ValidatingAdmissionPolicyBinding")
    }
    made = {each["metadata"]["name"] for each in of_kind(rendered(EVERYTHING), "ValidatingAdmissionPolicy")}
    assert bound == {name: ["Deny"] for name in made}
    assert of_kind(rendered({"trainer": {"admissionPolicy": False}}), "ValidatingAdmissionPolicy") == []
