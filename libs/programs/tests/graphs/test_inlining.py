"""Graphs without calls do what the graphs with calls did."""

from __future__ import annotations

import pytest
from stretto_programs.graphs.inlining import address_of, inlined


@pytest.mark.slow
def test_bodies_in_the_place_of_calls_give_the_same_values_and_writes() -> None:
    """Calls within calls, one without outputs, an argument that is an output, edges of control at calls, and places."""
    import tensorflow as tf
    from tensorflow.core.framework.attr_value_pb2 import AttrValue

    total = tf.Variable(3.0)
    places = AttrValue(list=AttrValue.ListValue(s=[b"loc:@value"]))

    @tf.function
    def written(value: tf.Tensor) -> None:
        total.assign_add(value)

    @tf.function
    def inner(value: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        written(value)
        same = tf.identity(value, name="only_here")
        same.op._set_attr("_class", places)  # the place of an argument of a call, which is no node afterwards
        product = same * total
        product.op._set_attr("_class", AttrValue(list=AttrValue.ListValue(s=[b"loc:@" + same.op.name.encode()])))
        return product, value

    @tf.function
    def outer(value: tf.Tensor) -> tf.Tensor:
        product, same = inner(value)
        with tf.control_dependencies([product]):
            again, _ = inner(same)
        written(again)
        return product + again

    concrete = outer.get_concrete_function(tf.TensorSpec([], tf.float32))
    graph_def, stands_for = inlined(concrete.graph.as_graph_def())
    assert "Call" not in "".join(node.op for node in graph_def.node)
    imported = tf.compat.v1.wrap_function(lambda: tf.graph_util.import_graph_def(graph_def, name=""), [])
    tensor = imported.graph.get_tensor_by_name
    [output] = [stands_for.get(each.name, each.name) for each in concrete.outputs]
    run = imported.prune([tensor(each.name) for each in concrete.inputs], [tensor(output)])
    expected = float(outer(tf.constant(2.0))), float(total)
    total.assign(3.0)
    [value] = run(tf.constant(2.0), *concrete.captured_inputs)
    assert (float(value), float(total)) == expected == (24.0, 21.0)


@pytest.mark.parametrize(("written", "address"), [("a", ("a", 0)), ("a/b:2", ("a/b", 2)), ("^a/b", ("a/b", -1))])
def test_an_input_is_read_as_a_graph_writes_it(written: str, address: tuple[str, int]) -> None:
    assert address_of(written) == address
