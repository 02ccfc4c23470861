"""``stretto devices``: types of devices found among the nodes of a Kubernetes, as values of the chart.

The services have no right to read nodes, which are no object of a namespace: who may read them does, with kubectl.
Prices are nowhere on a node. So this runs once for a cluster, and its answer is reviewed like any other setting.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from pydantic import Field
from stretto_messages.base import GIB, counted
from stretto_wire.quantities import parse_bytes, parse_cores

from ...command import command
from ...options import OutputForm, OutputOption, answer
from ...reading import FileArgument, Given, NotNegative, Positive, checked, read_json, refuse, text_of

INSTANCE_TYPE = "node.kubernetes.io/instance-type"
SPOT = {
    "karpenter.sh/capacity-type": "spot",
    "eks.amazonaws.com/capacityType": "SPOT",
    "cloud.google.com/gke-spot": "true",
    "kubernetes.azure.com/scalesetpriority": "spot",
}
"""Labels by which clouds tell nodes that may be taken away, each with the value that says so."""
OF_CONDITIONS = "node.kubernetes.io/"
"""Prefix of the taints that Kubernetes itself sets, as on a node that is not ready."""
ACCELERATORS = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915", "google.com/tpu", "aws.amazon.com/neuron")
"""Extended resources that a worker computes on. Nodes have others, such as network interfaces, that no unit is cut
by."""
NAME_MAX = 40


class Metadata(Given):
    """Name and labels of a node."""

    name: str
    labels: dict[str, str] = Field(default_factory=dict[str, str])


class Taint(Given):
    """A taint of a node."""

    key: str
    value: str = ""
    effect: str


class NodeSpec(Given):
    """Taints of a node, and whether an operator has closed it to new pods."""

    taints: list[Taint] = Field(default_factory=list[Taint])
    unschedulable: bool = False


class NodeStatus(Given):
    """Resources of a node that pods may have."""

    allocatable: dict[str, str]


class KubernetesNode(Given):
    """A node, as ``kubectl get nodes --output json`` prints it."""

    metadata: Metadata
    spec: NodeSpec
    status: NodeStatus


class Nodes(Given):
    """The nodes of a cluster."""

    items: list[KubernetesNode]


class Price(Given):
    """Figures of a type that no node states; the price is a whole node's."""

    price_per_hour: NotNegative
    interruptions_per_hour: NotNegative = 0.0
    speed: Positive = 1.0


@dataclass(frozen=True, slots=True, order=True)
class NodeKind:
    """A kind of nodes: the labels that tell them from others, extended resources and taints."""

    name: str
    selector: tuple[tuple[str, str], ...]
    extended: tuple[tuple[str, int], ...] = ()
    taints: tuple[tuple[str, str, str], ...] = ()


@dataclass(slots=True)
class NodeGroup:
    """Nodes of one kind: their number, and the least cores and bytes of one."""

    kind: NodeKind
    nodes: int = 0
    cpu_cores: float = math.inf
    memory_bytes: int = 2**62

    @property
    def units(self) -> int:
        """Number of units of one node, the most of which each has a whole number of every extended resource."""
        return math.gcd(*(count for _, count in self.kind.extended)) or 1


def kind_of(node: KubernetesNode, resources: Sequence[str]) -> NodeKind:
    """Return the kind of a node, of whose extended resources these count. Raises BadData: it has no instance type."""
    labels = node.metadata.labels
    if (instance := labels.get(INSTANCE_TYPE)) is None:
        refuse(f"metadata.labels of node {node.metadata.name}", "", f"the label {INSTANCE_TYPE}")
    is_spot = any(labels.get(label) == value for label, value in SPOT.items())
    name = re.sub(r"[^a-z0-9]+", "-", instance.lower()).strip("-")
    selector = {INSTANCE_TYPE: instance} | {label: labels[label] for label in SPOT if label in labels}
    extended = {
        name: int(count)
        for name, count in node.status.allocatable.items()
        if name in resources and count.isdigit() and int(count)
    }
    taints = {
        (taint.key, taint.value, taint.effect)
        for taint in node.spec.taints
        if taint.effect != "PreferNoSchedule" and not taint.key.startswith(OF_CONDITIONS)
    }
    return NodeKind(
        f"{name[: NAME_MAX - 5]}-spot" if is_spot else name[:NAME_MAX],
        tuple(sorted(selector.items())),
        tuple(sorted(extended.items())),
        tuple(sorted(taints)),
    )


def groups_of(nodes: Iterable[KubernetesNode], resources: Sequence[str]) -> list[NodeGroup]:
    """Return the groups of the nodes that take pods, by name. Of unequal nodes of a kind, a unit has the least."""
    found = dict[NodeKind, NodeGroup]()
    for node in nodes:
        if node.spec.unschedulable:
            continue
        kind = kind_of(node, resources)
        group = found.setdefault(kind, NodeGroup(kind))
        group.nodes += 1
        group.cpu_cores = min(group.cpu_cores, parse_cores(node.status.allocatable["cpu"]))
        group.memory_bytes = min(group.memory_bytes, parse_bytes(node.status.allocatable["memory"]))
    return [found[kind] for kind in sorted(found)]


def type_of(group: NodeGroup, price: Price, kept: float) -> dict[str, Any]:
    """Return the type of devices of a group's nodes, of which the share ``kept`` is for other pods of the node."""
    units = group.units
    made: dict[str, Any] = {
        "name": group.kind.name,
        "price_per_hour": float(f"{price.price_per_hour / units:.6g}"),
        "count": group.nodes * units,
        "cpu_cores": math.floor(group.cpu_cores * (1 - kept) / units * 100) / 100,
        "memory": f"{int(group.memory_bytes * (1 - kept) / units) >> 20}Mi",
        "node_selector": dict(group.kind.selector),
    }
    if price.speed != 1.0:
        made["speed"] = price.speed
    if price.interruptions_per_hour:
        made["interruptions_per_hour"] = price.interruptions_per_hour
    if group.kind.extended:
        made["extended"] = {name: count // units for name, count in group.kind.extended}
    if group.kind.taints:
        made["tolerations"] = [
            {"key": key, "value": value, "effect": effect} for key, value, effect in group.kind.taints
        ]
    return made


def values_of(groups: Sequence[NodeGroup], prices: Mapping[str, Price], kept: float) -> dict[str, Any]:
    """Return the chart's ``cluster``: priced groups are types of devices, cores and memory of the others one pool."""
    others = [group for group in groups if group.kind.name not in prices]
    cores = sum(group.nodes * group.cpu_cores for group in others) * (1 - kept)
    memory = sum(group.nodes * group.memory_bytes for group in others) * (1 - kept)
    extended = Counter[str]()
    for group in others:
        extended.update({name: group.nodes * count for name, count in group.kind.extended})
    return {
        "cluster": {
            "cpuCores": math.floor(cores),
            "memoryGiB": math.floor(memory / GIB),
            "extended": dict(extended),
            "deviceTypes": [
                type_of(group, prices[group.kind.name], kept) for group in groups if group.kind.name in prices
            ],
        }
    }


def prices_of(file: Path | None, groups: Sequence[NodeGroup]) -> dict[str, Price]:
    """Return the prices by the names of types. Raises BadData for a name that no group has, or that two have."""
    if file is None:
        return {}
    try:
        given = yaml.safe_load(text_of(str(file)))
    except yaml.YAMLError as error:
        refuse("--prices", str(file), f"YAML ({' '.join(str(error).split())})")
    if not isinstance(given, dict):
        refuse("--prices", str(file), "a mapping of names of types to price_per_hour, interruptions_per_hour, speed")
    by_name = defaultdict[str, list[NodeGroup]](list)
    for group in groups:
        by_name[group.kind.name].append(group)
    for name in given:
        if name not in by_name:
            refuse("--prices", name, f"one of {', '.join(by_name)}")
        if len(by_name[name]) > 1:
            refuse("--prices", name, "nodes of this instance type that have the same labels, resources and taints")
    return {name: checked(price, Price, name) for name, price in given.items()}


@command(
    "Installation",
    "stretto devices nodes.json",
    "stretto devices nodes.json --prices prices.yaml > types.yaml",
)
def devices(
    file: FileArgument,
    prices: Annotated[
        Path | None,
        typer.Option(
            help="YAML: by the name of a type, price_per_hour of a node, and interruptions_per_hour and speed where "
            "they are not 0 and 1. Nodes without a price belong to no type: theirs are the cores of all."
        ),
    ] = None,
    kept: Annotated[
        float, typer.Option(min=0, max=0.9, help="Share of a node's cores and memory that its other pods need.")
    ] = 0.1,
    extended: Annotated[
        list[str] | None,
        typer.Option(help="Extended resource that workers compute on, if not one of the known; may be repeated."),
    ] = None,
    output: OutputOption = OutputForm.TABLE,
) -> None:
    """Find types of devices among a cluster's nodes, and print them as values of the chart.

    FILE is what `kubectl get nodes --output json` prints. Nodes of one instance type, with the same extended resources,
    taints and spot label, are a type. A unit is the part of a node that has one device of each kind.
    """
    groups = groups_of(read_json(file, Nodes).items, extended or ACCELERATORS)
    values = values_of(groups, prices_of(prices, groups), kept)
    answer(output, values, lambda: _print(groups, values))


def _print(groups: Sequence[NodeGroup], values: Mapping[str, Any]) -> None:
    priced = {each["name"] for each in values["cluster"]["deviceTypes"]}
    lines = [
        f"# {group.kind.name}: {counted(group.nodes, 'node')}{'' if group.kind.name in priced else ', without a price'}"
        for group in groups
    ]
    typer.echo("\n".join([*lines, yaml.safe_dump(dict(values), sort_keys=False)]), nl=False)
