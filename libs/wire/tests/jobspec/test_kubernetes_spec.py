"""Accepted and refused Kubernetes settings of a job."""

from __future__ import annotations

from typing import Any

import pytest
from stretto_wire import WireError
from stretto_wire.jobspec.spec import JobSpec


def job(**kubernetes: Any) -> dict[str, Any]:
    return {"name": "j", "model": {"entry": "m:M"}, "dataset": {"samples": 10}, "kubernetes": kubernetes}


def test_everything_that_may_be_said() -> None:
    spec = JobSpec.parse(
        job(
            node_selector={"pool": "cpu", "topology.kubernetes.io/zone": "a"},
            tolerations=[
                {"key": "dedicated", "value": "training", "effect": "NoSchedule"},
                {"operator": "Exists", "effect": "NoExecute", "seconds": 60},
            ],
            priority_class="batch-low",
            image_pull_secrets=["registry"],
            service_account="trainer-of-ads",
            queue="team-ads",
        )
    )
    assert spec.kubernetes is not None
    assert [each.operator for each in spec.kubernetes.tolerations] == ["Equal", "Exists"]
    assert JobSpec.parse(spec.model_dump(mode="json")) == spec


def test_nothing_has_to_be_said() -> None:
    assert JobSpec.parse({**job(), "kubernetes": None}).kubernetes is None


@pytest.mark.parametrize(
    ("kubernetes", "field"),
    [
        ({"node_selector": {"a b": "c"}}, "kubernetes.node_selector.a b"),
        ({"node_selector": {"a": "-c"}}, "kubernetes.node_selector.a"),
        ({"priority_class": "System"}, "kubernetes.priority_class"),
        ({"service_account": "a/b"}, "kubernetes.service_account"),
        ({"image_pull_secrets": ["a", ""]}, "kubernetes.image_pull_secrets.1"),
        ({"queue": ""}, "kubernetes.queue"),
        ({"privileged": True}, "kubernetes.privileged"),
        ({"tolerations": [{"value": "x"}]}, "kubernetes.tolerations.0.operator"),
        ({"tolerations": [{"key": "k", "operator": "Exists", "value": "x"}]}, "kubernetes.tolerations.0.value"),
        ({"tolerations": [{"key": "k", "effect": "NoSchedule", "seconds": 5}]}, "kubernetes.tolerations.0.seconds"),
    ],
)
def test_what_is_refused_is_named(kubernetes: dict[str, Any], field: str) -> None:
    with pytest.raises(WireError) as refused:
        JobSpec.parse(job(**kubernetes))
    assert [finding.field for finding in refused.value.findings] == [field]
    assert all(finding.remedy for finding in refused.value.findings)
