"""The baseline: TensorFlow's ParameterServerStrategy on the same model, batches and optimiser.

The baseline is as fast as possible: a table allocated beforehand for exactly the ids that occur, split over the
servers, ids numbered beforehand, gradients summed per unique id, and the fused Adagrad kernels.

    trainer_strategy.py ps|worker INDEX CLUSTER     a plain tf.distribute.Server
    trainer_strategy.py chief 0 CLUSTER             the coordinator; answers {"do": "train", "steps": n} lines
"""

import json
import os
import sys
import time

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}

import numpy as np
import tensorflow as tf
from stretto.build import make_program
from stretto.model.program import Options

from tests.bench.training.trainer_task import BATCH, PooledWideDeep


class Coordinator:
    def __init__(self, cluster):
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(cluster), task_type="chief", task_id=0, rpc_layer="grpc"
        )
        self.strategy = tf.distribute.ParameterServerStrategy(resolver)
        # only now: variables made before the strategy connects are lost
        self.program = make_program(PooledWideDeep(), Options())
        layout = self.program.layout
        self.optimizer, self.dimension = layout.optimizer, layout.tables[0].dimension
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(self.strategy)
        task = self.program.task
        ids, categories = task.dense_ids()
        self.servers = len(cluster["ps"])
        self._variables(-(-categories // self.servers))
        samples = (ids, task.pool["numeric"].astype(np.float32), task.pool["label"].astype(np.float32))

        def dataset():
            # kept on the worker, like the arrays of the other side
            return tf.data.Dataset.from_tensor_slices(samples).batch(BATCH).cache().repeat().prefetch(4)

        self.batches = iter(self.coordinator.create_per_worker_dataset(dataset))
        self.step = tf.function(self._step)

    def _variables(self, rows):
        with self.strategy.scope():  # places variables on the servers in turn
            self.tables = [
                tf.Variable(tf.random.uniform([rows, self.dimension], -0.05, 0.05)) for _ in range(self.servers)
            ]
            self.table_slots = [
                tf.Variable(tf.fill([rows, self.dimension], self.optimizer.initial_accumulator))
                for _ in range(self.servers)
            ]
            self.dense = [tf.Variable(v.numpy()) for v in self.program.model.trainable_variables]
            self.dense_slots = [tf.Variable(tf.fill(v.shape, self.optimizer.initial_accumulator)) for v in self.dense]

    def _step(self, batches):
        return self.strategy.run(self._replica, args=next(batches))

    def _replica(self, ids, numeric, label):
        unique, inverse = tf.unique(tf.reshape(ids, [-1]))
        server = tf.cast(unique % self.servers, tf.int32)
        parts = tf.dynamic_partition(unique // self.servers, server, self.servers)
        places = tf.dynamic_partition(tf.range(tf.size(unique)), server, self.servers)
        rows = tf.dynamic_stitch(
            places, [tf.gather(table, part) for table, part in zip(self.tables, parts, strict=True)]
        )
        values = [tf.identity(v) for v in self.dense]
        with tf.GradientTape() as tape:
            tape.watch([rows, *values])
            gathered = tf.reshape(tf.gather(rows, inverse), [-1, ids.shape[1], self.dimension])
            output, _ = self.program.model.stateless_call(values, [], [gathered, numeric], training=True)
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(label[:, None], output))
        of_rows, *of_dense = tape.gradient(loss, [rows, *values])
        of_rows = tf.convert_to_tensor(of_rows)
        for table, slot, part, place in zip(self.tables, self.table_slots, parts, places, strict=True):
            tf.raw_ops.ResourceSparseApplyAdagradV2(
                var=table.handle, accum=slot.handle, lr=self.optimizer.learning_rate, epsilon=self.optimizer.epsilon,
                grad=tf.gather(of_rows, place), indices=part,
            )  # fmt: skip
        for variable, slot, gradient in zip(self.dense, self.dense_slots, of_dense, strict=True):
            tf.raw_ops.ResourceApplyAdagradV2(
                var=variable.handle, accum=slot.handle, lr=self.optimizer.learning_rate,
                epsilon=self.optimizer.epsilon, grad=gradient,
            )  # fmt: skip
        return loss

    def train(self, steps):
        begun = time.monotonic()
        for _ in range(steps):
            loss = self.coordinator.schedule(self.step, args=(self.batches,))
        self.coordinator.join()
        return {"seconds": time.monotonic() - begun, "loss": float(loss.fetch())}


def main():
    role, index, cluster = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if role != "chief":
        # one thread per operation, as on the other side; one thread in all sometimes hangs this strategy
        config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1)
        server = tf.distribute.Server(tf.train.ClusterSpec(cluster), role, index, protocol="grpc", config=config)
        answers.write("{}\n")
        answers.flush()
        server.join()
    coordinator = Coordinator(cluster)
    for line in sys.stdin:
        answers.write(json.dumps(coordinator.train(json.loads(line)["steps"])) + "\n")
        answers.flush()
    os._exit(0)


main()
