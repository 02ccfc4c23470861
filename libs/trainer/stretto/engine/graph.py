"""Graph builders for the operations that workers run inside a parameter server: pull, push, progress."""

from __future__ import annotations

import tensorflow as tf

from .layout import Layout
from .state import (
    Locked,
    Node,
    State,
    add,
    assign,
    find,
    gather,
    insert,
    now_us,
    ops,
    read,
    scatter,
    state_length,
    v1,
)

# head of a push: these, then claim[columns], then sizes[buckets]
PUSH_HEAD = ("shard", "attempt", "start", "stop", "worker")

# codes of a push
APPLIED, NOT_OWNED, GAP, STALE, MISALIGNED = range(5)


# --- rows and slices ----------------------------------------------------------------------------------------


def lookup_rows(state: State, keys: Node, sizes: Node) -> Node:
    """Look up keys that are sorted by bucket, sizes[buckets] of them in each: [n, row_floats]."""
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
    """Apply one optimiser step to each row (formulas: Optimizer)."""
    o = layout.optimizer
    d = layout.dimension
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
    """Apply one optimiser step to the slices `ids` only: for Adam a zero gradient would still be a change."""
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


# --- what workers run ---------------------------------------------------------------------------------------


def build_pull(state: State) -> tuple[list[Node], list[Node]]:
    """Build the pull.

    Feeds: head int64 [sizes(buckets) | slice ids], keys. Fetches: rows [n, D], slices [k, L], state, own.
    """
    layout = state.layout
    head = v1.placeholder(tf.int64, [None], "pull_head")
    keys = v1.placeholder(tf.int64, [None], "pull_keys")
    rows = lookup_rows(state, keys, head[: layout.buckets])[:, : layout.dimension]
    dense = gather(state.dense, head[layout.buckets :])
    extra = read(state.state, tf.float32)
    # own is read last: a moved bucket is emptied only after own says so, hence the rows read before were complete
    with tf.control_dependencies([rows, dense, extra]):
        own = read(state.own)
    return [head, keys], [rows, dense, extra, own]


def build_push(state: State) -> tuple[list[Node], Node]:
    """Build the push.

    Feeds: head, keys [n], row gradients [n, D], slice gradients [k, L], state delta.

    Fetch: int64 [code, columns applied, microseconds with queueing | own]. Nothing is applied unless code is
    APPLIED; then each claimed column whose record equals `start` is applied and moves to `stop`, the others
    (already at `stop` or later) are skipped.
    """
    layout = state.layout
    buckets = layout.buckets
    columns = layout.columns
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
    prints = fingerprint(shard, start, stop)
    with Locked(state, [*checks, begun_us, prints, bucket_of_key, row_gradients, slice_gradients, state_delta]) as lock:
        own = read(state.own)
        record = find(state.records, shard[None], tf.zeros([state.record_width], tf.int64))[0]
        is_finished = find(state.finished, shard[None], tf.zeros([1], tf.int64))[0, 0]
        offsets = record[:columns]
        seen_attempt = record[columns]
        code = _judge(claim, own, offsets, start, stop, tf.less(attempt, seen_attempt) | tf.equal(is_finished, 1))
        accepted = tf.equal(code, APPLIED)
        apply = claim & tf.equal(offsets, start) & accepted
        applied = tf.cast(apply, tf.int64)

        kept = tf.where(tf.gather(apply[:buckets], bucket_of_key))[:, 0]
        kept_keys = tf.gather(keys, kept)
        kept_sizes = sizes * applied[:buckets]
        rows = updated_rows(layout, lookup_rows(state, kept_keys, kept_sizes), tf.gather(row_gradients, kept))
        kept_slices = tf.where(tf.gather(apply[buckets:], claimed_slices))[:, 0]
        writes = [
            *insert_rows(state, kept_keys, kept_sizes, rows),
            *_update_slices(state, tf.gather(claimed_slices, kept_slices), tf.gather(slice_gradients, kept_slices)),
            add(state.state, tf.where(apply[buckets], state_delta, tf.zeros_like(state_delta))),
        ]
        writes += _account(
            state, worker, shard, attempt, stop - start, stop, apply, accepted & tf.reduce_any(claim), record, prints
        )
        with tf.control_dependencies(writes):
            ended_us = now_us()
            spent_us = ended_us - begun_us
            one = tf.cast(accepted & tf.reduce_any(claim), tf.int64)  # an empty push (warm-up) is none
            refused = tf.cast(~accepted, tf.int64)
            repeated = tf.cast(accepted & tf.reduce_any(claim & ~apply), tf.int64) * (stop - start)
            counted = add(state.stats, tf.stack([one, one * spent_us, refused, repeated]))
        answer = tf.concat([tf.stack([code, tf.reduce_sum(applied), spent_us]), own], 0)
    return [head, keys, row_gradients, slice_gradients, state_delta], lock.release(answer, [counted, *writes])


def fingerprint(shard: Node, start: Node, stop: Node) -> Node:
    """Return the fingerprint of samples [start, stop) of a shard: w(shard) x (stop^2 - start^2) mod 2^64, int64.

    Over a shard's batches it adds up to w x length^2. The ledger computes the same sum for itself (its code explains
    the formula of w), so a wrong sample shows even when the number of samples is right.
    """

    def mixed(word: Node, factor: int) -> Node:
        high = tf.bitwise.right_shift(word, tf.constant(32, tf.uint64))
        return tf.bitwise.bitwise_xor(word, high) * tf.constant(factor, tf.uint64)

    begin, end, word = (tf.bitcast(value, tf.uint64) for value in (start, stop, shard))
    word = mixed(word * tf.constant(0x9E3779B97F4A7C15, tf.uint64), 0xD6E8FEB86659FD93)
    weight = tf.bitwise.bitwise_or(mixed(word, 1), tf.constant(1, tf.uint64))
    return tf.bitcast(weight * (end * end - begin * begin), tf.int64)


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
    prints: Node,
) -> list[Node]:
    """Write the progress record, the applied counters and the worker's push counter."""
    columns = state.layout.columns
    buckets = state.layout.buckets
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
        add(state.samples, applied * length),
        add(state.fingerprints, applied * prints),
    ]


def build_seed(state: State) -> tuple[list[Node], Node]:
    """Build the seeding. Only slices that are owned and were never seeded change.

    Feeds: slice values [slices, L], state. Fetch: [seeded(slices) | own].
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
            assign(state.state, tf.where(fresh[0], extra, old)),
        ]
        with tf.control_dependencies(writes):
            answer = tf.concat([read(state.seeded), read(state.own)], 0)
    return [values, extra], lock.release(answer, writes)


def build_progress(state: State) -> tuple[list[Node], Node]:
    """Build the query for a shard's progress, which also raises the record's attempt.

    Feed: int64 [shard, attempt]. Fetch: int64 [finished | own | record].
    """
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
    """Build the deletion of the records of finished shards, which are marked. Feed: shards [n]. Fetch: n."""
    shards = v1.placeholder(tf.int64, [None], "finish_shards")
    with Locked(state, [shards]) as lock:
        remove = ops.LookupTableRemoveV2(table_handle=state.records, keys=shards)
        mark = insert(state.finished, shards, tf.ones_like(shards)[:, None])
        answer = tf.size(shards, tf.int64)
    return [shards], lock.release(answer, [remove, mark])
