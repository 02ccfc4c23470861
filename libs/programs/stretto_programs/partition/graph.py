"""The graph of a step, as all decisions see it. No TensorFlow here."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from .effects import Effect

ANY = "a resource that cannot be told"
"""Key of a resource whose origin is not found. Reading it counts as an effect; writing it may write every resource."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """An output of a node. crosses: it can be sent to another process, unlike handles of resources and variants."""

    name: str
    dtype: str = "float32"
    size_bytes: int = 0
    crosses: bool = True


@dataclass(frozen=True, slots=True)
class Node:
    """An operation, or several that stay together.

    inputs: names of the tensors that the node reads. controls: names of nodes that must run before. reads, writes: keys
    of resources. cost_us: CPU for a step. about: a better name for people, if there is one. members: names of the
    operations, if there are several.
    """

    name: str
    op: str
    effects: frozenset[Effect] = frozenset({Effect.PURE})
    inputs: tuple[str, ...] = ()
    controls: tuple[str, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    cost_us: float = 0.0
    about: str = ""
    members: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Name of the node for people: `name (operation)`."""
        return self.about or f"{self.name} ({self.op})"


@dataclass(frozen=True)
class Graph:
    """The nodes of a step.

    fetched: tensors that the program itself asks for. written: resources that other code than the step writes, with its
    name.
    """

    nodes: tuple[Node, ...]
    fetched: frozenset[str] = frozenset()
    written: Mapping[str, str] = field(default_factory=dict[str, str])

    @cached_property
    def by_name(self) -> dict[str, Node]:
        """Every node, by its name."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Every tensor, by its name."""
        return {tensor.name: tensor for node in self.nodes for tensor in node.outputs}

    @cached_property
    def producers(self) -> dict[str, str]:
        """The name of the node that makes each tensor."""
        return {tensor.name: node.name for node in self.nodes for tensor in node.outputs}

    @cached_property
    def readers(self) -> dict[str, tuple[str, ...]]:
        """The names of the nodes that read each tensor."""
        found: dict[str, dict[str, None]] = {}
        for node in self.nodes:
            for name in node.inputs:
                found.setdefault(name, {})[node.name] = None
        return {name: tuple(nodes) for name, nodes in found.items()}

    def predecessors(self, node: Node, *, with_controls: bool = True) -> Iterable[str]:
        """Return the nodes right before a node; some may be returned twice."""
        yield from (self.producers[name] for name in node.inputs)
        if with_controls:
            yield from node.controls

    @cached_property
    def successors(self) -> dict[str, tuple[str, ...]]:
        """The nodes right after each node, on edges of data and control."""
        return self._after(with_controls=True)

    @cached_property
    def data_successors(self) -> dict[str, tuple[str, ...]]:
        """The nodes that read a tensor of each node."""
        return self._after(with_controls=False)

    def _after(self, *, with_controls: bool) -> dict[str, tuple[str, ...]]:
        found: dict[str, dict[str, None]] = defaultdict(dict)
        for node in self.nodes:
            for before in self.predecessors(node, with_controls=with_controls):
                found[before][node.name] = None
        return {name: tuple(after) for name, after in found.items()}


def reached(
    seeds: Iterable[str], successors: Mapping[str, tuple[str, ...]], within: frozenset[str] | None = None
) -> dict[str, str]:
    """Search breadth first; return each reached node with the node before it on its path, "" for a seed.

    within: nodes that may be reached beside the seeds; None: all nodes.
    """
    before = dict.fromkeys(seeds, "")
    waiting = deque(before)
    while waiting:
        name = waiting.popleft()
        for after in successors.get(name, ()):
            if after not in before and (within is None or after in within):
                before[after] = name
                waiting.append(after)
    return before


def path_to(name: str, before: Mapping[str, str]) -> tuple[str, ...]:
    """Return the path from a seed to a node that `reached` found."""
    path = [name]
    while before[path[-1]]:
        path.append(before[path[-1]])
    return tuple(reversed(path))
