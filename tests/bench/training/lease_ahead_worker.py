"""A worker of a dispatcher's job with one parameter server, and no other service: it trains when it is told to."""

import json
import os
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}

import tensorflow as tf
from stretto.batches.feed import Feed
from stretto.build import make_program
from stretto.engine import Access, Key, Parameters
from stretto.model.program import Options
from stretto.pod.bus import PodBus
from stretto.pod.tracing import PodTracing
from stretto.worker.agent import Worker
from stretto_messages.dispatcher import NextShard
from stretto_wire.jobspec.spec import JobSpec

from tests.bench.training.trainer_task import BATCH, PooledWideDeep

# as a pod with one core or less does
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(2)

READ_S = 0.005
POD = "worker-0"


class Stored(PooledWideDeep):
    """A reader that waits for a store, which costs no CPU."""

    def read(self, start, length):
        time.sleep(READ_S)
        return super().read(start, length)


class WithoutAhead:
    """The bus of a worker of before: it asks for no shard ahead."""

    def __init__(self, bus):
        self._bus = bus

    def __getattr__(self, name):
        return getattr(self._bus, name)

    def call(self, request, *arguments, **named):
        if isinstance(request, NextShard):
            request = replace(request, ahead=False)
        return self._bus.call(request, *arguments, **named)


class Bench:
    def __init__(self):
        self.program = make_program(Stored(), Options())
        self.program.warm()

    def connect(self, servers, url, batches, key, encrypted=False):
        self.job, self.batches = f"lease-{batches}", batches
        self.bus = PodBus(url, self.job, POD, PodTracing(self.job, POD, None))
        self.bus.connect()
        addresses = {int(server): address for server, address in servers.items()}
        access = Access(Key.of(key.encode()), encrypted)
        self.parameters = Parameters(
            self.program.layout, addresses, worker=0, access=access, refresh_servers=lambda: addresses
        )
        self.parameters.seed(self.program.initial_dense(), self.program.initial_state())
        return {}

    def train(self, pipeline, is_ahead, seconds):
        spec = JobSpec.parse(
            {
                "name": self.job,
                "model": {"entry": "none:None", "pipeline": pipeline, "pipeline_from_step": 0},
                "dataset": {"samples": 10**12, "batch_size": BATCH, "batches_per_shard": self.batches},
            }
        )
        pod = SimpleNamespace(
            leaving=threading.Event(),
            bus=self.bus if is_ahead else WithoutAhead(self.bus),
            settings=SimpleNamespace(spec=spec, plan_version=1, cpu_cores=1.0),
            tracing=PodTracing(self.job, POD, None),
        )
        worker = Worker(pod)
        worker.program, worker._parameters, worker._seeded = self.program, self.parameters, self.parameters.generation
        worker._servers = SimpleNamespace(wait_for=lambda *_: True)
        worker._feed = Feed(self.program)
        timer = threading.Timer(seconds, pod.leaving.set)
        begun_s, begun_cpu_s = time.monotonic(), time.process_time()
        timer.start()
        worker._train()
        took_s = time.monotonic() - begun_s
        window = worker._meter.window()
        worker._feed.close()
        return {"rate": window.steps_total / took_s, "cpu_ms": 1e3 * (time.process_time() - begun_cpu_s) / window.steps}


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    bench = Bench()
    for line in sys.stdin:
        command = json.loads(line)
        answers.write(json.dumps(getattr(bench, command.pop("do"))(**command)) + "\n")
        answers.flush()
    os._exit(0)


main()
