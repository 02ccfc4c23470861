"""Whatever a job says, its pod is one that every supported Kubernetes takes, and without privileges."""

from __future__ import annotations

import base64
import json
from typing import Any

import kubernetes_validate
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stretto_actuator.backend import BackendError, PodSpec
from stretto_actuator.kubernetes.manifest import (
    CHECKPOINTS,
    PLACES,
    Installation,
    manifest,
    policy,
    resized,
    sayable,
    secret,
)
from stretto_actuator.kubernetes.pod_status import in_force, status_of, vanished
from stretto_actuator.settings import ActuatorSettings, networks_of
from stretto_wire.jobspec.kubernetes import KubernetesSpec, Toleration
from stretto_wire.jobspec.pod_files import VolumeSpec

VERSIONS = ("1.29", "1.33", "1.36")
names = st.from_regex(r"[a-z]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)
tolerations = st.one_of(
    st.fixed_dictionaries({"key": names, "value": names}, optional={"effect": st.just("NoSchedule")}),
    st.fixed_dictionaries({"operator": st.just("Exists")}, optional={"key": names}),
    st.fixed_dictionaries({"key": names, "effect": st.just("NoExecute"), "seconds": st.integers(0, 60)}),
)
specs = st.fixed_dictionaries(
    {},
    optional={
        "node_selector": st.dictionaries(names, names, max_size=2),
        "tolerations": st.lists(tolerations, max_size=2),
        "priority_class": names,
        "image_pull_secrets": st.lists(names, max_size=2),
        "queue": names,
    },
)


def pod(kubernetes: Any = None, **more: Any) -> PodSpec:
    job = {"name": "ads", "kubernetes": kubernetes}
    given: dict[str, Any] = {"cpu_cores": 1.0, "memory_bytes": 2**28, "files": {"job.json": json.dumps(job).encode()}}
    return PodSpec(job="ads", pod="worker-3", command=("python",), **({"environment": {"A": "b"}} | given | more))


def made(spec: PodSpec, installation: Installation) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", **manifest(spec, installation)}


@settings(max_examples=40)  # every look at a schema reads it anew
@given(specs, specs, st.sampled_from(["", "ps-0"]), st.sampled_from(VERSIONS), st.booleans())
def test_every_pod_is_valid_and_without_privileges(
    job: dict[str, Any], defaults: dict[str, Any], near: str, version: str, claim: bool
) -> None:
    installation = Installation(
        name="prod",
        image="trainer:1",
        defaults=KubernetesSpec.model_validate(defaults),
        checkpoints_claim="checkpoints" if claim else "",
    )
    one = made(pod(job, near=near), installation)
    kubernetes_validate.validate(one, version, strict=True)
    kubernetes_validate.validate(
        {"apiVersion": "v1", "kind": "Secret", **secret(pod(job), installation)}, version, strict=True
    )
    (container,) = one["spec"]["containers"]
    assert one["spec"]["automountServiceAccountToken"] is False
    assert one["spec"]["securityContext"]["runAsNonRoot"] is True
    assert one["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["requests"] == container["resources"]["limits"]
    assert not any("hostPath" in volume for volume in one["spec"]["volumes"])
    assert one["spec"]["priorityClassName" if "priority_class" in job else "restartPolicy"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_pod_asks_for_its_devices_and_a_resize_leaves_them(version: str) -> None:
    one = made(pod(extended=(("example.com/fpga", 2), ("nvidia.com/gpu", 1))), Installation("prod", "trainer:1"))
    kubernetes_validate.validate(one, version, strict=True)
    (container,) = one["spec"]["containers"]
    for amounts in (container["resources"]["limits"], container["resources"]["requests"]):
        assert (amounts["example.com/fpga"], amounts["nvidia.com/gpu"]) == ("2", "1")
    (patch,) = resized(2.0, 2**29)["spec"]["containers"]
    assert patch["resources"]["limits"].keys() == {"cpu", "memory"}, "what a patch does not name stays as it is"


@pytest.mark.parametrize(
    ("extended", "visible"),
    [((), "void"), ((("example.com/fpga", 1),), "void"), ((("nvidia.com/mig-1g.5gb", 1),), None)],
)
def test_a_runtime_that_reads_variables_gives_no_other_gpus(extended: Any, visible: str | None) -> None:
    """Images of CUDA ask for all of them by this variable, and a job may; NVIDIA's device plugin sets it itself."""
    spec = pod(environment={"NVIDIA_VISIBLE_DEVICES": "all"}, extended=extended)
    (container,) = made(spec, Installation("prod", "trainer:1"))["spec"]["containers"]
    assert {each["name"]: each.get("value") for each in container["env"]}.get("NVIDIA_VISIBLE_DEVICES") == visible


METADATA = networks_of(ActuatorSettings().metadata_addresses)


@settings(max_examples=20)  # every look at a schema reads it anew
@given(names, names, st.booleans(), st.sampled_from(VERSIONS))
def test_a_jobs_policy_is_valid_and_opens_its_own_pods_alone(job: str, other: str, egress: bool, version: str) -> None:
    """Make policies of any job and compare their peers with the labels of pods of this job and of another one."""
    installation = Installation("prod", "trainer:1", metadata=METADATA)
    one = policy(job, egress, installation)
    kubernetes_validate.validate(
        {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", **one}, version, strict=True
    )
    ingress = [peer for rule in one["spec"]["ingress"] for peer in rule["from"]]
    peers = [peer for rule in one["spec"]["egress"] for peer in rule["to"]]
    (own,) = ingress
    assert own in peers
    for pods_job, pods_installation in ((job, "prod"), (other, "prod"), (job, "another")):
        spec = PodSpec(pods_job, "ps-0", ("python",), {}, 1.0, 2**28)
        of_pod = manifest(spec, Installation(pods_installation, "trainer:1"))["metadata"]["labels"]
        chosen = own["podSelector"]["matchLabels"].items() <= of_pod.items()
        assert chosen == ((pods_job, pods_installation) == (job, "prod"))
    assert one["spec"]["podSelector"] == own["podSelector"]
    blocks = [peer["ipBlock"] for peer in peers if peer != own]
    assert [block["cidr"] for block in blocks] == (["0.0.0.0/0", "::/0"] if egress else [])
    assert {address for block in blocks for address in block["except"]} == (
        {str(each) for each in METADATA} if egress else set()
    )


@given(st.floats(0.01, 1024), st.integers(2**20, 2**46))
def test_limits_come_back_as_they_can_be_said(cpu_cores: float, memory_bytes: int) -> None:
    one = made(pod(cpu_cores=cpu_cores, memory_bytes=memory_bytes), Installation("prod", "trainer:1"))
    assert in_force(one) == sayable(cpu_cores, memory_bytes)
    assert sayable(*sayable(cpu_cores, memory_bytes)) == sayable(cpu_cores, memory_bytes)


class TestWishes:
    def test_a_job_goes_before_the_installation(self) -> None:
        defaults = KubernetesSpec(node_selector={"pool": "cpu", "zone": "a"}, priority_class="low", queue="all")
        one = manifest(
            pod(
                {"node_selector": {"zone": "b"}, "priority_class": "high", "image_pull_secrets": ["mine"]},
                image="own:1",
            ),
            Installation("prod", "trainer:1", defaults),
        )
        assert one["spec"]["nodeSelector"] == {"pool": "cpu", "zone": "b"}
        assert one["spec"]["priorityClassName"] == "high"
        assert one["spec"]["imagePullSecrets"] == [{"name": "mine"}]
        assert one["spec"]["containers"][0]["image"] == "own:1"
        assert one["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "all"

    @pytest.mark.parametrize("version", VERSIONS)
    def test_a_type_of_devices_adds_labels_and_taints_of_its_nodes_and_its_labels_win(self, version: str) -> None:
        spec = pod(
            {"node_selector": {"zone": "b", "pool": "cpu"}, "tolerations": [{"key": "own", "operator": "Exists"}]},
            node_selector={"pool": "spot"},
            tolerations=(Toleration(key="spot", value="true", effect="NoSchedule"),),
        )
        one = made(spec, Installation("prod", "trainer:1"))
        kubernetes_validate.validate(one, version, strict=True)
        assert one["spec"]["nodeSelector"] == {"pool": "spot", "zone": "b"}
        own, spot, *_ = one["spec"]["tolerations"]
        assert own == {"key": "own", "operator": "Exists"}
        assert spot == {"key": "spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"}

    def test_a_taint_of_lost_nodes_that_the_job_speaks_of_is_left_to_it(self) -> None:
        said = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "seconds": 900}
        one = manifest(pod({"tolerations": [said]}), Installation("prod", "trainer:1", node_lost_s=7))
        seconds = {each["key"]: each["tolerationSeconds"] for each in one["spec"]["tolerations"]}
        assert seconds == {"node.kubernetes.io/unreachable": 900, "node.kubernetes.io/not-ready": 7}

    def test_names_of_two_installations_differ(self) -> None:
        assert Installation("a", "").name_of("j", "ps-0") != Installation("b", "").name_of("j", "ps-0")

    def test_files_are_found_where_they_are_laid(self) -> None:
        one = manifest(pod(), Installation("prod", "trainer:1"))
        (container,) = one["spec"]["containers"]
        assert {PLACES.files, PLACES.scratch} <= {each["mountPath"] for each in container["volumeMounts"]}
        assert container["workingDir"] == PLACES.scratch, "relative places of a job are below it, as in other places"


class TestWhatIsTheJobsOwn:
    """The part of a shared claim, and the Secrets, that a job's pods get."""

    def test_of_the_claim_is_its_folder_alone(self) -> None:
        """No job can read, change or remove another one's checkpoints: they are not in its pods."""
        claimed = Installation("prod", "trainer:1", checkpoints_claim="store")
        (mount,) = checkpoint_mounts(pod(), claimed)
        assert mount == {"name": "checkpoints", "mountPath": f"{CHECKPOINTS}/ads", "subPath": "ads"}

    @pytest.mark.parametrize(
        ("url", "folders"),
        [
            (f"file://{CHECKPOINTS}/first/first-000002/manifest.json", {"first"}),
            (f"file://{CHECKPOINTS}/ads/ads-000001/manifest.json", set()),
            (f"file://{CHECKPOINTS}/../../etc/manifest.json", set()),
            (f"file://{CHECKPOINTS}-of-others/first/manifest.json", set()),
            (f"file://{CHECKPOINTS}/%2e%2e/manifest.json", set()),
            (f"file://{CHECKPOINTS}", set()),
            ("s3://bucket/first/manifest.json", set()),
        ],
    )
    def test_and_to_read_the_one_that_it_starts_from(self, url: str, folders: set[str]) -> None:
        claimed = Installation("prod", "trainer:1", checkpoints_claim="store")
        _, *others = checkpoint_mounts(pod(reads=(url,)), claimed)
        assert {each["subPath"] for each in others} == folders
        assert all(each["readOnly"] and each["mountPath"] == f"{CHECKPOINTS}/{each['subPath']}" for each in others)

    def test_of_the_secrets_are_those_that_it_names(self) -> None:
        """The node reads their values; neither the pod's manifest nor its Secret of files has any."""
        spec, installation = pod(secrets=("ads-s3", "shared")), Installation("prod", "trainer:1")
        one = made(spec, installation)
        kubernetes_validate.validate(one, VERSIONS[0], strict=True)
        (container,) = one["spec"]["containers"]
        assert container["envFrom"] == [{"secretRef": {"name": "ads-s3"}}, {"secretRef": {"name": "shared"}}]
        assert secret(spec, installation)["data"].keys() == {"job.json"}

    def test_is_never_the_secret_of_a_pod(self) -> None:
        """Each pod has a Secret with its credentials for the bus; a list such as ads-* would name it."""
        installation = Installation("prod", "trainer:1")
        name = manifest(pod(), installation)["metadata"]["name"]
        with pytest.raises(BackendError, match=f"environment_from={name} "):
            manifest(pod(secrets=(name,)), installation)


class TestVolumes:
    """Volumes and absolute files that a job names, as its pods get them."""

    INSTALLATION = Installation("prod", "trainer:1", checkpoints_claim="store")
    VOLUMES = (
        VolumeSpec(name="clicks", path="/data", claim="clicks"),
        VolumeSpec(name="models", path="models", claim="models", writable=True),
        VolumeSpec(name="logs", path="/logs", folder="/srv/logs"),
    )

    @pytest.mark.parametrize("version", VERSIONS)
    def test_are_valid_and_read_only_unless_stated(self, version: str) -> None:
        one = made(pod(volumes=self.VOLUMES), self.INSTALLATION)
        kubernetes_validate.validate(one, version, strict=True)
        volumes = {each.pop("name"): each for each in one["spec"]["volumes"]}
        assert volumes["job-clicks"] == {"persistentVolumeClaim": {"claimName": "clicks", "readOnly": True}}
        assert volumes["job-models"] == {"persistentVolumeClaim": {"claimName": "models", "readOnly": False}}
        assert volumes["job-logs"] == {"hostPath": {"path": "/srv/logs", "type": "Directory"}}
        mounts = {each.pop("name"): each for each in one["spec"]["containers"][0]["volumeMounts"]}
        assert mounts["job-clicks"] == {"mountPath": "/data", "readOnly": True}
        assert mounts["job-models"] == {"mountPath": f"{PLACES.scratch}/models"}
        assert mounts["job-logs"] == {"mountPath": "/logs", "readOnly": True}

    def test_are_never_the_store_of_all_jobs(self) -> None:
        store = VolumeSpec(name="v", path="/v", claim="store")
        with pytest.raises(BackendError, match=r"volumes\.v = claim:store: .*checkpoints of all jobs"):
            manifest(pod(volumes=(store,)), self.INSTALLATION)

    def test_files_are_parts_of_the_pods_own_secret(self) -> None:
        spec = pod(texts={"/etc/ads/model.yaml": b"lr: 1", "/etc/ads/units": b"64"})
        one = made(spec, self.INSTALLATION)
        kubernetes_validate.validate(one, VERSIONS[0], strict=True)
        laid = {each["mountPath"]: each for each in one["spec"]["containers"][0]["volumeMounts"] if "subPath" in each}
        data = secret(spec, self.INSTALLATION)["data"]
        for path, text in spec.texts.items():
            assert laid[path]["readOnly"]
            assert base64.b64decode(data[laid[path]["subPath"]]) == text


def checkpoint_mounts(spec: PodSpec, installation: Installation) -> list[dict[str, Any]]:
    (container,) = manifest(spec, installation)["spec"]["containers"]
    return [mount for mount in container["volumeMounts"] if mount["name"] == "checkpoints"]


def told(**status: Any) -> dict[str, Any]:
    one = manifest(pod(), Installation("prod", "trainer:1"))
    one["metadata"] |= {"uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {**one, "status": status}


def ended(**terminated: Any) -> list[dict[str, Any]]:
    return [{"name": "proxy", "state": {"running": {}}}, {"name": "pod", "state": {"terminated": terminated}}]


@pytest.mark.parametrize(
    ("status", "reason", "exit_code"),
    [
        ({"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory"}, "evicted", None),
        ({"phase": "Failed", "reason": "Preempting"}, "preempted", None),
        ({"phase": "Failed", "reason": "OutOfcpu"}, "evicted", None),
        ({"phase": "Failed", "reason": "Terminated", "containerStatuses": ended(exitCode=143)}, "node-lost", 143),
        ({"phase": "Running", "reason": "NodeLost"}, "node-lost", None),
        ({"phase": "Running", "containerStatuses": ended(exitCode=0)}, "completed", 0),
        ({"phase": "Failed", "containerStatuses": ended(exitCode=137, reason="OOMKilled")}, "oom-killed", 137),
        (
            {"phase": "Failed", "containerStatuses": ended(exitCode=137, reason="ContainerStatusUnknown")},
            "vanished",
            None,
        ),
    ],
)
def test_every_end_is_told_apart(status: dict[str, Any], reason: str, exit_code: int | None) -> None:
    seen = status_of(told(**status))
    assert (seen.state, seen.reason, seen.exit_code) == ("exited", reason, exit_code)


def test_a_gate_is_a_quota() -> None:
    gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "waits for Kueue"}
    seen = status_of(told(phase="Pending", conditions=[gated]))
    assert seen.waiting is not None
    assert (seen.waiting.reason, seen.waiting.detail, seen.waiting.held) == ("quota", "waits for Kueue", True)


def test_a_pod_that_we_ended_before_it_began_was_killed() -> None:
    assert vanished(told(phase="Pending"), asked=True).reason == "killed"
    assert vanished(told(phase="Pending"), asked=False).reason == "vanished"


def test_a_pod_that_we_ended_was_killed_also_if_its_container_went_unseen() -> None:
    assert status_of(told(phase="Failed"), asked=True).reason == "killed"
    assert status_of(told(phase="Failed")).reason == "vanished"
