"""Graph builders for raw copies of columns together with their progress."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from .state import Locked, State, find, gather, insert, now_us, ops, read, scatter, v1


def bucket_copies(state: State) -> dict[str, tuple[list[Any], Any]]:
    bucket = v1.placeholder(tf.int64, [], "bucket")
    limit = v1.placeholder(tf.int64, [], "limit")
    # the rank of the keys stays open: a DenseHashTable exports them as [n, 1]
    keys = v1.placeholder(tf.int64, None, "keys")
    rows = v1.placeholder(tf.float32, None, "rows")
    handle = tf.gather(tf.stack(state.tables), bucket)
    out_keys, out_rows = ops.LookupTableExportV2(table_handle=handle, Tkeys=tf.int64, Tvalues=tf.float32)
    with tf.control_dependencies([ops.LookupTableImportV2(table_handle=handle, keys=keys, values=rows)]):
        imported = tf.size(keys)
    return {
        "export": ([bucket, limit], [out_keys[:limit], out_rows[:limit]]),
        "import": ([bucket, keys, rows], imported),
    }


def slice_copies(state: State) -> dict[str, tuple[list[Any], Any]]:
    ids = v1.placeholder(tf.int64, [None], "slice_ids")
    handles = [state.dense, *state.dense_slots]
    values = [v1.placeholder(tf.float32, [None, None], f"slice_values{i}") for i in range(len(handles))]
    seeded = v1.placeholder(tf.int64, [None], "slice_seeded")
    extra = v1.placeholder(tf.float32, [None], "slice_state")
    out = [gather(handle, ids) for handle in handles]
    out += [gather(state.seeded, ids, tf.int64), read(state.state, tf.float32)]
    with Locked(state, [ids, *values, seeded, extra]) as lock:
        has_first = tf.reduce_any(tf.equal(ids, 0))
        writes = [scatter(handle, ids, value) for handle, value in zip(handles, values, strict=True)]
        writes.append(scatter(state.seeded, ids, seeded))
        old = read(state.state, tf.float32)
        writes.append(ops.AssignVariableOp(resource=state.state, value=tf.where(has_first, extra, old)))
        answer = tf.size(ids)
    return {"get_slices": ([ids], out), "set_slices": ([ids, *values, seeded, extra], lock.release(answer, writes))}


def snapshots(state: State, take: Callable[[Any, Any], Any]) -> dict[str, tuple[list[Any], Any]]:
    """Build copies under the mutex. `take` gets a bucket's live keys and rows, in the server's own process only."""
    bucket = v1.placeholder(tf.int64, [], "snapshot_bucket")
    ids = v1.placeholder(tf.int64, [None], "snapshot_ids")
    known = v1.placeholder(tf.int64, [], "snapshot_known")
    handle = tf.gather(tf.stack(state.tables), bucket)

    def progress() -> list[Any]:
        finished = tf.cond(  # marks are never removed: an equal number means the same marks
            tf.equal(ops.LookupTableSizeV2(table_handle=state.finished), known),
            lambda: tf.zeros([0], tf.int64),
            lambda: ops.LookupTableExportV2(table_handle=state.finished, Tkeys=tf.int64, Tvalues=tf.int64)[0],
        )
        return [
            *ops.LookupTableExportV2(table_handle=state.records, Tkeys=tf.int64, Tvalues=tf.int64),
            finished,
            read(state.samples),
            read(state.fingerprints),
        ]

    def held(begun_us: Any, outputs: list[Any]) -> Any:
        """Return the microseconds that the copy held the mutex."""
        with tf.control_dependencies(outputs):
            return now_us() - begun_us

    with Locked(state, [handle, known]) as lock:
        begun_us = now_us()
        # An export is a view of the live table, so it is copied before the mutex is released. NumPy copies it into
        # memory that was used before: the allocation by TensorFlow would cost more than the copy.
        with tf.control_dependencies([begun_us]):  # else the clock may be read after the export
            raw = ops.LookupTableExportV2(table_handle=handle, Tkeys=tf.int64, Tvalues=tf.float32)
        outputs = [tf.numpy_function(take, list(raw), tf.int64), *progress()]
        bucket_out = lock.release_all([held(begun_us, outputs), *outputs])
    with Locked(state, [ids, known]) as lock:
        begun_us = now_us()
        handles = [state.dense, *state.dense_slots]
        with tf.control_dependencies([begun_us]):
            outputs = [*(gather(h, ids) for h in handles), gather(state.seeded, ids, tf.int64)]
        outputs += [ops.DeepCopy(x=read(state.state, tf.float32)), *progress()]
        slices_out = lock.release_all([held(begun_us, outputs), *outputs])
    return {"snapshot_bucket": ([bucket, known], bucket_out), "snapshot_slices": ([ids, known], slices_out)}


def merging(state: State) -> tuple[list[Any], Any]:
    columns = state.layout.columns
    buckets = state.layout.buckets
    mask = v1.placeholder(tf.bool, [columns], "merge_mask")
    shards = v1.placeholder(tf.int64, [None], "merge_shards")
    records = v1.placeholder(tf.int64, [None, state.record_width], "merge_records")
    samples = v1.placeholder(tf.int64, [columns], "merge_samples")
    fingerprints = v1.placeholder(tf.int64, [columns], "merge_fingerprints")
    with Locked(state, [mask, shards, records, samples, fingerprints]) as lock:
        mine = find(state.records, shards, tf.zeros([state.record_width], tf.int64))
        is_finished = find(state.finished, shards, tf.zeros([1], tf.int64))[:, 0]
        merged = tf.concat(
            [
                tf.where(mask[None], records[:, :columns], mine[:, :columns]),
                tf.maximum(records[:, columns], mine[:, columns])[:, None],
                tf.where(mask[buckets], records[:, columns + 1 :], mine[:, columns + 1 :]),
            ],
            1,
        )
        live = tf.where(tf.equal(is_finished, 0))[:, 0]
        old_samples = read(state.samples)
        old_fingerprints = read(state.fingerprints)
        writes = [
            insert(state.records, tf.gather(shards, live), tf.gather(merged, live)),
            ops.AssignVariableOp(resource=state.samples, value=tf.where(mask, samples, old_samples)),
            ops.AssignVariableOp(resource=state.fingerprints, value=tf.where(mask, fingerprints, old_fingerprints)),
        ]
        answer = tf.size(shards, tf.int64)
    return [mask, shards, records, samples, fingerprints], lock.release(answer, writes)
