"""The table of effects against TensorFlow's own registry of operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
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


@pytest.mark.slow
def test_what_the_registry_calls_stateless_is_pure_unless_the_table_says_otherwise() -> None:
    import tensorflow as tf

    def effects(build: Callable[[], Any]) -> set[Effect]:
        graph = tf.Graph()
        with graph.as_default():
            build()
        reading = Reading(graph.as_graph_def())
        return {effect for each in reading.graph.get_operations() for effect in reading.touched(each)[0]}

    image, wave = np.zeros([1, 4, 4, 3], np.float32), np.zeros([8, 2], np.float32)
    pure: list[Callable[[], Any]] = [
        lambda: tf.image.adjust_contrast(image, 1.2),
        lambda: tf.image.adjust_hue(image, 0.1),
        lambda: tf.image.adjust_saturation(image, 0.1),
        lambda: tf.image.extract_patches(image, [1, 2, 2, 1], [1, 2, 2, 1], [1, 1, 1, 1], "VALID"),
        lambda: tf.nn.space_to_depth(image, 2),
        lambda: tf.signal.rfft(wave),
        lambda: tf.raw_ops.AudioSpectrogram(input=wave, window_size=2, stride=2),
        lambda: tf.io.decode_image(b"", expand_animations=False),
    ]
    for build in pure:
        assert effects(build) <= {Effect.PURE, Effect.CHECK, Effect.CALLS}, build
    kept: list[Callable[[], Any]] = [
        lambda: tf.raw_ops.InplaceAdd(x=wave, i=[0], v=[[1.0, 1.0]]),
        lambda: tf.raw_ops.DebugIdentityV3(input=wave),
        lambda: tf.raw_ops.RandomUniform(shape=[2], dtype=tf.float32),
        lambda: tf.timestamp(),
        lambda: tf.raw_ops.RangeDataset(start=0, stop=1, step=1, output_types=[tf.int64], output_shapes=[[]]),
    ]
    for build in kept:
        assert effects(build) - {Effect.PURE, Effect.CHECK}, build
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
