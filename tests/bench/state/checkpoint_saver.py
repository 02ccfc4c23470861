"""A plain TensorFlow server of the checkpoint benchmark, and the session that saves it: a JSON command per line in, an
answer out."""

import os
import time

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}

import numpy as np
import tensorflow as tf

from tests.bench.processes import answer

v1 = tf.compat.v1


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


COMMANDS = {function.__name__: function for function in (serve, make_variables, saver_save, saver_load)}


answer(COMMANDS)
