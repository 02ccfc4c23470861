"""`stretto devices`: types among the nodes that kubectl prints, as the chart and the services read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from asking import assert_refused, command
from stretto_runtime.settings import ClusterSettings

GIB = 2**20
"""In KiB, as nodes state their memory."""
run, answer = command("devices -")


def node(name: str, instance: str, cores: int, memory_gib: int, **more: Any) -> dict[str, Any]:
    labels = {"node.kubernetes.io/instance-type": instance, "kubernetes.io/os": "linux"} | more.get("labels", {})
    allocatable = {"cpu": f"{cores * 1000}m", "memory": f"{memory_gib * GIB}Ki", "pods": "110"} | more.get("has", {})
    spec = {"podCIDR": "10.0.0.0/24", "taints": more.get("taints", []), "unschedulable": more.get("cordoned", False)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "uid": "u"},
        "spec": spec,
        "status": {"allocatable": allocatable, "nodeInfo": {"kubeletVersion": "v1.33.0"}},
    }


SPOT = {
    "labels": {"karpenter.sh/capacity-type": "spot"},
    "has": {"nvidia.com/gpu": "4", "vpc.amazonaws.com/pod-eni": "54"},
    "taints": [
        {"key": "spot", "value": "true", "effect": "NoSchedule"},
        {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"},
        {"key": "dear", "effect": "PreferNoSchedule"},
    ],
}
NODES = {
    "items": [
        node("a", "m6i.4xlarge", 16, 60),
        node("b", "m6i.4xlarge", 16, 60),
        node("c", "g5.12xlarge", 48, 180, **SPOT),
        node("d", "g5.12xlarge", 44, 180, **SPOT),
        node("e", "g5.12xlarge", 48, 180, has={"nvidia.com/gpu": "4"}),
        node("f", "g5.12xlarge", 48, 180, cordoned=True, **SPOT),
    ]
}


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    file = tmp_path / "prices.yaml"
    file.write_text("g5-12xlarge-spot: {price_per_hour: 2, interruptions_per_hour: 0.05, speed: 3}\n")
    return file


def test_nodes_with_a_price_are_a_type_whose_unit_has_one_device_and_the_others_are_cores(prices: Path) -> None:
    cluster = answer(NODES, "--prices", str(prices))["cluster"]
    assert cluster["deviceTypes"] == [
        {
            "name": "g5-12xlarge-spot",
            "price_per_hour": 0.5,
            "count": 8,
            "cpu_cores": 9.9,
            "memory": f"{int(180 * 2**30 * 0.9 / 4) >> 20}Mi",
            "node_selector": {
                "karpenter.sh/capacity-type": "spot",
                "node.kubernetes.io/instance-type": "g5.12xlarge",
            },
            "speed": 3.0,
            "interruptions_per_hour": 0.05,
            "extended": {"nvidia.com/gpu": 1},
            "tolerations": [{"key": "spot", "value": "true", "effect": "NoSchedule"}],
        }
    ]
    assert (cluster["cpuCores"], cluster["memoryGiB"]) == (72, 270)
    assert cluster["extended"] == {"nvidia.com/gpu": 4}
    (read,) = ClusterSettings(device_types=cluster["deviceTypes"]).devices
    assert (read.name, read.count, read.cpu_cores) == ("g5-12xlarge-spot", 8, 9.9)


def test_what_it_prints_is_a_file_of_values_that_names_the_types_to_give_prices_to(prices: Path) -> None:
    printed = run(NODES).stdout
    assert "# g5-12xlarge-spot: 2 nodes, without a price\n" in printed
    assert yaml.safe_load(printed)["cluster"]["deviceTypes"] == []
    printed = run(NODES, "--prices", str(prices)).stdout
    assert yaml.safe_load(printed) == answer(NODES, "--prices", str(prices))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("g6: {price_per_hour: 1}", "--prices = g6: expected one of g5-12xlarge, g5-12xlarge-spot, m6i-4xlarge"),
        ("g5-12xlarge: {}", "g5-12xlarge.price_per_hour is missing: expected a value"),
        ("- 1", "--prices = "),
    ],
)
def test_a_price_that_cannot_be_used_is_refused(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(text)
    assert_refused(run(NODES, "--prices", str(file)), told)


def test_equal_names_of_unequal_nodes_get_no_price(prices: Path) -> None:
    unequal = node("g", "g5.12xlarge", 48, 180, labels=SPOT["labels"])
    assert_refused(run({"items": [*NODES["items"], unequal]}, "--prices", str(prices)), "the same labels, resources")


def test_a_node_without_its_type_is_refused() -> None:
    strange = node("x", "m6i", 1, 1)
    del strange["metadata"]["labels"]["node.kubernetes.io/instance-type"]
    assert_refused(run({"items": [strange]}), "of node x is missing", "node.kubernetes.io/instance-type")
