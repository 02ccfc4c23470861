"""A preparation in several graphs, one for each group of a chain: together they give what the whole gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from stretto_pipeline.errors import ProgramRefused
from stretto_pipeline.execution.graphs import GraphPreparation, Table, cut, runs, taught
from stretto_pipeline.execution.values import packed, unpacked

pytestmark = pytest.mark.slow


@st.composite
def preparations(draw: st.DrawFn) -> tuple[GraphPreparation, list[int]]:
    """Draw a graph of pure operations on two raw values, a constant and a table, and a group for each operation."""
    import tensorflow as tf

    with tf.Graph().as_default() as graph:
        raw = [tf.compat.v1.placeholder(tf.int64, [None], name=f"raw_{place}") for place in range(2)]
        constant = tf.compat.v1.placeholder(tf.int64, [], name="constant")
        table = tf.compat.v1.placeholder(tf.resource, [], name="table")
        made: list[Any] = [*raw, tf.constant(3, tf.int64, name="three") + constant]
        for number in range(draw(st.integers(1, 8))):
            one, other = draw(st.sampled_from(made)), draw(st.sampled_from(made))
            after = [draw(st.sampled_from(made)).op] if draw(st.booleans()) else []
            with tf.control_dependencies(after):
                kind = draw(st.sampled_from(["add", "split", "find"]))
                if kind == "add":
                    made.append(tf.add(one, other, name=f"op_{number}"))
                elif kind == "find":
                    made.append(
                        tf.raw_ops.LookupTableFindV2(table_handle=table, keys=one, default_value=other[:1][0])
                        if one.shape.rank and other.shape.rank
                        else tf.identity(one)
                    )
                else:
                    made += tf.unstack(tf.stack([one + 1, one * 2]), num=2, name=f"op_{number}")
        fetches = draw(st.lists(st.sampled_from(made[2:]), min_size=1, max_size=4))
        graph_def = graph.as_graph_def()
        groups = [draw(st.integers(0, 2)) for _ in graph_def.node]
    used = ["table"] if any(each.op == "LookupTableFindV2" for each in graph_def.node) else []
    keys, values = np.arange(20), np.arange(20) * 7
    return (
        GraphPreparation(
            number=1,
            graph=graph_def.SerializeToString(),
            feeds=("raw_0:0", "raw_1:0"),
            fetches=tuple(each.name for each in fetches),
            types=("int64",) * len(fetches),
            constants=("constant:0",),
            tables=tuple(Table(f"{each}:0", "int64", "int64") for each in used),
            contents=(np.array(5), *((keys, values) if used else ())),
        ),
        groups,
    )


def names_of(preparation: GraphPreparation) -> list[str]:
    import tensorflow as tf

    graph_def: Any = tf.compat.v1.GraphDef.FromString(preparation.graph)
    return [each.name for each in graph_def.node]


def sent(parts: Sequence[Any]) -> list[memoryview]:
    return [memoryview(cast("bytes", each)).cast("B") if len(each) else memoryview(b"") for each in parts]


@settings(max_examples=60)
@given(preparations(), st.integers(2, 3))
def test_parts_give_what_the_whole_gives(drawn: tuple[GraphPreparation, list[int]], count: int) -> None:
    whole, groups = drawn
    group_of = dict(zip(names_of(whole), (min(each, count - 1) for each in groups), strict=True))
    raw = packed([np.array([1, 2, 30]), np.array([4, 5, 6])])
    chained = cut(whole, lambda name: group_of[name], count)
    assert len(chained.earlier) == count - 1
    wanted = [each.tolist() for each in unpacked(runs(whole)(raw))]
    assert [each.tolist() for each in unpacked(runs(chained)(raw))] == wanted
    assert [each.tolist() for each in unpacked(taught(sent(chained.parts()))(raw))] == wanted


def test_an_operation_runs_where_it_is_placed_and_what_no_sample_reaches_everywhere() -> None:
    import tensorflow as tf

    with tf.Graph().as_default() as graph:
        raw = tf.compat.v1.placeholder(tf.int64, [None], name="raw")
        two = tf.constant(2, tf.int64, name="two")
        first = tf.multiply(raw, two, name="first")
        tf.add(tf.add(first, two, name="second"), raw, name="third")
    whole = GraphPreparation(
        1, graph.as_graph_def().SerializeToString(), ("raw:0",), ("third:0", "first:0"), ("int64",) * 2, (), (), ()
    )
    chained = cut(whole, lambda name: {"second": 1}.get(name, 0), 2)
    assert {*names_of(chained.earlier[0])} == {"raw", "two", "first"}
    assert {*names_of(chained)} >= {"raw", "two", "second", "third"}
    assert "first" not in names_of(chained)
    assert chained.earlier[0].fetches == ("first:0",)


def test_a_tensor_that_cannot_travel_between_two_groups_is_refused_by_name() -> None:
    import tensorflow as tf

    with tf.Graph().as_default() as graph:
        raw = tf.compat.v1.placeholder(tf.int64, [None], name="raw")
        listed = tf.raw_ops.TensorListFromTensor(tensor=raw, element_shape=tf.constant([], tf.int32), name="listed")
        tf.raw_ops.TensorListStack(
            input_handle=listed, element_shape=tf.constant([], tf.int32), element_dtype=tf.int64, name="last"
        )
    whole = GraphPreparation(
        1, graph.as_graph_def().SerializeToString(), ("raw:0",), ("last:0",), ("int64",), (), (), ()
    )
    with pytest.raises(ProgramRefused, match="listed:0 cannot travel from one data worker to another: place what"):
        cut(whole, lambda name: int(name == "last"), 2)
