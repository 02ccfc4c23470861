"""A trial of a model on one machine: a parameter server and a worker in this process, no bus and no services."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .engine import Access, KeyBatch, Parameters, ParameterServer
from .engine.layout import F32
from .entry import Task, check_reads_partitions, instantiate
from .errors import DataError
from .evaluate import Quality, evaluate
from .meter import Meter, Window
from .model import FIRST_SAMPLES, Options, Program
from .program import make_program
from .training import Trainer, Work

log = logging.getLogger("stretto.local")

_BATCHES_A_SHARD = 16


@dataclass(frozen=True, slots=True)
class Trained:
    """The result of a local run. losses: the loss of the last batch of each shard, in order."""

    quality: Quality | None
    losses: list[float]
    steps: int
    steps_per_s: float
    program: Program

    def model(self) -> Any:
        """The Keras model or PyTorch module with the trained dense parameters."""
        return self.program.model


class Here:
    """A parameter server and a worker that trains on it, both in this process: `with Here(program, 512) as here`."""

    def __init__(
        self,
        program: Program,
        batch_size: int,
        *,
        transfer: Literal["float32", "bfloat16"] = "float32",
        pipeline: bool = True,
    ) -> None:
        self._program = program
        self._shard_size = _BATCHES_A_SHARD * batch_size
        self._server = ParameterServer(0, program.layout)
        self._server.own(range(program.layout.columns))
        access = Access(self._server.key)
        self._parameters = Parameters(
            program.layout, {0: self._server.address}, worker=0, access=access, transfer=transfer
        )
        self._meter = Meter()
        self._trainer = Trainer(program, self._parameters, batch_size, self._meter, pipeline=pipeline)
        self._shards = 0

    def __enter__(self) -> Here:
        self._parameters.seed(self._program.initial_dense(), self._program.initial_state())
        self._program.warm()
        return self

    def __exit__(self, *_: object) -> None:
        self._trainer.close()
        self._parameters.close()
        self._server.close()

    def train(self, start: int, length: int, partition: str = "") -> list[float]:
        """Train samples [start, start + length) once; return the loss of the last batch of each shard.

        Raises ModelRefused and DataError.
        """
        losses: list[float] = []
        for begin in range(start, start + length, self._shard_size):
            size = min(self._shard_size, start + length - begin)
            work = Work(self._shards, 1, begin, size, partition=partition)
            self._shards += 1
            while self._trainer.train(work) is not None:  # no other worker has the lease: resume
                log.info("resuming shard %d", work.shard)
            losses.append(self._trainer.last_loss)
        return losses

    def pull(self, keys: KeyBatch) -> tuple[tuple[F32, ...], F32, F32]:
        """Return rows, dense parameters and state."""
        pulled = self._parameters.pull(keys)
        return pulled.rows, pulled.dense, pulled.state

    def window(self) -> Window:
        """Return the times of the steps since the last window."""
        return self._meter.window()

    def load_into_model(self) -> None:
        """Set the trained dense parameters and the state of the user's model."""
        _, dense, state = self.pull(self._program.no_keys())
        self._program.load_into_model(dense, state)


def train_locally(
    task: Task | type[Any],
    samples: int | Mapping[str, int],
    *,
    arguments: Mapping[str, Any] | None = None,
    batch_size: int = 512,
    evaluate_samples: int = 0,
    optimizer: str = "adagrad",
    learning_rate: float = 0.05,
    embedding_dim: int = 16,
    seed: int = 0,
    row_weights: Literal["float32", "bfloat16"] = "float32",
    transfer: Literal["float32", "bfloat16"] = "float32",
    pipeline: bool = True,
    held_out: str = "",
) -> Trained:
    """Train on samples [0, samples) as a worker of a job would, then evaluate on those that follow.

    task: an object with build() and read(start, length), or a class that is called with ``arguments``.
    samples: a number, or partition -> number, trained in this order; with partitions, ``held_out`` names the one to
    evaluate on.
    Raises ModelRefused and DataError as a job would.
    """
    partitioned = isinstance(samples, Mapping)
    if evaluate_samples and partitioned != bool(held_out):
        raise DataError(
            f"held_out = {held_out!r}: name the partition to evaluate on if samples has partitions, else leave it out"
        )
    made = instantiate(task, arguments or {}, embedding_dim)
    if partitioned:
        check_reads_partitions(made)
    first = next(((name, n) for name, n in samples.items() if n), ("", 0)) if partitioned else ("", samples)
    options = Options(
        optimizer=optimizer,
        learning_rate=learning_rate,
        batch_size=batch_size,
        embedding_dim=embedding_dim,
        seed=seed,
        row_weights=row_weights,
        first_samples=min(FIRST_SAMPLES, first[1]),
        first_partition=first[0],
    )
    program = make_program(made, options)
    with Here(program, batch_size, transfer=transfer, pipeline=pipeline) as here:
        parts = samples.items() if isinstance(samples, Mapping) else [("", samples)]
        losses = [loss for name, count in parts for loss in here.train(0, count, name)]
        window = here.window()
        begin = samples if isinstance(samples, int) else 0
        quality = (
            evaluate(program, here.pull, begin, evaluate_samples, partition=held_out) if evaluate_samples else None
        )
        here.load_into_model()
        return Trained(quality, losses, window.steps_total, 1.0 / max(1e-9, window.step_s), program)
