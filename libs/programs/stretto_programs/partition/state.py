"""State: the nodes of a step that must stay in the training process, each with the reason (GoldMiner, algorithm 1).

    T = all that edges of data and control reach from a node with an effect, or from a read of what something writes
    D = (all - T - sources), where edges of data reach it from a source

Other nodes, such as constants and lookups in frozen tables, depend on no sample: both sides have them.
"""

from __future__ import annotations

from dataclasses import dataclass

from .effects import STAYS, Effect
from .graph import ANY, Graph, Node, path_to, reached


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason for which a node stays: its first stateful ancestor, and the path from there."""

    effect: Effect
    origin: str
    text: str
    path: tuple[str, ...]


@dataclass(frozen=True)
class State:
    """The nodes of a step, by whether they depend on state or on samples alone.

    seeds: the first nodes of paths, each with its effect and a reason in words. movable: nodes that depend on samples
    alone. sources: nodes that give raw samples.
    """

    stateful: dict[str, str]
    """Nodes that stay, each with the node before it on the path; "" for the first."""
    seeds: dict[str, tuple[Effect, str]]
    movable: frozenset[str]
    sources: frozenset[str]
    frozen: tuple[str, ...]
    """Resources that movable nodes read and nothing was seen to write: data workers get copies."""

    def reason(self, name: str) -> Reason:
        """Return the reason for which a node of `stateful` stays."""
        path = path_to(name, self.stateful)
        effect, text = self.seeds[path[0]]
        return Reason(effect, path[0], text, path)


def state_of(graph: Graph) -> State:
    """Return which nodes of a step depend on state, and which on samples alone."""
    written = dict(graph.written)
    for node in graph.nodes:
        for resource in node.writes:
            written.setdefault(resource, f"{node.title} of this step")
    if ANY in written:
        written = {resource: written[ANY] for node in graph.nodes for resource in node.reads} | written
    seeds = {node.name: found for node in graph.nodes if (found := _seed(node, written)) is not None}
    stateful = reached(seeds, graph.successors)
    sources = frozenset(
        node.name for node in graph.nodes if Effect.SOURCE in node.effects and node.name not in stateful
    )
    free = frozenset(graph.by_name) - stateful.keys() - sources
    movable = frozenset(reached(sources, graph.data_successors, free)) - sources
    needed = reached(movable, _backwards(graph), free)
    frozen = {resource: None for name in needed for resource in sorted(graph.by_name[name].reads)}
    return State(stateful, seeds, movable, sources, tuple(frozen))


def _seed(node: Node, written: dict[str, str]) -> tuple[Effect, str] | None:
    """Return the effect that makes a node stateful by itself, with the reason in words; None if no effect does."""
    for effect in Effect:  # in one order, so that a node with several effects always has the same reason
        if effect in node.effects & STAYS:
            return effect, _REASONS[effect].format(node=node.title, what=", ".join(sorted(node.writes)) or "a resource")
    changing = sorted(node.reads & written.keys())
    if changing:
        return Effect.READS, f"{node.title} reads {changing[0]}, which {written[changing[0]]} writes"
    return None


_REASONS = {
    Effect.WRITES: "{node} writes {what}",
    Effect.RANDOM: "{node} draws random numbers from a state: elsewhere they would be others",
    Effect.PYTHON: "{node} runs Python code of the program, which can keep state of its own",
    Effect.OUTSIDE: "{node} has an effect outside: it prints, writes a summary, uses a file, a queue or a device",
    Effect.FED: "{node} is a value that the program's Python code passes to the step",
    Effect.UNKNOWN: "{node} is not called stateless by TensorFlow, so it counts as an effect",
}


def _backwards(graph: Graph) -> dict[str, tuple[str, ...]]:
    return {node.name: tuple(dict.fromkeys(graph.predecessors(node))) for node in graph.nodes}
