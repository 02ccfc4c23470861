"""The chart as Helm renders it: values in, Kubernetes objects out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from helm_python import Chart

CHART = Path(__file__).parents[2] / "charts" / "stretto"
RELEASE, NAMESPACE = "demo", "training"
NEEDED: dict[str, Any] = {
    "image": {"registry": "registry.example.com"},
    "nats": {"credentials": {"secretPrefix": "bus"}},
    "store": {"url": "s3://bucket/stretto"},
    "cluster": {"cpuCores": 64, "memoryGiB": 256},
    "gateway": {"token": {"secret": "gateway"}, "proxies": "10.0.0.0/8"},
    "forwarder": {"endpoints": {"secret": "webhooks"}},
}
"""Values that have no default that could be right."""

PROMETHEUS = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}

EVERYTHING: dict[str, Any] = {
    "image": {"registry": "registry.example.com", "pullSecrets": ["pull"]},
    "nats": {
        "url": "tls://nats-0.example.com:4223,tls://nats-1.example.com",
        "podUrl": "tls://nats.example.com:4224",
        "credentials": {"secretPrefix": "bus"},
        "ca": {"secret": "bus-ca"},
    },
    "redis": {"secret": "redis"},
    "store": {"url": "", "secret": "store", "claim": "store"},
    "provision": {"external": True, "kept": {"eventsDays": 8, "auditDays": 400}},
    "tracing": {"endpoint": "http://otel-collector:4318", "query": "http://tempo:3200"},
    "cluster": {
        "deviceTypes": [
            {
                "name": "gpu-a-spot",
                "price_per_hour": 0.4,
                "count": 4,
                "cpu_cores": 7.5,
                "memory": "28Gi",
                "interruptions_per_hour": 0.05,
                "extended": {"nvidia.com/gpu": 1},
                "node_selector": {"node.kubernetes.io/instance-type": "gpu-a"},
                "tolerations": [{"key": "spot", "operator": "Exists"}],
            }
        ]
    },
    "trainer": {
        "namespace": "jobs",
        "priorityClassName": "low",
        "queue": "training",
        "nodeSelector": {"pool": "training"},
        "tolerations": [{"key": "training", "operator": "Exists"}],
    },
    "teams": {"quotas": {"ads": {"cores": 64, "memory_gib": 256, "jobs": 20}, "*": {"weight": 0.5}}},
    "allowed": {
        "stores": ["s3://ads/checkpoints"],
        "restores": ["s3://shared/*"],
        "images": ["registry.example.com/ads/*"],
        "priorityClasses": ["high"],
        "tolerations": ["pool=gpu:NoSchedule"],
        "pullSecrets": ["ads-registry"],
        "serviceAccounts": ["reader"],
        "queues": ["ads-*"],
        "secrets": ["ads-s3=oidc:ada"],
        "volumes": [
            "claim:clicks",
            "claim:out-*:write=oidc:ada",
            "folder:/srv/clicks/*",
            "folder:/srv/out:write",
            "folder:/srv/clicks/made:write",
        ],
        "code": ["https://github.com/ads/*"],
        "requirements": ["lightgbm"],
    },
    "services": {
        "forwarder": {"enabled": True},
        "decider": {"enabled": True},
        "gateway": {"autoscaling": {"enabled": True}},
        "planner": {"autoscaling": {"enabled": True}},
    },
    "gateway": {
        "tokens": {"secret": "gateway-tokens"},
        "oidc": {
            "issuer": "https://id.example.com",
            "audience": "stretto",
            "teamClaim": "team",
            "roles": {"ml": "submitter"},
        },
        "proxies": "10.0.0.0/8",
        "trainingJobs": True,
        "tls": {"secret": "gateway-tls"},
        "ingress": {"enabled": True, "host": "stretto.example.com", "tlsSecret": "ingress-tls"},
    },
    "decider": {"kinds": ["Job", "JobSet", "RayCluster"]},
    "forwarder": {"endpoints": {"secret": "webhooks"}, "board": {"claim": "board"}},
    "monitoring": {
        "serviceMonitor": {"enabled": True},
        "dashboards": {"enabled": True},
        "alerts": {"enabled": True},
        "prometheus": {"url": "http://prometheus:9090"},
    },
    "networkPolicy": {"metrics": [PROMETHEUS]},
}
"""Every switch on."""

Values = Mapping[str, Any]
Object = dict[str, Any]


def merged(base: Values, over: Values) -> dict[str, Any]:
    """Merge values like Helm: maps by key, everything else replaced."""
    return {
        **base,
        **{
            key: merged(base[key], value)
            if isinstance(value, Mapping) and isinstance(base.get(key), Mapping)
            else value
            for key, value in over.items()
        },
    }


@cache
def chart() -> Chart:
    return Chart.load(CHART)


@cache
def defaults() -> dict[str, Any]:
    return yaml.safe_load((CHART / "values.yaml").read_text())


def rendered(values: Values) -> list[Object]:
    """Return every object, hooks included, for ``values`` over the required ones. Callers must not change them."""
    return as_given(merged(NEEDED, values))


def as_given(values: Values) -> list[Object]:
    """The same for the values alone. Raises HelmError."""
    return _rendered(json.dumps(values, sort_keys=True))


@cache
def _rendered(values: str) -> list[Object]:
    texts = chart().render(json.loads(values), name=RELEASE, namespace=NAMESPACE)
    return [
        found
        for path, text in texts.items()
        if not path.endswith("NOTES.txt")
        for found in yaml.load_all(text, yaml.CSafeLoader)
        if found
    ]


def of_kind(objects: list[Object], *kinds: str) -> list[Object]:
    return [each for each in objects if each["kind"] in kinds]


def name_of(each: Object) -> str:
    return f"{each['kind']}/{each['metadata']['name']}"


def component(each: Object) -> str:
    return each["metadata"]["labels"]["app.kubernetes.io/component"]


def pod_of(each: Object) -> Object:
    """Return the pod or pod template of an object."""
    return each if each["kind"] == "Pod" else each["spec"]["template"]


def with_pods(objects: list[Object]) -> list[Object]:
    return of_kind(objects, "Deployment", "Job", "Pod", "ReplicaSet")


def containers(objects: list[Object]) -> Iterator[tuple[str, Object]]:
    for each in with_pods(objects):
        spec = pod_of(each)["spec"]
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            yield name_of(each), container


def selects(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    return selector.items() <= labels.items()
