"""The table of effects against TensorFlow's own registry of operations."""

from __future__ import annotations

from typing import Any

import pytest
from stretto_programs.graphs.reading import Reading
from stretto_programs.partition.effects import CHECKS, PURE, Effect, effect_of, known
from stretto_programs.partition.graph import ANY

STATEFUL_BUT_PURE = {
    "GuaranteeConst": "passes its input on",
    "DeepCopy": "copies its input",
    "StatelessRandomGetAlg": "tells the algorithm of the device, which is the same on every CPU",
}
"""Operations that the registry keeps from being folded, though their outputs follow from their inputs."""


@pytest.fixture(scope="module")
def registry() -> dict[str, Any]:
    from tensorflow.core.framework import op_def_pb2
    from tensorflow.python.client import pywrap_tf_session

    listed = op_def_pb2.OpList()
    listed.ParseFromString(pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList()))
    return {each.name: each for each in listed.op}


@pytest.mark.slow
def test_every_operation_of_the_table_exists(registry: dict[str, Any]) -> None:
    assert known() - registry.keys() == set()


@pytest.mark.slow
def test_nothing_pure_is_stateful_in_the_registry(registry: dict[str, Any]) -> None:
    stateful = {name for name in PURE | CHECKS if registry[name].is_stateful}
    assert stateful - STATEFUL_BUT_PURE.keys() - CHECKS == set()


@pytest.mark.slow
def test_nothing_pure_takes_a_resource_or_writes_a_variable(registry: dict[str, Any]) -> None:
    """Passing a handle on is resolved by the reading; nothing else that is pure may take one."""
    passing = {"RefSwitch", "RefMerge", "RefEnter", "RefExit", "RefNextIteration", "RefIdentity"}
    taking = {
        name for name in PURE - passing
        if any(each.is_ref or each.type == 20 for each in registry[name].input_arg)  # 20: DT_RESOURCE
    }  # fmt: skip
    assert taking == set()


def test_an_operation_that_is_not_in_the_table_is_an_effect() -> None:
    assert effect_of("MyOwnOp") is Effect.UNKNOWN


@pytest.mark.slow
def test_a_variable_is_known_behind_its_own_writes_and_not_behind_a_choice_of_two() -> None:
    import tensorflow as tf

    graph = tf.Graph()
    with graph.as_default():
        one, other = (tf.compat.v1.get_variable(name, [2], use_resource=False) for name in ("one", "other"))
        chained = tf.compat.v1.assign_add(tf.compat.v1.assign(one, [1.0, 2.0]), [1.0, 2.0])
        either = tf.raw_ops.RefMerge(inputs=[one._ref(), other._ref()])
        chosen = tf.compat.v1.assign_add(either.output, [1.0, 1.0])
    reading = Reading(graph.as_graph_def())

    def written(tensor: Any) -> frozenset[str | int]:
        return reading.touched(reading.graph.get_operation_by_name(tensor.op.name))[2]

    assert written(chained) == {"one"}
    assert written(chosen) == {ANY}
