"""The chart rendered by real Helm over a matrix of values: official schemas, and invariants of every object."""

from __future__ import annotations

from functools import cache
from typing import Any

import kubernetes_validate
import pytest
from helm_python import lint
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.charts.rendering import (
    CHART,
    EVERYTHING,
    NEEDED,
    PROMETHEUS,
    Object,
    component,
    containers,
    defaults,
    merged,
    name_of,
    of_kind,
    pod_of,
    rendered,
    selects,
    with_pods,
)

SERVICES = sorted(defaults()["services"])
VERSIONS = sorted({version for version in kubernetes_validate.utils.all_versions() if version >= "1.29"})
FOREIGN = {"keda.sh/v1alpha1", "monitoring.coreos.com/v1"}
"""Of operators: Kubernetes has no schema for their objects."""
NEWER = {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
"""Made on Kubernetes 1.30 and later alone; the chart is rendered for the newest."""

kubernetes_validate.utils.schema_contents = cache(kubernetes_validate.utils.schema_contents)
"""It reads two files of a megabyte for every object."""

MATRIX: dict[str, dict[str, Any]] = {
    "only what is needed": {},
    "everything": EVERYTHING,
    **{f"without {name}": {"services": {name: {"enabled": False}}} for name in SERVICES},
    "one of each": {"defaults": {"replicas": 1}},
    "three of each": {"defaults": {"replicas": 3}},
    "all autoscaled": {
        "defaults": {"autoscaling": {"enabled": True}},
        "monitoring": {"prometheus": {"url": "http://prometheus:9090"}},
        "networkPolicy": {"metrics": [PROMETHEUS]},
    },
    "encrypted": {"nats": {"url": "tls://nats:4222", "ca": {"secret": "ca"}}, "gateway": {"tls": {"secret": "tls"}}},
    "jobs as objects": {"gateway": {"trainingJobs": True}},
    "another namespace for pods": {"trainer": {"namespace": "jobs"}},
    "nothing made for us": {
        "serviceAccounts": {"create": False},
        "rbac": {"create": False},
        "networkPolicy": {"enabled": False},
        "disruptionBudgets": {"enabled": False},
        "provision": {"enabled": False},
    },
    "by digest": {"defaults": {"image": {"digest": f"sha256:{'0' * 64}"}}},
    "placed": {
        "defaults": {
            "nodeSelector": {"pool": "control"},
            "tolerations": [{"key": "control", "operator": "Exists"}],
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}
            ],
            "affinity": {"nodeAffinity": {}},
            "priorityClassName": "high",
            "podAnnotations": {"a": "b"},
            "serviceAccountAnnotations": {"c": "d"},
        }
    },
}  # fmt: skip


def booleans(values: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Values in which every switch of the chart is thrown either way."""
    found = {
        key: st.booleans() if isinstance(value, bool) else booleans(value)
        for key, value in values.items()
        if isinstance(value, (bool, dict))
    }
    return st.fixed_dictionaries(found).map(lambda made: {key: value for key, value in made.items() if value != {}})


def switches() -> st.SearchStrategy[dict[str, Any]]:
    one = booleans(defaults()["defaults"])
    services = st.fixed_dictionaries({}, optional={name: one for name in SERVICES})
    needed = {
        "monitoring": {"prometheus": {"url": "http://prometheus:9090"}},
        "networkPolicy": {"metrics": [PROMETHEUS]},
        "nats": {"credentials": {"secretPrefix": "bus"}},
        "services": {"forwarder": {"autoscaling": {"enabled": False}}},
    }
    return st.builds(
        lambda top, by_name: merged(merged(top, {"services": by_name}), needed), booleans(defaults()), services
    )


@pytest.fixture(scope="module", params=MATRIX)
def objects(request: pytest.FixtureRequest) -> list[Object]:
    return rendered(MATRIX[request.param])


def is_sound(objects: list[Object]) -> None:
    """Check the invariants that hold for all values."""
    names = [(each["apiVersion"], name_of(each), each["metadata"].get("namespace")) for each in objects]
    assert len(names) == len(set(names)), "an object twice"
    for where, container in containers(objects):
        is_bounded(where, container)
        is_unprivileged(where, container)
    for each in with_pods(objects):
        pod_is_unprivileged(name_of(each), pod_of(each)["spec"])
    selectors_match(objects)
    references_are_met(objects)


def is_official(objects: list[Object], version: str) -> None:
    """Check objects against the schemas of a Kubernetes version, misspelt fields included."""
    for each in objects:
        if each["apiVersion"] not in FOREIGN and not (each["kind"] in NEWER and version < "1.30"):
            kubernetes_validate.validate(each, version, strict=True)


def is_bounded(where: str, container: Object) -> None:
    for kind in ("requests", "limits"):
        assert {"cpu", "memory"} <= set(container["resources"][kind]), f"{where}: {kind}"
    repository, _, version = container["image"].rpartition("@" if "@" in container["image"] else ":")
    assert repository, where
    assert version not in ("", "latest"), where


def is_unprivileged(where: str, container: Object) -> None:
    context = container["securityContext"]
    assert context["allowPrivilegeEscalation"] is False, where
    assert context["readOnlyRootFilesystem"] is True, where
    assert context["capabilities"] == {"drop": ["ALL"]}, where
    assert not context.get("privileged"), where


def pod_is_unprivileged(where: str, spec: Object) -> None:
    context = spec["securityContext"]
    assert context["runAsNonRoot"] is True, where
    assert context["runAsUser"] == context["runAsGroup"] == 10001, where
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}, where
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys(), where
    assert spec["enableServiceLinks"] is False, f"{where}: settings would refuse Kubernetes' own STRETTO_... variables"
    for volume in spec.get("volumes", []):
        assert "hostPath" not in volume, where


def selectors_match(objects: list[Object]) -> None:
    pods = {name_of(each): pod_of(each)["metadata"]["labels"] for each in with_pods(objects)}
    for each in of_kind(objects, "Deployment", "PodDisruptionBudget"):
        selector = each["spec"]["selector"]["matchLabels"]
        found = [name for name, labels in pods.items() if selects(selector, labels)]
        assert found == [f"Deployment/{each['metadata']['name']}"], name_of(each)
    for each in of_kind(objects, "Service"):
        selector = each["spec"]["selector"]
        (found,) = [name for name, labels in pods.items() if selects(selector, labels)]
        (deployment,) = [one for one in objects if name_of(one) == found]
        offered = {port["name"] for port in deployment["spec"]["template"]["spec"]["containers"][0]["ports"]}
        assert {port["targetPort"] for port in each["spec"]["ports"]} <= offered, name_of(each)
    deployments = {each["metadata"]["name"] for each in of_kind(objects, "Deployment")}
    for each in of_kind(objects, "HorizontalPodAutoscaler", "ScaledObject"):
        assert each["spec"]["scaleTargetRef"]["name"] in deployments, name_of(each)


def references_are_met(objects: list[Object]) -> None:
    """Volumes that are mounted exist, Roles that are bound exist."""
    for each in with_pods(objects):
        spec = pod_of(each)["spec"]
        volumes = {volume["name"] for volume in spec.get("volumes", [])}
        for container in spec["containers"]:
            mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
            assert mounted == volumes, name_of(each)
    roles = {(each["metadata"]["namespace"], each["metadata"]["name"]) for each in of_kind(objects, "Role")}
    for each in of_kind(objects, "RoleBinding"):
        assert (each["metadata"]["namespace"], each["roleRef"]["name"]) in roles, name_of(each)


class TestEveryObject:
    def test_is_sound(self, objects: list[Object]) -> None:
        is_sound(objects)

    def test_is_as_the_newest_official_schema_wants_it(self, objects: list[Object]) -> None:
        is_official(objects, VERSIONS[-1])

    def test_has_the_common_labels(self, objects: list[Object]) -> None:
        for each in objects:
            labels = each["metadata"]["labels"]
            assert labels["app.kubernetes.io/instance"] == "demo", name_of(each)
            assert labels["app.kubernetes.io/part-of"] == "stretto", name_of(each)


@pytest.mark.parametrize("version", VERSIONS[:-1])
def test_official_schemas_of_older_versions_want_nothing_else(version: str) -> None:
    is_official([*rendered({}), *rendered(EVERYTHING)], version)


@settings(max_examples=60, deadline=None)
@given(switches())
def test_whatever_is_switched_the_objects_are_sound(values: dict[str, Any]) -> None:
    is_sound(rendered(values))


@pytest.mark.parametrize("version", ["1.20.2", "1.24.0", "1.29.0", "1.36.0"])
@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["needed", "everything"])
def test_helm_lints_it_strictly(version: str, values: dict[str, Any]) -> None:
    found = lint(CHART, merged(NEEDED, values), strict=True, namespace="training", kube_version=version)
    assert found["errors"] == []
    assert [message for message in found["messages"] if message["severity"] > 1] == []


@pytest.mark.parametrize("name", SERVICES)
class TestASwitchedOffService:
    def test_leaves_nothing_behind(self, name: str) -> None:
        left = rendered(merged(EVERYTHING, {"services": {name: {"enabled": False}}}))
        assert [name_of(each) for each in left if component(each) == name] == []

    def test_is_all_that_goes(self, name: str) -> None:
        before, after = rendered(EVERYTHING), rendered(merged(EVERYTHING, {"services": {name: {"enabled": False}}}))
        assert {component(each) for each in before} - {component(each) for each in after} == {name}


class TestReplicas:
    def test_of_what_is_autoscaled_are_left_to_the_autoscaler(self) -> None:
        objects = rendered(MATRIX["all autoscaled"])
        assert [name_of(each) for each in of_kind(objects, "Deployment") if "replicas" in each["spec"]] == []
        scaled = {component(each) for each in of_kind(objects, "HorizontalPodAutoscaler", "ScaledObject")}
        assert scaled == {component(each) for each in of_kind(objects, "Deployment")}
        assert [component(each) for each in of_kind(objects, "HorizontalPodAutoscaler")] == ["gateway"]

    @pytest.mark.parametrize(("replicas", "budgets"), [(0, False), (1, False), (2, True), (5, True)])
    def test_are_guarded_by_a_budget_where_one_may_go(self, replicas: int, budgets: bool) -> None:
        objects = rendered({"services": {"oom": {"replicas": replicas}}})
        found = [each for each in of_kind(objects, "PodDisruptionBudget") if component(each) == "oom"]
        assert bool(found) is budgets
        for each in found:
            assert each["spec"]["maxUnavailable"] == 1
            assert each["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"

    def test_are_never_fewer_during_a_rollout(self) -> None:
        for each in of_kind(rendered({}), "Deployment"):
            assert each["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
