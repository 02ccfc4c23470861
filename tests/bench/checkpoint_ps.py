"""One parameter server of the checkpoint benchmark: a JSON command per line in, a JSON answer per line out.

``ours``: the real engine and its exports. ``theirs``: a plain TensorFlow server, and the session that saves it.
"""

import json
import os
import sys
import time
from pathlib import Path

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}

import fsspec
import numpy as np
import tensorflow as tf
from fsspec.implementations.local import LocalFileSystem
from stretto.engine import Layout, ParameterServer
from stretto.engine.link import Link
from stretto.engine.state import DEVICE, build_state, insert
from stretto.exports import Exports

v1 = tf.compat.v1
COPIED_BYTES = 2**28
SLOW_BYTES_PER_S = 100e6


class SlowStore(LocalFileSystem):
    """A stand-in for a remote store: files of this disk at a limited rate."""

    protocol = "slow"

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.removeprefix("slow://") if isinstance(path, str) else path)

    def cat_file(self, path, start=None, end=None, **options):
        begun = time.perf_counter()
        data = super().cat_file(path, start, end, **options)
        return throttled(data, begun)

    def _open(self, path, mode="rb", **options):
        file = super()._open(path, mode, **options)
        write = file.write
        file.write = lambda data: (throttled(data, time.perf_counter()), write(data))[1]
        return file


def throttled(data, begun):
    time.sleep(max(0.0, len(data) / SLOW_BYTES_PER_S - (time.perf_counter() - begun)))
    return data


fsspec.register_implementation("slow", SlowStore)


def start(state, index, layout, folder):
    state["layout"] = Layout.from_dict(layout)
    state["ps"] = ps = ParameterServer(index, state["layout"], threads=1)
    state["exports"] = Exports("bench", f"ps-{index}", ps.control, pod_folder=Path(folder))
    return {"address": ps.address}


def fill(state, columns, rows):
    """Insert ``rows`` rows into each bucket of ``columns``: tables grow as in training."""
    ps, layout = state["ps"], state["layout"]
    graph = tf.Graph()
    with graph.as_default(), tf.device(DEVICE):
        bucket, keys = v1.placeholder(tf.int64, []), v1.placeholder(tf.int64, [None])
        values = v1.placeholder(tf.float32, [None, layout.row_floats])
        with tf.control_dependencies([insert(tf.gather(tf.stack(build_state(layout).tables), bucket), keys, values)]):
            done = tf.size(keys)
    link = Link(graph, ps.index, ps.address, 60.0)
    put = link.callable(done, [bucket, keys, values])
    random = np.random.default_rng(ps.index)
    ps.own(columns)
    low = 2**64 // layout.buckets
    for column in (c for c in columns if c < layout.buckets):
        stored = (random.integers(0, low, rows, np.uint64) + np.uint64(column * low)).view(np.int64)
        put(column, stored, random.random((rows, layout.row_floats), np.float32))
    link.close()
    return {"rows": ps.control.categories(), "room": state["exports"].room_bytes()}


def save(state, name, store, memory):
    begun, cpu_s = time.perf_counter(), time.process_time()
    export = state["exports"].begin(name, "", store, memory)
    saved_s, cpu_s = time.perf_counter() - begun, time.process_time() - cpu_s
    while (status := state["exports"].status(name))[0] not in ("stored", "failed"):
        time.sleep(0.005)
    if status[0] == "failed":
        raise OSError(status[2])
    stored_s = time.perf_counter() - begun
    return {
        "bytes": export.part.size_bytes,
        "memory": export.memory is not None,
        "saved_s": saved_s,
        "cpu_s": cpu_s,
        "stored_s": stored_s,
        "pause_s": export.pause_s,
        "part": json.loads(status[1]),
    }


def load(state, manifest, columns):
    begun, cpu_s = time.perf_counter(), time.process_time()
    size = state["exports"].load(manifest, columns)
    return {"seconds": time.perf_counter() - begun, "cpu_s": time.process_time() - cpu_s, "bytes": size}


def checksum(state):
    return {"checksum": state["ps"].control.checksum(), "rows": state["ps"].control.categories()}


def copy(state):
    """Measure the bytes a second that this process copies between two touched arrays."""
    source, target = np.ones(COPIED_BYTES // 8), np.zeros(COPIED_BYTES // 8)
    seconds = []
    for _ in range(4):
        begun = time.perf_counter()
        np.copyto(target, source)
        seconds.append(time.perf_counter() - begun)
    return {"bytes_per_s": COPIED_BYTES / sorted(seconds)[1]}


def serve(state):
    v1.disable_v2_behavior()
    config = v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    cluster = tf.train.ClusterSpec({"ps": ["127.0.0.1:0"]})
    state["server"] = server = tf.distribute.Server(cluster, job_name="ps", task_index=0, config=config)
    return {"address": server.target.removeprefix("grpc://")}


def make_variables(state, count, shape):
    """Make variables of as many bytes as the rows have, and a Saver of them."""
    state["graph"] = graph = tf.Graph()
    with graph.as_default(), tf.device("/job:ps/task:0/cpu:0"):
        held = [v1.get_variable(f"v{i}", shape, initializer=v1.random_uniform_initializer(), use_resource=False)
                for i in range(count)]  # fmt: skip
        state["saver"] = v1.train.Saver(held)
        first = v1.global_variables_initializer()
    state["session"] = v1.Session(state["server"].target, graph=graph)
    state["session"].run(first)
    return {"bytes": 4 * count * int(np.prod(shape))}


def saver_save(state, path):
    begun = time.perf_counter()
    state["saver"].save(state["session"], path, write_meta_graph=False)
    return {"seconds": time.perf_counter() - begun}


def saver_load(state, path):
    begun = time.perf_counter()
    state["saver"].restore(state["session"], path)
    return {"seconds": time.perf_counter() - begun}


COMMANDS = {
    function.__name__: function
    for function in (start, fill, save, load, checksum, copy, serve, make_variables, saver_save, saver_load)
}


def main():
    state = {}
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        command = json.loads(line)
        print(json.dumps(COMMANDS[command.pop("do")](state, **command)), file=answers, flush=True)
    os._exit(0)


main()
