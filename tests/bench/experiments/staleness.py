"""The cost of stale gradients: the same samples, trained with fresher and with older parameters.

python -m tests.bench.experiments.staleness [samples]        minutes; not part of `make bench`

First one process that applies each gradient a fixed number of updates late (no concurrency, hence repeatable), then
three worker processes on one parameter server, with and without the pipeline of a worker's step.
"""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
import time
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.bench.places import ROOT
from tests.bench.processes import OURS, Servers

SAMPLES = 5_400_000  # as in the demonstration
HELD_OUT = 20_480
BATCH, SHARD = 512, 16 * 512
LEARNING_RATE = 0.05
WORKERS = 3


def program(samples: int, seed: int = 7, admit: int = 1) -> Any:
    from stretto.build import make_program
    from stretto.examples.wide_deep import WideDeep
    from stretto.model.entry_point import instantiate
    from stretto.model.program import Options
    from stretto_parameters import RowPolicy

    dataset = {"samples": samples, "categories": 60_000, "new_categories": samples * 22 // 54, "seed": 7}
    options = Options(learning_rate=LEARNING_RATE, seed=seed, rows=RowPolicy(admit))
    return make_program(instantiate(WideDeep, dataset, 16), options)


def quality(model: Any, parameters: Any, samples: int) -> dict[str, float]:
    from stretto.model.evaluate import evaluate

    def pull(keys: Any) -> Any:
        pulled = parameters.pull(keys)
        return pulled.rows, pulled.dense, pulled.state

    found = evaluate(model, pull, samples, HELD_OUT, 4096)
    return {"loss": found.loss, "auc": found.auc}


def delayed(samples: int, delay: int, seed: int = 7, admit: int = 1, warm_in_bytes: int = 0) -> dict[str, Any]:
    """Train in one process, which applies the gradient of every step `delay` steps later.

    admit: the sight at which a key gets its row. warm_in_bytes: memory for rows, which round what finds no room; 0: as
    much as they take.
    """
    from stretto.engine import Access, Parameters, ParameterServer, Spill

    model = program(samples, seed, admit)
    spill = Spill(None, 0, lambda _: warm_in_bytes, warms=True) if warm_in_bytes else None
    server = ParameterServer(0, model.layout, spill=spill)
    server.own(range(model.layout.columns))
    parameters = Parameters(model.layout, {0: server.address}, worker=0, access=Access(server.key))
    parameters.seed(model.initial_dense(), model.initial_state())
    waiting: collections.deque[Any] = collections.deque()

    def push(keys: Any, gradients: Any, step: int) -> None:
        parameters.push(keys, gradients.rows, gradients.dense, shard=0, attempt=1, start=step, stop=step + 1)

    begun = time.monotonic()
    for step in range(samples // BATCH):
        batch = model.read(step * BATCH, BATCH)
        keys = model.index(batch)
        pulled = parameters.pull(keys)
        waiting.append((keys, model.step(pulled.rows, keys, pulled.dense, pulled.state, batch), step))
        if len(waiting) > delay:
            push(*waiting.popleft())
    seconds = time.monotonic() - begun
    for late in waiting:
        push(*late)
    measured = {"samples_per_s": samples / seconds, "rows": server.store.categories()}
    if tiers := server.store.unlocked.tiers:
        measured |= {"warm": tiers.counts().warm_rows, "dozed": tiers.counts().rows_dozed}
    return {**measured, "bytes": server.store.memory_bytes(), **quality(model, parameters, samples)}


def work(samples: int, address: str, index: int, pipeline: bool) -> None:
    """Run a worker: read the job's key, then train the shards whose numbers come on the input, and answer each."""
    import tensorflow as tf
    from stretto.engine import Access, Key, Parameters
    from stretto.worker.step import Trainer, Work
    from stretto.worker.step_timer import StepTimer

    tf.config.threading.set_intra_op_parallelism_threads(1)  # like a pod with one core or less
    model = program(samples)
    access = Access(Key.of(json.loads(sys.stdin.readline()).encode()))
    parameters = Parameters(model.layout, {0: address}, worker=index, access=access)
    parameters.seed(model.initial_dense(), model.initial_state())
    model.warm()
    trainer = Trainer(model, parameters, BATCH, StepTimer(), pipeline=pipeline, pipeline_from_step=0)
    print("ready", flush=True)
    for line in sys.stdin:
        shard = int(line)
        if trainer.train(Work(shard, 1, shard * SHARD, SHARD)) is not None:
            raise RuntimeError(f"shard {shard} was not trained to its end")
        print(shard, flush=True)


def concurrent(samples: int, pipeline: bool) -> dict[str, Any]:
    """Train with WORKERS processes on one server; each gets the next shard when it ends one."""
    import selectors

    from stretto.engine import Access, Key, Parameters

    servers = Servers(OURS)
    servers.start()
    servers.place()
    job_key = servers.access["key"]
    workers = [child("work", samples, servers.addresses[0], index, int(pipeline)) for index in range(WORKERS)]
    try:
        for worker in workers:
            worker.stdin.write(json.dumps(job_key) + "\n")
            worker.stdin.flush()
        for worker in workers:
            worker.stdout.readline()
        shards, training = iter(range(samples // SHARD)), 0
        begun = time.monotonic()
        with selectors.DefaultSelector() as selector:
            for worker in workers:
                selector.register(worker.stdout, selectors.EVENT_READ, worker)
                training += give(worker, shards)
            while training:
                for key, _ in selector.select():
                    if not key.data.stdout.readline():
                        raise RuntimeError(f"a worker ended with status {key.data.wait()}")
                    training += give(key.data, shards) - 1
        seconds = time.monotonic() - begun
        model = program(samples)
        access = Access(Key.of(job_key.encode()))
        parameters = Parameters(model.layout, servers.addresses, worker=WORKERS, access=access)
        return {"samples_per_s": samples / seconds, **quality(model, parameters, samples)}
    finally:
        for process in workers:
            process.kill()
        servers.kill()


def give(worker: Any, shards: Any) -> int:
    """Give the worker the next shard; return 1, or 0 if there is none left."""
    shard = next(shards, None)
    if shard is None:
        return 0
    worker.stdin.write(f"{shard}\n")
    worker.stdin.flush()
    return 1


def child(*arguments: object, module: str = "tests.bench.experiments.staleness") -> Any:
    command = [sys.executable, "-m", module, *map(str, arguments)]
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip


def measured(*arguments: object, module: str = "tests.bench.experiments.staleness") -> dict[str, Any]:
    """Measure in a separate process, so that each begins with nothing."""
    process = child(*arguments, module=module)
    answer = process.stdout.readline()
    process.kill()
    if not answer:
        raise RuntimeError(f"measurement {arguments} ended with status {process.wait()}")
    return json.loads(answer)


def main(samples: int) -> None:
    shown = Table(title=f"Wide & Deep, Adagrad {LEARNING_RATE}, {samples:,} samples, {HELD_OUT:,} held out")
    for column in ("gradients", "samples/s", "loss", "AUC"):
        shown.add_column(column, justify="left" if column == "gradients" else "right")
    rows = [(f"{delay} updates late", ("delayed", samples, delay)) for delay in (0, 2, 5, 8)]
    rows += [
        (f"{WORKERS} workers, {'pipeline' if pipeline else 'no pipeline'}", ("concurrent", samples, pipeline))
        for pipeline in (0, 1)
    ]
    for name, arguments in rows:
        found = measured(*arguments)
        shown.add_row(name, f"{found['samples_per_s']:,.0f}", f"{found['loss']:.4f}", f"{found['auc']:.4f}")
    Console().print(shown)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["work", samples, address, index, pipeline]:
            work(int(samples), address, int(index), pipeline == "1")
        case ["delayed", *numbers]:
            print(json.dumps(delayed(*map(int, numbers))), flush=True)
        case ["concurrent", samples, pipeline]:
            print(json.dumps(concurrent(int(samples), pipeline == "1")), flush=True)
        case rest:
            main(int(rest[0]) if rest else SAMPLES)
