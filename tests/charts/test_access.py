"""Rights in the cluster: exactly the API rights that the code uses, and the network paths that the wire needs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from stretto_actuator.kubernetes.manifest import Installation, policy
from stretto_actuator.settings import ActuatorSettings, networks_of

from tests.charts.rendering import (
    EVERYTHING,
    PROMETHEUS,
    Object,
    component,
    merged,
    name_of,
    of_kind,
    pod_of,
    rendered,
    selects,
    with_pods,
)

ROOT = Path(__file__).parents[2]
RESOURCES = {
    "PODS": "pods",
    "SECRETS": "secrets",
    "CONFIG_MAPS": "configmaps",
    "TRAINING_JOBS": "trainingjobs",
    "LEASES": "leases",
    "NETWORK_POLICIES": "networkpolicies",
    "JOBS": "jobs",
    "WORKLOADS": "workloads",
    "LOCAL_QUEUES": "localqueues",
    "CLUSTER_QUEUES": "clusterqueues",
    "EVENTS": "events",
}
VERBS = {
    "get": {"get"},
    "list": {"list"},
    "create": {"create"},
    "replace": {"update"},
    "patch": {"patch"},
    "apply": {"patch", "create"},
    "delete": {"delete"},
    "Reflector": {"list", "watch"},
}
"""Verbs that a call of stretto_kube asks of the API server; what is applied may have to be created."""
FAMILIES = {"SIZED": ("jobs", "jobsets", "rayclusters")}
"""Tables of kinds, one of which a call takes by its name."""
SUBRESOURCES = ("resize", "status")
EXISTING = {(kind, "create") for kind in FAMILIES["SIZED"]}
"""Objects that are applied only with the version that was read, which creates none."""
CODE = {
    "actuator": ["services/actuator/stretto_actuator/kubernetes/*.py"],
    "gateway": ["services/gateway/stretto_gateway/training_jobs/*.py", "libs/kube/stretto_kube/lease.py"],
    "decider": ["services/decider/stretto_decider/*.py"],
}

Right = tuple[str, str]


def used(service: str) -> set[Right]:
    """(resource, verb) of every call in the code."""
    calls = [
        node
        for pattern in CODE[service]
        for path in ROOT.glob(pattern)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
    ]
    return {right for call in calls for right in rights_of(call)} - EXISTING


def rights_of(call: ast.Call) -> Iterator[Right]:
    function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if function == "logs" and len(call.args) == 2 and isinstance(call.args[0], ast.Call):
        yield "pods/log", "get"
    kinds = [RESOURCES[each.id] for each in call.args if isinstance(each, ast.Name) and each.id in RESOURCES]
    tables = [each.value for each in call.args if isinstance(each, ast.Subscript)]
    kinds += [kind for each in tables if isinstance(each, ast.Name) for kind in FAMILIES.get(each.id, ())]
    parts = [each.value for each in call.args if isinstance(each, ast.Constant) and each.value in SUBRESOURCES]
    for kind in kinds:
        for verb in VERBS.get(function, ()):
            if not parts:
                yield kind, verb
            elif verb != "create":
                yield f"{kind}/{parts[0]}", verb


def granted(objects: list[Object], service: str) -> set[Right]:
    roles = [each for each in of_kind(objects, "Role", "ClusterRole") if component(each) == service]
    rules = [rule for role in roles for rule in role["rules"]]
    return {(resource, verb) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}


class TestRights:
    @pytest.mark.parametrize("service", CODE)
    def test_are_exactly_those_that_the_code_uses(self, service: str) -> None:
        assert granted(rendered(EVERYTHING), service) == used(service)

    @pytest.mark.parametrize("kind", ["Job", "JobSet", "RayCluster"])
    def test_of_the_decider_are_those_of_the_kinds_that_it_sizes(self, kind: str) -> None:
        values = {"services": {"decider": {"enabled": True}}, "decider": {"kinds": [kind], "kueue": False}}
        objects = rendered(values)
        assert of_kind(objects, "ClusterRole") == []
        read = {(each, verb) for each in {"jobs", f"{kind.lower()}s"} for verb in ("list", "watch")}
        assert granted(objects, "decider") == {*read, (f"{kind.lower()}s", "patch"), ("events", "create")}

    def test_of_objects_are_given_only_where_they_are_served(self) -> None:
        assert [component(each) for each in of_kind(rendered({}), "Role")] == ["actuator"]

    def test_are_of_one_namespace_and_name_no_more_than_they_must(self) -> None:
        objects = rendered(EVERYTHING)
        of_cluster = of_kind(objects, "ClusterRole", "ClusterRoleBinding")
        assert [component(each) for each in of_cluster] == ["decider", "decider"]
        assert of_cluster[0]["rules"] == [
            {"apiGroups": ["kueue.x-k8s.io"], "resources": ["clusterqueues"], "verbs": ["list", "watch"]}
        ]
        for role in of_kind(objects, "Role"):
            assert role["metadata"]["namespace"] == "jobs"
            for rule in role["rules"]:
                assert "*" not in [*rule["resources"], *rule["verbs"], *rule["apiGroups"]]
                if rule["resources"] == ["configmaps"]:
                    assert rule["resourceNames"] == ["demo-stretto-pods"]

    def test_are_bound_to_the_services_own_accounts(self) -> None:
        for binding in of_kind(rendered(EVERYTHING), "RoleBinding"):
            (subject,) = binding["subjects"]
            assert subject["name"] == f"demo-stretto-{component(binding)}"
            assert subject["namespace"] == "training"


class TestAccounts:
    def test_tokens_are_mounted_only_where_the_api_is_asked(self) -> None:
        for values, asking in (({}, {"actuator"}), (EVERYTHING, {"actuator", "gateway", "decider"})):
            objects = rendered(values)
            mounted = {
                component(each)
                for each in with_pods(objects)
                if pod_of(each)["spec"].get("automountServiceAccountToken") is not False
            }
            assert mounted == asking
            assert all(not each["automountServiceAccountToken"] for each in of_kind(objects, "ServiceAccount"))

    def test_of_every_deployment_are_made(self) -> None:
        objects = rendered(EVERYTHING)
        made = {each["metadata"]["name"] for each in of_kind(objects, "ServiceAccount")}
        for each in of_kind(objects, "Deployment"):
            assert pod_of(each)["spec"]["serviceAccountName"] in made, name_of(each)

    def test_of_whom_the_chart_makes_none_are_expected_under_the_same_names(self) -> None:
        objects = rendered({"serviceAccounts": {"create": False}})
        names = {pod_of(each)["spec"]["serviceAccountName"] for each in of_kind(objects, "Deployment")}
        assert "demo-stretto-planner" in names
        assert of_kind(objects, "ServiceAccount") == []


TRAINER = {"app.kubernetes.io/managed-by": "stretto", "stretto.dev/installation": "demo", "stretto.dev/job": "a"}


def labels_of(objects: list[Object], name: str) -> dict[str, str]:
    if name == "trainer":
        return TRAINER
    (found,) = [pod_of(each) for each in with_pods(objects) if component(each) == name]
    return found["metadata"]["labels"]


def policies(objects: list[Object], name: str) -> list[Object]:
    labels = labels_of(objects, name)
    found = of_kind(objects, "NetworkPolicy")
    return [each["spec"] for each in found if selects(each["spec"]["podSelector"]["matchLabels"], labels)]


def ports_to(objects: list[Object], name: str) -> set[int]:
    """Everywhere that a component may connect to, but for pods of its own installation."""
    return {
        port["port"]
        for policy in policies(objects, name)
        for rule in policy.get("egress", [])
        for port in rule.get("ports", [])
    }


def heard_at(objects: list[Object], name: str) -> set[int]:
    return {
        port["port"]
        for policy in policies(objects, name)
        for rule in policy.get("ingress", [])
        for port in rule.get("ports", [])
    }


BUS = {53, 4223, 4222, 4318}
EGRESS: dict[str, set[int]] = {
    **{name: BUS for name in ("profiler", "fitter", "planner", "arbiter", "dispatcher", "oom", "provision")},
    "checkpoints": BUS | {6379},
    "actuator": BUS | {443, 6443},
    "decider": BUS | {443, 6443},
    "gateway": BUS | {443, 6443, 3200},
    "forwarder": BUS | {443},
    "test": BUS | {8000, 8080},
    "test-foreign": BUS | {8080},
    **{name: BUS | {6379, 443} for name in ("trainer", "test-friend", "test-target")},
}
"""Ports that ``EVERYTHING`` opens: names, the bus (two ports), spans; Redis; store, webhooks and issuer; the API
server; the collector's query."""


class TestTheNetwork:
    @pytest.mark.parametrize("name", EGRESS)
    def test_lets_a_component_reach_what_it_needs_and_nothing_else(self, name: str) -> None:
        assert ports_to(rendered(EVERYTHING), name) == EGRESS[name]

    def test_of_every_component_is_spoken_of(self) -> None:
        assert {component(each) for each in with_pods(rendered(EVERYTHING))} | {"trainer"} == set(EGRESS)

    @pytest.mark.parametrize("name", sorted(EGRESS))
    def test_denies_by_default_both_ways(self, name: str) -> None:
        found = policies(rendered(EVERYTHING), name)
        assert found
        assert all(set(policy["policyTypes"]) == {"Ingress", "Egress"} for policy in found)

    def test_lets_metrics_be_read_and_the_gateway_be_reached(self) -> None:
        objects = rendered(EVERYTHING)
        for each in of_kind(objects, "Deployment"):
            assert heard_at(objects, component(each)) == {8000 if component(each) == "gateway" else 8080}
        assert heard_at(objects, "provision") == set()

    @pytest.mark.parametrize(("values", "peers"), [({}, []), (EVERYTHING, [PROMETHEUS])])
    def test_lets_nobody_but_named_peers_read_what_a_service_says_of_all_jobs(
        self, values: dict[str, Any], peers: list[Object]
    ) -> None:
        """A pod with a way out would read there, without a token, why another team's job is refused."""
        objects = rendered(values)
        for each in of_kind(objects, "Deployment"):
            if component(each) != "gateway":
                (rule,) = [rule for policy in policies(objects, component(each)) for rule in policy.get("ingress", [])]
                *named, tester = rule["from"]
                assert named == peers
                assert selects(tester["podSelector"]["matchLabels"], labels_of(objects, "test"))

    def test_lets_nobody_reach_a_training_pod_but_by_a_policy_of_its_job(self) -> None:
        """Join the chart's policies with the actuator's for two jobs, and ask who may connect to a pod of one."""
        static = policies(rendered(EVERYTHING), "trainer")
        assert [rule for each in static for rule in each.get("ingress", [])] == []
        own_pods = [rule for each in static for rule in each["egress"] if "ports" not in rule]
        assert own_pods == [], "every static path has a port"
        installation = Installation("demo", "")
        (rule,) = policy("a", False, installation)["spec"]["ingress"]
        (peer,) = rule["from"]
        assert selects(peer["podSelector"]["matchLabels"], TRAINER)
        assert not selects(peer["podSelector"]["matchLabels"], {**TRAINER, "stretto.dev/job": "b"})
        assert not selects(peer["podSelector"]["matchLabels"], {**TRAINER, "stretto.dev/installation": "another"})

    def test_of_helm_test_is_that_of_a_job(self) -> None:
        """The listening pod is protected as the actuator protects pods of a job, and the foreign pod is none of it."""
        objects = rendered(EVERYTHING)
        (made,) = [each for each in of_kind(objects, "NetworkPolicy") if component(each) == "test-target"]
        assert made["spec"] == policy("helm-test", False, Installation("demo", ""))["spec"]
        labels = made["spec"]["podSelector"]["matchLabels"]
        chosen = {name for name in EGRESS if selects(labels, labels_of(objects, name))}
        assert chosen == {"test-target", "test-friend"}
        hooks = [each for each in objects if "test" in each["metadata"].get("annotations", {}).get("helm.sh/hook", "")]
        order = {name_of(each): int(each["metadata"]["annotations"].get("helm.sh/hook-weight", 0)) for each in hooks}
        assert order["ReplicaSet/demo-stretto-test-target"] < order["Pod/demo-stretto-test-friend"]
        assert order["Pod/demo-stretto-test-friend"] < order["Pod/demo-stretto-test-foreign"]

    def test_closes_cloud_metadata_to_the_rule_of_the_store(self) -> None:
        """Without peers the store may be anywhere: every address but those that the actuator closes, too."""
        rules = [rule for each in policies(rendered({}), "trainer") for rule in each["egress"]]
        (store,) = [rule["to"] for rule in rules if {"protocol": "TCP", "port": 443} in rule["ports"]]
        blocks = {peer["ipBlock"]["cidr"]: peer["ipBlock"]["except"] for peer in store if "ipBlock" in peer}
        closed = {each for excepted in blocks.values() for each in excepted}
        assert set(blocks) == {"0.0.0.0/0", "::/0"}
        stated = networks_of(ActuatorSettings().metadata_addresses)
        assert {ip_network(each) for each in closed} == set(stated)

    @pytest.mark.parametrize(
        ("url", "ports"),
        [
            ("nats://nats", {4222}),
            ("tls://nats:4443", {4443}),
            ("nats://a:1,nats://b:2,nats://c", {1, 2, 4222}),
            ("wss://nats.example.com:443", {443}),
        ],
    )
    def test_opens_the_ports_that_the_bus_is_at(self, url: str, ports: set[int]) -> None:
        assert ports_to(rendered({"nats": {"url": url}}), "oom") == {53, *ports}

    @pytest.mark.parametrize(
        "peer", [{"ipBlock": {"cidr": "10.0.0.0/8"}}, {"podSelector": {"matchLabels": {"a": "b"}}}]
    )
    def test_is_narrowed_by_peers(self, peer: dict[str, Any]) -> None:
        objects = rendered(merged(EVERYTHING, {"networkPolicy": {"nats": [peer], "apiServer": [peer]}}))
        rules = [rule for policy in policies(objects, "actuator") for rule in policy.get("egress", [])]
        narrowed = {port["port"] for rule in rules if rule.get("to") == [peer] for port in rule["ports"]}
        assert narrowed == {4222, 4223, 443, 6443}
