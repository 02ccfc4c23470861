"""A trial of a model on one machine: a parameter server and a worker in this process, no bus and no services."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from stretto_parameters import EVERY_KEY, RowPolicy
from stretto_wire.jobspec.spec import PIPELINE_FROM_STEP

from ..batches.feed import Feed
from ..build import make_program
from ..engine import Access, KeyBatch, Parameters, ParameterServer, export_image
from ..engine.layout import F32
from ..engine.transfer import Wire
from ..errors import DataError
from ..export.checkpoint_source import open_checkpoint
from ..export.run import Format, write
from ..export.target import Target
from ..model.entry_point import Task, check_reads_partitions, instantiate
from ..model.evaluate import Pull, Quality, evaluate
from ..model.keys import VALUE_BITS
from ..model.one_step import compare_steps
from ..model.program import FIRST_SAMPLES, Options, Program, ends_in_single
from ..server.image_file import ImageWriter, Part
from ..worker.step import Trainer, Work
from ..worker.step_timer import StepTimer, Window

log = logging.getLogger("stretto.trial")

_BATCHES_A_SHARD = 16
_RESTORED_FLOATS = 2**28
_IDS_AT_ONCE = 2**16


@dataclass(frozen=True, slots=True)
class Trained:
    """The result of a local run. losses: the loss of the last batch of each shard, in order."""

    quality: Quality | None
    losses: list[float]
    steps: int
    steps_per_s: float
    program: Program

    def model(self) -> Any:
        """The Keras model or PyTorch module with the trained dense parameters.

        The embedding layers of an adapted one have their trained weights if these take up to 1 GiB in all.
        """
        return self.program.model


class Here:
    """A parameter server and a worker that trains on it, both in this process: `with Here(program, 512) as here`."""

    def __init__(
        self,
        program: Program,
        batch_size: int,
        *,
        wire: Wire | None = None,
        pipeline: bool = True,
        pipeline_from_step: int = PIPELINE_FROM_STEP,
        feed: Feed | None = None,
    ) -> None:
        self._program = program
        self._shard_size = _BATCHES_A_SHARD * batch_size
        self.server = ParameterServer(0, program.layout)
        self.server.own(range(program.layout.columns))
        access = Access(self.server.key)
        self._parameters = Parameters(program.layout, {0: self.server.address}, worker=0, access=access, wire=wire)
        self._meter = StepTimer()
        self._trainer = Trainer(
            program,
            self._parameters,
            batch_size,
            self._meter,
            pipeline=pipeline,
            pipeline_from_step=pipeline_from_step,
            feed=feed,
        )
        self._shards = 0

    def __enter__(self) -> Here:
        try:
            self._parameters.seed(self._program.initial_dense(), self._program.initial_state())
            self._program.warm()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._trainer.close()
        self._parameters.close()
        self.server.close()

    def train(self, start: int, length: int, partition: str = "") -> list[float]:
        """Train samples [start, start + length) once; return the loss of the last batch of each shard.

        Raises ModelRefused and DataError.
        """
        losses: list[float] = []
        for begin in range(start, start + length, self._shard_size):
            size = min(self._shard_size, start + length - begin)
            before = self._shards * _BATCHES_A_SHARD
            work = Work(self._shards, 1, begin, size, partition=partition, steps_before=before)
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
        self._program.load_into_model(dense, state, self.window().steps_total)


def train_locally(
    task: Task | type[Any],
    samples: int | Mapping[str, int],
    *,
    arguments: Mapping[str, Any] | None = None,
    batch_size: int = 512,
    evaluate_samples: int = 0,
    optimizer: str | Mapping[str, object] = "adagrad",
    learning_rate: float = 0.05,
    embedding_dim: int = 16,
    seed: int = 0,
    row_weights: Literal["float32", "bfloat16"] = "float32",
    rows: RowPolicy = EVERY_KEY,
    transfer: Literal["float32", "bfloat16"] = "float32",
    wire: Mapping[str, Any] | None = None,
    pipeline: bool = True,
    pipeline_from_step: int = PIPELINE_FROM_STEP,
    held_out: str = "",
    export_to: str = "",
    export_format: Format | None = None,
) -> Trained:
    """Train on samples [0, samples) as a worker of a job would, then evaluate on the samples that follow.

    task: an object with build() and read(start, length), or a class that is called with ``arguments``.
    samples: a number, or partition -> number, trained in this order; with partitions, ``held_out`` names the
    partition to evaluate on.
    wire: how values travel, as in `model.wire` of a job file.
    rows: keys that get a row, and how long it stays, as in a job file.
    export_to: a folder or URL for the trained model with its tables, as `stretto export` writes it.
    Raises ModelRefused and DataError as a job would.
    """
    first = _first(samples, held_out if evaluate_samples else None)
    target = Target(export_to) if export_to else None  # before the training, since there may be something
    made = instantiate(task, arguments or {}, embedding_dim)
    if isinstance(samples, Mapping):
        check_reads_partitions(made)
    options = Options(
        optimizer=optimizer,
        learning_rate=learning_rate,
        batch_size=batch_size,
        embedding_dim=embedding_dim,
        seed=seed,
        row_weights=row_weights,
        rows=rows,
        first_samples=min(FIRST_SAMPLES, first[1]),
        first_partition=first[0],
        ends_in_single=ends_in_single(samples.values() if isinstance(samples, Mapping) else [samples], batch_size),
    )
    program = make_program(made, options)
    if left_out := compare_steps(program):
        log.warning("%s", left_out)
    log.info("every parameter is updated by %s", program.updates.told())
    travels = Wire.of(transfer, wire or {})
    with Here(program, batch_size, wire=travels, pipeline=pipeline, pipeline_from_step=pipeline_from_step) as here:
        parts = samples.items() if isinstance(samples, Mapping) else [("", samples)]
        losses = [loss for name, count in parts for loss in here.train(0, count, name)]
        window = here.window()
        begin = samples if isinstance(samples, int) else 0
        quality = (
            evaluate(program, here.pull, begin, evaluate_samples, batch_size, held_out) if evaluate_samples else None
        )
        here.load_into_model()
        if target is not None:
            total = samples if isinstance(samples, int) else sum(samples.values())
            _export(program, here.server, total, window.steps_total, target, export_format)
        if 0 < sum(each.ids * each.dimension for each in program.embeddings) <= _RESTORED_FLOATS:
            program.restore(tables_of(program, here.pull))
        return Trained(quality, losses, window.steps_total, 1.0 / max(1e-9, window.step_s), program)


def _export(
    program: Program, server: ParameterServer, samples: int, steps: int, target: Target, format: Format | None
) -> None:
    """Take a checkpoint of the server, and export it as a job's checkpoint is exported."""
    with target, tempfile.TemporaryDirectory() as folder:
        image, manifest = Path(folder, "local.image"), Path(folder, "manifest.json")
        with open(image, "wb") as file:
            writer = ImageWriter(file)
            exported = export_image(server.store, writer)
            size, digest = writer.finish(exported.manifest)
        columns = tuple(exported.manifest["columns"])
        part = Part("ps-0", image.name, f"file://{image}", size, digest, columns)
        document = {"id": "local", "job": "local", "samples": samples, "parts": [asdict(part)]}
        manifest.write_text(json.dumps(document))
        write(program, open_checkpoint(f"file://{manifest}"), target, steps, format)


def _first(samples: int | Mapping[str, int], held_out: str | None) -> tuple[str, int]:
    """Return the first partition with samples, and their number. held_out: None where nothing is evaluated."""
    if held_out is not None and isinstance(samples, Mapping) != bool(held_out):
        raise DataError(
            f"held_out = {held_out!r}: name the partition to evaluate on if samples has partitions, else leave it out"
        )
    if not isinstance(samples, Mapping):
        return "", samples
    return next(((name, count) for name, count in samples.items() if count), ("", 0))


def tables_of(program: Program, pull: Pull) -> dict[str, F32]:
    """Return the trained weights of an adapted model's embedding layers: [ids, dimension] by layer."""
    found: dict[str, F32] = {}
    for each in program.embeddings:
        weights = np.empty((each.ids, each.dimension), np.float32)
        for begin in range(0, each.ids, _IDS_AT_ONCE):
            part = slice(begin, min(begin + _IDS_AT_ONCE, each.ids))
            keys = [np.zeros(0, np.int64) for _ in program.layout.tables]
            keys[each.table] = np.arange(part.start, part.stop) | each.field << VALUE_BITS
            batch = program.layout.index(*keys)
            weights[part] = pull(batch)[0][each.table][batch.tables[each.table].inverse]
        found[each.layer] = each.whole(np.arange(each.ids), weights)
    return found
