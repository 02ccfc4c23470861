"""Kubernetes manifests of a job's pods: pure functions of the pod's specification and the installation."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from dataclasses import dataclass, field, replace

from stretto_kube import Object
from stretto_messages.values import Extended
from stretto_wire.jobspec.kubernetes import (
    INSTALLATION,
    JOB,
    MANAGED_BY,
    PART_OF,
    POD,
    ROLE,
    KubernetesSpec,
    Toleration,
)

from ..backend import BackendError, Places, PodSpec, folders_in
from ..pod.devices import GPU, NO_GPUS, RUNTIME_VISIBLE
from ..pod.job_volumes import path_in
from ..pod.spec import SPEC_FILE
from ..settings import Network, networks_of

USER = 10001
CONTAINER = "pod"
PLACES = Places(files="/run/stretto", scratch="/var/lib/stretto/pod", state="")
CHECKPOINTS = "/var/lib/stretto/checkpoints"
"""Folder of checkpoints in pods; the checkpoints service has its own store there, too: its URLs begin with it."""

QUEUE = "kueue.x-k8s.io/queue-name"
EVERYWHERE = networks_of("0.0.0.0/0,::/0")
LOST_NODE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


@dataclass(frozen=True, slots=True)
class Installation:
    """The common part of all pods of an installation. ``defaults``: the wishes of a job override them.

    ``owner``: an object whose deletion takes the pods along. ``metadata``: closed to jobs that ask for egress.
    ``dns_searches``: domains in which pods look up short names, too.
    """

    name: str
    image: str
    defaults: KubernetesSpec = field(default_factory=KubernetesSpec)
    checkpoints_claim: str = ""
    grace_s: float = 30.0
    node_lost_s: int = 30
    metadata: tuple[Network, ...] = ()
    dns_searches: tuple[str, ...] = ()
    owner: Object | None = None

    @property
    def selector(self) -> str:
        """Label selector of this installation's pods."""
        return f"{MANAGED_BY}=stretto,{INSTALLATION}={self.name}"

    def name_of(self, job: str, pod: str) -> str:
        """A pod's name, of no other installation's in the same namespace."""
        return f"{job}-{pod}{self._suffix}"

    def made(self, name: str) -> bool:
        """Return True if an object of this name may be one of ours, such as the Secret with a pod's credentials."""
        return name.endswith(self._suffix)

    @property
    def _suffix(self) -> str:
        return f"-{hashlib.sha256(self.name.encode()).hexdigest()[:6]}"


def wishes(spec: PodSpec, installation: Installation) -> KubernetesSpec:
    """Return the job's wishes for Kubernetes, over the installation's."""
    wishes_of_job = json.loads(spec.files[SPEC_FILE]).get("kubernetes") if SPEC_FILE in spec.files else None
    defaults = installation.defaults
    if wishes_of_job is None:
        return defaults
    own = KubernetesSpec.model_validate_json(json.dumps(wishes_of_job))
    return KubernetesSpec(
        node_selector={**defaults.node_selector, **own.node_selector},
        tolerations=(*defaults.tolerations, *own.tolerations),
        priority_class=own.priority_class or defaults.priority_class,
        image_pull_secrets=tuple(dict.fromkeys((*defaults.image_pull_secrets, *own.image_pull_secrets))),
        service_account=own.service_account or defaults.service_account,
        queue=own.queue or defaults.queue,
    )


def labels(spec: PodSpec, installation: Installation) -> dict[str, str]:
    """By which pods and their Secrets are found."""
    return {
        MANAGED_BY: "stretto",
        PART_OF: "stretto",
        INSTALLATION: installation.name,
        JOB: spec.job,
        POD: spec.pod,
        ROLE: spec.pod.partition("-")[0],
    }


def secret(spec: PodSpec, installation: Installation) -> Object:
    """The pod's files."""
    return {
        "metadata": _metadata(spec, installation),
        "type": "Opaque",
        "data": {
            name: base64.b64encode(content).decode()
            for name, content in (*spec.files.items(), *((key, spec.texts[path]) for key, path in _texts(spec)))
        },
    }


def policy(job: str, egress: bool, installation: Installation) -> Object:
    """The NetworkPolicy of a job: its pods reach one another; with egress, everything but cloud metadata."""
    labels = {INSTALLATION: installation.name, JOB: job}
    own = {"podSelector": {"matchLabels": labels}}
    out = [{"to": [_everywhere(each, installation.metadata) for each in EVERYWHERE]}] if egress else []
    common = {MANAGED_BY: "stretto", PART_OF: "stretto"}
    return {
        "metadata": _owned({"name": policy_name(job, installation), "labels": common | labels}, installation),
        "spec": {
            **own,
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [own]}],
            "egress": [{"to": [own]}, *out],
        },
    }


def policy_name(job: str, installation: Installation) -> str:
    return installation.name_of(job, "network")


def manifest(spec: PodSpec, installation: Installation) -> Object:
    """The pod. Raises BackendError: it asks for what this installation does not give."""
    job = wishes(spec, installation)
    metadata = _metadata(spec, installation)
    if job.queue:
        metadata["labels"] = {**metadata["labels"], QUEUE: job.queue}
    pod: Object = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": math.ceil(installation.grace_s),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(spec, installation)],
        "volumes": [*_volumes(metadata["name"], installation), *_job_volumes(spec, installation)],
        "tolerations": _tolerations((*job.tolerations, *spec.tolerations), installation.node_lost_s),
    }
    if selector := {**job.node_selector, **spec.node_selector}:
        pod["nodeSelector"] = selector
    if job.priority_class:
        pod["priorityClassName"] = job.priority_class
    if job.service_account:
        pod["serviceAccountName"] = job.service_account
    if job.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in job.image_pull_secrets]
    if installation.dns_searches:
        pod["dnsConfig"] = {"searches": [*installation.dns_searches]}
    if spec.near:
        pod["affinity"] = _near(spec)
    return {"metadata": metadata, "spec": pod}


def sayable(cpu_cores: float, memory_bytes: int) -> tuple[float, int]:
    """Round limits to those that Kubernetes can express: thousandths of a core."""
    return max(round(cpu_cores * 1000), 1) / 1000, memory_bytes


def resources(cpu_cores: float, memory_bytes: int, extended: Extended = ()) -> Object:
    """Requests are the limits: a pod gets what the plan counts on, and nobody else's. Devices never change."""
    cores, size = sayable(cpu_cores, memory_bytes)
    amounts = {"cpu": f"{cores * 1000:.0f}m", "memory": str(size), **{name: str(count) for name, count in extended}}
    return {"requests": amounts, "limits": dict(amounts)}


def resized(cpu_cores: float, memory_bytes: int) -> Object:
    """Return the patch for ``pods/resize``."""
    return {"spec": {"containers": [{"name": CONTAINER, "resources": resources(cpu_cores, memory_bytes)}]}}


def owned_by(pod: Object) -> list[Object]:
    """Return the reference by which the garbage collector removes an object with ``pod``."""
    return [{"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}]


def with_owner(installation: Installation, api_version: str, kind: str, owner: Object) -> Installation:
    """The installation, whose pods go when ``owner`` does."""
    name = owner["metadata"]["name"]
    uid = owner["metadata"]["uid"]
    return replace(installation, owner={"apiVersion": api_version, "kind": kind, "name": name, "uid": uid})


def _metadata(spec: PodSpec, installation: Installation) -> Object:
    return _owned(
        {"name": installation.name_of(spec.job, spec.pod), "labels": labels(spec, installation)}, installation
    )


def _owned(metadata: Object, installation: Installation) -> Object:
    return metadata if installation.owner is None else {**metadata, "ownerReferences": [installation.owner]}


def _everywhere(addresses: Network, closed: tuple[Network, ...]) -> Object:
    excluded = [str(each) for each in closed if each.version == addresses.version]
    return {"ipBlock": {"cidr": str(addresses), **({"except": excluded} if excluded else {})}}


def _container(spec: PodSpec, installation: Installation) -> Object:
    image = spec.image or installation.image
    if not image:
        raise BackendError("image: the job names none, and the installation has none; set STRETTO_ACTUATOR_POD_IMAGE")
    mounts: list[Object] = [
        {"name": "files", "mountPath": PLACES.files, "readOnly": True},
        {"name": "scratch", "mountPath": PLACES.scratch},
        {"name": "tmp", "mountPath": "/tmp"},
    ]
    if installation.checkpoints_claim:
        mounts += _checkpoints(spec)
    mounts += [{"name": "files", "mountPath": path, "subPath": key, "readOnly": True} for key, path in _texts(spec)]
    for volume in spec.volumes:
        place = {"name": f"job-{volume.name}", "mountPath": path_in(volume, PLACES.scratch)}
        mounts.append(place if volume.writable else {**place, "readOnly": True})
    return {
        "name": CONTAINER,
        "image": image,
        "command": [*spec.command],
        "workingDir": PLACES.scratch,
        "env": [
            # others reach a pod by its address: this is the only variable that the place itself has to fill in
            {"name": "STRETTO_POD_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            *({"name": name, "value": value} for name, value in sorted(_environment(spec).items())),
        ],
        **({"envFrom": _secrets(spec, installation)} if spec.secrets else {}),
        "resources": resources(spec.cpu_cores, spec.memory_bytes, spec.extended),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }


def _environment(spec: PodSpec) -> dict[str, str]:
    """Return the variables of a pod. Those by which NVIDIA's runtime gives GPUs come from its device plugin alone."""
    stated = {name: value for name, value in spec.environment.items() if name != RUNTIME_VISIBLE}
    is_given = any(name.startswith(GPU.partition("/")[0]) for name, _ in spec.extended)  # whole ones, or parts
    return stated if is_given else {**stated, RUNTIME_VISIBLE: NO_GPUS}


def _volumes(files: str, installation: Installation) -> list[Object]:
    volumes: list[Object] = [
        {"name": "files", "secret": {"secretName": files, "defaultMode": 0o440}},
        {"name": "scratch", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {}},
    ]
    if installation.checkpoints_claim:
        claim = {"claimName": installation.checkpoints_claim}
        volumes.append({"name": "checkpoints", "persistentVolumeClaim": claim})
    return volumes


def _job_volumes(spec: PodSpec, installation: Installation) -> list[Object]:
    """Name the sources of the job's volumes. Raises BackendError: one holds the checkpoints of all jobs."""
    made: list[Object] = []
    for volume in spec.volumes:
        if volume.kind == "claim" and volume.source == installation.checkpoints_claim:
            raise BackendError(
                f"volumes.{volume.name} = claim:{volume.source}: the installation keeps checkpoints of all jobs there; "
                "name another claim"
            )
        if volume.kind == "claim":
            source: Object = {"persistentVolumeClaim": {"claimName": volume.source, "readOnly": not volume.writable}}
        else:
            source = {"hostPath": {"path": volume.source, "type": "Directory"}}
        made.append({"name": f"job-{volume.name}", **source})
    return made


def _texts(spec: PodSpec) -> list[tuple[str, str]]:
    """Return key in the pod's Secret, and path, of the job's absolute files."""
    return [(f"text-{index}", path) for index, path in enumerate(spec.texts)]


def _checkpoints(spec: PodSpec) -> list[Object]:
    """Mount the job's own folder of the claim, and to read, those that it starts from; nothing else is there."""
    own = {"name": "checkpoints", "mountPath": f"{CHECKPOINTS}/{spec.job}", "subPath": spec.job}
    others = sorted({*folders_in(CHECKPOINTS, spec.reads)} - {spec.job})
    return [own, *({**own, "mountPath": f"{CHECKPOINTS}/{each}", "subPath": each, "readOnly": True} for each in others)]


def _secrets(spec: PodSpec, installation: Installation) -> list[Object]:
    """Name the job's Secrets, whose values only the node reads. Raises BackendError: one is another pod's."""
    for name in spec.secrets:
        if installation.made(name):
            raise BackendError(f"environment_from={name} is named like a Secret of a pod; take one of another name")
    return [{"secretRef": {"name": name}} for name in spec.secrets]


def _tolerations(tolerations: tuple[Toleration, ...], node_lost_s: int) -> list[Object]:
    """Kubernetes waits five minutes for a silent node; a job that stands still meanwhile rather has new pods."""
    result = [_toleration(each) for each in dict.fromkeys(tolerations)]
    named = {each.key for each in tolerations if each.effect in (None, "NoExecute")}
    for key in LOST_NODE:
        if key not in named and None not in named:
            lost = {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": node_lost_s}
            result.append(lost)
    return result


def _toleration(toleration: Toleration) -> Object:
    result: Object = {"operator": toleration.operator}
    if toleration.key is not None:
        result["key"] = toleration.key
    if toleration.operator == "Equal":
        result["value"] = toleration.value
    if toleration.effect is not None:
        result["effect"] = toleration.effect
    if toleration.seconds is not None:
        result["tolerationSeconds"] = toleration.seconds
    return result


def _near(spec: PodSpec) -> Object:
    beside = {
        "labelSelector": {"matchLabels": {JOB: spec.job, POD: spec.near}},
        "topologyKey": "kubernetes.io/hostname",
    }
    preferred = [{"weight": 100, "podAffinityTerm": beside}]
    return {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
