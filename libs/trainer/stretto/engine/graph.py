"""The operations that run inside a parameter server, as TensorFlow graph builders.

Every session builds the same nodes; state is found on the server by shared name, so workers, movers and the
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

# head of a push: these, then claim[columns], then sizes[buckets]
PUSH_HEAD = ("shard", "attempt", "start", "stop", "worker")

# codes of a push
APPLIED, NOT_OWNED, GAP, STALE, MISALIGNED = range(5)


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
    pushes: Node  # [columns] pushes applied
    stats: Node  # [4] pushes applied, microseconds in them, pushes rejected, samples recognised as repeated
    mutex: Node

    @property
    def record_width(self) -> int:
        return self.layout.columns + 2


def dense_slot_shapes(layout: Layout) -> list[list[int]]:
    shape = [layout.slices, layout.slice_length]
    return [shape] if layout.optimizer.kind == "adagrad" else [shape, shape, [layout.slices, 1]]


def slot_start(layout: Layout) -> list[float]:
    """Initial value of each dense slot."""
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

    optimizer, dimension = layout.optimizer, layout.dimension
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
        pushes=variable("pushes", tf.int64, [layout.columns]),
        stats=variable("stats", tf.int64, [4]),
        mutex=ops.MutexV2(shared_name="stretto/mutex"),
    )


def initialise(state: State) -> Node:
    """Node that gives every variable its first value (tables create themselves)."""
    layout = state.layout
    done = [
        _assign(state.dense, tf.zeros([layout.slices, layout.slice_length])),
        _assign(state.state, tf.zeros([state_length(layout)])),
        _assign(state.seeded, tf.zeros([layout.slices], tf.int64)),
        _assign(state.own, tf.zeros([layout.columns], tf.int64)),
        _assign(state.samples, tf.zeros([layout.columns], tf.int64)),
        _assign(state.pushes, tf.zeros([layout.columns], tf.int64)),
        _assign(state.stats, tf.zeros([4], tf.int64)),
    ]
    for slot, shape, value in zip(state.dense_slots, dense_slot_shapes(layout), slot_start(layout), strict=True):
        done.append(_assign(slot, tf.fill(shape, value)))
    return tf.group(*done)


def _assign(variable: Node, value: Node) -> Node:
    return ops.AssignVariableOp(resource=variable, value=value)


def read(variable: Node, dtype: Any = tf.int64) -> Node:
    return ops.ReadVariableOp(resource=variable, dtype=dtype)


def find(table: Node, keys: Node, default: Node) -> Node:
    return ops.LookupTableFindV2(table_handle=table, keys=keys, default_value=default)


def insert(table: Node, keys: Node, values: Node) -> Node:
    return ops.LookupTableInsertV2(table_handle=table, keys=keys, values=values)


def now_us() -> Node:
    return tf.cast(ops.Timestamp() * 1e6, tf.int64)


class Locked:
    """`with Locked(state, inputs) as lock:` nodes inside run under the server's mutex; `lock.release(outputs)` ends it.

    The inputs are computed before the mutex is taken. Should a node inside fail, the runtime frees the mutex.
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
        """`output`, available once everything in `after` ran and the mutex is free."""
        return self.release_all([output], after)[0]

    def release_all(self, outputs: list[Node], after: list[Node] | None = None) -> list[Node]:
        with tf.control_dependencies([*outputs, *(after or [])]):
            freed = ops.ConsumeMutexLock(mutex_lock=self._lock)
        with tf.control_dependencies([freed]):
            return [tf.identity(output) for output in outputs]


# --- rows and slices ----------------------------------------------------------------------------------------


def lookup_rows(state: State, keys: Node, sizes: Node) -> Node:
    """[n, row_floats] of keys that are sorted by bucket, sizes[buckets] of them in each."""
    buckets = state.layout.buckets
    parts = ops.SplitV(value=keys, size_splits=sizes, axis=0, num_split=buckets)
    rows = [find(table, part, state.default_row) for table, part in zip(state.tables, parts, strict=True)]
    return tf.reshape(tf.concat(rows, 0), [-1, state.layout.row_floats])


def insert_rows(state: State, keys: Node, sizes: Node, rows: Node) -> list[Node]:
    buckets = state.layout.buckets
    keys_of = ops.SplitV(value=keys, size_splits=sizes, axis=0, num_split=buckets)
    rows_of = ops.SplitV(value=rows, size_splits=sizes, axis=0, num_split=buckets)
    return [insert(table, k, r) for table, k, r in zip(state.tables, keys_of, rows_of, strict=True)]


def updated_rows(layout: Layout, rows: Node, gradients: Node) -> Node:
    """One optimiser step for each row (formulas: Optimizer)."""
    o, d = layout.optimizer, layout.dimension
    if o.kind == "adagrad":
        accumulator = rows[:, d:] + tf.square(gradients)
        delta = rows[:, :d] - o.learning_rate * gradients / (tf.sqrt(accumulator) + o.epsilon)
        return tf.concat([delta, accumulator], 1)
    weight, m, v, t = tf.split(rows, [d, d, d, 1], 1)
    weight, m, v, t = _adam(layout, weight, m, v, t, gradients)
    return tf.concat([weight, m, v, t], 1)


def _adam(layout: Layout, weight: Node, m: Node, v: Node, t: Node, gradients: Node) -> tuple[Node, Node, Node, Node]:
    o = layout.optimizer
    t += 1.0
    m = o.beta_1 * m + (1.0 - o.beta_1) * gradients
    v = o.beta_2 * v + (1.0 - o.beta_2) * tf.square(gradients)
    rate = o.learning_rate * tf.sqrt(1.0 - tf.pow(o.beta_2, t)) / (1.0 - tf.pow(o.beta_1, t))
    return weight - rate * m / (tf.sqrt(v) + o.epsilon), m, v, t


def _update_slices(state: State, ids: Node, gradients: Node) -> list[Node]:
    """One optimiser step for the slices `ids` only: for Adam a zero gradient would not mean "no change"."""
    layout = state.layout
    if layout.optimizer.kind == "adagrad":
        return [
            ops.ResourceSparseApplyAdagradV2(
                var=state.dense,
                accum=state.dense_slots[0],
                lr=tf.constant(layout.optimizer.learning_rate),
                epsilon=tf.constant(layout.optimizer.epsilon),
                grad=gradients,
                indices=ids,
            )
        ]
    handles = [state.dense, *state.dense_slots]
    old = [gather(handle, ids) for handle in handles]
    return [
        scatter(handle, ids, value)
        for handle, value in zip(handles, _adam(layout, *old, gradients), strict=True)  # type: ignore[call-arg]
    ]


def gather(variable: Node, ids: Node, dtype: Any = tf.float32) -> Node:
    return ops.ResourceGather(resource=variable, indices=ids, dtype=dtype)


def scatter(variable: Node, ids: Node, values: Node) -> Node:
    return ops.ResourceScatterUpdate(resource=variable, indices=ids, updates=values)


# --- what workers run ---------------------------------------------------------------------------------------


def build_pull(state: State) -> tuple[list[Node], list[Node]]:
    """Feeds: head int64 [sizes(buckets) | slice ids], keys. Fetches: rows [n, D], slices [k, L], state, own."""
    layout = state.layout
    head = v1.placeholder(tf.int64, [None], "pull_head")
    keys = v1.placeholder(tf.int64, [None], "pull_keys")
    rows = lookup_rows(state, keys, head[: layout.buckets])[:, : layout.dimension]
    dense = gather(state.dense, head[layout.buckets :])
    extra = read(state.state, tf.float32)
    # own is read last: a moved bucket is emptied only after own says so, hence what was read before was whole
    with tf.control_dependencies([rows, dense, extra]):
        own = read(state.own)
    return [head, keys], [rows, dense, extra, own]


def build_push(state: State) -> tuple[list[Node], Node]:
    """Feeds: head, keys [n], row gradients [n, D], slice gradients [k, L], state delta.

    Fetch: int64 [code, columns applied, microseconds with queueing | own]. Nothing is applied unless code is
    APPLIED; then each claimed column whose record equals `start` is applied and moves to `stop`, the others
    (already at `stop` or later) are skipped.
    """
    layout = state.layout
    buckets, columns = layout.buckets, layout.columns
    head = v1.placeholder(tf.int64, [len(PUSH_HEAD) + columns + buckets], "push_head")
    keys = v1.placeholder(tf.int64, [None], "push_keys")
    row_gradients = v1.placeholder(tf.float32, [None, layout.dimension], "push_rows")
    slice_gradients = v1.placeholder(tf.float32, [None, layout.slice_length], "push_slices")
    state_delta = v1.placeholder(tf.float32, [state_length(layout)], "push_state")
    shard, attempt, start, stop, worker = (head[i] for i in range(len(PUSH_HEAD)))
    claim = tf.cast(head[len(PUSH_HEAD) : len(PUSH_HEAD) + columns], tf.bool)
    sizes = head[len(PUSH_HEAD) + columns :]
    claimed_slices = tf.where(claim[buckets:])[:, 0]
    bucket_of_key = tf.cast(
        tf.bitwise.right_shift(tf.bitcast(keys, tf.uint64), tf.constant(64 - (buckets.bit_length() - 1), tf.uint64)),
        tf.int64,
    )
    # a shape error inside the body could leave half a push: everything is checked before the mutex is taken
    n = tf.shape(keys, tf.int64)[0]
    checks = [
        tf.debugging.Assert(tf.equal(tf.reduce_sum(sizes), n), ["sizes do not add up to the keys"]),
        tf.debugging.Assert(tf.equal(tf.shape(row_gradients, tf.int64)[0], n), ["one gradient per key"]),
        tf.debugging.Assert(
            tf.equal(tf.size(claimed_slices, tf.int64), tf.shape(slice_gradients, tf.int64)[0]),
            ["one gradient per claimed slice"],
        ),
    ]
    begun_us = now_us()
    with Locked(state, [*checks, begun_us, bucket_of_key, row_gradients, slice_gradients, state_delta]) as lock:
        own = read(state.own)
        record = find(state.records, shard[None], tf.zeros([state.record_width], tf.int64))[0]
        is_finished = find(state.finished, shard[None], tf.zeros([1], tf.int64))[0, 0]
        offsets, seen_attempt = record[:columns], record[columns]
        code = _judge(claim, own, offsets, start, stop, tf.less(attempt, seen_attempt) | tf.equal(is_finished, 1))
        accepted = tf.equal(code, APPLIED)
        apply = claim & tf.equal(offsets, start) & accepted
        applied = tf.cast(apply, tf.int64)

        kept = tf.where(tf.gather(apply[:buckets], bucket_of_key))[:, 0]
        kept_keys, kept_sizes = tf.gather(keys, kept), sizes * applied[:buckets]
        rows = updated_rows(layout, lookup_rows(state, kept_keys, kept_sizes), tf.gather(row_gradients, kept))
        kept_slices = tf.where(tf.gather(apply[buckets:], claimed_slices))[:, 0]
        writes = [
            *insert_rows(state, kept_keys, kept_sizes, rows),
            *_update_slices(state, tf.gather(claimed_slices, kept_slices), tf.gather(slice_gradients, kept_slices)),
            _add(state.state, tf.where(apply[buckets], state_delta, tf.zeros_like(state_delta))),
        ]
        writes += _account(
            state, worker, shard, attempt, stop - start, stop, apply, accepted & tf.reduce_any(claim), record
        )
        with tf.control_dependencies(writes):
            ended_us = now_us()
            spent_us = ended_us - begun_us
            one = tf.cast(accepted & tf.reduce_any(claim), tf.int64)  # an empty push (warm-up) is none
            refused = tf.cast(~accepted, tf.int64)
            repeated = tf.cast(accepted & tf.reduce_any(claim & ~apply), tf.int64) * (stop - start)
            counted = _add(state.stats, tf.stack([one, one * spent_us, refused, repeated]))
        answer = tf.concat([tf.stack([code, tf.reduce_sum(applied), spent_us]), own], 0)
    return [head, keys, row_gradients, slice_gradients, state_delta], lock.release(answer, [counted, *writes])


def _judge(claim: Node, own: Node, offsets: Node, start: Node, stop: Node, stale: Node) -> Node:
    def any_claimed(condition: Node) -> Node:
        return tf.reduce_any(claim & condition)

    code = tf.constant(APPLIED, tf.int64)
    for condition, value in (
        (any_claimed(tf.greater(offsets, start) & tf.less(offsets, stop)), MISALIGNED),
        (any_claimed(tf.less(offsets, start)), GAP),
        (stale, STALE),
        (any_claimed(tf.not_equal(own, 1)), NOT_OWNED),
    ):
        code = tf.where(condition, tf.constant(value, tf.int64), code)
    return code


def _account(
    state: State,
    worker: Node,
    shard: Node,
    attempt: Node,
    length: Node,
    stop: Node,
    apply: Node,
    accepted: Node,
    record: Node,
) -> list[Node]:
    """Write the progress record, the applied counters and the worker's push counter."""
    columns, buckets = state.layout.columns, state.layout.buckets
    applied = tf.cast(apply, tf.int64)
    new_record = tf.concat(
        [
            tf.where(apply, stop, record[:columns]),
            tf.maximum(attempt, record[columns])[None],
            (record[columns + 1] + length * applied[buckets])[None],
        ],
        0,
    )
    seen = find(state.workers, worker[None], tf.zeros([2], tf.int64))[0]
    # zero or one row: a refused or an empty push leaves no trace
    chosen = tf.where(accepted[None])[:, 0]
    return [
        insert(state.records, tf.gather(shard[None], chosen), tf.gather(new_record[None], chosen)),
        insert(
            state.workers,
            tf.gather(worker[None], chosen),
            tf.gather(tf.stack([seen[0] + 1, now_us()])[None], chosen),
        ),
        _add(state.samples, applied * length),
        _add(state.pushes, applied),
    ]


def _add(variable: Node, value: Node) -> Node:
    return ops.AssignAddVariableOp(resource=variable, value=value)


def build_seed(state: State) -> tuple[list[Node], Node]:
    """Feeds: slice values [slices, L], state. Fetch: [seeded(slices) | own].

    Only slices that are owned and were never seeded change.
    """
    layout = state.layout
    values = v1.placeholder(tf.float32, [layout.slices, layout.slice_length], "seed_values")
    extra = v1.placeholder(tf.float32, [state_length(layout)], "seed_state")
    with Locked(state, [values, extra]) as lock:
        mine = tf.equal(read(state.own)[layout.buckets :], 1)
        fresh = mine & tf.equal(read(state.seeded), 0)
        ids = tf.where(fresh)[:, 0]
        old = read(state.state, tf.float32)
        writes = [
            scatter(state.dense, ids, tf.gather(values, ids)),
            scatter(state.seeded, ids, tf.ones_like(ids)),
            _assign(state.state, tf.where(fresh[0], extra, old)),
        ]
        with tf.control_dependencies(writes):
            answer = tf.concat([read(state.seeded), read(state.own)], 0)
    return [values, extra], lock.release(answer, writes)


def build_progress(state: State) -> tuple[list[Node], Node]:
    """Feed: int64 [shard, attempt]. Fetch: int64 [finished | own | record]; raises the record's attempt."""
    head = v1.placeholder(tf.int64, [2], "progress_head")
    columns = state.layout.columns
    with Locked(state, [head]) as lock:
        shard = head[:1]
        own = read(state.own)
        record = find(state.records, shard, tf.zeros([state.record_width], tf.int64))[0]
        is_finished = find(state.finished, shard, tf.zeros([1], tf.int64))[0]
        raised = tf.concat([record[:columns], tf.maximum(record[columns], head[1])[None], record[columns + 1 :]], 0)
        chosen = tf.where(tf.greater(head[1:], record[columns]) & tf.equal(is_finished, 0))[:, 0]
        write = insert(state.records, tf.gather(shard, chosen), tf.gather(raised[None], chosen))
        answer = tf.concat([is_finished, own, record], 0)
    return [head], lock.release(answer, [write])


def build_finish(state: State) -> tuple[list[Node], Node]:
    """Feed: shards [n]. Deletes their records and marks them finished. Fetch: n."""
    shards = v1.placeholder(tf.int64, [None], "finish_shards")
    with Locked(state, [shards]) as lock:
        remove = ops.LookupTableRemoveV2(table_handle=state.records, keys=shards)
        mark = insert(state.finished, shards, tf.ones_like(shards)[:, None])
        answer = tf.size(shards, tf.int64)
    return [shards], lock.release(answer, [remove, mark])
