"""The state of a parameter server, as TensorFlow nodes.

Every session builds the same nodes and finds the state on the server by shared name, so workers, movers and the
server itself need not know each other. All writes happen under one mutex per server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from .layout import DELETED_STORED, EMPTY_STORED, Layout

ops: Any = tf.raw_ops
v1: Any = tf.compat.v1
Node = Any

DEVICE = "/job:ps/task:0/device:CPU:0"
INITIAL_TABLE_SLOTS = 256


@dataclass(frozen=True)
class State:
    """Handles of everything a parameter server holds."""

    layout: Layout
    tables: list[Node]  # one DenseHashTable per bucket: stored key -> [delta | slots]
    default_row: Node
    dense: Node  # [slices, slice_length]
    dense_slots: list[Node]  # same shape; Adam's step count [slices, 1]
    state: Node  # [max(1, state_size)] non-trainable
    seeded: Node  # [slices] 1 once a worker gave the initial values
    own: Node  # [columns] Own
    records: Node  # shard -> [offset of each column | attempt | samples applied by the first slice]
    finished: Node  # shard -> 1
    workers: Node  # worker -> [pushes accepted, time of the last one, microseconds]
    samples: Node  # [columns] samples applied
    fingerprints: Node  # [columns] fingerprint of the pushes applied
    stats: Node  # [4] pushes applied, microseconds in them, pushes rejected, samples recognised as repeated
    mutex: Node

    @property
    def record_width(self) -> int:
        return self.layout.columns + 2


def dense_slot_shapes(layout: Layout) -> list[list[int]]:
    shape = [layout.slices, layout.slice_length]
    return [shape] if layout.optimizer.kind == "adagrad" else [shape, shape, [layout.slices, 1]]


def slot_start(layout: Layout) -> list[float]:
    """Return the initial value of each dense slot."""
    return [layout.optimizer.initial_accumulator] if layout.optimizer.kind == "adagrad" else [0.0, 0.0, 0.0]


def state_length(layout: Layout) -> int:
    return max(1, layout.state_size)


def build_state(layout: Layout) -> State:
    def variable(name: str, dtype: Any, shape: list[int]) -> Node:
        return ops.VarHandleOp(dtype=dtype, shape=shape, shared_name=f"stretto/{name}")

    def table_of(name: str, width: int) -> Node:
        return ops.MutableHashTableOfTensorsV2(
            key_dtype=tf.int64, value_dtype=tf.int64, value_shape=[width], shared_name=f"stretto/{name}"
        )

    optimizer = layout.optimizer
    dimension = layout.dimension
    first = [0.0] * layout.row_floats
    if optimizer.kind == "adagrad":
        first[dimension:] = [optimizer.initial_accumulator] * dimension
    tables = [
        ops.MutableDenseHashTableV2(
            empty_key=tf.constant(EMPTY_STORED, tf.int64),
            deleted_key=tf.constant(DELETED_STORED, tf.int64),
            value_dtype=tf.float32,
            value_shape=[layout.row_floats],
            initial_num_buckets=INITIAL_TABLE_SLOTS,
            shared_name=f"stretto/bucket{bucket}",
        )
        for bucket in range(layout.buckets)
    ]
    return State(
        layout=layout,
        tables=tables,
        default_row=tf.constant(first, tf.float32),
        dense=variable("dense", tf.float32, [layout.slices, layout.slice_length]),
        dense_slots=[
            variable(f"dense_slot{i}", tf.float32, shape) for i, shape in enumerate(dense_slot_shapes(layout))
        ],
        state=variable("state", tf.float32, [state_length(layout)]),
        seeded=variable("seeded", tf.int64, [layout.slices]),
        own=variable("own", tf.int64, [layout.columns]),
        records=table_of("records", layout.columns + 2),
        finished=table_of("finished", 1),
        workers=table_of("workers", 2),
        samples=variable("samples", tf.int64, [layout.columns]),
        fingerprints=variable("fingerprints", tf.int64, [layout.columns]),
        stats=variable("stats", tf.int64, [4]),
        mutex=ops.MutexV2(shared_name="stretto/mutex"),
    )


def initialise(state: State) -> Node:
    """Build the node that gives every variable its first value (tables create themselves)."""
    layout = state.layout
    done = [
        assign(state.dense, tf.zeros([layout.slices, layout.slice_length])),
        assign(state.state, tf.zeros([state_length(layout)])),
        assign(state.seeded, tf.zeros([layout.slices], tf.int64)),
        assign(state.own, tf.zeros([layout.columns], tf.int64)),
        assign(state.samples, tf.zeros([layout.columns], tf.int64)),
        assign(state.fingerprints, tf.zeros([layout.columns], tf.int64)),
        assign(state.stats, tf.zeros([4], tf.int64)),
    ]
    for slot, shape, value in zip(state.dense_slots, dense_slot_shapes(layout), slot_start(layout), strict=True):
        done.append(assign(slot, tf.fill(shape, value)))
    return tf.group(*done)


def clearing(state: State) -> tuple[list[Any], Any]:
    """Build (feeds, fetches) that reset everything but the rows of the tables to the state before the first push."""
    with Locked(state, []) as lock:
        done = [initialise(state)]
        for table in (state.records, state.finished):
            keys = ops.LookupTableExportV2(table_handle=table, Tkeys=tf.int64, Tvalues=tf.int64)[0]
            done.append(ops.LookupTableRemoveV2(table_handle=table, keys=keys))
        answer = tf.constant(0)
    return [], lock.release(answer, done)


def assign(variable: Node, value: Node) -> Node:
    return ops.AssignVariableOp(resource=variable, value=value)


def read(variable: Node, dtype: Any = tf.int64) -> Node:
    return ops.ReadVariableOp(resource=variable, dtype=dtype)


def find(table: Node, keys: Node, default: Node) -> Node:
    return ops.LookupTableFindV2(table_handle=table, keys=keys, default_value=default)


def insert(table: Node, keys: Node, values: Node) -> Node:
    return ops.LookupTableInsertV2(table_handle=table, keys=keys, values=values)


def gather(variable: Node, ids: Node, dtype: Any = tf.float32) -> Node:
    return ops.ResourceGather(resource=variable, indices=ids, dtype=dtype)


def scatter(variable: Node, ids: Node, values: Node) -> Node:
    return ops.ResourceScatterUpdate(resource=variable, indices=ids, updates=values)


def add(variable: Node, value: Node) -> Node:
    return ops.AssignAddVariableOp(resource=variable, value=value)


def now_us() -> Node:
    return tf.cast(ops.Timestamp() * 1e6, tf.int64)


class Locked:
    """The server's mutex around nodes: `with Locked(state, inputs) as lock:`, ended by `lock.release(outputs)`.

    The inputs are computed before the mutex is taken. If a node inside fails, the runtime releases the mutex.
    """

    def __init__(self, state: State, inputs: list[Node]) -> None:
        with tf.control_dependencies(inputs):
            self._lock = ops.MutexLock(mutex=state.mutex)
        self._scope = tf.control_dependencies([self._lock])

    def __enter__(self) -> Locked:
        self._scope.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._scope.__exit__(*exc)

    def release(self, output: Node, after: list[Node]) -> Node:
        """Return `output`, available once everything in `after` ran and the mutex is released."""
        return self.release_all([output], after)[0]

    def release_all(self, outputs: list[Node], after: list[Node] | None = None) -> list[Node]:
        with tf.control_dependencies([*outputs, *(after or [])]):
            freed = ops.ConsumeMutexLock(mutex_lock=self._lock)
        with tf.control_dependencies([freed]):
            return [tf.identity(output) for output in outputs]
