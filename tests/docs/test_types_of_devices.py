"""The page of types of devices: its commands find types among nodes, by the prices of its file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from stretto_runtime.settings import ClusterSettings

from tests.docs.site import OWN
from tests.e2e.tutorials import fences

HERE = "tests/docs/test_types_of_devices.py"


def node(name: str, instance: str, **labels: str) -> dict[str, Any]:
    labels = {"node.kubernetes.io/instance-type": instance} | {"eks.amazonaws.com/capacityType": "ON_DEMAND"} | labels
    allocatable = {"cpu": "48", "memory": "188743680Ki"} | ({"nvidia.com/gpu": "4"} if instance[0] == "g" else {})
    return {"metadata": {"name": name, "labels": labels}, "spec": {}, "status": {"allocatable": allocatable}}


NODES = [
    node("a", "m6i.12xlarge"),
    node("b", "g5.12xlarge"),
    node("c", "g5.12xlarge", **{"eks.amazonaws.com/capacityType": "SPOT"}),
]


def test_the_commands_of_the_page_find_the_types_that_its_prices_name(tmp_path: Path) -> None:
    found = [fence for fence in fences(OWN / "how-to/types-of-devices.md") if fence.tested == HERE]
    (prices,) = [fence.text for fence in found if fence.language == "yaml"]
    (tmp_path / "prices.yaml").write_text(prices)
    (tmp_path / "printed.json").write_text(json.dumps({"items": NODES}))
    stand_ins = "kubectl() { cat printed.json; }; helm() { test -s types.yaml; }\n"
    script = stand_ins + "".join(fence.text for fence in found if fence.language == "sh")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euc", script],
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "# g5-12xlarge-spot: 1 node, without a price" in done.stdout
    cluster = yaml.safe_load((tmp_path / "types.yaml").read_text())["cluster"]
    types = ClusterSettings(device_types=cluster["deviceTypes"]).devices
    assert {each.name: each.count for each in types} == {"g5-12xlarge": 4, "g5-12xlarge-spot": 4}
    assert cluster["cpuCores"] == 43
