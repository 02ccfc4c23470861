"""The memory model against TensorFlow's own hash tables: does resident memory follow the slots?"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from stretto_core.oom import Estimate, ServerUsage, bytes_at, fit_row_cost

ROW_FLOATS, BUCKETS, SLOTS = 32, 64, 256
ROW_BYTES = 8 + 4 * ROW_FLOATS

GROW = f"""
import json, numpy as np, psutil, tensorflow as tf
ops, process, rng = tf.raw_ops, psutil.Process(), np.random.default_rng(0)
with tf.Graph().as_default():
    keys = tf.compat.v1.placeholder(tf.int64, [None])
    rows = tf.compat.v1.placeholder(tf.float32, [None, {ROW_FLOATS}])
    inserts = [
        ops.LookupTableInsertV2(
            table_handle=ops.MutableDenseHashTableV2(
                empty_key=tf.constant(-(2**63), tf.int64), deleted_key=tf.constant(1 - 2**63, tf.int64),
                value_dtype=tf.float32, value_shape=[{ROW_FLOATS}], initial_num_buckets={SLOTS}, shared_name=str(b),
            ), keys=keys, values=rows)
        for b in range({BUCKETS})
    ]
    session, total = tf.compat.v1.Session(), 0
    for step in range(22):
        for insert in inserts:
            count = int(rng.poisson(700))
            new = rng.integers(1, 2**62, count)
            session.run(insert, {{keys: new, rows: np.ones((count, {ROW_FLOATS}), "f4")}})
            total += count
        print(json.dumps([total, process.memory_info().rss]))
"""


@pytest.mark.slow
def test_resident_memory_follows_the_slots_of_the_tables() -> None:
    """From the first half of the growth, the doubling in the second half is foreseen to a tenth of the process."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    ran = subprocess.run([sys.executable, "-c", GROW], env=environment, capture_output=True, text=True, timeout=240)
    measured = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("[")]
    assert len(measured) == 22, ran.stderr[-2000:]
    server = ServerUsage()
    for rows, used_bytes in measured[:15]:
        server.add(rows, used_bytes, 2**40, BUCKETS)
    cost = fit_row_cost([server], ROW_BYTES, SLOTS)
    assert 0.9 * ROW_BYTES <= cost.bytes <= 1.5 * ROW_BYTES
    rows, used_bytes = measured[-1]
    assert used_bytes > 1.12 * measured[14][1]
    assert rows < 1.6 * measured[14][0]
    new = rows - server.rows
    foreseen = bytes_at(server, Estimate(new, new, new), cost)
    assert foreseen.mean == pytest.approx(used_bytes, rel=0.1)
    # the interval is of the growth; of what is resident, TensorFlow's threads and the kernel hold back or keep from run
    # to run what the fit cannot know: with other work beside it -4 % to +7 % were measured
    assert 0.9 * foreseen.low <= used_bytes <= 1.1 * foreseen.high
