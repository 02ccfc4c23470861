"""The minimum cut against brute force, and its parts against their definitions, on small random graphs."""

from __future__ import annotations

from itertools import chain, combinations

import hypothesis.strategies as st
from hypothesis import given, settings
from stretto_programs.partition.cut import Prices, crossings_of, minimum_cut, objective_us, predecessors_of
from stretto_programs.partition.effects import Effect
from stretto_programs.partition.graph import ANY, Graph, Node, Tensor
from stretto_programs.partition.partition import partition
from stretto_programs.partition.state import State, state_of

PRICES = Prices(tensor_us=2, byte_us=1)
"""Whole numbers: the capacities are exact."""


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Draw graphs of up to ten nodes, each after those that it reads: sources first, and one with an effect."""
    nodes: list[Node] = []
    tensors: list[str] = []
    for number in range(draw(st.integers(2, 10))):
        name = f"n{number}"
        effect = draw(
            st.sampled_from([Effect.SOURCE, Effect.PURE, Effect.PURE, Effect.PURE, Effect.WRITES, Effect.CHECK])
        )
        if number == 0:
            effect = Effect.SOURCE
        inputs = draw(st.lists(st.sampled_from(tensors), max_size=3)) if tensors and effect is not Effect.SOURCE else []
        controls = draw(st.lists(st.sampled_from([each.name for each in nodes]), max_size=1)) if nodes else []
        outputs = [
            Tensor(f"{name}:{place}", size_bytes=draw(st.integers(0, 9)), crosses=draw(st.integers(0, 9)) > 0)
            for place in range(draw(st.integers(0, 2)))
        ]
        tensors += [each.name for each in outputs]
        cost_us = draw(st.integers(0, 30))
        nodes.append(
            Node(name, "Op", frozenset({effect}), tuple(inputs), tuple(controls), tuple(outputs), cost_us=cost_us)
        )
    return Graph(tuple(nodes), frozenset(draw(st.lists(st.sampled_from(tensors), max_size=2)) if tensors else []))


def is_closed(graph: Graph, state: State, moved: frozenset[str]) -> bool:
    """Follow the edges backwards by hand: nothing that moves needs what stays, but sources and what depends on none."""
    waiting, seen = [*moved], set(moved)
    while waiting:
        node = graph.by_name[waiting.pop()]
        for name in [*(graph.producers[each] for each in node.inputs), *node.controls]:
            if name in state.stateful or (name in state.movable and name not in moved):
                return False
            if name not in seen and name not in state.sources:
                seen.add(name)
                waiting.append(name)
    return True


@settings(max_examples=300)
@given(graphs())
def test_no_closed_set_is_better_than_the_cut(graph: Graph) -> None:
    state = state_of(graph)
    moved = minimum_cut(graph, state, PRICES)
    assert moved <= state.movable
    assert is_closed(graph, state, moved)
    names = sorted(state.movable)
    every = chain.from_iterable(combinations(names, count) for count in range(len(names) + 1))
    closed = [frozenset(each) for each in every if is_closed(graph, state, frozenset(each))]
    least = min(objective_us(graph, state, each, PRICES) for each in closed)
    assert objective_us(graph, state, moved, PRICES) == least
    fewest = [each for each in closed if objective_us(graph, state, each, PRICES) == least]
    assert moved == min(fewest, key=len)


@settings(max_examples=200)
@given(graphs())
def test_state_is_whatever_a_path_from_an_effect_reaches(graph: Graph) -> None:
    state = state_of(graph)
    for node in graph.nodes:
        before = [graph.by_name[name] for name in graph.predecessors(node)]
        is_stateful = Effect.WRITES in node.effects or any(each.name in state.stateful for each in before)
        assert (node.name in state.stateful) == is_stateful
        has_samples = any(graph.producers[name] in state.sources | state.movable for name in node.inputs)
        assert (node.name in state.movable) == (has_samples and not is_stateful and Effect.SOURCE not in node.effects)


@settings(max_examples=200)
@given(graphs())
def test_a_reason_is_a_path_of_the_graph_from_an_effect(graph: Graph) -> None:
    state = state_of(graph)
    for name in state.stateful:
        reason = state.reason(name)
        assert reason.path[0] == reason.origin
        assert reason.path[-1] == name
        assert Effect.WRITES in graph.by_name[reason.origin].effects
        for one, other in zip(reason.path, reason.path[1:], strict=False):
            assert other in graph.successors[one]


def chain_of(*costs_us: float, size_bytes: int = 100) -> Graph:
    """Return raw samples, pure nodes of these costs one after another, and a write."""
    nodes = [Node("raw", "IteratorGetNext", frozenset({Effect.SOURCE}), outputs=(Tensor("raw:0", "string", 10),))]
    for number, cost_us in enumerate(costs_us):
        inputs = (nodes[-1].outputs[0].name,)
        nodes.append(
            Node(
                f"n{number}",
                "Op",
                inputs=inputs,
                outputs=(Tensor(f"n{number}:0", "int64", size_bytes),),
                cost_us=cost_us,
            )
        )
    inputs = (nodes[-1].outputs[0].name,)
    nodes.append(
        Node(
            "train", "AssignVariableOp", frozenset({Effect.WRITES}), inputs=inputs, writes=frozenset({"v"}), cost_us=500
        )
    )
    return Graph(tuple(nodes))


def test_what_costs_more_than_its_transfer_moves_and_the_gain_is_predicted() -> None:
    found = partition(chain_of(300, 1000), PRICES)
    assert found.moved == {"n0", "n1"}
    assert found.crossings.sent == ("raw:0",)
    assert found.crossings.received == ("n1:0",)
    assert (found.home_us, found.left_us, found.moved_us) == (1800, 500 + 12 + 102, 1300)
    assert found.is_worth_it


def test_what_is_cheaper_than_its_transfer_stays() -> None:
    found = partition(chain_of(30, 50), PRICES)
    assert found.moved == frozenset()
    assert not found.is_worth_it
    assert found.speedup == 1


def test_a_refusal_keeps_everything_at_home() -> None:
    found = partition(chain_of(300, 1000), PRICES, refusals=["the iterator is in a checkpoint"])
    assert found.moved == frozenset()
    assert not found.is_worth_it


def test_what_moves_takes_along_what_comes_before_a_constant_that_it_reads() -> None:
    """A node that both sides have may have an edge of control from a node that could stay: a check of the samples."""
    raw = Node("raw", "IteratorGetNext", frozenset({Effect.SOURCE}), outputs=(Tensor("raw:0", size_bytes=1),))
    check = Node("check", "Assert", frozenset({Effect.CHECK}), ("raw:0",))
    constant = Node("constant", "Const", controls=("check",), outputs=(Tensor("constant:0", size_bytes=1),))
    used = Node("used", "Add", inputs=("raw:0", "constant:0"), outputs=(Tensor("used:0", size_bytes=1),), cost_us=99)
    state = state_of(graph := Graph((raw, check, constant, used), frozenset({"used:0"})))
    assert state.movable == {"check", "used"}
    assert predecessors_of(graph, state)["used"] == {"check"}
    assert minimum_cut(graph, state, PRICES) == {"check", "used"}


def test_a_price_too_large_for_whole_numbers_is_scaled() -> None:
    state = state_of(graph := chain_of(3e9, 5e10, size_bytes=10**9))
    assert minimum_cut(graph, state, Prices(2, 1)) == {"n0", "n1"}
    assert crossings_of(graph, state, frozenset({"n0"})).received == ("n0:0",)


def test_a_frozen_table_does_not_keep_its_lookups_and_a_written_one_does() -> None:
    def graph(*writers: Node, **written: str) -> Graph:
        raw = Node("raw", "IteratorGetNext", frozenset({Effect.SOURCE}), outputs=(Tensor("raw:0"),))
        table = Node(
            "table", "HashTableV2", frozenset({Effect.HANDLE}), outputs=(Tensor("table:0", "resource", 0, False),)
        )
        find = Node(
            "find",
            "LookupTableFindV2",
            frozenset({Effect.READS}),
            ("table:0", "raw:0"),
            (),
            (Tensor("find:0"),),
            frozenset({"words"}),
            cost_us=99,
        )
        return Graph((raw, table, find, *writers), frozenset({"find:0"}), written)

    insert = Node(
        "insert", "LookupTableInsertV2", frozenset({Effect.WRITES}), ("table:0",), writes=frozenset({"words"})
    )
    some = Node("some", "LookupTableInsertV2", frozenset({Effect.WRITES}), writes=frozenset({ANY}))
    still, changed, elsewhere, perhaps = (
        state_of(graph()),
        state_of(graph(insert)),
        state_of(graph(words="another run")),
        state_of(graph(some)),
    )
    assert (still.movable, still.frozen) == ({"find"}, ("words",))
    assert minimum_cut(graph(), still, PRICES) == {"find"}  # the table's handle does not cross: both sides have one
    assert "which insert (LookupTableInsertV2) of this step writes" in changed.reason("find").text
    assert "which another run writes" in elsewhere.reason("find").text
    assert "which some (LookupTableInsertV2) of this step writes" in perhaps.reason("find").text
