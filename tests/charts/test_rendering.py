"""The chart rendered by real Helm over a matrix of values: official schemas, and invariants of every object."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import kubernetes_validate
import pytest
import yaml
from helm_python import Chart, lint
from hypothesis import given, settings
from hypothesis import strategies as st
from stretto_installation.server import free_port, server_config

from tests.charts.rendering import (
    CHART,
    EVERYTHING,
    NEEDED,
    PROMETHEUS,
    Object,
    chart,
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
from tests.live_bus import nats_server

SERVICES = sorted(defaults()["services"])
VERSIONS = sorted({version for version in kubernetes_validate.utils.all_versions() if version >= "1.29"})
FOREIGN = {"keda.sh/v1alpha1", "monitoring.coreos.com/v1"}
"""Kinds of operators: Kubernetes has no schema for their objects."""
NEWER = {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
"""Made on Kubernetes 1.30 and later alone; the chart is rendered for the newest."""

kubernetes_validate.utils.schema_contents = cache(kubernetes_validate.utils.schema_contents)
"""It reads two files of a megabyte for every object."""

QUICKSTART: dict[str, Any] = yaml.safe_load((CHART / "values-quickstart.yaml").read_text())
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
    "for a first try": merged(QUICKSTART, {"store": {"url": ""}}),
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


@settings(max_examples=60)
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


class TestAFirstTry:
    """The values for one NATS and one Redis, as the page installs them: the release and the namespace `stretto`."""

    @staticmethod
    def objects() -> list[Object]:
        texts = chart().render(QUICKSTART, name="stretto", namespace="stretto")
        manifests = [text for path, text in texts.items() if not path.endswith("NOTES.txt")]
        return [each for text in manifests for each in yaml.safe_load_all(text) if each]

    def test_needs_no_further_value_and_every_name_leads_somewhere(self) -> None:
        """Hosts of the bus and the cache are Services that are made, the claim is made where pods mount it."""
        objects = self.objects()
        services = {each["metadata"]["name"] for each in of_kind(objects, "Service")}
        variables = {
            variable["name"]: variable.get("value", "")
            for _, container in containers(objects)
            for variable in container.get("env", [])
        }
        for name in ("STRETTO_NATS_URL", "STRETTO_CHECKPOINTS_REDIS_URL"):
            assert urlsplit(variables[name]).hostname in services
        (claim,) = of_kind(objects, "PersistentVolumeClaim")
        assert claim["metadata"]["name"] == variables["STRETTO_ACTUATOR_KUBERNETES_CHECKPOINTS_CLAIM"]
        assert claim["metadata"]["namespace"] == variables["STRETTO_ACTUATOR_KUBERNETES_NAMESPACE"] == "stretto"
        assert all(each["metadata"].get("namespace", "stretto") == "stretto" for each in objects)

    def test_makes_streams_beside_the_bus_and_not_before_it(self) -> None:
        """Helm makes the rest of a release, the bus with it, after its hooks have ended."""
        objects = self.objects()
        (provision,) = [each for each in of_kind(objects, "Job") if component(each) == "provision"]
        assert provision in [each for each in objects if "annotations" not in each["metadata"]]
        hooks = {each["metadata"].get("annotations", {}).get("helm.sh/hook", "test") for each in objects}
        assert hooks == {"test"}

    def test_runs_a_bus_that_services_can_use(self, tmp_path: Path) -> None:
        """The configuration of the ConfigMap, on a real server: requests are mapped to partitions, streams are made."""
        (made,) = [each for each in of_kind(self.objects(), "ConfigMap") if component(each) == "nats"]
        port = free_port()
        text = made["data"]["nats.conf"].replace('"/data"', json.dumps(str(tmp_path / "data")))
        text = text.replace("port: 4222", f"host: 127.0.0.1\nport: {port}").replace("http: 8222\n", "")
        theirs, own = (
            {line.strip() for line in text.splitlines() if not line.startswith(("host:", "http:", "max_connections:"))}
            for text in (made["data"]["nats.conf"], server_config("/data", 4222))
        )
        assert {"".join(line.split()) for line in theirs} == {"".join(line.split()) for line in own}
        (tmp_path / "nats.conf").write_text(text)
        with nats_server(tmp_path / "nats.conf", port):
            environment = {
                **os.environ,
                "STRETTO_NATS_URL": f"nats://127.0.0.1:{port}",
                "STRETTO_STATE_FOLDER": str(tmp_path),
            }
            done = subprocess.run(
                [sys.executable, "-m", "stretto_installation", "provision"],
                env=environment, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout + done.stderr


class TestTheValuesForTheOfficialChartOfNats:
    """`charts/nats-values.yaml`: the settings, on a real server; and, where there is that chart, rendered by it."""

    VALUES: dict[str, Any] = yaml.safe_load((CHART.parent / "nats-values.yaml").read_text())

    def test_make_a_bus_that_services_enter_with_their_keys_by_tls(self, tmp_path: Path) -> None:
        """Method: the chart writes `config.merge`, `jetstream.merge` and `tls` as they stand; `$include` includes."""
        keys = tmp_path / "keys"
        subprocess.run(
            [sys.executable, "-m", "stretto_installation", "keys", str(keys), "--tls", "localhost"],
            check=True, capture_output=True,
        )  # fmt: skip
        config, port = self.VALUES["config"], free_port()
        tls = config["nats"]["tls"]
        whole = {
            "host": "127.0.0.1",
            "port": port,
            "server_name": "nats-0",
            "jetstream": {
                "store_dir": str(tmp_path / "data"),
                "max_file_store": 1 << 50,
                **config["jetstream"]["merge"],
            },
            "tls": {f"{name}_file": str(keys / "server" / tls[name]) for name in ("cert", "key")},
            "max_payload": config["merge"]["max_payload"],
        }
        included = Path(config["merge"]["zz$include"])
        assert included.parent.name == "nats", "the folder in which the chart mounts tls.secretName"
        text = json.dumps(whole)[:-1] + f"\ninclude {os.path.relpath(keys / 'server' / included.name, tmp_path)};\n}}"
        (tmp_path / "nats.conf").write_text(text)
        with nats_server(tmp_path / "nats.conf", port):
            environment = {
                **os.environ,
                "STRETTO_NATS_URL": f"tls://localhost:{port}",
                "STRETTO_NATS_CREDENTIALS": str(keys / "operator" / "bus.creds"),
                "STRETTO_NATS_CA": str(keys / "server" / "ca.crt"),
                "STRETTO_STATE_FOLDER": str(tmp_path),
                "STRETTO_STREAMS_SYNC_INTERVAL": defaults()["provision"]["syncInterval"],
            }
            command = [sys.executable, "-m", "stretto_installation", "provision"]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            nobody = {name: value for name, value in environment.items() if "CREDENTIALS" not in name}
            refused = subprocess.run(command, env=nobody, capture_output=True, text=True, check=False, timeout=60)
            assert refused.returncode != 0, "without keys nobody enters"

    @pytest.mark.parametrize(
        ("answer", "free_kib", "status"),
        [
            ('{"status":"ok"}', 0, 0),
            ('{"errors":[{"error":"JetStream stream is not current"}]}', 1 << 20, 0),
            ('{"errors":[{"error":"write error: no space left on device"}]}', 1000, 0),
            ('{"errors":[{"error":"write error: too many open files"}]}', 1 << 20, 1),
            ('{"errors":[{"error":"JetStream not enabled (10076)"}]}', 1 << 20, 1),
            ("", 1 << 20, 1),
        ],
    )
    def test_restart_a_server_that_could_not_store_and_now_has_room(
        self, answer: str, free_kib: int, status: int, tmp_path: Path
    ) -> None:
        """The script of the probe, with stand-ins for the answer of the server and the size of its disk."""
        (patch,) = self.VALUES["container"]["patch"]
        assert (patch["op"], patch["path"]) == ("replace", "/livenessProbe")
        (tmp_path / "nc").write_text(
            f"#!/bin/sh\ncat > /dev/null\necho '{answer}'\n" if answer else "#!/bin/sh\nexit 1\n"
        )
        (tmp_path / "df").write_text(f"#!/bin/sh\necho Filesystem\necho /dev/sda 9 9 {free_kib} 1% /data\n")
        for name in ("nc", "df"):
            (tmp_path / name).chmod(0o755)
        path = f"{tmp_path}:{os.environ['PATH']}"
        done = subprocess.run(patch["value"]["exec"]["command"], env={"PATH": path}, check=False, timeout=60)
        assert done.returncode == status

    def test_agree_with_those_of_this_chart(self) -> None:
        config = self.VALUES["config"]
        assert config["cluster"]["replicas"] == defaults()["provision"]["replicas"]
        assert config["jetstream"]["merge"]["sync_interval"] == defaults()["provision"]["syncInterval"]
        assert self.VALUES["container"]["image"]["tag"] == "2.15.1-alpine"

    @pytest.mark.skipif("NATS_CHART" not in os.environ, reason="needs the folder of the chart nats/nats")
    def test_are_rendered_by_that_chart(self) -> None:
        texts = Chart.load(os.environ["NATS_CHART"]).render(self.VALUES, name="nats", namespace="stretto")
        objects = [each for text in texts.values() for each in yaml.safe_load_all(text) if each]
        for each in objects:
            kubernetes_validate.validate(each, VERSIONS[-1], strict=True)
        (configuration,) = [each for each in objects if name_of(each) == "ConfigMap/nats-config"]
        text = configuration["data"]["nats.conf"]
        assert "include ../nats-certs/nats/trust.conf;" in text
        assert '"strict": true' in text
        assert '"sync_interval": "always"' in text
        (servers,) = of_kind(objects, "StatefulSet")
        mounts = {mount["mountPath"] for mount in servers["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]}
        assert "/etc/nats-certs/nats" in mounts
