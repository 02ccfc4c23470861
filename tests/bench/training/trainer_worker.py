"""A Stretto worker without a bus: trains whenever it is told to, through the same Trainer that pods use."""

import importlib
import json
import os
import sys
import threading
import time

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}

import tensorflow as tf
from stretto.build import make_program
from stretto.engine import Access, Key, Parameters
from stretto.engine.transfer import Wire
from stretto.model.program import Options
from stretto.worker.look_ahead import LookAhead
from stretto.worker.step import Trainer, Work
from stretto.worker.step_timer import StepTimer

from tests.bench.training.trainer_task import BATCH

# as a pod with one core or less does; four processes share the machine
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(2)

SHARD = BATCH * 200
MODEL = sys.argv[1] if len(sys.argv) > 1 else "tests.bench.training.trainer_task:PooledWideDeep"


def task():
    module, _, name = MODEL.partition(":")
    return getattr(importlib.import_module(module), name)()


class Meter(StepTimer):
    """Notes how long each push was inside a server, with the wait for its turn."""

    def __init__(self):
        super().__init__()
        self.updates_s = []

    def step(self, begun_s, ended_s, samples, times):
        super().step(begun_s, ended_s, samples, times)
        self.updates_s.append(times.update_s)


class Worker:
    def __init__(self, answers):
        self.answers = answers
        self.program = make_program(task(), Options())
        self.program.warm()
        self.until, self.ends, self.losses = 0.0, [], []
        self.meter = Meter()
        self.shard, self.offset = 0, 0
        self.parameters = None
        self.look_ahead = LookAhead()

    def connect(
        self, servers, worker, key, encrypted=False, first_shard=0, pipeline=True, stream=False, wire=None, hints=True
    ):
        if self.parameters is not None:
            self.trainer.close()
            self.parameters.close()
        self.servers = {int(s): a for s, a in servers.items()}
        self.shard, self.offset, self.stream = worker * 1_000_000 + first_shard, 0, stream
        self.parameters = Parameters(
            self.program.layout,
            self.servers,
            worker=worker,
            access=Access(Key.of(key.encode()), encrypted),
            refresh_servers=lambda: dict(self.servers),
            wire=Wire.of("float32", wire or {}),
        )
        if not hints:
            self.parameters.hint = lambda keys: None
        self.parameters.seed(self.program.initial_dense())
        self.meter = Meter()
        self.trainer = Trainer(
            self.program,
            self.parameters,
            BATCH,
            self.meter,
            keep_going=lambda: time.monotonic() < self.until,
            passed=self._passed,
            pipeline=pipeline,
            pipeline_from_step=0,
            look_ahead=self.look_ahead if hints else None,
        )

    def layout(self):
        return {"layout": self.program.layout.to_dict()}

    def train(self, seconds):
        """Begin to train, and answer at once; `collect` waits for the end."""
        self.until, self.ends, self.meter.updates_s = time.monotonic() + seconds, [], []
        self.thread = threading.Thread(target=self._train)
        self.thread.start()

    def _train(self):
        while time.monotonic() < self.until:
            worker, number = divmod(self.shard, 1_000_000)
            self.reached = self.offset
            work = Work(self.shard, 1, (2 * number + worker) * SHARD * self.stream, SHARD, self.offset)
            stopped = self.trainer.train(work)
            if stopped is None:
                self.parameters.forget([self.shard])
                self.shard, self.offset = self.shard + 1, 0
            else:
                self.offset = stopped.offset

    def _passed(self, offset):
        """Note the end of each batch that the servers have: a push may have several."""
        self.ends += [time.monotonic()] * -(-(offset - self.reached) // BATCH)
        self.reached = offset

    def meet(self, servers):
        """Add servers while training."""
        self.servers = {int(s): a for s, a in servers.items()}
        self.parameters.connect(dict(self.servers))

    def stop(self):
        self.until = 0.0

    def collect(self):
        self.thread.join()
        return {"ends": self.ends, "loss": self.trainer.last_loss, "updates_s": self.meter.updates_s}

    def compute_s(self):
        """Return the mean time of computing of the steps since the connection, as a pod tells it."""
        return self.meter.window().times.gradient_s


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = Worker(answers)
    for line in sys.stdin:
        command = json.loads(line)
        answer = getattr(worker, command.pop("do"))(**command)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    os._exit(0)


main()
