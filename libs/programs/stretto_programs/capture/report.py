"""An explained partition as a JSON document, and as a drawing for Graphviz."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from ..partition.cut import Prices, minimum_cut
from ..partition.graph import Graph, Tensor
from ..partition.partition import WORTH_SHARE, GraphPartition, Staying
from .analysis import Explained

FREE = Prices(0.0, 0.0)
"""Crossings cost nothing: everything moves that can."""
OPS_NAMED = 6
PATH_SHOWN = 12
"""Most nodes of a path in the document; the middle of a longer path is left out."""


def document(explained: Explained) -> dict[str, Any]:
    """Return the explanation as a JSON document. Times are milliseconds of CPU for one step."""
    found, captured = explained.partition, explained.captured
    graph = found.graph
    return {
        "kind": captured.kind,
        "step": captured.title,
        "verdict": verdict(found) + ("" if explained.is_measured else " (its costs are guesses)"),
        "moves": found.is_worth_it,
        "refusals": list(found.refusals),
        "notes": [*captured.notes],
        "costs": explained.costs,
        "sizes": explained.sizes,
        "operations": len(graph.nodes),
        "sources": [graph.by_name[name].title for name in sorted(found.state.sources)],
        "pipelines": [
            {
                "source": pipeline.source,
                "operations": [op.kind for op in pipeline.ops],
                "movable": [op.kind for op in opened.maps],
                "ended_by": opened.ended_by,
                "stays": [{"map": op.kind, "reason": reason} for op, reason in opened.stays],
            }
            for pipeline, opened in explained.opened
        ],
        "moved": _moved(found) if found.moved else None,
        "sent": [_tensor(graph.tensors[name]) for name in found.crossings.sent],
        "received": [_tensor(graph.tensors[name]) for name in found.crossings.received],
        "frozen": list(found.state.frozen),
        "stays": [_staying(each, graph) for each in found.staying],
        "home_ms": _ms(found.home_us),
        "other_ms": _ms(found.other_us),
        "left_ms": _ms(found.left_us),
        "moved_ms": _ms(found.moved_us),
        "movable_ms": _ms(sum(graph.by_name[name].cost_us for name in found.state.movable)),
        "speedup": round(found.speedup, 2),
        "data_worker_cores": data_worker_cores(found),
        "steps_per_s": {"home": _per_s(found.home_us), "predicted": _per_s(found.left_us)},
    }


def verdict(found: GraphPartition) -> str:
    """Return the decision in one line."""
    if found.refusals:
        return f"nothing moves: {found.refusals[0]}"
    if not found.state.sources:
        return "nothing moves: no operation of the step takes samples from a data set"
    if not found.state.movable:
        return f"nothing moves: {_first_reason(found)}"
    if not found.moved:
        if not minimum_cut(found.graph, found.state, FREE):
            return "nothing moves: what could move hangs on tensors that cannot travel, such as variants"
        movable_us = sum(found.graph.by_name[name].cost_us for name in found.state.movable)
        return f"nothing moves: the {movable_us / 1e3:.2f} ms that could move cost less than to send their batches"
    if not found.is_worth_it:
        saved = (found.home_us - found.left_us) / found.home_us
        return f"nothing moves: it would save {saved:.1%} of the step's CPU, less than {WORTH_SHARE:.0%}"
    return (
        f"{found.moved_us / 1e3:.2f} of {found.home_us / 1e3:.2f} ms of a step move to data workers: "
        f"at most {found.speedup:.2f} times as fast, with {_cores(data_worker_cores(found))} of data workers"
    )


def _first_reason(found: GraphPartition) -> str:
    with_samples = [each for each in found.staying if len(each.reason.path) > 1] or list(found.staying)
    if not with_samples:
        return "nothing of the step works on samples before the model does"
    return f"{with_samples[0].reason.text}, and all work on samples comes after it"


def data_worker_cores(found: GraphPartition) -> int:
    """Return how many cores of data workers prepare as fast as home trains; the slower side sets the speed.

    steps/s = min(1 / left_us, n / moved_us), so n = moved_us / left_us, rounded up.
    """
    return -(-int(found.moved_us) // max(1, int(found.left_us))) if found.moved else 0


def _cores(count: int) -> str:
    return "1 core" if count == 1 else f"{count} cores"


def _per_s(cost_us: float) -> float:
    return round(1e6 / cost_us, 1) if cost_us else 0.0


def _ms(cost_us: float) -> float:
    return round(cost_us / 1e3, 4)


def _moved(found: GraphPartition) -> dict[str, Any]:
    nodes = [node for node in found.graph.nodes if node.name in found.moved]
    dearest = sorted(nodes, key=lambda node: -node.cost_us)[:OPS_NAMED]
    return {
        "nodes": [node.name for node in nodes],
        "operations": dict(Counter(node.op for node in nodes)),
        "dearest": [{"node": node.title, "cost_ms": _ms(node.cost_us)} for node in dearest],
    }


def _tensor(tensor: Tensor) -> dict[str, Any]:
    return {"tensor": tensor.name, "dtype": tensor.dtype, "bytes": tensor.size_bytes}


def _staying(staying: Staying, graph: Graph) -> dict[str, Any]:
    path = [graph.by_name[name].title for name in staying.reason.path]
    if len(path) > PATH_SHOWN:
        path = [*path[: PATH_SHOWN // 2], "…", *path[-PATH_SHOWN // 2 :]]
    return {
        "effect": str(staying.reason.effect),
        "reason": staying.reason.text,
        "origin": staying.reason.origin,
        "path": path,
        "nodes": len(staying.nodes),
        "cost_ms": _ms(staying.cost_us),
    }


def dot(explained: Explained) -> str:
    """Return a drawing of the step for Graphviz: moved nodes are green, crossing tensors are bold, with their bytes."""
    found = explained.partition
    crossing = {*found.crossings.sent, *found.crossings.received}
    shown = [
        node
        for node in found.graph.nodes
        if node.name in found.moved | found.state.sources | found.state.movable
        or any(name in crossing for name in node.inputs)
        or node.name in found.state.seeds
    ]
    numbers = {node.name: f"n{number}" for number, node in enumerate(shown)}
    lines = ["digraph step {", "  rankdir=LR; node [shape=box, fontsize=10];"]
    for node in shown:
        colour = _colour(node.name, found)
        text = _quoted(f"{node.title}\\n{node.cost_us:.0f} us")
        lines.append(f'  {numbers[node.name]} [label={text}, style=filled, fillcolor="{colour}"];')
    for node in shown:
        lines += _edges(node.name, node.inputs, found.graph, numbers, crossing)
    return "\n".join([*lines, "}", ""])


def _colour(name: str, found: GraphPartition) -> str:
    if name in found.state.sources:
        return "lightblue"
    return "palegreen" if name in found.moved else "white" if name in found.state.movable else "mistyrose"


def _edges(name: str, inputs: Iterable[str], graph: Graph, numbers: dict[str, str], crossing: set[str]) -> list[str]:
    lines: list[str] = []
    for each in inputs:
        producer = graph.producers[each]
        if producer in numbers:
            tensor = graph.tensors[each]
            look = f' [style=bold, label="{tensor.dtype} {tensor.size_bytes} B"]' if each in crossing else ""
            lines.append(f"  {numbers[producer]} -> {numbers[name]}{look};")
    return lines


def _quoted(text: str) -> str:
    escaped = text.replace('"', "'")
    return f'"{escaped}"'
