"""The chart sets only settings that the services have, and each arrives with the intended value."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from stretto_actuator.pod.spec import inherited
from stretto_core.model.teams import TeamQuota
from stretto_installation.__main__ import parser
from stretto_installation.settings import StreamsSettings
from stretto_runtime import Settings
from stretto_wire.policy.allowed import Allowed

from tests.charts.rendering import EVERYTHING, Object, component, merged, of_kind, pod_of, rendered
from tests.release.versions import current

REFERENCES: dict[str, str] = {"STRETTO_CHECKPOINTS_REDIS_URL": "redis://cache"}
"""Settings that a Secret would hold."""
WHOLE = {"forwarder": {"/run/stretto/endpoints.yaml"}}
"""Settings of Secrets that are laid there with all their keys."""


def environment(workload: Object) -> dict[str, str]:
    (container,) = pod_of(workload)["spec"]["containers"]
    return {each["name"]: each.get("value", REFERENCES.get(each["name"], "")) for each in container.get("env", [])}


def workload(values: dict[str, Any], name: str) -> Object:
    (found,) = [each for each in of_kind(rendered(values), "Deployment", "Job") if component(each) == name]
    return found


def told(values: dict[str, Any], name: str) -> Any:
    """Return the settings as the service's process reads them. Raises SettingsFault for unknown ones."""
    kind = settings_type(name)
    return kind.load(name, environment(workload(values, name)))


def settings_type(name: str) -> type[Settings]:
    module = importlib.import_module(f"stretto_{name}.settings")
    (found,) = [
        each
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, Settings) and each.__module__ == module.__name__
    ]
    return found


SERVICES = [component(each) for each in of_kind(rendered(EVERYTHING), "Deployment")]


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["needed", "everything"])
@pytest.mark.parametrize("name", SERVICES)
def test_a_service_knows_every_variable(name: str, values: dict[str, Any]) -> None:
    switched_on = merged(values, {"services": {name: {"enabled": True}}})
    settings = told(switched_on, name)
    assert settings.state_folder == Path("/var/lib/stretto")
    assert settings.nats_url == switched_on.get("nats", {}).get("url", "nats://nats:4222")


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_finds_its_files(name: str) -> None:
    """Every file that is named below /run/stretto is laid there."""
    spec = workload(EVERYTHING, name)
    (files,) = [each["projected"] for each in pod_of(spec)["spec"]["volumes"] if each["name"] == "files"]
    items = [item for source in files["sources"] for item in source["secret"].get("items", [])]
    laid = {f"/run/stretto/{item['path']}" for item in items} | WHOLE.get(name, set())
    named = {value for value in environment(spec).values() if value.startswith("/run/stretto/")}
    assert named == laid


def test_event_files_of_tensorboard_are_kept_in_a_claim() -> None:
    spec = pod_of(workload(EVERYTHING, "forwarder"))["spec"]
    assert {"name": "board", "persistentVolumeClaim": {"claimName": "board"}} in spec["volumes"]
    assert {"name": "board", "mountPath": "/var/lib/stretto/board"} in spec["containers"][0]["volumeMounts"]


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_sees_its_own_credentials_alone(name: str) -> None:
    spec = workload(EVERYTHING, name)
    (files,) = [each["projected"] for each in pod_of(spec)["spec"]["volumes"] if each["name"] == "files"]
    secrets = {source["secret"]["name"] for source in files["sources"]}
    assert {each for each in secrets if each.startswith("bus-") and each != "bus-ca"} == {f"bus-{name}"}


class TestTheProvisionJob:
    def test_knows_every_variable(self) -> None:
        told = StreamsSettings.read(environment(workload(EVERYTHING, "provision")))
        assert told.max_bytes == 20 << 30
        assert told.external_credentials == Path("/run/external")
        assert (told.events_kept_s, told.audit_kept_s) == (8 * 86400, 400 * 86400)
        assert (told.telemetry_kept_s, told.dead_letters_kept_s) == (3600, 30 * 86400)

    @pytest.mark.parametrize(
        ("values", "arguments", "mounts"),
        [
            ({"store": {"url": "s3://b/s", "claim": ""}}, [], {}),
            (
                {},
                ["--known=/checkpoints/.streams/streams.json", "--jobs=/checkpoints"],
                {"/checkpoints": ("store", False)},
            ),
            (
                {"provision": {"knownClaim": "note", "forget": True}},
                ["--known=/known/streams.json", "--jobs=/checkpoints", "--forget"],
                {"/known": ("note", False), "/checkpoints": ("store", True)},
            ),
            (
                {"store": {"url": "s3://b/s", "claim": ""}, "provision": {"knownClaim": "note"}},
                ["--known=/known/streams.json"],
                {"/known": ("note", False)},
            ),
        ],
    )
    def test_notes_the_streams_where_there_is_a_claim(
        self, values: dict[str, Any], arguments: list[str], mounts: dict[str, tuple[str, bool]]
    ) -> None:
        spec = pod_of(workload(merged(EVERYTHING, values), "provision"))["spec"]
        (container,) = spec["containers"]
        given = container.get("args", [])
        assert given == (["provision", *arguments] if arguments else [])
        parser().parse_args(given)
        claims = {each["name"]: each["persistentVolumeClaim"]["claimName"] for each in spec["volumes"] if len(each) == 2
                  and "persistentVolumeClaim" in each}  # fmt: skip
        assert mounts == {
            each["mountPath"]: (claims[each["name"]], each.get("readOnly", False))
            for each in container["volumeMounts"]
            if each["name"] in claims
        }

    def test_runs_before_the_services(self) -> None:
        hook = workload({}, "provision")["metadata"]["annotations"]["helm.sh/hook"]
        assert hook == "pre-install,pre-upgrade"


class TestTheActuator:
    def test_runs_pods_on_kubernetes_as_the_values_say(self) -> None:
        settings = told(EVERYTHING, "actuator")
        assert settings.backend == "kubernetes"
        assert settings.installation == "demo"
        assert settings.pod_image == f"registry.example.com/stretto/trainer:{current()}"
        assert settings.kubernetes_namespace == "jobs"
        assert settings.kubernetes.queue == "training"
        assert settings.kubernetes.priority_class == "low"
        assert settings.kubernetes.image_pull_secrets == ("pull",)
        assert settings.kubernetes.node_selector == {"pool": "training"}
        assert settings.kubernetes.tolerations[0].key == "training"
        assert settings.kubernetes_checkpoints_claim == "store"

    def test_names_accounts_and_owner_that_the_chart_makes(self) -> None:
        settings = told(EVERYTHING, "actuator")
        made = {
            (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in rendered(EVERYTHING)
        }
        assert ("ServiceAccount", "jobs", settings.kubernetes.service_account) in made
        assert ("ConfigMap", "jobs", settings.kubernetes_owner) in made


class TestWhatJobsMayName:
    @pytest.mark.parametrize("name", ["gateway", "checkpoints", "actuator"])
    def test_is_the_same_for_all_that_check_it(self, name: str) -> None:
        """The lists of the values, and the names that a job would get anyway."""
        allowed = told(EVERYTHING, name).allowed
        assert allowed == Allowed(
            stores=("s3://ads/checkpoints",),
            restores=("s3://shared/*",),
            images=("registry.example.com/ads/*",),
            priority_classes=("high", "low"),
            tolerations=("pool=gpu:NoSchedule",),
            image_pull_secrets=("ads-registry", "pull"),
            service_accounts=("reader", "demo-stretto-trainer"),
            queues=("ads-*", "training"),
            secrets=("ads-s3=oidc:ada",),
            volumes=(
                "claim:clicks",
                "claim:out-*:write=oidc:ada",
                "folder:/srv/clicks/*",
                "folder:/srv/out:write",
                "folder:/srv/clicks/made:write",
            ),
            code=("https://github.com/ads/*",),
            requirements=("lightgbm",),
        )

    @pytest.mark.parametrize("name", ["gateway", "checkpoints", "actuator"])
    def test_is_by_default_nothing_but_the_installations_own(self, name: str) -> None:
        assert told({}, name).allowed == Allowed(service_accounts=("demo-stretto-trainer",))


class TestQuotasOfTeams:
    @pytest.mark.parametrize("name", ["gateway", "arbiter"])
    def test_are_the_same_for_both_that_apply_them(self, name: str) -> None:
        assert told(EVERYTHING, name).quotas == {
            "ads": TeamQuota(cores=64.0, memory_gib=256.0, jobs=20),
            "*": TeamQuota(weight=0.5),
        }
        assert told({}, name).quotas == {}

    @pytest.mark.parametrize("name", ["gateway", "arbiter"])
    def test_are_kueues_alone_where_it_holds_them(self, name: str) -> None:
        assert told({"teams": {"quotas": {"ads": {"cores": 1}}, "quotaHolder": "kueue"}}, name).quotas == {}


class TestTheStoresKey:
    def test_is_for_the_two_services_that_write_there(self) -> None:
        """The checkpoints service keeps manifests there, the actuator logs of pods."""
        values = {"store": {"url": "s3://bucket/stretto", "secret": "store"}}
        holders = [
            component(each)
            for each in of_kind(rendered(values), "Deployment")
            if pod_of(each)["spec"]["containers"][0].get("envFrom")
        ]
        assert sorted(holders) == ["actuator", "checkpoints"]
        (actuator,) = [each for each in of_kind(rendered(values), "Deployment") if component(each) == "actuator"]
        assert told(values, "actuator").store == told(values, "checkpoints").store == "s3://bucket/stretto"
        assert told(EVERYTHING, "actuator").store == told(EVERYTHING, "checkpoints").store
        assert pod_of(actuator)["spec"]["containers"][0]["envFrom"] == [{"secretRef": {"name": "store"}}]

    def test_is_not_inherited_by_pods(self) -> None:
        """Whatever the actuator's own environment holds, pods get the variables of tracing and harmless ones."""
        environment = {"AWS_SECRET_ACCESS_KEY": "key", "OTEL_SERVICE_NAME": "trainer", "LANG": "C"}
        assert inherited(environment, told({}, "actuator").pod_environment, here=False) == {
            "OTEL_SERVICE_NAME": "trainer",
            "LANG": "C",
        }
        wide = told({"trainer": {"environment": "AWS_*"}}, "actuator").pod_environment
        assert inherited(environment, wide, here=False) == {"LANG": "C"}, "a pattern names no key"


class TestTheGateway:
    def test_lets_in_whom_the_values_say(self) -> None:
        settings = told(EVERYTHING, "gateway")
        assert settings.tokens_file == Path("/run/stretto/tokens.json")
        assert settings.oidc_issuer == "https://id.example.com"
        assert dict(settings.oidc_roles) == {"ml": "submitter"}

    def test_serves_objects_of_the_pods_namespace(self) -> None:
        assert told(EVERYTHING, "gateway").trainingjobs_namespace == "jobs"


class TestOwnSettings:
    def test_go_before_the_charts(self) -> None:
        values = {"services": {"planner": {"env": {"STRETTO_PLANNER_CPU_CORES": 7, "STRETTO_LOG_LEVEL": "debug"}}}}
        settings = told(values, "planner")
        assert (settings.cpu_cores, settings.log_level) == (7, "debug")

    @pytest.mark.parametrize(("value", "text"), [(15000000, "15000000"), (0.5, "0.5"), (True, "true"), ("a", "a")])
    def test_are_written_as_they_were_given(self, value: Any, text: str) -> None:
        values = {"services": {"oom": {"env": {"ANY": value}}}}
        assert environment(workload(values, "oom"))["ANY"] == text

    def test_may_come_from_secrets(self) -> None:
        reference = {"secretKeyRef": {"name": "here", "key": "there"}}
        (container,) = pod_of(workload({"services": {"oom": {"env": {"ANY": reference}}}}, "oom"))["spec"]["containers"]
        assert {"name": "ANY", "valueFrom": reference} in container["env"]


def test_capacity_is_the_same_for_planner_and_arbiter() -> None:
    for name in ("planner", "arbiter"):
        settings = told({"cluster": {"cpuCores": 12.5, "memoryGiB": 0.5}}, name)
        assert (settings.cpu_cores, settings.memory_bytes) == (12.5, 1 << 29)


def test_devices_are_the_same_for_all_who_count_them() -> None:
    for name in ("planner", "arbiter", "gateway", "actuator"):
        values = {"cluster": {"extended": {"nvidia.com/gpu": 8}}}
        assert told(values, name).extended_resources == {"nvidia.com/gpu": 8}
        assert told({}, name).extended_resources == {}
        (spot,) = told(EVERYTHING, name).device_types
        assert (spot.name, spot.count, spot.cpu_cores, spot.memory) == ("gpu-a-spot", 4, 7.5, 28 * 2**30)
        assert (spot.extended, spot.tolerations[0].key) == ({"nvidia.com/gpu": 1}, "spot")
        assert "STRETTO_DEVICE_TYPES" not in environment(workload({}, name)), "as before where there are none"


def test_no_secret_stands_in_a_manifest() -> None:
    assert "redis://" not in json.dumps(rendered(EVERYTHING))


class TestTheNamespaceOfPods:
    """Pods have a namespace of their own, and find there what stands beside the services."""

    def test_is_made_restricted_where_none_is_named(self) -> None:
        """Only the chart's own namespace is made, and it outlives the release with what users put there."""
        (made,) = of_kind(rendered({}), "Namespace")
        assert made["metadata"]["name"] == told({}, "actuator").kubernetes_namespace == "demo-stretto-pods"
        assert made["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
        assert made["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
        assert of_kind(rendered({"trainer": {"namespace": "jobs"}}), "Namespace") == []

    def test_resolves_short_names_as_the_services_do(self) -> None:
        """The bus and the cache keep the names that their certificates and Secrets say."""
        assert told({}, "actuator").kubernetes_dns_searches == "training.svc.cluster.local"
        assert told({"clusterDomain": "example"}, "actuator").kubernetes_dns_searches == "training.svc.example"
        assert told({"trainer": {"namespace": "training"}}, "actuator").kubernetes_dns_searches == ""

    def test_gives_no_way_out_where_egress_is_off(self) -> None:
        """The values arrive as the actuator's settings."""
        assert told({}, "actuator").egress
        off = told({"trainer": {"egress": False}, "networkPolicy": {"enabled": False}}, "actuator")
        assert (off.egress, off.kubernetes_network_policies) == (False, False)
