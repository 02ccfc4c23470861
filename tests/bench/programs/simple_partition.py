"""``stretto run`` with a simple partition: maps of tf.data move, and nothing of the step (GoldMiner §5.3).

python -m tests.bench.programs.simple_partition [OPTIONS] train.py …
"""

from __future__ import annotations

from dataclasses import replace

from stretto_programs import run
from stretto_programs.partition.cut import Prices
from stretto_programs.partition.effects import SOURCES, Effect
from stretto_programs.partition.graph import Graph, Node
from stretto_programs.partition.partition import GraphPartition, partition
from stretto_programs.splitting import split

FREE = Prices(tensor_us=0.0, byte_us=0.0)
"""The maps move, whatever their way to data workers costs."""


def maps_only(graph: Graph, _: Prices) -> GraphPartition:
    """Return the partition in which all of the step but its maps stays at home."""
    return partition(replace(graph, nodes=tuple(map(_staying, graph.nodes))), FREE)


def _staying(node: Node) -> Node:
    return node if node.op == "tf.data" or node.op in SOURCES else replace(node, effects=frozenset({Effect.OUTSIDE}))


if __name__ == "__main__":
    split.worthwhile = maps_only
    run.main()
