"""Prerequisites that an administrator provides: names, a bus with keys, a cache, a place for checkpoints."""

from __future__ import annotations

import base64
import secrets
import time
from pathlib import Path
from typing import Any

from stretto_installation.access.keys import Keys

from tests.kubernetes.configuration import DNS_ADDRESS
from tests.kubernetes.names import Names
from tests.kubernetes.node import Node

NAMESPACE = "stretto"
USER = 10001
NATS_CONFIGURATION = Path(__file__).parents[2] / "compose" / "nats.conf"


def values(version: str, small: dict[str, Any]) -> dict[str, Any]:
    """For the chart, on everything that ``prepare`` makes; ``small``: resources of a service."""
    return {
        "image": {"registry": "docker.io", "tag": version},  # the name of images that are on the node
        "nats": {"url": "tls://nats:4222", "credentials": {"secretPrefix": "bus"}, "ca": {"secret": "bus-server"}},
        "redis": {"secret": "redis"},
        "store": {"claim": "checkpoints"},
        "trainer": {"namespace": NAMESPACE},  # where the claim is
        "networkPolicy": {"test": False},  # the node's network enforces none
        "cluster": {"cpuCores": 1.2, "memoryGiB": 6},
        "provision": {"external": True, "streamGiB": 1, "replicas": 1, "syncInterval": ""},  # of one server
        "gateway": {"token": {"secret": "gateway"}, "trainingJobs": True},
        "defaults": {"resources": small, "replicas": 1},
        "services": {
            **{name: {"resources": small} for name in ("fitter", "planner", "arbiter")},
            "gateway": {"replicas": 2},
            # to import TensorFlow with a fraction of a core takes its time
            "actuator": {"replicas": 2, "env": {"STRETTO_ACTUATOR_START_TIMEOUT_S": 600}},
        },
    }


def prepare(node: Node, folder: Path) -> str:
    """Until the bus answers; returns the gateway's token."""
    node.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    keys = Keys(folder / "keys", time.time(), hosts=("nats",))
    for owner in sorted(path for path in keys.folder.iterdir() if path.name != "root"):
        secret(node, f"bus-{owner.name}", {file.name: file.read_bytes() for file in owner.iterdir()})
    password, token = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
    secret(node, "redis", {"url": f"redis://:{password}@redis:6379/0".encode()})
    secret(node, "gateway", {"token": token.encode()})
    node.create(
        path("configmaps"), {"metadata": {"name": "nats"}, "data": {"nats.conf": NATS_CONFIGURATION.read_text()}}
    )
    claim(node, folder / "checkpoints")
    serve(node, "nats", 4222, _nats())
    serve(node, "redis", 6379, _redis(password))
    return token


def named(node: Node) -> Names:
    """DNS of the cluster, to be entered."""

    def lookup(service: str, namespace: str) -> list[str] | None:
        found = node.get(f"/api/v1/namespaces/{namespace}/services/{service}")
        if found is None:
            return None
        address = found["spec"].get("clusterIP")
        return [address] if address not in (None, "None") else addresses(node, service, namespace)

    names = Names(node.gateway, lookup)
    ports = [{"name": "dns", "protocol": "UDP", "port": 53, "targetPort": names.port}]
    spec = {"clusterIP": DNS_ADDRESS, "ports": ports}
    node.create("/api/v1/namespaces/kube-system/services", {"metadata": {"name": "dns"}, "spec": spec})
    subset = {"addresses": [{"ip": node.gateway}], "ports": [{"name": "dns", "protocol": "UDP", "port": names.port}]}
    node.create("/api/v1/namespaces/kube-system/endpoints", {"metadata": {"name": "dns"}, "subsets": [subset]})
    return names


def addresses(node: Node, service: str, namespace: str = NAMESPACE) -> list[str]:
    """Return the addresses of the ready pods behind a Service."""
    found = node.get(f"/api/v1/namespaces/{namespace}/endpoints/{service}") or {}
    return [each["ip"] for subset in found.get("subsets") or [] for each in subset.get("addresses") or []]


def path(plural: str, *rest: str) -> str:
    return "/".join([f"/api/v1/namespaces/{NAMESPACE}/{plural}", *rest])


def secret(node: Node, name: str, data: dict[str, bytes]) -> None:
    encoded = {key: base64.b64encode(content).decode() for key, content in data.items()}
    node.create(path("secrets"), {"metadata": {"name": name}, "data": encoded})


def claim(node: Node, folder: Path) -> None:
    """A folder of the node, as a claim that pods share."""
    volume(node, "checkpoints", folder, 5)
    size = {"storage": "5Gi"}
    asked = {"accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": "checkpoints"}
    spec = {**asked, "resources": {"requests": size}}
    node.create(path("persistentvolumeclaims"), {"metadata": {"name": "checkpoints"}, "spec": spec})


def volume(node: Node, name: str, folder: Path, size_gib: int) -> None:
    """Make a folder of the node a volume that everybody may write; a claim of that size, or less, finds it."""
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    spec = {
        "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
        "storageClassName": "",
        "capacity": {"storage": f"{size_gib}Gi"},
        "hostPath": {"path": str(folder)},
    }
    node.create("/api/v1/persistentvolumes", {"metadata": {"name": name}, "spec": spec})


def serve(node: Node, name: str, port: int, pod: dict[str, Any]) -> None:
    """One pod behind a Service, until it is ready."""
    labels = {"app": name}
    node.create(path("services"), {"metadata": {"name": name}, "spec": {"selector": labels, "ports": [{"port": port}]}})
    security = {"runAsUser": USER, "runAsGroup": USER, "fsGroup": USER}
    spec = {"enableServiceLinks": False, "securityContext": security, **pod}
    template = {"metadata": {"labels": labels}, "spec": spec}
    deployment = {"selector": {"matchLabels": labels}, "template": template}
    node.create(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments", {"metadata": {"name": name}, "spec": deployment})
    node.until(f"{name} is ready", lambda: addresses(node, name))


def _nats() -> dict[str, Any]:
    mounts = {"files": "/run/stretto", "configuration": "/etc/nats", "data": "/data"}
    return {
        "containers": [
            {
                "name": "nats",
                "image": "nats:2.15.1-alpine",
                "command": ["nats-server", "--config", "/etc/nats/nats.conf"],
                "readinessProbe": {"tcpSocket": {"port": 4222}, "periodSeconds": 1},
                "volumeMounts": [{"name": name, "mountPath": place} for name, place in mounts.items()],
            }
        ],
        "volumes": [
            {"name": "files", "secret": {"secretName": "bus-server"}},
            {"name": "configuration", "configMap": {"name": "nats"}},
            {"name": "data", "emptyDir": {}},
        ],
    }


def _redis(password: str) -> dict[str, Any]:
    command = ["redis-server", "--save", "", "--appendonly", "no", "--requirepass", password]
    return {
        "containers": [
            {
                "name": "redis",
                "image": "redis:7-alpine",
                "command": command,
                "workingDir": "/tmp",
                "readinessProbe": {"tcpSocket": {"port": 6379}, "periodSeconds": 1},
            }
        ]
    }
